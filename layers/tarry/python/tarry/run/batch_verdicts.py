"""Deciding on the messages of a batch handler, from its verdicts, return value and exception (SPEC A4, B4, B5, B8)."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from tarry.errors import UnexplainedFailure
from tarry.message.batch import BatchError, batch_verdict_of
from tarry.message.message import delivery_of
from tarry.message.outcomes import ACK, Discard, Reject, Retry
from tarry.run.handlers import KEY
from tarry.support.guards import cause_of, clear_frames, generation, is_a
from tarry.support.values import WARNING

if TYPE_CHECKING:
    from tarry.message.batch import Batch
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Group, Invocation
    from tarry.message.outcomes import Answer, Verdict
    from tarry.run.handlers import Handling
    from tarry.run.verdicts import Verdicts
    from tarry.world import Event

NAMED = f"the batch handler named the message in {KEY}, without an error: call message.fail(error) to record one"
NO_VERDICT = 'the batch handler returned without a verdict on the message, and unsaid="fail" makes that a failure'
LAST_SECONDS = 0.5  # kept of the time left when the end of a batch handler waits for one of the handler's threads


class BatchVerdicts:
    """The decisions on a batch handler's messages: on some when it gives a verdict, on the others at its end."""

    def __init__(self, verdicts: Verdicts, handling: Handling, invocation: Invocation) -> None:
        self._verdicts = verdicts
        self._invocation = invocation
        self._log = handling.log
        self._fails_without_verdict = handling.fails_without_verdict
        self._is_free = threading.Lock()  # taken while tarry decides within the handler, and for good at its end
        self._is_over: Event | None = None  # set when tarry has decided on the last verdict inside the handler
        self._last: Verdict | None = None  # the last verdict on a message: the handler may still use its exception

    def on_verdict(self, delivery: Delivery) -> None:
        """Decide on a message as soon as its handler has given a verdict on it alone (SPEC C11)."""
        if generation() != self._invocation.began_in:
            return  # a forked child must not settle anything
        verdict = delivery.verdict
        before, self._last = self._last, verdict
        if is_a(before, BaseException) and before is not verdict:
            clear_frames(before)  # keeps the traceback: the handler may still show it
        # Left for the end: what a later verdict on the batch may change, and a verdict during the decision on another.
        is_open = is_a(verdict, Retry) and leaves_delay_open(verdict)
        if delivery.source.is_fifo or is_open or is_a(verdict, (Reject, Discard)) or not self._is_free.acquire(False):
            return
        over = self._is_over = self._invocation.world.threads.event()
        try:
            self._verdicts.keeps_frames = True
            self._verdicts.on_message(delivery, verdict, None)
        except Exception as error:  # noqa: BLE001 a defect of tarry must not reach the handler
            text = "tarry itself failed to decide on the message early."
            self._log.problem("runtime_failed", text, delivery, error=error)
        finally:
            self._verdicts.keeps_frames = False
            self._is_free.release()
            over.set()

    def on_end(self, batch: Batch[Any], raised: BaseException | None) -> None:
        """Decide on all other messages when the handler has ended (SPEC B4, B5, H2)."""
        verdicts, outcomes = self._verdicts, self._verdicts.outcomes
        deliveries, whole = [delivery_of(message) for message in batch], batch_verdict_of(batch)
        ended_at = self._invocation.now()
        self._wait_for_verdict()
        outcomes.settle_here()
        outcomes.stopped_groups.clear()  # the handler got no message behind one that was stopped before it ran
        todo = [(index, delivery) for index, delivery in enumerate(deliveries) if not delivery.is_closed]
        for _, delivery in todo:  # the others were decided when they got their verdicts
            delivery.is_closed = True
        position = failed_index(batch, raised)
        effective = [effective_verdict(delivery.verdict, whole.verdict) for delivery in deliveries]
        if raised is not None and all(verdict is not None and verdict is not raised for verdict in effective):
            text = "The batch handler raised after it gave a verdict on every message. The verdicts hold."
            self._log.problem("raised_after_verdict", text, error=raised, level=WARNING)
        if position is not None and raised is not None:
            raised = raised if (cause := cause_of(raised)) is None else cause
        without_verdict = WithoutVerdict(whole.answer, self._fails_without_verdict)
        for index, delivery in todo:
            verdict = effective[index]
            if verdict is None and position is not None and index < position:
                verdict = ACK
            is_behind_failed = verdict is None and position is not None and index > position
            if is_behind_failed or (outcomes.stops(delivery) and not removes_message(effective[index])):
                verdicts.release(delivery)
            elif verdict is None and raised is None:  # the handler has returned (SPEC A4, B8)
                if without_verdict.is_behind_named(delivery):
                    verdicts.release(delivery)
                else:
                    error: BaseException | None = without_verdict.error_of(delivery)
                    verdicts.on_message(delivery, None, error, ended_at=ended_at, early=False)
            elif verdict is ACK or outcomes.settlement.has_time:
                error = raised if verdict is None else None
                verdicts.on_message(delivery, verdict, error, ended_at=ended_at, early=False)
            else:
                outcomes.end_claim(delivery)
                outcomes.settlement.report_only()

    def _wait_for_verdict(self) -> None:
        """Wait until tarry has decided on a verdict in another thread; from then on, `on_verdict` does nothing."""
        while not self._is_free.acquire(False):
            left = self._invocation.time_left() - LAST_SECONDS
            if self._is_over is None or left <= 0 or not self._is_over.wait(None if left == math.inf else left):
                return


class WithoutVerdict:
    """The messages without a verdict of their own, when the handler has returned."""

    def __init__(self, answer: Answer | None, fails: bool) -> None:
        self._named: frozenset[str] = frozenset() if answer is None else answer.named
        self._groups: set[Group] = set()  # the FIFO groups of the messages named so far
        others = NO_VERDICT if fails else None
        if answer is not None and answer.refusal is not None:
            others = f"Lambda would reject the response of the batch handler: {answer.refusal}"
        self._others = None if others is None else UnexplainedFailure(others)
        self._of_named = UnexplainedFailure(NAMED)  # one error for all messages, so that it is diagnosed once

    def is_behind_named(self, delivery: Delivery) -> bool:
        """Return whether the answer names a FIFO message and an earlier one of its group: only the first failed."""
        if delivery.delivery_id not in self._named or not delivery.source.is_fifo:
            return False
        is_behind = delivery.group in self._groups
        self._groups.add(delivery.group)
        return is_behind

    def error_of(self, delivery: Delivery) -> UnexplainedFailure | None:
        """Return the error of a message; None if it is acknowledged."""
        return self._of_named if delivery.delivery_id in self._named else self._others


def effective_verdict(verdict: Verdict | None, of_batch: Verdict | None) -> Verdict | None:
    """Return the verdict on the message, else on its batch; a `retry()` without a delay takes the batch's."""
    if is_a(verdict, Retry) and is_a(of_batch, Retry) and leaves_delay_open(verdict):
        return of_batch
    return of_batch if verdict is None else verdict


def leaves_delay_open(signal: Retry) -> bool:
    try:
        return signal.delay is None
    except BaseException:  # noqa: BLE001 a broken subclass: deciding on its message reads the delay again, and handles the error
        return False


def removes_message(verdict: Verdict | None) -> bool:
    """Return whether a verdict removes its message from the queue, so that it holds in a stopped FIFO group."""
    return verdict is ACK or is_a(verdict, (Discard, Reject))


def failed_index(batch: Batch[Any], raised: BaseException | None) -> int | None:
    """Return the index of the message that a `BatchError` names; None if it names none of this batch."""
    if not is_a(raised, BatchError):
        return None
    try:
        named, index = raised.message, raised.index
    except BaseException:  # noqa: BLE001 a broken subclass names no message
        return None
    if named is not None:
        return next((index for index, message in enumerate(batch) if message is named), None)
    return index if type(index) is int and 0 <= index < len(batch) else None
