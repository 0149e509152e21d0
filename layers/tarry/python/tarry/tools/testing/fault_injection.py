"""Injection of faults: into requests to SQS, the requests and invocations of mappings, and the CPU's speed."""

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import Any

from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from tarry.failed.queue_names import queue_name
from tarry.sqs.client import READ_TIMEOUT_SECONDS
from tarry.tools.simulator.client import SqsPort
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.invocations import FunctionHost, InvocationResult
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.simulator.sqs import Sqs, SqsError
from tarry.tools.testing.faults import DELIVERY_FAULTS, REQUEST_FAULTS, Fault, Faults
from tarry.world import Clock, World

Apply = Callable[[], dict[str, Any]]

ONE_WAY_SECONDS = 0.002, 0.012
"""The shortest and longest time that a request takes to SQS, or its answer back."""

REFUSALS = {
    "throttle": SqsError("ThrottlingException", "Rate exceeded", status=400),
    "unavailable": SqsError("ServiceUnavailable", "The service is unavailable", status=503, sender_fault=False),
    "denied": SqsError("AccessDenied", "User is not authorized to perform this action", status=403),
}
ENTRY_REFUSAL = {"SenderFault": False, "Code": "InternalError", "Message": "an internal error, made by the sandbox"}
GARBLED_MD5 = "0" * 32


class FaultyTransport:
    """`tarry.tools.simulator.client.Transport`, with faults.

    A request that was sent arrives, even if the process that sent it dies in the meantime.
    """

    def __init__(self, sqs: Sqs, simulation: Simulation, random: Random, faults: Faults) -> None:
        self._sqs = sqs
        self._simulation = simulation
        self._random = random
        self._faults = faults

    def __call__(self, operation: str, parameters: Mapping[str, Any], apply: Apply) -> dict[str, Any]:
        queue = queue_name(str(parameters.get("QueueUrl", ""))) or None
        call = current_call()
        request_id = None if call is None else call.request_id
        fault = self._faults.next(REQUEST_FAULTS, queue, operation, request_id)
        match fault.kind if fault is not None else "":
            case "crash_before" if call is not None:
                self._travel()
                call.crash()
            case "throttle" | "unavailable" | "denied" as kind:
                self._travel()
                self._travel()
                raise REFUSALS[kind]
            case "unreachable":
                self._travel()
                raise EndpointConnectionError(endpoint_url=self._sqs.endpoint_url)
        act = partial(self._apply, fault, operation, parameters, apply, request_id)
        if fault is None and "WaitTimeSeconds" not in parameters and self._simulation.actors.current() is not None:
            return self._round_trip(act)
        answer = self._arrive(act, fault, parameters)
        match fault.kind if fault is not None else "":
            case "garbled":
                self._garble(answer, request_id)
            case "crash_after" if call is not None:
                call.crash()
            case "lost_answer":
                self._travel()
                raise EndpointConnectionError(endpoint_url=self._sqs.endpoint_url)
            case "hang":
                self._simulation.clock.sleep(READ_TIMEOUT_SECONDS)
                raise ReadTimeoutError(endpoint_url=self._sqs.endpoint_url)
        self._travel()
        return answer

    def _round_trip(self, act: Apply) -> dict[str, Any]:
        """Carry out an actor's request without a fault. One wait takes both ways: to wake an actor takes long."""
        scheduler = self._simulation.scheduler
        seconds = self._one_way()
        if scheduler.skip_to(scheduler.now + seconds):
            answer = act()
            self._travel()
            return answer
        is_back, result = self._simulation.threads.event(), _Result()

        def arrive() -> None:
            _carry_out(act, result)
            scheduler.after(0 if result.exception() else self._one_way(), is_back.set)

        scheduler.after(seconds, arrive)
        is_back.wait()
        return result.result()

    def _arrive(self, act: Apply, fault: Fault | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of SQS, once the request has reached it."""
        simulation, seconds = self._simulation, self._one_way()
        if fault is not None and fault.kind == "late":
            seconds = fault.seconds
        may_wait = "WaitTimeSeconds" in parameters  # a receive; others act in the meantime
        if may_wait or simulation.actors.current() is None:
            simulation.clock.sleep(seconds)
            return act()
        if seconds < READ_TIMEOUT_SECONDS and simulation.scheduler.skip_to(simulation.scheduler.now + seconds):
            return act()
        arrived, result = simulation.threads.event(), _Result()

        def arrive() -> None:
            _carry_out(act, result)
            arrived.set()

        simulation.scheduler.after(seconds, arrive)
        if not arrived.wait(READ_TIMEOUT_SECONDS):
            raise ReadTimeoutError(endpoint_url=self._sqs.endpoint_url)
        return result.result()

    def _travel(self) -> None:
        self._simulation.clock.sleep(self._one_way())

    def _one_way(self) -> float:
        return self._random.uniform(*ONE_WAY_SECONDS)

    def _apply(
        self, fault: Fault | None, operation: str, parameters: Mapping[str, Any], apply: Apply, request_id: str | None
    ) -> dict[str, Any]:
        """Return the answer of SQS; a partial failure refuses some entries of a batch request, at least one."""
        entries: list[dict[str, Any]] = list(parameters.get("Entries", ()))
        if fault is None or fault.kind != "partial_failure" or not entries:
            return apply() if "WaitTimeSeconds" in parameters else self._acting(apply, request_id)
        refused = [entry for entry in entries if self._random.random() < 1 / 3] or [self._random.choice(entries)]
        accepted = [entry for entry in entries if entry not in refused]
        failed = [{"Id": entry["Id"], **ENTRY_REFUSAL} for entry in refused]
        if not accepted:
            return {"Failed": failed}
        answer = self._acting(lambda: self._sqs.call(operation, {**parameters, "Entries": accepted}), request_id)
        return {**answer, "Failed": [*answer.get("Failed", []), *failed]}

    def _garble(self, answer: dict[str, Any], request_id: str | None) -> None:
        """Replace the MD5 of each body that SQS confirms."""
        for entry in answer.get("Successful", ()):
            if "MD5OfMessageBody" in entry:
                entry["MD5OfMessageBody"] = GARBLED_MD5
                self._sqs.history.record("garbled", delivery_id=entry["MessageId"], request_id=request_id)

    def _acting(self, apply: Apply, request_id: str | None) -> dict[str, Any]:
        """Carry out a request; the events that it causes, and refusals, are recorded as this invocation's."""
        self._sqs.history.by = request_id
        refusals: list[tuple[str, str]] = []
        try:
            answer = apply()
            refusals += [(entry["Code"], entry.get("Message", "")) for entry in answer.get("Failed", ())]
            return answer
        except SqsError as error:
            refusals.append((error.code, error.message))
            raise
        finally:
            for code, text in refusals:
                self._sqs.history.record("refused", code=code, text=text, request_id=request_id)
            self._sqs.history.by = None


_Result = Future[dict[str, Any]]
"""The result of a request, for the thread that waits for it in virtual time."""


def _carry_out(act: Apply, result: _Result) -> None:
    try:
        result.set_result(act())
    except Exception as error:  # noqa: BLE001 raised where it is awaited
        result.set_exception(error)


LOST = SqsError("InternalError", "the answer was lost, by the sandbox", status=500, sender_fault=False)


class FaultyPort(SqsPort):
    """`SqsPort`, with the faults of a mapping's requests and of deliveries."""

    def __init__(self, scheduler: Scheduler, sqs: Sqs, settings: MappingSettings, faults: Faults) -> None:
        super().__init__(scheduler, sqs, settings)
        self._faults = faults

    def _answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        answer = super()._answer(operation, parameters)
        if not self._faults.are_left:
            return answer
        if operation == "ReceiveMessage":
            for message in answer.get("Messages", ()):
                self._deliver_again_if_struck(message["ReceiptHandle"])
        elif self._faults.next(("lost_delete",), self._queue) is not None:
            raise LOST
        return answer

    def _deliver_again_if_struck(self, handle: str) -> None:
        """Deliver a message of a standard queue again, during its first delivery or after it, if a fault strikes."""
        fault = None if self._queue.endswith(".fifo") else self._faults.next(DELIVERY_FAULTS, self._queue)
        if fault is not None:
            self._sqs.deliver_duplicate(self._queue, handle, fault.seconds)


class FaultyHost:
    """`FunctionHost`, throttled or invoked late if a fault strikes."""

    def __init__(self, scheduler: Scheduler, function: FunctionHost, queue: str, faults: Faults) -> None:
        self._scheduler = scheduler
        self._function = function
        self._queue = queue
        self._faults = faults

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        if self._faults.next(("throttled",), self._queue) is not None:
            self._scheduler.after(0, partial(done, InvocationResult("throttled", text="Rate Exceeded.")))
        elif (delay := self._faults.next(("held",), self._queue)) is not None:
            self._scheduler.after(delay.seconds, partial(self._function.invoke, event, done, qualifier))
        else:
            self._function.invoke(event, done, qualifier)


class SlowClock:
    """`tarry.world.Clock`, each reading of which takes time in the invocations that `slow_down` names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self.time, self.monotonic = clock.time, clock.monotonic
        self.sleep, self.asleep = clock.sleep, clock.asleep

    def slow_down(self, request_id: str, seconds: float) -> None:
        """Let each reading of the clock in this invocation take ``seconds``."""
        self._seconds[request_id] = seconds
        self.time, self.monotonic = self._slow(self._clock.time), self._slow(self._clock.monotonic)

    def _slow(self, read: Callable[[], float]) -> Callable[[], float]:
        def reading() -> float:
            if (call := current_call()) is not None and call.request_id in self._seconds and not _is_locked():
                self._clock.sleep(self._seconds[call.request_id])
            return read()

        return reading


def _is_locked() -> bool:
    """Return whether `World.keep` makes an object in this thread.

    Another actor would wait for its lock in real time, while this one would wait for that actor in virtual time.
    """
    frame = sys._getframe().f_back
    while frame is not None and frame.f_code is not World.keep.__code__:
        frame = frame.f_back
    return frame is not None
