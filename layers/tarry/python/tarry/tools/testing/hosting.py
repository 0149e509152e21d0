"""The functions of a sandbox, the mappings that feed them, and the worlds in which they run."""

from __future__ import annotations

import datetime as dt
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from tarry import world
from tarry.consumer import Consumer
from tarry.support.values import queue_arn
from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.functions import Function, FunctionSettings, current_call
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.testing.fault_injection import FaultyHost, FaultyPort, FaultyTransport, SlowClock
from tarry.tools.testing.observed import observed, recorded
from tarry.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tarry.tools.simulator.functions import Call, Handler
    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.recursion import Lineage
    from tarry.tools.simulator.simulation import Simulation
    from tarry.tools.simulator.sqs import Sqs
    from tarry.tools.testing.faults import Fault, Faults

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


class MappingOptions(TypedDict):
    """The settings of an event source mapping, from a test or a template: see `MappingSettings`."""

    batch_size: int
    window_seconds: float
    maximum_concurrency: int | None
    reports_failures: bool
    filters: Sequence[str | Mapping[str, Any]]


class Feed(NamedTuple):
    """A queue, and the function that it feeds."""

    queue: str
    handler: Handler
    function: Function


class Hosting:
    """The Lambda service of a sandbox."""

    def __init__(
        self,
        simulation: Simulation,
        sqs: Sqs,
        faults: Faults,
        history: History,
        seed: int,
        lineage: Lineage | None = None,
    ) -> None:
        self._simulation = simulation
        self._sqs = sqs
        self._faults = faults
        self._history = history
        self._seed = seed
        self._lineage = lineage
        self._clock = SlowClock(simulation.clock)
        self._worlds = 0
        self._feeds: list[Feed] = []
        self._watched: dict[Consumer[Any], Consumer[Any]] = {}

    def world(self) -> World:
        """Return a new world: a process's own client and random source, in the sandbox's time."""
        self._worlds += 1
        clock, of = self._clock, f"{self._seed} world {self._worlds}"
        transport = FaultyTransport(self._sqs, self._simulation, Random(f"{of} transport"), self._faults, self._history)
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
        queue: str,
        settings: FunctionSettings,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        qualifier: str = "",
        **mapping: Unpack[MappingOptions],
    ) -> None:
        """Let a queue feed the function of a handler from now on. A handler is one function, whatever feeds it.

        ``around`` as for `Function`; ``qualifier`` is the alias or version that the queue feeds. Raises `ValueError` if
        the queue feeds it already, or if it has another timeout; `InvalidParameterValue` (a `ValueError`) for what
        Lambda refuses.
        """
        function = self._function(handler, settings, around)
        name, timeout = function.settings.name, function.settings.timeout_seconds
        if timeout != settings.timeout_seconds:
            raise ValueError(
                f"{name} is a function with a timeout of {timeout:g} s already, and has the same for all its queues: "
                f"got {settings.timeout_seconds:g} s"
            )
        if any((feed.queue, feed.function) == (queue, function) for feed in self._feeds):
            raise ValueError(f"the queue {queue!r} feeds the function {name!r} already")
        mapped = MappingSettings(
            self._sqs.arn(queue),
            name,
            queue_visibility_seconds=self._visibility_timeout(queue),
            function_timeout_seconds=timeout,
            qualifier=qualifier,
            **mapping,
        )
        self._history.record(
            "connected",
            queue=queue,
            function=name,
            reports_failures=mapped.reports_failures,
            is_tarry=isinstance(handler, Consumer),
            warnings=mapped.warnings,
        )
        port = FaultyPort(self._simulation.scheduler, self._sqs, mapped, self._faults, self._history)
        host = FaultyHost(self._simulation.scheduler, function, queue, self._faults)
        EventSourceMapping(self._simulation.scheduler, port, host, self._history, mapped).start()
        self._feeds.append(Feed(queue, handler, function))

    def function_of(
        self,
        handler: Handler,
        settings: FunctionSettings,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Function:
        """Return the function of a handler, which no queue needs to feed."""
        function = self._function(handler, settings, around)
        if all(feed.function is not function for feed in self._feeds):
            self._feeds.append(Feed("", handler, function))
        return function

    def close(self) -> None:
        """End all environments."""
        for feed in self._feeds:
            feed.function.close()

    def _function(
        self, handler: Handler, settings: FunctionSettings, around: Callable[[], AbstractContextManager[object]]
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

    def _visibility_timeout(self, queue: str) -> int:
        asked = {"QueueUrl": self._sqs.url(queue), "AttributeNames": ["VisibilityTimeout"]}
        return int(self._sqs.call("GetQueueAttributes", asked)["Attributes"]["VisibilityTimeout"])

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
        watched = self._watched.get(consumer)
        if watched is None:
            watched = self._watched[consumer] = observed(consumer, self._history)
        return watched

    def _invoke(self, handler: Handler, event: Any, context: Any) -> Any:
        """Run one invocation, with the faults that strike it as a whole."""
        queue = queue_of(event)
        call, fault = current_call(), self._faults.of_invocation(queue, context.aws_request_id)
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
