"""Reading the functions, mappings and queues of a template, the resources beside them, and what no run plays."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.tools.template.dynamic import unwatched
from tarry.tools.template.intrinsics import Intrinsics, attribute_text, references
from tarry.tools.template.model import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_MAX_RECEIVE_COUNT,
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_SECONDS,
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
from tarry.tools.template.variables import physical_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

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


FUNCTION_SETTINGS = ("Handler", "MemorySize", "RecursiveLoop", "ReservedConcurrentExecutions", "Timeout")


def read_functions(
    resources: Resources, scope: Intrinsics, finder: CodeFinder, consumers: Collection[str], reading: Reading
) -> dict[str, TemplateFunction]:
    """Return the functions by name; ``consumers`` are the names of those that must be resolvable."""
    found = {}
    for logical_id, _ in of_type(resources, "AWS::Lambda::Function"):
        name = reading.attempt(partial(scope.refs.__getitem__, logical_id), is_needed=False)
        read = partial(_function, logical_id, resources, scope, finder, reading)
        if name is not None and (function := reading.attempt(read, is_needed=name in consumers)) is not None:
            found[function.name] = function
    return _with_async(found, resources, scope, reading)


def _function(
    logical_id: str, resources: Resources, scope: Intrinsics, finder: CodeFinder, reading: Reading
) -> TemplateFunction:
    properties = resources[logical_id].get("Properties") or {}
    plain = reading.known(properties, FUNCTION_SETTINGS, scope, logical_id)
    where = f"{logical_id}.Environment"
    variables = map_of(map_of(properties.get("Environment"), where).get("Variables"), f"{where}.Variables")
    environment, unresolved = _environment(variables, scope, f"{where}.Variables")
    runtime = _texts(properties, ["Runtime"], scope, reading, logical_id).get("Runtime")
    function = TemplateFunction(
        logical_id=logical_id,
        name=scope.refs[logical_id],
        arn=scope.attributes[f"{logical_id}.Arn"],
        code=None,
        handler=plain.get("Handler"),
        timeout_seconds=integer(plain, "Timeout", DEFAULT_TIMEOUT_SECONDS, logical_id),
        memory_mb=integer(plain, "MemorySize", DEFAULT_MEMORY_MB, logical_id),
        reserved_concurrency=optional_integer(plain, "ReservedConcurrentExecutions", logical_id),
        recursive_loop="Allow" if plain.get("RecursiveLoop") == "Allow" else "Terminate",
        environment=environment,
        unresolved=unresolved,
        all_layers=finder.layers(logical_id),
        runtime=runtime,
        log_level=_log_level(properties.get("LoggingConfig"), scope, reading, f"{logical_id}.LoggingConfig"),
        build_method=finder.build_method(logical_id),
        permissions=permissions_of(properties.get("Role"), resources, finder.resources, unwatched(scope)),
    )
    return finder.with_code(function)


def _with_async(
    functions: dict[str, TemplateFunction], resources: Resources, scope: Intrinsics, reading: Reading
) -> dict[str, TemplateFunction]:
    """Return the functions with their settings for asynchronous invocations."""

    def known(properties: Mapping[str, Any], name: str, where: str) -> Any:
        read = partial(reading.known, properties, [name], scope, where)
        return (reading.attempt(read, is_needed=False) or {}).get(name)

    for name, function in functions.items():
        properties = resources[function.logical_id].get("Properties") or {}
        if arn := (known(properties, "DeadLetterConfig", function.logical_id) or {}).get("TargetArn"):
            functions[name] = replace(function, asynchronous=TemplateAsync(dead_letter_arn=arn))
    key = "MaximumRetryAttempts"
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventInvokeConfig"):
        of_function = reading.attempt(
            partial(scope.settled, properties.get("FunctionName"), f"{logical_id}.FunctionName"), is_needed=False
        )
        found = re.sub(r"^.*:function:", "", str(of_function)).partition(":")[0]
        if found in functions:
            destinations = known(properties, "DestinationConfig", logical_id) or {}
            retries = known(properties, key, logical_id)
            functions[found] = replace(
                functions[found],
                asynchronous=replace(
                    functions[found].asynchronous,
                    retries=2 if retries is None else integer({key: retries}, key, 2, logical_id),
                    on_success=(destinations.get("OnSuccess") or {}).get("Destination"),
                    on_failure=(destinations.get("OnFailure") or {}).get("Destination"),
                ),
            )
    return functions


def _log_level(config: Any, scope: Intrinsics, reading: Reading, where: str) -> str | None:
    found = _texts(config, ["LogFormat", "ApplicationLogLevel"], scope, reading, where)
    return found.get("ApplicationLogLevel", "INFO") if found.get("LogFormat") == "JSON" else None


def _texts(values: Any, names: list[str], scope: Intrinsics, reading: Reading, where: str) -> dict[str, str]:
    """Return the named values that are texts; the function runs without those that cannot be resolved."""
    read = partial(reading.known, values if isinstance(values, dict) else {}, names, scope, where)
    found = reading.attempt(read, is_needed=False) or {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _environment(variables: Mapping[str, Any], scope: Intrinsics, where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved variables, and the reasons why the others cannot be resolved."""
    values: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name, value in variables.items():
        try:
            values |= scope.resolve({name: value}, where)
        except TemplateError as error:
            unresolved[name] = str(error)
    return {
        name: value if isinstance(value, dict) else attribute_text(value) for name, value in values.items()
    }, unresolved


MAPPING_SETTINGS = (
    "BatchSize",
    "Enabled",
    "FilterCriteria",
    "FunctionResponseTypes",
    "MaximumBatchingWindowInSeconds",
    "ScalingConfig",
)


def read_mappings(resources: Resources, scope: Intrinsics, reading: Reading) -> tuple[TemplateMapping, ...]:
    """Return the mappings of queues that are enabled."""
    found = (
        reading.each(partial(_mapping, logical_id, properties, scope, reading))
        for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping")
        if not OF_OTHER_EVENTS & properties.keys()  # the ARN of their source, such as a stream, is often unknown
    )
    return tuple(each for each in found if each is not None)


def _mapping(
    logical_id: str, properties: Mapping[str, Any], scope: Intrinsics, reading: Reading
) -> TemplateMapping | None:
    """Return a mapping; None if it is not of a queue, or disabled, or its ends are not known."""
    ends = {key: properties[key] for key in ("EventSourceArn", "FunctionName") if key in properties}
    between = reading.attempt(partial(scope.settled, ends, logical_id))
    if between is None:
        return None
    plain = reading.known(properties, MAPPING_SETTINGS, scope, logical_id)
    if attribute_text(plain.get("Enabled", True)) == "false":
        return None
    arn = str(reading.queue_arn(between.get("EventSourceArn", ""), scope))
    if not re.match(r"arn:[\w-]+:sqs:", arn):
        return None
    if not isinstance(name := between.get("FunctionName"), str):
        raise TemplateError(f"{logical_id}.FunctionName must be a name or an ARN, got {name!r}")
    function, _, qualifier = re.sub(r"^.*:function:", "", name).partition(":")
    return TemplateMapping(
        logical_id=logical_id,
        queue_arn=arn,
        function=function,
        qualifier=qualifier,
        batch_size=integer(plain, "BatchSize", DEFAULT_BATCH_SIZE, logical_id),
        window_seconds=integer(plain, "MaximumBatchingWindowInSeconds", 0, logical_id),
        reports_failures="ReportBatchItemFailures" in (plain.get("FunctionResponseTypes") or []),
        maximum_concurrency=optional_integer(
            plain.get("ScalingConfig") or {}, "MaximumConcurrency", f"{logical_id}.ScalingConfig"
        ),
        filters=tuple(_filters(plain.get("FilterCriteria"), f"{logical_id}.FilterCriteria")),
    )


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
    scope: Intrinsics,
    reading: Reading,
    mappings: Iterable[TemplateMapping],
    functions: Mapping[str, TemplateFunction],
) -> dict[str, TemplateQueue]:
    """Return the queues by name. Raises `TemplateError` for a cycle of dead-letter queues."""
    unknown = partial(unknown_visibility, mappings=mappings, functions=functions)
    each = (
        reading.each(partial(_queue, logical_id, properties, scope, reading, unknown))
        for logical_id, properties in of_type(resources, "AWS::SQS::Queue")
    )
    found = {queue.name: queue for queue in each if queue is not None}
    if not reading.tolerant:
        _refuse_cycles(found, {mapping.queue for mapping in mappings})
    return found


def _queue(
    logical_id: str,
    properties: Mapping[str, Any],
    scope: Intrinsics,
    reading: Reading,
    unknown: Callable[[str], dict[str, str]],
) -> TemplateQueue:
    found = reading.known(properties, QUEUE_ATTRIBUTES, scope, logical_id)
    attributes = {name: attribute_text(value) for name, value in found.items()}
    if attributes.get("FifoQueue") == "false":
        del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
    integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
    if "VisibilityTimeout" in properties and "VisibilityTimeout" not in attributes:
        attributes |= unknown(scope.attributes[f"{logical_id}.QueueName"])
    where = f"{logical_id}.RedrivePolicy"
    redrive = _redrive(properties, scope, reading, logical_id)
    return TemplateQueue(
        name=scope.attributes[f"{logical_id}.QueueName"],
        arn=scope.attributes[f"{logical_id}.Arn"],
        logical_id=logical_id,
        attributes=attributes,
        dead_letter_arn=reading.queue_arn(redrive.get("deadLetterTargetArn"), scope),
        max_receive_count=integer(redrive, "maxReceiveCount", DEFAULT_MAX_RECEIVE_COUNT, where),
        is_name_fixed=isinstance(properties.get("QueueName", logical_id), str),
    )


def _redrive(properties: Mapping[str, Any], scope: Intrinsics, reading: Reading, logical_id: str) -> Mapping[str, Any]:
    """Return the redrive policy of a queue; its dead-letter queue may have the name of a placeholder."""
    where = f"{logical_id}.RedrivePolicy"
    found = map_of(reading.known(properties, ["RedrivePolicy"], scope, logical_id).get("RedrivePolicy"), where)
    if (parameter := reading.defaulted.pop(f"{where}.deadLetterTargetArn", None)) is None:
        return found
    reading.use(parameter)
    whole = map_of(unwatched(scope).settled(properties["RedrivePolicy"], where), where)
    return {**found, "deadLetterTargetArn": whole["deadLetterTargetArn"]}


def _refuse_cycles(queues: Mapping[str, TemplateQueue], consumed: Collection[str]) -> None:
    """Raise `TemplateError` for a cycle of dead-letter queues of which functions consume all."""
    for cycle in dead_letter_cycles(queues):
        if set(cycle) <= set(consumed):
            raise TemplateError(
                "a message that always fails would never leave the cycle of dead-letter queues "
                f"{' -> '.join([*cycle, cycle[0]])}: remove one RedrivePolicy"
            )


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
