"""The tables, buckets, topics and other resources of a template, created in moto."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.common.installation import install_command
from tarry.tools.simulator.client import simulated_clients
from tarry.tools.simulator.code import environment
from tarry.tools.template import Intrinsics, Template, TemplateError, TemplateFunction
from tarry.tools.template.dynamic import secret_text
from tarry.tools.template.intrinsics import Reference, references
from tarry.tools.template.model import ACCOUNT
from tarry.tools.template.variables import physical_name, values_of
from tarry.tools.testing.moto_relay import Call, relayed

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
    if kind == "AWS::SecretsManager::Secret":
        return _secret(name, properties, region)
    if kind == "AWS::SNS::Subscription":
        return _subscribe(str(properties["TopicArn"]).rpartition(":")[2], properties, region)
    module, _, model = MODELS[kind].partition(":")
    create = getattr(import_module(module), model).create_from_cloudformation_json
    made = create(name, {"Type": kind, "Properties": _adapted(kind, name, properties)}, ACCOUNT, region)
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
        case "AWS::Events::EventBus":
            _backend("events", region).event_buses[name].delete(ACCOUNT, region)
        case "AWS::SSM::Parameter":
            _backend("ssm", region).delete_parameter(name)
        case "AWS::SecretsManager::Secret":
            at_once = {"recovery_window_in_days": None, "force_delete_without_recovery": True}
            _backend("secretsmanager", region).delete_secret(name, **at_once)
        case "AWS::SNS::Subscription":
            _backend("sns", region).unsubscribe(name)
        case "AWS::DynamoDB::Table" | "AWS::S3::Bucket" | "AWS::Kinesis::Stream":
            if kind == "AWS::DynamoDB::Table":
                made.deletion_protection_enabled = False
            if kind == "AWS::S3::Bucket":
                made.keys.clear()
            made.delete_from_cloudformation_json(name, {"Type": kind, "Properties": {}}, ACCOUNT, region)


def _backend(service: str, region: str) -> Any:
    return getattr(import_module(f"moto.{service}.models"), f"{service}_backends")[ACCOUNT][region]


def _adapted(kind: str, name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """Return properties as the class of moto expects them."""
    match kind:
        case "AWS::KMS::Key":  # moto makes a policy of its own for an empty one
            tags = [{"TagKey": each["Key"], "TagValue": each["Value"]} for each in properties.get("Tags", [])]
            return {"KeyPolicy": "", **properties, "Tags": tags}
        case "AWS::SNS::Topic":
            return {key: value for key, value in properties.items() if key != "Subscription"}
        case "AWS::SSM::Parameter":
            return {**properties, "Name": name}
        case "AWS::Events::Rule" if isinstance(pattern := properties.get("EventPattern"), str):
            return {**properties, "EventPattern": json.loads(pattern)}
    return properties


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


_log = logging.getLogger(__name__)

NEEDED = frozenset({"AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SNS::Topic"})
"""The types that are not left out if moto cannot create them."""


@contextmanager
def moto_in_process(region: str, sqs: Callable[[], Any], call: Call, now: Callable[[], float]) -> Iterator[None]:
    """Mock AWS in this process, within the context and any outer `mock_aws`.

    ``sqs`` makes the SQS clients of boto3, ``call`` answers the requests to SQS of other services. ``now`` is their
    time. Raises `TemplateError` if moto is not installed.
    """
    try:
        from moto import mock_aws
    except ModuleNotFoundError as error:
        extra = "local-aws"
        raise TemplateError(f"resources=True needs {error.name}; install it with: {install_command(extra)}") from error
    kept = {name: value for name, value in os.environ.items() if name not in {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}}
    kept |= {"AWS_DEFAULT_REGION": region, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    with environment(kept, replace=True), mock_aws(), relayed(call, _log.warning, now), simulated_clients(sqs):
        yield


@dataclass(frozen=True)
class Unmade:
    """A resource that could not be created. Its Ref is its name: calls to it fail as at AWS."""

    physical_resource_id: str
    why: str


class Resources:
    """The tables, buckets, topics and keys of a template. ``urls`` are the queue URLs by name.

    ``before`` are the resources of the template before it was changed: those that it still has are not created again.
    Raises `UsageError` if a resource cannot be created, or refers to one of another type.
    """

    def __init__(self, template: Template, urls: Mapping[str, str], before: "Resources | None" = None) -> None:
        self._template = template
        self._refs = {queue.logical_id: urls[queue.name] for queue in template.queues.values() if queue.logical_id}
        self._attributes = {f"{name}.QueueUrl": url for name, url in self._refs.items()}
        self._made: dict[str, Any] = {}
        """The resources by logical id; None while the properties of a resource are resolved."""
        self.problems: list[str] = []
        """Texts about the resources that moto cannot create."""
        self.unchanged: list[str] = []
        """The logical ids of resources that exist, and are different in the template: they cannot be changed."""
        if before is not None:
            self._adopt(before)
        for logical_id in template.backing:
            self._make(logical_id)

    def environment(self, function: TemplateFunction, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a function; ``given`` overrides the template.

        Raises `UsageError` if a value refers to a resource that tarry does not create, `TemplateError` if a value
        cannot be resolved.
        """
        found = {
            name: str(self._fill(value, f"{function.logical_id}.Environment.Variables.{name}"))
            for name, value in values_of(function, given).items()
        }
        return found | dict(given)

    def delete(self) -> None:
        """Delete the resources with their contents: moto would refuse to create them again."""
        for logical_id, made in reversed(self._made.items()):
            with suppress(Exception):  # the test has deleted it, or it was not created
                delete(made, self._template.backing[logical_id]["Type"], self._template.region)

    def _adopt(self, before: "Resources") -> None:
        for logical_id, made in before._made.items():
            self._made[logical_id], self._refs[logical_id] = made, made.physical_resource_id
            resource = self._template.backing.get(logical_id)
            if resource is not None and resource != before._template.backing.get(logical_id, resource):
                self.unchanged.append(logical_id)

    def _make(self, logical_id: str) -> Any:
        """Return the resource; create it on the first call, after those it refers to."""
        if logical_id not in self._made:
            self._made[logical_id] = None
            made = self._created(logical_id, self._template.backing[logical_id])
            self._made[logical_id], self._refs[logical_id] = made, made.physical_resource_id
        return self._made[logical_id]

    def _created(self, logical_id: str, resource: Mapping[str, Any]) -> Any:
        """Return the resource, created; or why it is not, if the template works without it."""
        properties = self._fill(resource.get("Properties", {}), logical_id)
        name = physical_name(logical_id, resource)
        if resource["Type"] == "AWS::SSM::Parameter" and "Value" not in properties:
            return Unmade(name, f"the value of {logical_id} cannot be resolved")  # the template names it as left out
        try:
            return make(name, resource["Type"], properties, self._template.region)
        except Exception as error:  # moto raises errors of many types, and may lack a library of its extras
            text = f"moto cannot create {logical_id}: {error}"
            if resource["Type"] in NEEDED:
                raise UsageError(text) from error
            self.problems.append(text)
            return Unmade(name, text)

    def _fill(self, value: Any, where: str) -> Any:
        """Return the value with its references resolved."""
        for reference in references(value):
            if reference.name in self._template.backing:
                self._look_up(reference, where)
            elif reference.name not in self._refs:
                raise UsageError(f"{where}: {reference} cannot be resolved: tarry does not create {reference.name}")
        return Intrinsics(self._refs, self._attributes).resolve(value, where)

    def _look_up(self, reference: Reference, where: str) -> None:
        made, path = self._make(reference.name), f"{reference.name}.{reference.attribute}"
        if isinstance(made, Unmade) and reference.attribute:
            raise UsageError(
                f"{where}: {reference} cannot be resolved: {made.why}; set the variable (--env NAME=VALUE)"
            )
        if reference.attribute and path not in self._attributes:
            try:
                self._attributes[path] = made.get_cfn_attribute(reference.attribute)
            except Exception as error:
                raise UsageError(f"{where}: {reference} cannot be resolved: moto does not support it") from error
