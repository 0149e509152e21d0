"""Building the resources of a template in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.simulator.client import SimulatedClient
from tarry.simulator.code import Code
from tarry.simulator.errors import InvalidParameterValue
from tarry.simulator.functions import UNRESERVED_CONCURRENCY, FunctionSettings
from tarry.template.queues import make_queues, with_foreign_queues
from tarry.template.variables import variables_of
from tarry.world import WallClock

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tarry.simulator.sqs import Sqs
    from tarry.template import Template, TemplateFunction
    from tarry.testing.hosting import Hosting
    from tarry.testing.sandbox import Environment

MADE_UP_KEYS = {
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "AWS_SESSION_TOKEN": "sandbox",
}
"""The credentials of a function's requests to the real AWS, if a test lets any through: AWS refuses them."""


@dataclass(frozen=True)
class Built:
    """The resources that were made: queue names by logical id, the code of functions by name and by logical id."""

    queues: Mapping[str, str]
    code: Mapping[str, Code]


def assemble(sqs: Sqs, hosting: Hosting, template: Template, environment: Environment, moto: ExitStack | None) -> Built:
    """Make the queues and functions of a template, and connect them: see `Sandbox.add_template`.

    With ``moto``, which mocks AWS until it is closed, make the tables, buckets, topics and keys too.
    """
    urls = make_queues(SimulatedClient(sqs, WallClock(), at_once), with_foreign_queues(template).values())
    resolve: Callable[..., dict[str, str]]
    if moto is None:
        resolve = partial(variables_of, template=template, urls=urls)
    else:
        from tarry.testing.resources import Resources

        resources = Resources(template, urls)
        moto.callback(resources.delete)
        resolve = resources.environment
    code: dict[str, Code] = {}
    for mapping in template.mappings:
        function = template.functions.get(mapping.function)
        if function is None or function.code is None:
            continue  # its code is elsewhere: the messages in its queue stay there
        if function.name not in code:
            variables = resolve(function, given=_given(function, environment))
            code[function.name] = code[function.logical_id] = code_of(function, variables)
        try:
            hosting.connect(
                code[function.name].handler,
                mapping.queue,
                settings_of(function),
                code[function.name].running,
                batch_size=mapping.batch_size,
                window_seconds=mapping.window_seconds,
                maximum_concurrency=mapping.maximum_concurrency,
                reports_failures=mapping.reports_failures,
                qualifier=mapping.qualifier,
                filters=mapping.filters,
            )
        except InvalidParameterValue as error:
            raise InvalidParameterValue(f"{template.named(mapping)}: {error}") from error
    return Built({each.logical_id: each.name for each in template.queues.values() if each.logical_id}, code)


def at_once(operation: str, parameters: Mapping[str, Any], apply: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`tarry.simulator.client.Transport` that takes no time."""
    return apply()


def _given(function: TemplateFunction, environment: Environment) -> dict[str, str]:
    given = {name: value for name, value in environment.items() if isinstance(value, str)}
    for name in (function.name, function.logical_id):
        if isinstance(own := environment.get(name), Mapping):
            given.update(own)
    return given


def code_of(function: TemplateFunction, variables: Mapping[str, str]) -> Code:
    """Return the code of a function with its environment variables."""
    return Code(function, {**MADE_UP_KEYS, **variables})


def settings_of(function: TemplateFunction) -> FunctionSettings:
    """Return the settings of a function of the template."""
    reserved = function.reserved_concurrency
    return FunctionSettings(
        name=function.name,
        timeout_seconds=function.timeout_seconds,
        memory_mb=function.memory_mb,
        concurrency=UNRESERVED_CONCURRENCY if reserved is None else reserved,
        arn=function.arn,
        recursive_loop=function.recursive_loop,
    )
