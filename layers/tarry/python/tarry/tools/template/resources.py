"""Reading the functions, mappings and queues of a template, the resources beside them, and what no run plays."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.tools.template.document import listed, properties_of
from tarry.tools.template.intrinsics import Intrinsics, attribute_text, references
from tarry.tools.template.model import (
    DEFAULT_VISIBILITY_SECONDS,
    TemplateAsync,
    TemplateError,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
    dead_letter_cycles,
    unknown_visibility,
)
from tarry.tools.template.policies import permissions_of
from tarry.tools.template.values import Reading, Resources, integer, map_of, of_type, optional_integer
from tarry.tools.template.variables import BACKING_TYPES, physical_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tarry.tools.template.code import CodeFinder

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


def unplayed(resources: Resources, elsewhere: Collection[str]) -> Iterator[str]:
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
        elif kind == "AWS::SNS::Topic" and "Subscription" in properties:
            found = [each for each in listed(properties["Subscription"]) if isinstance(each, dict)]
            protocols = dict.fromkeys(str(each.get("Protocol")) for each in found if each.get("Protocol") != "sqs")
            if protocols:
                yield f"{name} (its subscriptions: {', '.join(protocols)})"
        elif kind == "AWS::S3::Bucket" and properties_of(properties, "NotificationConfiguration").get(
            "LambdaConfigurations"
        ):
            yield f"{name} (its notifications of functions)"


def subscriptions_elsewhere(resources: Resources, scope: Intrinsics) -> Iterator[str]:
    """Yield the logical ids of subscriptions to topics that the template does not have."""
    topics = {name: each for name, each in resources.items() if each["Type"] == "AWS::SNS::Topic"}

    def name_of(topic: str) -> str:
        given = (topics[topic].get("Properties") or {}).get("TopicName")
        properties = scope.resolve({"TopicName": given}, topic)
        return physical_name(topic, {**topics[topic], "Properties": properties})

    for name, properties in of_type(resources, "AWS::SNS::Subscription"):
        try:
            arn = scope.resolve(properties.get("TopicArn"), name)
            known = [each.name for each in references(arn)] or [
                topic for topic in topics if name_of(topic) == str(arn).rpartition(":")[2]
            ]
        except TemplateError:
            known = []
        if not topics.keys() & known:
            yield name


FUNCTION_SETTINGS = ("Handler", "MemorySize", "RecursiveLoop", "ReservedConcurrentExecutions", "Timeout")


def read_functions(
    resources: Resources, reading: Reading, finder: CodeFinder, consumers: Collection[str]
) -> dict[str, TemplateFunction]:
    """Return the functions by name; ``consumers`` are the names of those that must be resolvable."""
    found: dict[str, TemplateFunction] = {}
    for logical_id, properties in of_type(resources, "AWS::Lambda::Function"):
        name = reading.attempt(partial(reading.scope.refs.__getitem__, logical_id), is_needed=False)
        read = partial(_function, logical_id, properties, resources, reading, finder)
        if name is not None and (function := reading.attempt(read, is_needed=name in consumers)) is not None:
            found[function.name] = function
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventInvokeConfig"):
        read_name = partial(reading.scope.settled, properties.get("FunctionName"), f"{logical_id}.FunctionName")
        name, _ = name_and_qualifier(str(reading.attempt(read_name, is_needed=False)))
        if name in found:
            settings = _invoke_settings(logical_id, properties, reading)
            found[name] = replace(found[name], asynchronous=replace(found[name].asynchronous, **settings))
    return found


def _function(
    logical_id: str, properties: Mapping[str, Any], resources: Resources, reading: Reading, finder: CodeFinder
) -> TemplateFunction:
    plain = reading.known(properties, FUNCTION_SETTINGS, logical_id)
    optional = reading.known(properties, ["Runtime", "DeadLetterConfig"], logical_id, is_needed=False)
    where = f"{logical_id}.Environment"
    variables = map_of(map_of(properties.get("Environment"), where).get("Variables"), f"{where}.Variables")
    environment, unresolved = _environment(variables, reading.scope, f"{where}.Variables")
    runtime = optional.get("Runtime")
    function = TemplateFunction(
        logical_id=logical_id,
        name=reading.scope.refs[logical_id],
        arn=reading.scope.attributes[f"{logical_id}.Arn"],
        code=None,
        handler=plain.get("Handler"),
        timeout_seconds=integer(plain, "Timeout", TemplateFunction.timeout_seconds, logical_id),
        memory_mb=integer(plain, "MemorySize", TemplateFunction.memory_mb, logical_id),
        reserved_concurrency=optional_integer(plain, "ReservedConcurrentExecutions", logical_id),
        recursive_loop="Allow" if plain.get("RecursiveLoop") == "Allow" else "Terminate",
        environment=environment,
        unresolved=unresolved,
        runtime=runtime if isinstance(runtime, str) else None,
        log_level=_log_level(properties.get("LoggingConfig"), reading, f"{logical_id}.LoggingConfig"),
        permissions=permissions_of(properties.get("Role"), resources, finder.resources, reading.scope.unwatched()),
        asynchronous=TemplateAsync(dead_letter_arn=(optional.get("DeadLetterConfig") or {}).get("TargetArn") or None),
    )
    return finder.with_code(function)


def _invoke_settings(logical_id: str, properties: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Return the fields of `TemplateAsync` that an ``EventInvokeConfig`` sets."""
    retries = "MaximumRetryAttempts"
    plain = reading.known(properties, [retries, "DestinationConfig"], logical_id, is_needed=False)
    destinations = plain.get("DestinationConfig") or {}
    ends = {"on_success": "OnSuccess", "on_failure": "OnFailure"}
    found = {name: (destinations.get(end) or {}).get("Destination") for name, end in ends.items()}
    number = optional_integer(plain, retries, logical_id)
    return found if number is None else {**found, "retries": number}


def _log_level(config: Any, reading: Reading, where: str) -> str | None:
    given = config if isinstance(config, dict) else {}
    found = reading.known(given, ["LogFormat", "ApplicationLogLevel"], where, is_needed=False)
    level = found.get("ApplicationLogLevel")
    return (level if isinstance(level, str) else "INFO") if found.get("LogFormat") == "JSON" else None


def _environment(variables: Mapping[str, Any], scope: Intrinsics, where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved variables, and the reasons why the others cannot be resolved."""
    values: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name, value in variables.items():
        try:
            values |= scope.resolve({name: value}, where)
        except TemplateError as error:
            unresolved[name] = str(error)
    texts = {name: value if isinstance(value, dict) else attribute_text(value) for name, value in values.items()}
    return texts, unresolved


MAPPING_SETTINGS = (
    "BatchSize",
    "Enabled",
    "FilterCriteria",
    "FunctionResponseTypes",
    "MaximumBatchingWindowInSeconds",
    "ScalingConfig",
)


def read_mappings(resources: Resources, reading: Reading) -> tuple[TemplateMapping, ...]:
    """Return the mappings of queues that are enabled."""
    found = (
        reading.each(partial(_mapping, logical_id, properties, reading))
        for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping")
        if not OF_OTHER_EVENTS & properties.keys()  # the ARN of their source, such as a stream, is often unknown
    )
    return tuple(each for each in found if each is not None)


def _mapping(logical_id: str, properties: Mapping[str, Any], reading: Reading) -> TemplateMapping | None:
    """Return a mapping; None if it is not of a queue, or disabled, or its ends are not known."""
    ends = {key: properties[key] for key in ("EventSourceArn", "FunctionName") if key in properties}
    between = reading.attempt(partial(reading.scope.settled, ends, logical_id))
    if between is None:
        return None
    plain = reading.known(properties, MAPPING_SETTINGS, logical_id)
    if attribute_text(plain.get("Enabled", True)) == "false":
        return None
    arn = str(reading.queue_arn(between.get("EventSourceArn", "")))
    if not re.match(r"arn:[\w-]+:sqs:", arn):
        return None
    if not isinstance(name := between.get("FunctionName"), str):
        raise TemplateError(f"{logical_id}.FunctionName must be a name or an ARN, got {name!r}")
    where = f"{logical_id}.ScalingConfig"
    limit = optional_integer(plain.get("ScalingConfig") or {}, "MaximumConcurrency", where)
    return mapping_of(logical_id, arn, name, plain, limit)


def mapping_of(
    logical_id: str, queue_arn: str, function: str, settings: Mapping[str, Any], limit: int | None
) -> TemplateMapping:
    """Return a mapping with the settings that CloudFormation and the API of Lambda name alike.

    ``function`` is its name or its ARN, ``limit`` the most invocations that the mapping makes at once.

    Raises:
        TemplateError: a setting has another type than it must have.
    """
    name, qualifier = name_and_qualifier(function)
    return TemplateMapping(
        logical_id=logical_id,
        queue_arn=queue_arn,
        function=name,
        qualifier=qualifier,
        batch_size=integer(settings, "BatchSize", TemplateMapping.batch_size, logical_id),
        window_seconds=integer(settings, "MaximumBatchingWindowInSeconds", 0, logical_id),
        reports_failures="ReportBatchItemFailures" in (settings.get("FunctionResponseTypes") or []),
        maximum_concurrency=limit,
        filters=tuple(_filters(settings.get("FilterCriteria"), f"{logical_id}.FilterCriteria")),
    )


def name_and_qualifier(function: str) -> tuple[str, str]:
    """Return the name of a function, and the alias or version, from an ARN or from ``name:qualifier``."""
    name, _, qualifier = function.rpartition(":function:")[2].partition(":")
    return name, qualifier


def _filters(criteria: Any, where: str) -> Iterable[str]:
    """Yield the patterns; none if one of them depends on a made-up value, as it may match any message."""
    found = (criteria or {}).get("Filters") or []
    for each in found if all(found) else ():
        pattern = each.get("Pattern")
        if not isinstance(pattern, str):
            raise TemplateError(f"{where}: a Pattern must be JSON text, got {pattern!r}")
        yield pattern


QUEUE_ATTRIBUTES = (
    "VisibilityTimeout",
    "DelaySeconds",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "ReceiveMessageWaitTimeSeconds",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
)
"""The queue attributes that affect messages; encryption, tags and policies do not."""


def read_queues(
    resources: Resources,
    reading: Reading,
    mappings: Iterable[TemplateMapping],
    functions: Mapping[str, TemplateFunction],
) -> dict[str, TemplateQueue]:
    """Return the queues by name.

    Raises:
        TemplateError: a message would never leave a cycle of dead-letter queues, of which functions consume all.
    """
    found: dict[str, TemplateQueue] = {}
    for logical_id, properties in of_type(resources, "AWS::SQS::Queue"):
        queue = reading.each(partial(_queue, logical_id, properties, reading))
        if queue is not None:
            if "VisibilityTimeout" in properties and "VisibilityTimeout" not in queue.attributes:
                unknown = unknown_visibility(queue.name, mappings, functions)
                queue = replace(queue, attributes={**queue.attributes, **unknown})
            found[queue.name] = queue
    consumed = {mapping.queue for mapping in mappings}
    for cycle in () if reading.tolerant else dead_letter_cycles(found):
        if consumed.issuperset(cycle):
            raise TemplateError(
                "a message that always fails would never leave the cycle of dead-letter queues "
                f"{' -> '.join([*cycle, cycle[0]])}: remove one RedrivePolicy"
            )
    return found


def _queue(logical_id: str, properties: Mapping[str, Any], reading: Reading) -> TemplateQueue:
    found = reading.known(properties, QUEUE_ATTRIBUTES, logical_id)
    attributes = {name: attribute_text(value) for name, value in found.items()}
    if attributes.get("FifoQueue") == "false":
        del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
    integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
    redrive = _redrive(properties, reading, logical_id)
    return TemplateQueue(
        name=reading.scope.attributes[f"{logical_id}.QueueName"],
        arn=reading.scope.attributes[f"{logical_id}.Arn"],
        logical_id=logical_id,
        attributes=attributes,
        dead_letter_arn=reading.queue_arn(redrive.get("deadLetterTargetArn")),
        max_receive_count=integer(
            redrive, "maxReceiveCount", TemplateQueue.max_receive_count, f"{logical_id}.RedrivePolicy"
        ),
        is_name_fixed=isinstance(properties.get("QueueName", logical_id), str),
    )


def _redrive(properties: Mapping[str, Any], reading: Reading, logical_id: str) -> Mapping[str, Any]:
    """Return the redrive policy of a queue; its dead-letter queue may have the name of a placeholder."""
    where = f"{logical_id}.RedrivePolicy"
    found = map_of(reading.known(properties, ["RedrivePolicy"], logical_id).get("RedrivePolicy"), where)
    if (parameter := reading.defaulted.pop(f"{where}.deadLetterTargetArn", None)) is None:
        return found
    reading.used.add(parameter)
    whole = map_of(reading.scope.unwatched().settled(properties["RedrivePolicy"], where), where)
    return {**found, "deadLetterTargetArn": whole["deadLetterTargetArn"]}


SEPARATE = frozenset({"Targets", "Subscription"})
"""Properties of rules and topics whose elements are resolved one by one: some may be APIs or state machines."""


def read_backing(resources: Resources, reading: Reading) -> dict[str, Mapping[str, Any]]:
    """Return the tables, buckets, topics and keys, without the properties that refer to other kinds of resources."""
    known = {name for name, each in resources.items() if each["Type"] in BACKING_TYPES | {"AWS::SQS::Queue"}}

    def resolved(key: str, value: Any, logical_id: str) -> dict[str, Any]:
        found: dict[str, Any] = reading.scope.resolve({key: value}, logical_id)
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
