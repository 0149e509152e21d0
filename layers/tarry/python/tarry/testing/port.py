"""A mapping's ways to its queue and its function, with what goes wrong on them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.simulator.answer import FunctionHost, InvocationResult
from tarry.simulator.ports import SqsPort
from tarry.simulator.sqs import Sqs, SqsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.simulator.history import History
    from tarry.simulator.mapping_settings import MappingSettings
    from tarry.simulator.timeline import Timeline
    from tarry.testing.faults import Faults

LOST = SqsError("InternalError", "the answer was lost, by the sandbox", status=500, sender_fault=False)


class FaultyPort(SqsPort):
    """`SqsPort`, struck by the faults that are not of a function's requests."""

    def __init__(
        self, timeline: Timeline, sqs: Sqs, settings: MappingSettings, faults: Faults, history: History
    ) -> None:
        super().__init__(timeline, sqs, settings)
        self._faults = faults
        self._history = history

    def _answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        answer = super()._answer(operation, parameters)
        if operation == "ReceiveMessage":
            for message in answer.get("Messages", ()):
                self._perhaps_again(message["ReceiptHandle"])
        elif self._faults.of_mapping("lost_delete", self._queue) is not None:
            raise LOST
        return answer

    def _perhaps_again(self, handle: str) -> None:
        """A message of a standard queue may come a second time, while its first delivery is under way or after it."""
        fault = None if self._queue.endswith(".fifo") else self._faults.of_delivery(self._queue)
        if fault is not None:
            self._sqs.deliver_again(self._queue, handle, fault.seconds)


class FaultyHost:
    """`FunctionHost`, throttled or invoked late where a fault says so."""

    def __init__(self, timeline: Timeline, function: FunctionHost, queue: str, faults: Faults) -> None:
        self._timeline = timeline
        self._function = function
        self._queue = queue
        self._faults = faults

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None]) -> None:
        if self._faults.of_mapping("throttled", self._queue) is not None:
            self._timeline.after(0, partial(done, InvocationResult("throttled", text="Rate Exceeded.")))
        elif (held := self._faults.of_mapping("held", self._queue)) is not None:
            self._timeline.after(held.seconds, partial(self._function.invoke, event, done))
        else:
            self._function.invoke(event, done)
