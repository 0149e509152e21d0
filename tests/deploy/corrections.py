"""Corrections of a deployed stack, where MiniStack makes something else of a template than AWS: docs/platform.md."""

import json
from typing import Any

from tests.deploy.aws import client

BATCH_ACTIONS = {
    "sqs:SendMessage": "sqs:SendMessageBatch",
    "sqs:DeleteMessage": "sqs:DeleteMessageBatch",
    "sqs:ChangeMessageVisibility": "sqs:ChangeMessageVisibilityBatch",
}
"""Actions to MiniStack. At AWS, the right to the one includes the other."""


def correct(url: str, roles: list[str], secrets: list[str]) -> None:
    """Correct the mappings, these roles and these secrets."""
    _correct_numbers(url)
    for secret in secrets:
        _correct_value(url, secret)
    for role in roles:
        _correct_rights(url, role)


def _correct_numbers(url: str) -> None:
    """MiniStack keeps a number that comes from a parameter as text, and then stops polling."""
    function = client("lambda", url)
    for mapping in function.list_event_source_mappings()["EventSourceMappings"]:
        if limit := mapping.get("ScalingConfig", {}).get("MaximumConcurrency"):
            scaling = {"MaximumConcurrency": int(limit)}
            function.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig=scaling)


def _correct_value(url: str, secret: str) -> None:
    """MiniStack generates secrets with punctuation, where the template excludes it."""
    secrets = client("secretsmanager", url)
    if not secrets.get_secret_value(SecretId=secret)["SecretString"].isalnum():
        value = secrets.get_random_password(PasswordLength=32, ExcludePunctuation=True)["RandomPassword"]
        secrets.put_secret_value(SecretId=secret, SecretString=value)


def _correct_rights(url: str, role: str) -> None:
    """Add the rights that AWS reads in the statements of a role, and MiniStack does not."""
    iam = client("iam", url)
    for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
        statements = [added for statement in document["Statement"] if (added := _missing(url, statement))]
        if statements and not policy.endswith("-corrected"):
            text = json.dumps({"Version": "2012-10-17", "Statement": statements})
            iam.put_role_policy(RoleName=role, PolicyName=f"{policy}-corrected", PolicyDocument=text)


def _missing(url: str, statement: dict[str, Any]) -> dict[str, Any] | None:
    listed, resource = statement["Action"], statement["Resource"]
    actions = [listed] if isinstance(listed, str) else listed
    if "secretsmanager:GetSecretValue" in actions:  # its resource is a !Ref, which is a name here
        resource = client("secretsmanager", url).describe_secret(SecretId=resource)["ARN"]
        return {"Effect": "Allow", "Action": actions, "Resource": resource}
    batches = [BATCH_ACTIONS[action] for action in actions if action in BATCH_ACTIONS]
    return {"Effect": "Allow", "Action": batches, "Resource": resource} if batches else None
