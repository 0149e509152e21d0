"""Reading a template into values."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tarry.support.arn import queue_arn
from tarry.template.code import CodeFinder
from tarry.template.document import load_document, pruned, translate
from tarry.template.intrinsics import Intrinsics, references
from tarry.template.model import (
    ACCOUNT,
    DEFAULT_BATCH_SIZE,
    DEFAULT_MAX_RECEIVE_COUNT,
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_SECONDS,
    DEFAULT_VISIBILITY_SECONDS,
    STACK_NAME,
    Template,
    TemplateAsync,
    TemplateError,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
)
from tarry.template.names import LazyValues, with_names
from tarry.template.parameters import configured_values, parameter_values
from tarry.template.policies import permissions_of
from tarry.template.unplayed import OF_OTHER_EVENTS, unplayed
from tarry.tooling.errors import UsageError

T = TypeVar("T")

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

PLAYED_TYPES = frozenset({"AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::Lambda::EventSourceMapping"})
"""The types of resources that must be resolvable."""

SEPARATE = frozenset({"Targets", "Subscription"})
"""Properties of rules and topics whose elements are resolved one by one: some may be APIs or state machines."""

Resources = Mapping[str, Mapping[str, Any]]


def read_template(
    path: Path | str,
    parameters: Mapping[str, str] | None = None,
    region: str = "us-east-1",
    *,
    configured: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> Template:
    """Read a SAM or CloudFormation template. Queues and functions without a name get their logical id as name.

    Only what queues, mappings and their functions need must be resolvable.

    Args:
        path: The template file.
        parameters: Values of parameters; the others have their defaults.
        region: The value of ``AWS::Region``.
        configured: Values with precedence over the defaults; None for those that the project's samconfig.toml has for
            the environment ``default``.
        lenient: Give a placeholder to each parameter without a value, and leave out mappings and properties of queues
            that cannot be resolved.

    Raises:
        TemplateError: the file or its samconfig.toml cannot be read, or a required intrinsic cannot be resolved.
    """
    path = Path(path)
    try:
        if configured is None:
            configured = configured_values(path, None)
        return _read(path, parameters or {}, region, configured, lenient=lenient)
    except UsageError as error:  # of samconfig.toml
        raise TemplateError(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a list where a map must be, and the like
        why = f"{type(error).__name__}: {error}"
        raise TemplateError(f"{path} is not a valid template ({why}): sam validate --lint names the line") from error


def _read(
    path: Path, parameters: Mapping[str, str], region: str, configured: Mapping[str, str], *, lenient: bool
) -> Template:
    whole = load_document(path)
    document, not_played = pruned(whole)
    values = parameter_values(document.get("Parameters") or {}, parameters, configured, placeholders=lenient)
    translated, refused = translate(document, region, values.values)
    reading = _Reading(lenient, list(refused), frozenset(values.placeholders.values()))
    resources, scope = _in_use(translated, values.refs(), region, reading, frozenset(whole["Resources"]))
    finder = CodeFinder(path, document, scope)
    mappings = tuple(_mappings(resources, scope, reading))
    consumers = {mapping.function for mapping in mappings}
    return Template(
        path=path,
        region=region,
        queues=_without_cycle({queue.name: queue for queue in _queues(resources, scope, reading)}),
        functions=_with_async(
            {each.name: each for each in _functions(resources, scope, finder, consumers, reading)},
            resources,
            scope,
            reading,
        ),
        mappings=mappings,
        backing=_backing(resources, scope, reading),
        placeholders=values.placeholders,
        not_played=(*not_played, *unplayed(resources)),
        left_out=tuple(dict.fromkeys(reading.left_out)),
    )


@dataclass(frozen=True)
class _Reading:
    """How to read: what cannot be resolved is left out if ``lenient``. ``made_up`` are the values of placeholders."""

    lenient: bool
    left_out: list[str]
    made_up: frozenset[str]

    def attempt(self, make: Callable[[], T], *, is_needed: bool = True) -> T | None:
        """Return the value; None if it cannot be resolved and may be left out."""
        try:
            return make()
        except TemplateError as error:
            if is_needed and not self.lenient:
                raise
            self.left_out.append(str(error))
            return None


def _in_use(
    translated: Mapping[str, Any],
    parameters: Mapping[str, Callable[[], Any]],
    region: str,
    reading: _Reading,
    declared: frozenset[str],
) -> tuple[Resources, Intrinsics]:
    """Return the resources whose condition holds, and the scope that resolves their properties."""
    refs: dict[str, Callable[[], Any]] = {**parameters, "AWS::NotificationARNs": list}
    refs |= {name: partial(str, value) for name, value in _pseudo_parameters(region).items()}
    conditions = translated.get("Conditions")
    early = Intrinsics(LazyValues(refs), {}, translated.get("Mappings"), conditions)
    resources = {}
    for name, resource in translated["Resources"].items():
        condition = partial(early.condition, resource.get("Condition"), name)
        if "Condition" not in resource or reading.attempt(condition, is_needed=resource["Type"] in PLAYED_TYPES):
            resources[name] = resource
    return resources, with_names(refs, resources, early, region, frozenset(resources) | declared)


def _pseudo_parameters(region: str) -> dict[str, str]:
    return {
        "AWS::AccountId": ACCOUNT,
        "AWS::Region": region,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::StackName": STACK_NAME,
        "AWS::StackId": f"arn:aws:cloudformation:{region}:{ACCOUNT}:stack/{STACK_NAME}/local",
    }


def _queues(resources: Resources, scope: Intrinsics, reading: _Reading) -> Iterable[TemplateQueue]:
    for logical_id, properties in _of_type(resources, "AWS::SQS::Queue"):
        settled = {
            name: reading.attempt(partial(scope.settled, {name: properties[name]}, logical_id))
            for name in (*QUEUE_ATTRIBUTES, "RedrivePolicy")
            if name in properties
        }
        found = {name: value[name] for name, value in settled.items() if value}
        attributes = {name: _attribute(value) for name, value in found.items() if name != "RedrivePolicy"}
        if attributes.get("FifoQueue") == "false":
            del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
        _integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
        where = f"{logical_id}.RedrivePolicy"
        redrive = _map(found.get("RedrivePolicy"), where)
        yield TemplateQueue(
            name=scope.attributes[f"{logical_id}.QueueName"],
            arn=scope.attributes[f"{logical_id}.Arn"],
            logical_id=logical_id,
            attributes=attributes,
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            max_receive_count=_integer(redrive, "maxReceiveCount", DEFAULT_MAX_RECEIVE_COUNT, where),
        )


def _map(value: Any, where: str) -> Mapping[str, Any]:
    """Return a map, which may be written as JSON text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TemplateError(f"{where} must be a map, got {value!r}")
    return found


def _without_cycle(queues: dict[str, TemplateQueue]) -> dict[str, TemplateQueue]:
    for name, queue in queues.items():
        seen, target = [name], queue.dead_letter_arn
        while target is not None and (dead := queue_arn(target).name) not in seen:
            seen.append(dead)
            target = queues[dead].dead_letter_arn if dead in queues else None
        if target is not None and dead == name:
            raise TemplateError(
                f"a message that always fails would never leave the cycle of dead-letter queues {' -> '.join(seen)} -> "
                f"{name}: remove one RedrivePolicy"
            )
    return queues


def _functions(
    resources: Resources, scope: Intrinsics, finder: CodeFinder, consumers: Collection[str], reading: _Reading
) -> Iterable[TemplateFunction]:
    for logical_id, _ in _of_type(resources, "AWS::Lambda::Function"):
        name = reading.attempt(partial(scope.refs.__getitem__, logical_id), is_needed=False)
        read = partial(_function, logical_id, resources, scope, finder)
        if name is not None and (function := reading.attempt(read, is_needed=name in consumers)) is not None:
            yield function


def _function(logical_id: str, resources: Resources, scope: Intrinsics, finder: CodeFinder) -> TemplateFunction:
    properties = resources[logical_id].get("Properties") or {}
    plain = {
        key: scope.settled(properties[key], f"{logical_id}.{key}")
        for key in ("Handler", "Timeout", "MemorySize", "ReservedConcurrentExecutions", "RecursiveLoop")
        if key in properties
    }
    where = f"{logical_id}.Environment"
    variables = _map(_map(properties.get("Environment"), where).get("Variables"), f"{where}.Variables")
    environment, unresolved = _environment(variables, scope, f"{where}.Variables")
    runtime = _optional_text(properties.get("Runtime"), scope)
    code = finder.code(logical_id, plain.get("Handler"), runtime)
    return TemplateFunction(
        logical_id=logical_id,
        name=scope.refs[logical_id],
        arn=scope.attributes[f"{logical_id}.Arn"],
        code=code.directory,
        handler=plain.get("Handler"),
        timeout_seconds=_integer(plain, "Timeout", DEFAULT_TIMEOUT_SECONDS, logical_id),
        memory_mb=_integer(plain, "MemorySize", DEFAULT_MEMORY_MB, logical_id),
        reserved_concurrency=_optional_integer(plain, "ReservedConcurrentExecutions", logical_id),
        recursive_loop="Allow" if plain.get("RecursiveLoop") == "Allow" else "Terminate",
        environment=environment,
        unresolved=unresolved,
        all_layers=finder.layers(logical_id),
        runtime=runtime,
        log_level=_log_level(properties.get("LoggingConfig"), scope),
        build_method=finder.build_method(logical_id),
        build_reason=code.build_reason,
        permissions=permissions_of(properties.get("Role"), resources, finder.resources, scope),
    )


def _with_async(
    functions: dict[str, TemplateFunction], resources: Resources, scope: Intrinsics, reading: _Reading
) -> dict[str, TemplateFunction]:
    """Return the functions with their settings for asynchronous invocations."""

    def resolved(properties: Mapping[str, Any], *path: str) -> Any:
        value: Any = properties
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return reading.attempt(partial(scope.settled, value, ".".join(path)), is_needed=False)

    for name, function in functions.items():
        properties = resources[function.logical_id].get("Properties") or {}
        if arn := resolved(properties, "DeadLetterConfig", "TargetArn"):
            functions[name] = replace(function, asynchronous=TemplateAsync(dead_letter_arn=arn))
    for logical_id, properties in _of_type(resources, "AWS::Lambda::EventInvokeConfig"):
        found = re.sub(r"^.*:function:", "", str(resolved(properties, "FunctionName"))).partition(":")[0]
        if found in functions:
            functions[found] = replace(
                functions[found],
                asynchronous=replace(
                    functions[found].asynchronous,
                    retries=_integer(properties, "MaximumRetryAttempts", 2, logical_id),
                    on_success=resolved(properties, "DestinationConfig", "OnSuccess", "Destination"),
                    on_failure=resolved(properties, "DestinationConfig", "OnFailure", "Destination"),
                ),
            )
    return functions


def _log_level(config: Any, scope: Intrinsics) -> str | None:
    given = config if isinstance(config, dict) else {}
    if _optional_text(given.get("LogFormat"), scope) != "JSON":
        return None
    return _optional_text(given.get("ApplicationLogLevel"), scope) or "INFO"


def _environment(variables: Mapping[str, Any], scope: Intrinsics, where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved variables, and the reasons why the others cannot be resolved."""
    values: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name, value in variables.items():
        try:
            values |= scope.resolve({name: value}, where)
        except TemplateError as error:
            unresolved[name] = str(error)
    return {name: value if isinstance(value, dict) else _attribute(value) for name, value in values.items()}, unresolved


def _mappings(resources: Resources, scope: Intrinsics, reading: _Reading) -> Iterable[TemplateMapping]:
    for logical_id, properties in _of_type(resources, "AWS::Lambda::EventSourceMapping"):
        if OF_OTHER_EVENTS & properties.keys():
            continue  # the ARN of its source, such as a stream, is often unknown
        plain = reading.attempt(partial(_plain_mapping, logical_id, properties, scope))
        if plain is None or _attribute(plain.get("Enabled", True)) == "false":
            continue
        arn = str(plain.get("EventSourceArn", ""))
        if arn in reading.made_up:  # a queue of another stack, given by a parameter
            arn = f"arn:aws:sqs:{scope.refs['AWS::Region']}:{ACCOUNT}:{arn}"
        if not re.match(r"arn:[\w-]+:sqs:", arn):
            continue
        if not isinstance(name := plain.get("FunctionName"), str):
            raise TemplateError(f"{logical_id}.FunctionName must be a name or an ARN, got {name!r}")
        yield TemplateMapping(
            logical_id=logical_id,
            queue_arn=arn,
            function=re.sub(r"^.*:function:", "", name).partition(":")[0],
            batch_size=_integer(plain, "BatchSize", DEFAULT_BATCH_SIZE, logical_id),
            window_seconds=_integer(plain, "MaximumBatchingWindowInSeconds", 0, logical_id),
            reports_failures="ReportBatchItemFailures" in (plain.get("FunctionResponseTypes") or []),
            maximum_concurrency=_optional_integer(
                plain.get("ScalingConfig") or {}, "MaximumConcurrency", f"{logical_id}.ScalingConfig"
            ),
            filters=tuple(_filters(properties.get("FilterCriteria"), scope, f"{logical_id}.FilterCriteria")),
        )


def _plain_mapping(logical_id: str, properties: Mapping[str, Any], scope: Intrinsics) -> dict[str, Any]:
    ignored = {"FilterCriteria", "DestinationConfig", "Tags", "KmsKeyArn"}
    return {key: scope.settled(value, f"{logical_id}.{key}") for key, value in properties.items() if key not in ignored}


def _backing(resources: Resources, scope: Intrinsics, reading: _Reading) -> dict[str, Mapping[str, Any]]:
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


def _filters(criteria: Any, scope: Intrinsics, where: str) -> Iterable[str]:
    for each in (scope.settled(criteria or {}, where)).get("Filters") or []:
        pattern = each.get("Pattern")
        if not isinstance(pattern, str):
            raise TemplateError(f"{where}: a Pattern must be JSON text, got {pattern!r}")
        yield pattern


def _of_type(resources: Resources, kind: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return (
        (name, resource.get("Properties") or {}) for name, resource in resources.items() if resource["Type"] == kind
    )


def _integer(properties: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = properties.get(key, default)
    try:
        return int(value)
    except (ValueError, TypeError) as error:
        raise TemplateError(f"{where}.{key} must be a whole number, got {value!r}") from error


def _optional_integer(properties: Mapping[str, Any], key: str, where: str) -> int | None:
    return _integer(properties, key, 0, where) if properties.get(key) is not None else None


def _optional_text(value: Any, scope: Intrinsics) -> str | None:
    try:
        resolved = scope.settled(value, "")
    except TemplateError:
        return None
    return resolved if isinstance(resolved, str) else None


def _attribute(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
