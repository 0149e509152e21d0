"""Creating one resource of a template in moto."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tarry.tools.template.dynamic import secret_text
from tarry.tools.template.model import ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODELS = {
    "AWS::DynamoDB::Table": "moto.dynamodb.models.table:Table",
    "AWS::Events::EventBus": "moto.events.models:EventBus",
    "AWS::Events::Rule": "moto.events.models:Rule",
    "AWS::KMS::Alias": "moto.kms.models:Alias",
    "AWS::KMS::Key": "moto.kms.models:Key",
    "AWS::Kinesis::Stream": "moto.kinesis.models:Stream",
    "AWS::S3::Bucket": "moto.s3.models:FakeBucket",
    "AWS::SNS::Topic": "moto.sns.models:Topic",
    "AWS::SSM::Parameter": "moto.ssm.models:Parameter",
}
"""The class of moto for each type. moto's CloudFormation would know them, but takes 1.5 seconds to import."""


@dataclass(frozen=True)
class Made:
    """A resource whose class in moto lacks the values of Ref or GetAtt, or that has no class there."""

    physical_resource_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def get_cfn_attribute(self, name: str) -> Any:
        """Return the value of a GetAtt."""
        return self.attributes[name]


def make(name: str, kind: str, properties: dict[str, Any], region: str) -> Any:
    """Create a resource; return it, with ``physical_resource_id`` and ``get_cfn_attribute`` for Ref and GetAtt.

    Raises the errors of moto, which are of many types.
    """
    if maker := _MAKERS.get(kind):
        return maker(name, properties, region)
    module, _, model = MODELS[kind].partition(":")
    found = _ADAPT[kind](name, properties) if kind in _ADAPT else properties
    create = getattr(import_module(module), model).create_from_cloudformation_json
    made = create(name, {"Type": kind, "Properties": found}, ACCOUNT, region)
    match kind:
        case "AWS::SNS::Topic":
            for subscription in properties.get("Subscription", []):
                _subscribe(name, {**subscription, "TopicArn": made.arn}, region)
        case "AWS::S3::Bucket" if configuration := properties.get("NotificationConfiguration"):
            _notify(made, configuration)
        case "AWS::SSM::Parameter":
            return Made(name, {"Type": properties.get("Type"), "Value": properties.get("Value")})
        case "AWS::Events::EventBus":
            return Made(name, {"Arn": made.arn, "Name": name})
        case "AWS::KMS::Alias":
            return Made(properties["AliasName"])
    return made


def delete(made: Any, kind: str, region: str) -> None:
    """Delete a resource that moto would refuse to create again, with its content. Raises the errors of moto."""
    name = made.physical_resource_id
    match kind:
        case "AWS::DynamoDB::Table":
            made.deletion_protection_enabled = False
        case "AWS::S3::Bucket":
            made.keys.clear()
        case "AWS::Events::EventBus":
            _backend("events", region).event_buses[name].delete(ACCOUNT, region)
            return
        case "AWS::SSM::Parameter":
            _backend("ssm", region).delete_parameter(name)
            return
        case "AWS::SecretsManager::Secret":
            _backend("secretsmanager", region).delete_secret(
                name, recovery_window_in_days=None, force_delete_without_recovery=True
            )
            return
        case "AWS::SNS::Subscription":
            _backend("sns", region).unsubscribe(name)
            return
        case "AWS::Kinesis::Stream":
            pass
        case _:
            return
    made.delete_from_cloudformation_json(name, {"Type": kind, "Properties": {}}, ACCOUNT, region)


def _backend(service: str, region: str) -> Any:
    return getattr(import_module(f"moto.{service}.models"), f"{service}_backends")[ACCOUNT][region]


def _key(_: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    tags = [{"TagKey": each["Key"], "TagValue": each["Value"]} for each in properties.get("Tags", [])]
    return {"KeyPolicy": "", **properties, "Tags": tags}  # moto makes a policy of its own for an empty one


def _topic(_: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key != "Subscription"}


def _parameter(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {**properties, "Name": name}


def _rule(_: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    pattern = properties.get("EventPattern")
    return {**properties, "EventPattern": json.loads(pattern)} if isinstance(pattern, str) else dict(properties)


_ADAPT: Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "AWS::Events::Rule": _rule,
    "AWS::KMS::Key": _key,
    "AWS::SNS::Topic": _topic,
    "AWS::SSM::Parameter": _parameter,
}


def _secret(name: str, properties: Mapping[str, Any], region: str) -> Made:
    created = _backend("secretsmanager", region).create_secret(
        name=name,
        secret_string=secret_text(name, properties),
        secret_binary=None,
        description=properties.get("Description"),
        tags=properties.get("Tags"),
        kms_key_id=None,
        client_request_token=None,
        replica_regions=[],
        force_overwrite=False,
    )
    arn = json.loads(created)["ARN"]
    return Made(arn, {"Id": arn})


def _subscription(_: str, properties: Mapping[str, Any], region: str) -> Made:
    return _subscribe(str(properties["TopicArn"]).rpartition(":")[2], properties, region)


def _subscribe(topic: str, properties: Mapping[str, Any], region: str) -> Made:
    """Subscribe a queue. Subscriptions of other kinds are stored: moto would call them."""
    backend = _backend("sns", region)
    arn = properties.get("TopicArn") or f"arn:aws:sns:{region}:{ACCOUNT}:{topic}"
    if properties["Protocol"] != "sqs":
        return Made(f"{arn}:{properties['Protocol']}")
    subscription = backend.subscribe(arn, properties["Endpoint"], "sqs")
    if str(properties.get("RawMessageDelivery", "")).lower() == "true":
        subscription.attributes["RawMessageDelivery"] = True
    for key in ("FilterPolicyScope", "FilterPolicy"):
        if value := properties.get(key):
            text = value if isinstance(value, str) else json.dumps(value)
            backend.set_subscription_attributes(subscription.arn, key, text)
    return Made(subscription.arn)


def _notify(bucket: Any, configuration: Mapping[str, Any]) -> None:
    """Set the notifications of a bucket. S3's test message is not sent: it would be one more message in each run."""
    from moto.s3.models import NotificationConfiguration

    bucket.notification_configuration = NotificationConfiguration(
        queue=[_notification(each, "Queue") for each in configuration.get("QueueConfigurations", [])],
        topic=[_notification(each, "Topic") for each in configuration.get("TopicConfigurations", [])],
        event_bridge={} if "EventBridgeConfiguration" in configuration else None,
    )


def _notification(configuration: Mapping[str, Any], target: str) -> dict[str, Any]:
    rules = configuration.get("Filter", {}).get("S3Key", {}).get("Rules", [])
    named = [{"Name": str(rule["Name"]).lower(), "Value": rule["Value"]} for rule in rules]
    found = {target: configuration[target], "Event": [configuration["Event"]], "Id": f"{target}Notification"}
    return {**found, "Filter": {"S3Key": {"FilterRule": named}}} if named else found


_MAKERS: Mapping[str, Callable[[str, dict[str, Any], str], Any]] = {
    "AWS::SNS::Subscription": _subscription,
    "AWS::SecretsManager::Secret": _secret,
}
