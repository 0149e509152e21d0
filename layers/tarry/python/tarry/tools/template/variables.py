"""The environment variables of functions, with the names of resources that need not exist."""

from collections.abc import Mapping
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import ACCOUNT, Template, TemplateError, TemplateFunction

NAMES = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::Events::EventBus": "Name",
    "AWS::Events::Rule": "Name",
    "AWS::Kinesis::Stream": "Name",
    "AWS::S3::Bucket": "BucketName",
    "AWS::SNS::Topic": "TopicName",
    "AWS::SSM::Parameter": "Name",
    "AWS::SecretsManager::Secret": "Name",
}
ARNS = {
    "AWS::DynamoDB::Table": "dynamodb:{region}:{account}:table/{name}",
    "AWS::Events::EventBus": "events:{region}:{account}:event-bus/{name}",
    "AWS::Events::Rule": "events:{region}:{account}:rule/{name}",
    "AWS::KMS::Key": "kms:{region}:{account}:key/{name}",
    "AWS::Kinesis::Stream": "kinesis:{region}:{account}:stream/{name}",
    "AWS::S3::Bucket": "s3:::{name}",
    "AWS::SNS::Topic": "sns:{region}:{account}:{name}",
    "AWS::SSM::Parameter": "ssm:{region}:{account}:parameter/{name}",
    "AWS::SecretsManager::Secret": "secretsmanager:{region}:{account}:secret:{name}",
}
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
        name = physical_name(logical_id, resource)
        arn = _arn(resource["Type"], name, template.region)
        refs[logical_id] = arn if resource["Type"] in REF_IS_ARN else name
        attributes[f"{logical_id}.Arn"] = attributes[f"{logical_id}.TopicArn"] = arn
        attributes[f"{logical_id}.TopicName"] = attributes[f"{logical_id}.Name"] = name
    return Intrinsics(refs, attributes, pending=frozenset(_others(template)))


def physical_name(logical_id: str, resource: Mapping[str, Any]) -> str:
    """Return the name of a table, bucket or another resource: from the template, or its logical id."""
    name = (resource.get("Properties") or {}).get(NAMES.get(resource["Type"], ""))
    if isinstance(name, str):
        return name
    return _bucket_name(logical_id) if resource["Type"] == "AWS::S3::Bucket" else logical_id


def _bucket_name(logical_id: str) -> str:
    """Return a name that S3 accepts: 3 to 63 lower-case letters and digits."""
    name = logical_id.lower()[:MAX_BUCKET_NAME]
    return name if len(name) >= MIN_BUCKET_NAME else f"{name}-bucket"


def _arn(kind: str, name: str, region: str) -> str:
    return "arn:aws:" + ARNS.get(kind, "{name}").format(region=region, account=ACCOUNT, name=name.lstrip("/"))


def _others(template: Template) -> set[str]:
    """Return the names of all resources that functions refer to."""
    values = [value for function in template.functions.values() for value in function.environment.values()]
    return {reference.name for value in values for reference in references(value)}
