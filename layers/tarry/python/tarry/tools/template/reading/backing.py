"""Reading the tables, buckets, topics and keys of a template: resources that moto creates."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import TemplateError
from tarry.tools.template.reading.values import Reading, Resources

BACKING_TYPES = frozenset(
    {
        "AWS::DynamoDB::Table",
        "AWS::Events::EventBus",
        "AWS::Events::Rule",
        "AWS::KMS::Alias",
        "AWS::KMS::Key",
        "AWS::Kinesis::Stream",
        "AWS::S3::Bucket",
        "AWS::SNS::Subscription",
        "AWS::SNS::Topic",
        "AWS::SSM::Parameter",
        "AWS::SecretsManager::Secret",
    }
)
"""The types of resources that can be created on a developer machine, besides queues and functions."""

SEPARATE = frozenset({"Targets", "Subscription"})
"""Properties of rules and topics whose elements are resolved one by one: some may be APIs or state machines."""


def read_backing(resources: Resources, scope: Intrinsics, reading: Reading) -> dict[str, Mapping[str, Any]]:
    """Return the tables, buckets, topics and keys, without the properties that refer to other kinds of resources."""
    known = {name for name, each in resources.items() if each["Type"] in BACKING_TYPES | {"AWS::SQS::Queue"}}

    def resolved(key: str, value: Any, logical_id: str) -> dict[str, Any]:
        found: dict[str, Any] = scope.resolve({key: value}, logical_id)
        for reference in references(found):
            if reference.name not in known:
                raise TemplateError(f"{logical_id}.{key}: {reference} cannot be resolved here")
        return found

    backing: dict[str, Mapping[str, Any]] = {}
    for logical_id, resource in resources.items():
        if resource["Type"] in BACKING_TYPES:
            properties: dict[str, Any] = {}
            for key, value in (resource.get("Properties") or {}).items():
                parts = value if key in SEPARATE and isinstance(value, list) else [value]
                found = [reading.attempt(partial(resolved, key, each, logical_id), is_needed=False) for each in parts]
                kept = [each[key] for each in found if each]
                if kept:
                    properties[key] = kept if parts is value else kept[0]
            backing[logical_id] = {"Type": resource["Type"], "Properties": properties}
    return backing
