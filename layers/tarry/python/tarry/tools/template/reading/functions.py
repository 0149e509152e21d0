"""Reading the functions of a template."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tarry.tools.template.code import CodeFinder
from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.lazy_values import unwatched
from tarry.tools.template.model import (
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_SECONDS,
    TemplateAsync,
    TemplateError,
    TemplateFunction,
)
from tarry.tools.template.policies import permissions_of
from tarry.tools.template.reading.values import (
    Reading,
    Resources,
    attribute_text,
    integer,
    map_of,
    of_type,
    optional_integer,
)

SETTINGS = ("Handler", "MemorySize", "RecursiveLoop", "ReservedConcurrentExecutions", "Timeout")


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
        read = partial(_function, logical_id, resources, scope, finder, reading)
        if name is not None and (function := reading.attempt(read, is_needed=name in consumers)) is not None:
            yield function


def _function(
    logical_id: str, resources: Resources, scope: Intrinsics, finder: CodeFinder, reading: Reading
) -> TemplateFunction:
    properties = resources[logical_id].get("Properties") or {}
    plain = reading.known(properties, SETTINGS, scope, logical_id)
    where = f"{logical_id}.Environment"
    variables = map_of(map_of(properties.get("Environment"), where).get("Variables"), f"{where}.Variables")
    environment, unresolved = _environment(variables, scope, f"{where}.Variables")
    runtime = _texts(properties, ["Runtime"], scope, reading, logical_id).get("Runtime")
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
        log_level=_log_level(properties.get("LoggingConfig"), scope, reading, f"{logical_id}.LoggingConfig"),
        build_method=finder.build_method(logical_id),
        build_reason=code.build_reason,
        other_code=code.other,
        foreign_build=code.foreign_build,
        lacking_packages=code.lacking,
        permissions=permissions_of(properties.get("Role"), resources, finder.resources, unwatched(scope)),
    )


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
