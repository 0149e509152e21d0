"""The resources that start functions or send messages on AWS, but not here: schedules, APIs, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import TemplateError
from tarry.tools.template.variables import physical_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

TYPES = frozenset(
    {
        "AWS::ApiGateway::RestApi",
        "AWS::ApiGatewayV2::Api",
        "AWS::CloudFormation::Stack",
        "AWS::Pipes::Pipe",
        "AWS::Scheduler::Schedule",
        "AWS::StepFunctions::StateMachine",
    }
)
OF_OTHER_EVENTS = frozenset({"StartingPosition", "Queues", "SelfManagedEventSource"})
"""Properties that only mappings of streams, message brokers and Kafka have."""


def unplayed(resources: Mapping[str, Mapping[str, Any]], elsewhere: Collection[str]) -> Iterator[str]:
    """Yield the resources of a translated template that are not played, each with its type or its part.

    ``elsewhere`` are the logical ids of subscriptions to topics of other stacks.
    """
    for name, resource in resources.items():
        kind, properties = resource["Type"], resource.get("Properties") or {}
        if kind in TYPES:
            yield f"{name} ({kind})"
        elif kind == "AWS::Events::Rule" and "ScheduleExpression" in properties:
            yield f"{name} (schedule)"
        elif kind == "AWS::Lambda::EventSourceMapping" and OF_OTHER_EVENTS & properties.keys():
            yield f"{name} ({kind} of a stream)"
        elif kind == "AWS::SNS::Subscription" and properties.get("Protocol") != "sqs":
            yield f"{name} (subscription: {properties.get('Protocol')})"
        elif name in elsewhere:
            yield f"{name} (subscription to a topic elsewhere)"
        elif kind == "AWS::SNS::Topic" and (others := _other_protocols(properties)):
            yield f"{name} (its subscriptions: {', '.join(others)})"
        elif kind == "AWS::S3::Bucket" and _notifies_function(properties):
            yield f"{name} (its notifications of functions)"


def subscriptions_elsewhere(resources: Mapping[str, Mapping[str, Any]], scope: Intrinsics) -> Iterator[str]:
    """Yield the logical ids of subscriptions to topics that the template does not have."""
    topics = {name: each for name, each in resources.items() if each["Type"] == "AWS::SNS::Topic"}

    def name_of(topic: str) -> str:
        given = (topics[topic].get("Properties") or {}).get("TopicName")
        properties = scope.resolve({"TopicName": given}, topic)
        return physical_name(topic, {**topics[topic], "Properties": properties})

    for name, resource in resources.items():
        if resource["Type"] != "AWS::SNS::Subscription":
            continue
        try:
            arn = scope.resolve((resource.get("Properties") or {}).get("TopicArn"), name)
            known = [each.name for each in references(arn)] or [
                topic for topic in topics if name_of(topic) == str(arn).rpartition(":")[2]
            ]
        except TemplateError:
            known = []
        if not topics.keys() & known:
            yield name


def _notifies_function(properties: Mapping[str, Any]) -> bool:
    configuration = properties.get("NotificationConfiguration")
    return isinstance(configuration, dict) and bool(configuration.get("LambdaConfigurations"))


def _other_protocols(topic: Mapping[str, Any]) -> list[str]:
    found = topic.get("Subscription")
    protocols = (
        [str(each.get("Protocol")) for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    )
    return [each for each in dict.fromkeys(protocols) if each != "sqs"]
