"""The environment variables of functions, with the names of resources that need not exist."""

from collections.abc import Mapping
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import ACCOUNT, Template, TemplateError, TemplateFunction

NAMED = {
    "AWS::DynamoDB::Table": ("TableName", "dynamodb:{region}:{account}:table/{name}"),
    "AWS::Events::EventBus": ("Name", "events:{region}:{account}:event-bus/{name}"),
    "AWS::Events::Rule": ("Name", "events:{region}:{account}:rule/{name}"),
    "AWS::KMS::Key": ("", "kms:{region}:{account}:key/{name}"),
    "AWS::Kinesis::Stream": ("Name", "kinesis:{region}:{account}:stream/{name}"),
    "AWS::S3::Bucket": ("BucketName", "s3:::{name}"),
    "AWS::SNS::Topic": ("TopicName", "sns:{region}:{account}:{name}"),
    "AWS::SSM::Parameter": ("Name", "ssm:{region}:{account}:parameter/{name}"),
    "AWS::SecretsManager::Secret": ("Name", "secretsmanager:{region}:{account}:secret:{name}"),
}
"""The property with the name of a resource, and the form of its ARN, by type."""
BACKING_TYPES = NAMED.keys() | {"AWS::KMS::Alias", "AWS::SNS::Subscription"}
"""The types of resources that can be created on a developer machine, besides queues and functions."""
MIN_BUCKET_NAME, MAX_BUCKET_NAME = 3, 63
REF_IS_ARN = frozenset({"AWS::SNS::Topic", "AWS::SecretsManager::Secret"})
"""The types whose Ref is the ARN, not the name."""


def variables_of(
    function: TemplateFunction, template: Template, urls: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of a function, with queue URLs and the names of tables and buckets.

    A resource without a name in the template gets its logical id as name; a bucket one that S3 accepts. The values in
    ``given`` override the template; ``urls`` are those of the queues by name.

    Raises:
        TemplateError: a value refers to a resource without a known name.
    """
    scope = _scope(template, urls)
    found = dict(given)
    for name, value in values_of(function, given).items():
        where = f"{function.logical_id}.Environment.Variables.{name}"
        resolved = scope.resolve(value, where)
        if left := references(resolved):
            raise TemplateError(f"{where}: {left[0]} cannot be resolved: set the variable to a value")
        found[name] = str(resolved)
    return found


def values_of(function: TemplateFunction, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables of the template that are not in ``given``; values may refer to resources.

    Raises:
        TemplateError: a variable cannot be resolved.
    """
    for name, why in function.unresolved.items():
        if name not in given:
            raise TemplateError(f"{why}: set the variable to a value")
    return {name: value for name, value in function.environment.items() if name not in given}


def _scope(template: Template, urls: Mapping[str, str]) -> Intrinsics:
    refs: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for queue in template.queues.values():
        if queue.logical_id:
            refs[queue.logical_id] = attributes[f"{queue.logical_id}.QueueUrl"] = urls[queue.name]
    for logical_id, resource in template.backing.items():
        name, kind = physical_name(logical_id, resource), resource["Type"]
        form = NAMED[kind][1] if kind in NAMED else "{name}"
        arn = "arn:aws:" + form.format(region=template.region, account=ACCOUNT, name=name.lstrip("/"))
        refs[logical_id] = arn if kind in REF_IS_ARN else name
        attributes[f"{logical_id}.Arn"] = attributes[f"{logical_id}.TopicArn"] = arn
        attributes[f"{logical_id}.TopicName"] = attributes[f"{logical_id}.Name"] = name
    values = [value for function in template.functions.values() for value in function.environment.values()]
    others = frozenset(reference.name for value in values for reference in references(value))
    return Intrinsics(refs, attributes, pending=others)


def physical_name(logical_id: str, resource: Mapping[str, Any]) -> str:
    """Return the name of a table, bucket or another resource: from the template, or its logical id."""
    kind = resource["Type"]
    name = (resource.get("Properties") or {}).get(NAMED[kind][0] if kind in NAMED else "")
    if isinstance(name, str):
        return name
    if kind != "AWS::S3::Bucket":
        return logical_id
    name = logical_id.lower()[:MAX_BUCKET_NAME]  # S3 allows no uppercase letters in the name of a bucket
    return name if len(name) >= MIN_BUCKET_NAME else f"{name}-bucket"
