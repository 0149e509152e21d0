"""The resources of templates in a sandbox: queues, functions with their mappings, and others in moto."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.code import Code
from tarry.tools.simulator.errors import InvalidParameterValue
from tarry.tools.simulator.functions import UNRESERVED_CONCURRENCY, FunctionSettings
from tarry.tools.template.model import make_queues, with_foreign_queues
from tarry.tools.template.variables import variables_of
from tarry.tools.testing.misuse import listed
from tarry.world import WallClock

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import ModuleType

    from tarry.tools.simulator.invocations import FunctionHost
    from tarry.tools.simulator.sqs import Sqs
    from tarry.tools.template import Template, TemplateFunction, TemplateMapping
    from tarry.tools.testing.hosting import Hosting
    from tarry.tools.testing.resources import Resources

    Environment = Mapping[str, str | Mapping[str, str]]
    """Variables of all functions, or of one by its name or logical id."""

MADE_UP_KEYS = {
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "AWS_SESSION_TOKEN": "sandbox",
}
"""The credentials of a function's requests to the real AWS, if a test lets any through: AWS refuses them."""


class TemplateParts:
    """The functions that a sandbox has from templates, and moto, until ``stack`` is closed, for other resources."""

    def __init__(self, sqs: Sqs, hosting: Hosting, stack: ExitStack) -> None:
        self._sqs = sqs
        self._hosting = hosting
        self._stack = stack
        self._uses_moto = False
        self._code: dict[str, Code] = {}
        """By name and by logical id."""

    def use_moto(self, region: str, client: Callable[[], Any], now: Callable[[], float]) -> None:
        """Mock AWS, unless it is mocked. Raises `TemplateError` if moto is not installed."""
        from tarry.tools.testing.resources import moto_in_process

        if not self._uses_moto:
            self._stack.enter_context(moto_in_process(region, client, self._sqs.call, now))
            self._uses_moto = True

    def add(self, template: Template, environment: Environment, *, resources: bool) -> dict[str, str]:
        """Make the queues and functions of a template, and connect them: see `Sandbox.add_template`.

        With ``resources``, make the tables, buckets, topics and keys too, in moto. Return the names of the queues by
        logical id.

        Raises:
            UsageError: a resource cannot be made.
        """
        urls = make_queues(SimulatedClient(self._sqs, WallClock(), at_once), with_foreign_queues(template).values())
        resolve: Callable[..., dict[str, str]] = partial(variables_of, template=template, urls=urls)
        if resources:
            resolve = self._made(template, urls).environment
        code: dict[str, Code] = {}
        for mapping in template.mappings:
            function = template.functions.get(mapping.function)
            if function is None or function.code is None:
                continue  # its code is elsewhere: the messages in its queue stay there
            if function.name not in code:
                variables = resolve(function, given=_given(function, environment))
                code[function.name] = code[function.logical_id] = code_of(function, variables)
            self._connect(template, mapping, function, code[function.name])
        self._code |= code
        return {each.logical_id: each.name for each in template.queues.values() if each.logical_id}

    def module(self, function: str) -> ModuleType:
        """Return the module of a function: see `Sandbox.module`."""
        if function not in self._code:
            raise ValueError(f"no function {function!r} came from a template; there are {listed(self._code)}")
        return self._code[function].load()

    def host(self, function: TemplateFunction, variables: Mapping[str, str]) -> FunctionHost:
        """Return a function for code that invokes it: that of its queue, or a new one."""
        if function.name not in self._code:
            self._code[function.name] = code_of(function, variables)
        code = self._code[function.name]
        return self._hosting.function_of(code.handler, settings_of(function), code.running)

    def _made(self, template: Template, urls: Mapping[str, str]) -> Resources:
        from tarry.tools.testing.resources import Resources

        resources = Resources(template, urls)
        self._stack.callback(resources.delete)
        return resources

    def _connect(self, template: Template, mapping: TemplateMapping, function: TemplateFunction, code: Code) -> None:
        try:
            self._hosting.connect(
                code.handler,
                mapping.queue,
                settings_of(function),
                code.running,
                batch_size=mapping.batch_size,
                window_seconds=mapping.window_seconds,
                maximum_concurrency=mapping.maximum_concurrency,
                reports_failures=mapping.reports_failures,
                qualifier=mapping.qualifier,
                filters=mapping.filters,
            )
        except InvalidParameterValue as error:
            raise InvalidParameterValue(f"{template.named(mapping)}: {error}") from error


def at_once(operation: str, parameters: Mapping[str, Any], apply: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`tarry.tools.simulator.client.Transport` that takes no time."""
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
