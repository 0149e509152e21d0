"""Reading a template into values."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tarry.template.document import build_methods, code_paths, load_document, translate
from tarry.template.intrinsics import Intrinsics
from tarry.template.layers import read_layers
from tarry.template.model import (
    ACCOUNT,
    DEFAULT_BATCH_SIZE,
    DEFAULT_MAX_RECEIVE_COUNT,
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_SECONDS,
    DEFAULT_VISIBILITY_SECONDS,
    Template,
    TemplateError,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
)
from tarry.template.policies import permissions_of

STACK_NAME = "tarry-local"

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

BACKING_TYPES = frozenset({"AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SNS::Topic", "AWS::KMS::Key"})
"""The types of resources that can be created on a developer machine, besides queues and functions."""

OF_OTHER_EVENTS = frozenset({"StartingPosition", "Queues", "SelfManagedEventSource"})
"""Properties that only mappings of streams, message brokers and Kafka have."""

Resources = Mapping[str, Mapping[str, Any]]


def read_template(path: Path | str, parameters: Mapping[str, str] | None = None, region: str = "us-east-1") -> Template:
    """Read a SAM or CloudFormation template. Queues and functions without a name get their logical id as name.

    Args:
        path: The template file.
        parameters: Values of parameters; the others have their defaults.
        region: The value of ``AWS::Region``.

    Raises:
        TemplateError: the file cannot be read, or a required intrinsic cannot be resolved.
    """
    try:
        return _read(Path(path), parameters, region)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a list where a map must be, and the like
        why = f"{type(error).__name__}: {error}"
        raise TemplateError(f"{path} is not a valid template ({why}): sam validate --lint names the line") from error


def _read(path: Path, parameters: Mapping[str, str] | None, region: str) -> Template:
    document = load_document(path)
    refs = _parameters(document.get("Parameters") or {}, parameters or {}) | _pseudo_parameters(region)
    translated = translate(document, region, {name: value for name, value in refs.items() if "::" not in name})
    mappings, conditions = translated.get("Mappings"), translated.get("Conditions")
    scope = Intrinsics(refs, {}, mappings, conditions)
    resources = {
        name: resource
        for name, resource in translated["Resources"].items()
        if "Condition" not in resource or scope.condition(resource["Condition"], name)
    }
    named, attributes = _names(resources, scope, region)
    scope = Intrinsics(refs | named, attributes, mappings, conditions, pending=frozenset(resources))
    return Template(
        path=path,
        region=region,
        queues={queue.name: queue for queue in _queues(resources, scope)},
        functions={each.name: each for each in _functions(resources, scope, document, path.parent)},
        mappings=tuple(_mappings(resources, scope)),
        backing={
            name: {"Type": resource["Type"], "Properties": scope.resolve(resource.get("Properties", {}), name)}
            for name, resource in resources.items()
            if resource["Type"] in BACKING_TYPES
        },
    )


def _parameters(declared: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    for name in given:
        if name not in declared:
            raise TemplateError(f"the template has no parameter {name}; it has {', '.join(declared) or 'none'}")
    values: dict[str, Any] = {}
    for name, declaration in declared.items():
        value = given.get(name, declaration.get("Default"))
        if value is not None:
            is_list = "List" in str(declaration.get("Type"))
            values[name] = [part.strip() for part in str(value).split(",")] if is_list else value
    return values


def _pseudo_parameters(region: str) -> dict[str, Any]:
    return {
        "AWS::AccountId": ACCOUNT,
        "AWS::Region": region,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::StackName": STACK_NAME,
        "AWS::StackId": f"arn:aws:cloudformation:{region}:{ACCOUNT}:stack/{STACK_NAME}/local",
        "AWS::NotificationARNs": [],
    }


def _names(resources: Resources, scope: Intrinsics, region: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names and ARNs of queues and functions: the values of Ref and of GetAtt."""
    refs: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for logical_id, properties in _of_type(resources, "AWS::SQS::Queue"):
        suffix = ".fifo" if _attribute(properties.get("FifoQueue", False)) == "true" else ""
        name = scope.settled(properties.get("QueueName", logical_id + suffix), f"{logical_id}.QueueName")
        attributes[f"{logical_id}.QueueName"] = name
        attributes[f"{logical_id}.Arn"] = f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"
    for logical_id, properties in _of_type(resources, "AWS::Lambda::Function"):
        refs[logical_id] = scope.settled(properties.get("FunctionName", logical_id), f"{logical_id}.FunctionName")
        attributes[f"{logical_id}.Arn"] = f"arn:aws:lambda:{region}:{ACCOUNT}:function:{refs[logical_id]}"
    for logical_id, properties in _of_type(resources, "AWS::Lambda::Alias"):
        function = Intrinsics(refs, attributes).settled(properties.get("FunctionName"), f"{logical_id}.FunctionName")
        refs[logical_id] = f"{function}:{properties.get('Name')}"
    return refs, attributes


def _queues(resources: Resources, scope: Intrinsics) -> Iterable[TemplateQueue]:
    for logical_id, properties in _of_type(resources, "AWS::SQS::Queue"):
        attributes = {
            name: _attribute(scope.settled(properties[name], f"{logical_id}.{name}"))
            for name in QUEUE_ATTRIBUTES
            if name in properties
        }
        if attributes.get("FifoQueue") == "false":
            del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
        _integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
        where = f"{logical_id}.RedrivePolicy"
        redrive = scope.settled(properties.get("RedrivePolicy") or {}, where)
        redrive = json.loads(redrive) if isinstance(redrive, str) else redrive
        yield TemplateQueue(
            name=scope.attributes[f"{logical_id}.QueueName"],
            arn=scope.attributes[f"{logical_id}.Arn"],
            logical_id=logical_id,
            attributes=attributes,
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            max_receive_count=_integer(redrive, "maxReceiveCount", DEFAULT_MAX_RECEIVE_COUNT, where),
        )


def _functions(
    resources: Resources, scope: Intrinsics, document: Mapping[str, Any], directory: Path
) -> Iterable[TemplateFunction]:
    code = {name: directory / uri for name, uri in code_paths(document).items() if uri is not None}
    layers = read_layers(document, directory, scope)
    builds = build_methods(document)
    for logical_id, properties in _of_type(resources, "AWS::Lambda::Function"):
        plain = {
            key: scope.settled(properties[key], f"{logical_id}.{key}")
            for key in ("Handler", "Timeout", "MemorySize", "ReservedConcurrentExecutions", "RecursiveLoop")
            if key in properties
        }
        variables = (properties.get("Environment") or {}).get("Variables") or {}
        environment, unresolved = _environment(variables, scope, f"{logical_id}.Environment.Variables")
        yield TemplateFunction(
            logical_id=logical_id,
            name=scope.refs[logical_id],
            arn=scope.attributes[f"{logical_id}.Arn"],
            code=code.get(logical_id),
            handler=plain.get("Handler"),
            timeout_seconds=_integer(plain, "Timeout", DEFAULT_TIMEOUT_SECONDS, logical_id),
            memory_mb=_integer(plain, "MemorySize", DEFAULT_MEMORY_MB, logical_id),
            reserved_concurrency=_optional_integer(plain, "ReservedConcurrentExecutions", logical_id),
            recursive_loop="Allow" if plain.get("RecursiveLoop") == "Allow" else "Terminate",
            environment=environment,
            unresolved=unresolved,
            all_layers=layers.get(logical_id, ()),
            runtime=_optional_text(properties.get("Runtime"), scope),
            build_method=builds.get(logical_id),
            permissions=permissions_of(properties.get("Role"), resources, document["Resources"], scope),
        )


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


def _mappings(resources: Resources, scope: Intrinsics) -> Iterable[TemplateMapping]:
    for logical_id, properties in _of_type(resources, "AWS::Lambda::EventSourceMapping"):
        if OF_OTHER_EVENTS & properties.keys():
            continue  # the ARN of its source, such as a stream, is often unknown
        plain = {
            key: scope.settled(value, f"{logical_id}.{key}")
            for key, value in properties.items()
            if key not in {"FilterCriteria", "DestinationConfig", "Tags"}
        }
        arn = plain.get("EventSourceArn", "")
        if not re.match(r"arn:[\w-]+:sqs:", str(arn)) or _attribute(plain.get("Enabled", True)) == "false":
            continue
        yield TemplateMapping(
            logical_id=logical_id,
            queue_arn=arn,
            function=re.sub(r"^.*:function:", "", plain["FunctionName"]).partition(":")[0],
            batch_size=_integer(plain, "BatchSize", DEFAULT_BATCH_SIZE, logical_id),
            window_seconds=_integer(plain, "MaximumBatchingWindowInSeconds", 0, logical_id),
            reports_failures="ReportBatchItemFailures" in (plain.get("FunctionResponseTypes") or []),
            maximum_concurrency=_optional_integer(
                plain.get("ScalingConfig") or {}, "MaximumConcurrency", f"{logical_id}.ScalingConfig"
            ),
            filters=tuple(_filters(properties.get("FilterCriteria"), scope, f"{logical_id}.FilterCriteria")),
        )


def _filters(criteria: Any, scope: Intrinsics, where: str) -> Iterable[str]:
    for each in (scope.settled(criteria or {}, where)).get("Filters") or []:
        pattern = each.get("Pattern")
        if not isinstance(pattern, str):
            raise TemplateError(f"{where}: a Pattern must be JSON text, got {pattern!r}")
        yield pattern


def _of_type(resources: Resources, kind: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((name, resource.get("Properties", {})) for name, resource in resources.items() if resource["Type"] == kind)


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
