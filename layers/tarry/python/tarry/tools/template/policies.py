"""The policies of roles and queues in a template: what they allow its functions."""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tarry.tools.template.document import listed
from tarry.tools.template.intrinsics import Intrinsics, Reference, references
from tarry.tools.template.model import Permissions, Statement, TemplateError
from tarry.tools.template.values import Resources

ATTACHED_TYPES = ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy")
"""The types of policies that name the roles to which they are attached."""
QUEUE_POLICY_TYPES = ("AWS::SQS::QueuePolicy", "AWS::SQS::QueueInlinePolicy")

READ_AND_DELETE = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
MANAGED: Mapping[str, tuple[str, ...]] = {
    "AdministratorAccess": ("*",),
    "PowerUserAccess": ("*",),
    "AmazonSQSFullAccess": ("sqs:*",),
    "AmazonSQSReadOnlyAccess": ("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:List*"),
    "AmazonDynamoDBFullAccess": ("dynamodb:*",),
    "AmazonDynamoDBReadOnlyAccess": ("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:Scan"),
    "AWSLambdaSQSQueueExecutionRole": READ_AND_DELETE,
    **dict.fromkeys(
        (
            "AWSLambdaBasicExecutionRole",
            "AWSLambdaVPCAccessExecutionRole",
            "AWSXRayDaemonWriteAccess",
            "AWSXrayWriteOnlyAccess",
            "AmazonS3FullAccess",
            "AmazonS3ReadOnlyAccess",
            "CloudWatchLambdaInsightsExecutionRolePolicy",
        ),
        (),
    ),
}
"""The actions on SQS and DynamoDB that AWS's managed policies allow, by name. With another one, they are not known."""


def permissions_of(role: Any, resources: Resources, written: Container[str], scope: Intrinsics) -> Permissions | None:
    """Return what the role of a function allows on queues; None if the template does not show all of it.

    A statement with a condition, an exception, or a resource that is known only at AWS counts as allowing. ``written``
    are the logical ids of the resources as written; SAM made the others.
    """
    try:
        [reference] = references(scope.resolve(role, "Role"))
        name = reference.name
        if resources[name]["Type"] != "AWS::IAM::Role":
            return None
        found = [each for document in _documents(name, resources, scope) for each in statements_of(document)]
        found += _of_queues(resources, scope)
    except (TemplateError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return Permissions(tuple(found), name if name in written else None)


def _documents(role: str, resources: Resources, scope: Intrinsics) -> Iterator[Mapping[str, Any]]:
    """Yield the policy documents of a role. Raises an error if one of them is not in the template."""
    properties = resources[role].get("Properties") or {}
    for policy in scope.resolve(properties.get("Policies") or [], role):
        yield policy["PolicyDocument"]
    for arn in scope.resolve(properties.get("ManagedPolicyArns") or [], role):
        if isinstance(arn, str):
            yield {"Statement": {"Effect": "Allow", "Action": list(MANAGED[arn.rpartition("/")[2]]), "Resource": "*"}}
        else:
            [reference] = references(arn)
            yield _document(resources[reference.name], scope)
    for resource in resources.values():
        if resource["Type"] in ATTACHED_TYPES:
            attached = resource["Properties"].get("Roles", resource["Properties"].get("RoleName", []))
            roles = listed(scope.resolve(attached, "Roles"))
            if any(references(each) in ([], [Reference(role)]) for each in roles):
                yield _document(resource, scope)


def _document(resource: Mapping[str, Any], scope: Intrinsics) -> Mapping[str, Any]:
    document: Mapping[str, Any] = scope.resolve(resource["Properties"]["PolicyDocument"], "PolicyDocument")
    return document


def _of_queues(resources: Resources, scope: Intrinsics) -> Iterator[Statement]:
    """Yield the statements of queue policies; within an account, they suffice without a policy of the role."""
    for resource in resources.values():
        if resource["Type"] in QUEUE_POLICY_TYPES:
            for statement in listed(_document(resource, scope)["Statement"]):
                principal = statement.get("Principal")
                if not isinstance(principal, dict) or "AWS" in principal:
                    found = statements_of({"Statement": statement})
                    yield from (replace(each, is_certain=False) for each in found)


def statements_of(document: Mapping[str, Any]) -> Iterator[Statement]:
    """Yield the statements of a policy document that allow actions."""
    for each in listed(document["Statement"]):
        if each["Effect"] == "Allow":
            parts = each.get("Action", "*"), each.get("Resource", "*")
            is_whole = {"Action", "Resource"} <= each.keys() and not each.get("Condition")
            is_certain = is_whole and all(_is_known(one) for part in parts for one in listed(part))
            yield Statement(_texts(parts[0]), _texts(parts[1]), is_certain)


def _texts(value: Any) -> tuple[str, ...]:
    """Return the patterns; ``*`` for those that contain a value which is known only at AWS."""
    return tuple(each if _is_known(each) else "*" for each in listed(value))


def _is_known(value: Any) -> bool:
    return isinstance(value, str) and not re.search(r"\$\{|\{\{", value)
