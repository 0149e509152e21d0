"""Reading the functions of a template."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tarry.template.code import CodeFinder
from tarry.template.intrinsics import Intrinsics
from tarry.template.model import (
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_SECONDS,
    TemplateAsync,
    TemplateError,
    TemplateFunction,
)
from tarry.template.policies import permissions_of
from tarry.template.reading.values import (
    Reading,
    Resources,
    attribute_text,
    integer,
    map_of,
    of_type,
    optional_integer,
    optional_text,
)


def read_functions(
    resources: Resources, scope: Intrinsics, finder: CodeFinder, consumers: Collection[str], reading: Reading
) -> dict[str, TemplateFunction]:
    """Return the functions by name; ``consumers`` are the names of those that must be resolvable."""
    found = {each.name: each for each in _functions(resources, scope, finder, consumers, reading)}
    return _with_async(found, resources, scope, reading)


def _functions(
    resources: Resources, scope: Intrinsics, finder: CodeFinder, consumers: Collection[str], reading: Reading
) -> Iterable[TemplateFunction]:
    for logical_id, _ in of_type(resources, "AWS::Lambda::Function"):
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
    variables = map_of(map_of(properties.get("Environment"), where).get("Variables"), f"{where}.Variables")
    environment, unresolved = _environment(variables, scope, f"{where}.Variables")
    runtime = optional_text(properties.get("Runtime"), scope)
    code = finder.code(logical_id, plain.get("Handler"), runtime)
    return TemplateFunction(
        logical_id=logical_id,
        name=scope.refs[logical_id],
        arn=scope.attributes[f"{logical_id}.Arn"],
        code=code.directory,
        handler=plain.get("Handler"),
        timeout_seconds=integer(plain, "Timeout", DEFAULT_TIMEOUT_SECONDS, logical_id),
        memory_mb=integer(plain, "MemorySize", DEFAULT_MEMORY_MB, logical_id),
        reserved_concurrency=optional_integer(plain, "ReservedConcurrentExecutions", logical_id),
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
    functions: dict[str, TemplateFunction], resources: Resources, scope: Intrinsics, reading: Reading
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
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventInvokeConfig"):
        found = re.sub(r"^.*:function:", "", str(resolved(properties, "FunctionName"))).partition(":")[0]
        if found in functions:
            functions[found] = replace(
                functions[found],
                asynchronous=replace(
                    functions[found].asynchronous,
                    retries=integer(properties, "MaximumRetryAttempts", 2, logical_id),
                    on_success=resolved(properties, "DestinationConfig", "OnSuccess", "Destination"),
                    on_failure=resolved(properties, "DestinationConfig", "OnFailure", "Destination"),
                ),
            )
    return functions


def _log_level(config: Any, scope: Intrinsics) -> str | None:
    given = config if isinstance(config, dict) else {}
    if optional_text(given.get("LogFormat"), scope) != "JSON":
        return None
    return optional_text(given.get("ApplicationLogLevel"), scope) or "INFO"


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
