"""The functions of a sandbox, its own and those of templates, the mappings that feed them, and their worlds."""

import datetime as dt
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from tarry import world
from tarry.consumer import Consumer
from tarry.observe import metrics
from tarry.support.values import queue_arn
from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.code import Code
from tarry.tools.simulator.functions import Call, Function, Handler, current_call
from tarry.tools.simulator.invocations import FunctionHost
from tarry.tools.simulator.lambda_mappings import LambdaMappings
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import Filters, InvalidParameterValue, MappingSettings
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.template import Template, TemplateFunction, TemplateMapping
from tarry.tools.template.model import make_queues, with_foreign_queues
from tarry.tools.template.variables import variables_of
from tarry.tools.testing.fault_injection import FaultyHost, FaultyPort, FaultyTransport, SlowClock
from tarry.tools.testing.faults import INVOCATION_FAULTS, Fault, Faults
from tarry.tools.testing.guarding import Guarding, guards_in
from tarry.tools.testing.misuse import listed
from tarry.tools.testing.observed import observed, recorded
from tarry.tools.testing.resources import Resources, moto_in_process
from tarry.world import WallClock, World

Environment = Mapping[str, str | Mapping[str, str]]
"""Variables of all functions, or of one by its name or logical id."""

_PACKAGE = "aws_lambda_powertools.utilities"
MODULES = (
    f"{_PACKAGE}.idempotency.persistence.base",
    f"{_PACKAGE}.idempotency.persistence.datarecord",
    f"{_PACKAGE}.idempotency.persistence.dynamodb",
    f"{_PACKAGE}.idempotency.persistence.redis",
    f"{_PACKAGE}.circuit_breaker.base",
    f"{_PACKAGE}.circuit_breaker.persistence.base",
    f"{_PACKAGE}.circuit_breaker.persistence.dynamodb",
)
"""The modules that call ``dt.datetime.now()``."""


class WorldDatetime(dt.datetime):
    """A ``datetime`` whose ``now`` is the time of the current world; in the real world, that of ``datetime``."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        here = world.current()
        if type(here.clock) is world.WallClock:
            return dt.datetime.now(tz)
        return dt.datetime.fromtimestamp(here.clock.time(), tz)


_DATETIME = SimpleNamespace(**{**vars(dt), "datetime": WorldDatetime})


def give_powertools_the_time() -> None:
    """Have the loaded modules of Powertools read the time of the current world, from now on."""
    for name in MODULES:
        module: Any = sys.modules.get(name)
        if module is not None and getattr(module, "dt", None) is dt:
            module.dt = _DATETIME


MADE_UP_KEYS = {
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "AWS_SESSION_TOKEN": "sandbox",
}
"""The credentials of a function's requests to the real AWS, if a test lets any through: AWS refuses them."""


class Feed(NamedTuple):
    """A queue, and the function that it feeds."""

    queue: str
    handler: Handler
    function: Function


class Hosting:
    """The Lambda service of a sandbox, with the functions of templates; and moto, for other resources.

    Resources and moto last until ``stack`` is closed.
    """

    def __init__(
        self,
        simulation: Simulation,
        sqs: Sqs,
        faults: Faults,
        seed: int,
        stack: ExitStack,
        lineage: Lineage | None = None,
    ) -> None:
        self._simulation = simulation
        self._sqs = sqs
        self._faults = faults
        self._history = sqs.history
        self._seed = seed
        self._stack = stack
        self._lineage = lineage
        self._clock = SlowClock(simulation.clock)
        self._worlds = 0
        self._mappings: list[EventSourceMapping] = []
        self.lambda_mappings = LambdaMappings(self._mappings, partial(Random(f"{seed} mappings").uniform, 1, 60))
        self._feeds: list[Feed] = []
        self._watched: dict[Consumer[Any], Consumer[Any]] = {}
        self._uses_moto = False
        self._code: dict[str, Code] = {}
        """The code of the functions of templates, by name and by logical id."""

    def world(self) -> World:
        """Return a new world: a process's own client and random source, in the sandbox's time."""
        self._worlds += 1
        clock, of = self._clock, f"{self._seed} world {self._worlds}"
        transport = FaultyTransport(self._sqs, self._simulation, Random(f"{of} transport"), self._faults)
        return World(
            clock=clock,
            random=Random(of),
            client_factory=lambda: SimulatedClient(self._sqs, clock, transport),
            threads=self._simulation.threads,
            watch=self._watch,
        )

    def connect(
        self,
        handler: Handler,
        mapping: TemplateMapping,
        settings: TemplateFunction,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Let a queue feed the function of a handler from now on. A handler is one function, whatever feeds it.

        ``around`` as for `Function`. Raises `ValueError` if the queue feeds it already, or if it has another timeout;
        `InvalidParameterValue` (a `ValueError`) for what Lambda refuses.
        """
        queue = mapping.queue
        function = self._function(handler, settings, around)
        name, timeout = function.settings.name, function.settings.timeout_seconds
        if timeout != settings.timeout_seconds:
            raise ValueError(
                f"{name} is a function with a timeout of {timeout:g} s already, and has the same for all its queues: "
                f"got {settings.timeout_seconds:g} s"
            )
        if any((feed.queue, feed.function) == (queue, function) for feed in self._feeds):
            raise ValueError(f"the queue {queue!r} feeds the function {name!r} already")
        mapping = replace(mapping, queue_arn=self._sqs.arn(queue), function=name)
        asked = {"QueueUrl": self._sqs.url(queue), "AttributeNames": ["VisibilityTimeout"]}
        visibility = int(self._sqs.call("GetQueueAttributes", asked)["Attributes"]["VisibilityTimeout"])
        mapped = MappingSettings(mapping, visibility, timeout)
        self._history.record(
            "connected",
            queue=queue,
            function=name,
            reports_failures=mapping.reports_failures,
            is_tarry=isinstance(handler, Consumer),
            warnings=Filters(mapping.filters).warnings,
        )
        port = FaultyPort(self._simulation.scheduler, self._sqs, mapped, self._faults)
        host = FaultyHost(self._simulation.scheduler, function, queue, self._faults)
        found = EventSourceMapping(self._simulation.scheduler, port, host, self._history, mapped)
        found.start()
        self._mappings.append(found)
        self._feeds.append(Feed(queue, handler, function))

    # templates

    def use_moto(self, region: str, client: Callable[[], Any], now: Callable[[], float]) -> None:
        """Mock AWS, unless it is mocked. Raises `TemplateError` if moto is not installed."""
        if not self._uses_moto:
            self._stack.enter_context(moto_in_process(region, client, self._sqs.call, now))
            self._uses_moto = True

    def add(self, template: Template, environment: Environment, *, resources: bool) -> dict[str, str]:
        """Make the queues and functions of a template, and connect them: see `Sandbox.add_template`.

        With ``resources``, make the tables, buckets, topics and keys too, in moto. Return the names of the queues by
        logical id. Raises `UsageError` if a resource cannot be made.
        """
        urls = make_queues(SimulatedClient(self._sqs, WallClock(), at_once), with_foreign_queues(template).values())
        resolve: Callable[..., dict[str, str]] = partial(variables_of, template=template, urls=urls)
        if resources:
            backing = Resources(template, urls)
            self._stack.callback(backing.delete)
            resolve = backing.environment
        code: dict[str, Code] = {}
        for mapping in template.mappings:
            function = template.functions.get(mapping.function)
            if function is None or function.code is None:
                continue  # its code is elsewhere: the messages in its queue stay there
            if function.name not in code:
                variables = resolve(function, given=_given(function, environment))
                made = Code(function, {**MADE_UP_KEYS, **variables})
                code[function.name] = code[function.logical_id] = made
            found = code[function.name]
            try:
                self.connect(found.handler, mapping, function, found.running)
            except InvalidParameterValue as error:
                raise InvalidParameterValue(f"{template.named(mapping)}: {error}") from error
        self._code |= code
        for function in guards_in(template):
            variables = resolve(function, given=_given(function, environment))
            guarding = Guarding(variables, self._simulation.scheduler, self._sqs, self.lambda_mappings, self.world())
            self._stack.enter_context(patch.object(metrics, "write", guarding.write))
        return {each.logical_id: each.name for each in template.queues.values() if each.logical_id}

    def module(self, function: str) -> ModuleType:
        """Return the module of a function: see `Sandbox.module`."""
        if function not in self._code:
            raise ValueError(f"no function {function!r} came from a template; there are {listed(self._code)}")
        return self._code[function].load()

    def host(self, function: TemplateFunction, variables: Mapping[str, str]) -> FunctionHost:
        """Return a function for code that invokes it: that of its queue, or a new one."""
        if function.name not in self._code:
            self._code[function.name] = Code(function, {**MADE_UP_KEYS, **variables})
        code = self._code[function.name]
        made = self._function(code.handler, function, code.running)
        if all(feed.function is not made for feed in self._feeds):
            self._feeds.append(Feed("", code.handler, made))
        return made

    def close(self) -> None:
        """End all environments."""
        for feed in self._feeds:
            feed.function.close()

    def _function(
        self, handler: Handler, settings: TemplateFunction, around: Callable[[], AbstractContextManager[object]]
    ) -> Function:
        """The function of the handler, made on first use: two handlers with the same name are two functions."""
        for feed in self._feeds:
            if feed.handler == handler:
                return feed.function
        taken = {feed.function.settings.name for feed in self._feeds}
        names = (settings.name if number == 1 else f"{settings.name}-{number}" for number in count(1))
        named = replace(settings, name=next(name for name in names if name not in taken))
        recording = recorded(handler, self._history)
        invoke = partial(self._invoke, recording)
        return Function(self._simulation, invoke, self.world, self._history, named, around, lineage=self._lineage)

    def _watch(self, consumer: Consumer[Any]) -> Consumer[Any]:
        """Return the observed consumer that runs in its place, below a decorator or in a Lambda handler too."""
        call = current_call()
        if call is None:
            return consumer
        self._history.record(
            "consumed",
            request_id=call.request_id,
            consumer=consumer.name,
            acks_eagerly=consumer.acks_eagerly,
            keepalive=consumer.keepalive,
            has_claims=consumer._settings.get("idempotency") is not None,
        )
        give_powertools_the_time()  # here, since a function of a template is imported at its first invocation
        if consumer not in self._watched:
            self._watched[consumer] = observed(consumer, self._history)
        return self._watched[consumer]

    def _invoke(self, handler: Handler, event: Any, context: Any) -> Any:
        """Run one invocation, with the faults that strike it as a whole."""
        queue = queue_of(event)
        call, fault = current_call(), self._faults.next(INVOCATION_FAULTS, queue, None, context.aws_request_id)
        if fault is not None and call is not None:
            match fault.kind:
                case "crash":
                    self._simulation.scheduler.after(fault.seconds, partial(self._crash, fault, call, queue))
                case "timeout":
                    self._simulation.clock.sleep(context.get_remaining_time_in_millis() / 1000 + 1)
                case "slow_cpu":
                    self._clock.slow_down(context.aws_request_id, fault.seconds)
                case "slow":
                    self._simulation.clock.sleep(fault.seconds)
        return handler(event, context)

    def _crash(self, fault: Fault, call: Call, queue: str | None) -> None:
        """End the process of an invocation that is still running."""
        if call.is_running:
            self._faults.struck(fault, None, queue, call.request_id)
            call.crash()
        else:
            self._faults.give_back(fault)


def queue_of(event: Any) -> str | None:
    """Return the name of the queue of an SQS event; None for another event."""
    try:
        return queue_arn(event["Records"][0]["eventSourceARN"]).name or None
    except (LookupError, TypeError, AttributeError):
        return None


def at_once(operation: str, parameters: Mapping[str, Any], apply: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`tarry.tools.simulator.client.Transport` that takes no time."""
    return apply()


def _given(function: TemplateFunction, environment: Environment) -> dict[str, str]:
    given = {name: value for name, value in environment.items() if isinstance(value, str)}
    for name in (function.name, function.logical_id):
        if isinstance(own := environment.get(name), Mapping):
            given.update(own)
    return given
