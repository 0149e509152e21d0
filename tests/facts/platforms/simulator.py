"""The simulator, in virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.client import SimulatedClient, SqsPort
from tarry.tools.simulator.functions import Function
from tarry.tools.simulator.history import History
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import InvalidParameterValue, MappingSettings
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.template import TemplateFunction, TemplateMapping
from tarry.world import World
from tests.facts.function.app import ScriptedFunction
from tests.facts.platforms.platform import TIMEOUT_SECONDS, Need, Platform

IN_FLIGHT_LIMIT = 40
"""Lower than the 120,000 of AWS, so that the probes are fast."""


class SimulatedPlatform(Platform):
    has: frozenset[Need] = frozenset({"mapping", "in-flight limit"})
    in_flight_limit = IN_FLIGHT_LIMIT

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._random = Random(1)
        self._history = History(lambda: simulation.scheduler.now)
        self._sqs = Sqs(simulation.clock.time, self._random, self._history, in_flight_limit=IN_FLIGHT_LIMIT)
        super().__init__(SimulatedClient(self._sqs, simulation.clock), "fact-")
        self._functions: list[Function] = []

    def now(self) -> float:
        return self._simulation.scheduler.now

    def wait(self, seconds: float) -> None:
        self._simulation.clock.sleep(seconds)

    def send_traced(self, url: str, trace: str) -> None:
        request = {"QueueUrl": url, "MessageBody": "a message"}
        self._sqs.called_by("http", "SendMessage", request, trace_header=trace)

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        function = self._function(throttled=throttled)
        try:
            mapped = TemplateMapping(
                "",
                queue_arn=self.arn(url),
                function=function.settings.name,
                batch_size=settings.get("BatchSize", 10),
                window_seconds=settings.get("MaximumBatchingWindowInSeconds", 0),
                reports_failures="ReportBatchItemFailures" in settings.get("FunctionResponseTypes", ()),
                maximum_concurrency=settings.get("ScalingConfig", {}).get("MaximumConcurrency"),
                filters=tuple(each["Pattern"] for each in settings.get("FilterCriteria", {}).get("Filters", ())),
            )
            visibility = float(self.attribute(url, "VisibilityTimeout"))
            mapping = MappingSettings(mapped, visibility, function.settings.timeout_seconds)
        except InvalidParameterValue as error:
            response: Any = {"Error": {"Code": "InvalidParameterValueException", "Message": str(error)}}
            raise ClientError(response, "CreateEventSourceMapping") from error
        scheduler = self._simulation.scheduler
        port = SqsPort(scheduler, self._sqs, mapping)
        EventSourceMapping(scheduler, port, function, self._history, mapping).start()

    def _function(self, *, throttled: bool) -> Function:
        clock = self._simulation.clock
        handler = ScriptedFunction(SimulatedClient(self._sqs, clock), self.journal(), clock.time, clock.sleep).handle
        settings = TemplateFunction(
            "", "function", "", None, None, TIMEOUT_SECONDS, reserved_concurrency=0 if throttled else None
        )
        function = Function(self._simulation, handler, self._new_world, self._history, settings)
        self._functions.append(function)
        return function

    def _new_world(self) -> World:
        return World(clock=self._simulation.clock, random=self._random, threads=self._simulation.threads)

    def close(self) -> None:
        for function in self._functions:
            function.close()


@contextmanager
def simulated_platform() -> Iterator[Platform]:
    simulation = Simulation()
    platform = SimulatedPlatform(simulation)
    try:
        yield platform
    finally:
        platform.close()
        simulation.close()
