"""The environment variables of a template's functions, as far as names go: nothing is made for them."""

from collections.abc import Mapping
from typing import Any

from tarry.template.intrinsics import Intrinsics, references
from tarry.template.model import ACCOUNT, Template, TemplateError, TemplateFunction

NAMES = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::S3::Bucket": "BucketName",
    "AWS::SNS::Topic": "TopicName",
}


def variables_of(
    function: TemplateFunction, template: Template, urls: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """A function's environment variables: queues by their URLs, tables and buckets by their names.

    What the template gives no name has its logical id (a bucket in small letters, as S3 demands).

    Args:
        function: The function.
        template: Its template.
        urls: The queues' URLs, by name.
        given: Values that go before the template's.

    Raises:
        TemplateError: a value refers to something that has no name here.
    """
    scope = _scope(template, urls)
    found = dict(given)
    for name, value in values_of(function, given).items():
        where = f"{function.logical_id}.Environment.Variables.{name}"
        resolved = scope.resolve(value, where)
        if left := references(resolved):
            raise TemplateError(f"{where}: {left[0]} cannot be resolved here: give the variable a value")
        found[name] = str(resolved)
    return found


def values_of(function: TemplateFunction, given: Mapping[str, str]) -> dict[str, Any]:
    """What the template says of the variables that are not given; it may refer to resources.

    Raises:
        TemplateError: one of them nobody can answer.
    """
    for name, why in function.unresolved.items():
        if name not in given:
            raise TemplateError(f"{why}: give the variable a value")
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
        refs[logical_id] = arn if resource["Type"] == "AWS::SNS::Topic" else name
        attributes[f"{logical_id}.Arn"] = attributes[f"{logical_id}.TopicArn"] = arn
        attributes[f"{logical_id}.TopicName"] = name
    return Intrinsics(refs, attributes, pending=frozenset(_others(template)))


def physical_name(logical_id: str, resource: Mapping[str, Any]) -> str:
    """What a table, bucket, topic or key is called: what the template says, else its logical id."""
    name = (resource.get("Properties") or {}).get(NAMES.get(resource["Type"], ""))
    if isinstance(name, str):
        return name
    return logical_id.lower() if resource["Type"] == "AWS::S3::Bucket" else logical_id


def _arn(kind: str, name: str, region: str) -> str:
    match kind:
        case "AWS::DynamoDB::Table":
            return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}"
        case "AWS::S3::Bucket":
            return f"arn:aws:s3:::{name}"
        case "AWS::SNS::Topic":
            return f"arn:aws:sns:{region}:{ACCOUNT}:{name}"
        case _:
            return f"arn:aws:kms:{region}:{ACCOUNT}:key/{name}"


def _others(template: Template) -> set[str]:
    """The resources that functions refer to, and that are none of these."""
    values = [value for function in template.functions.values() for value in function.environment.values()]
    return {reference.name for value in values for reference in references(value)}
