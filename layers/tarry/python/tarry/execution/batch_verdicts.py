"""What a batch handler's verdicts, return value and exception mean for each message (SPEC A4, B4, B5, B8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.errors import UnexplainedFailure
from tarry.execution.return_values import NAMED, UNSAID
from tarry.signals import BatchError, Discard, Reject, Retry
from tarry.support.causes import is_a
from tarry.verdict import ACK

if TYPE_CHECKING:
    from tarry.batch import Batch
    from tarry.delivery import Delivery
    from tarry.execution.groups import Group
    from tarry.verdict import Answer, Verdict


class Unsaid:
    """The messages of a batch without a verdict of their own, after the handler has returned."""

    def __init__(self, answer: Answer | None, fails: bool) -> None:
        self._named: frozenset[str] = frozenset() if answer is None else answer.named
        self._groups: set[Group] = set()
        """The FIFO groups of those named so far."""
        others = UNSAID if fails else None
        if answer is not None and answer.refusal is not None:
            others = f"Lambda would reject the answer of the batch handler: {answer.refusal}"
        self._others = None if others is None else UnexplainedFailure(others)
        self._of_named = UnexplainedFailure(NAMED)  # one error for all, so that it is diagnosed once

    def is_behind_named(self, delivery: Delivery) -> bool:
        """On FIFO, whether the answer names both the message and one before it in its group: only the first failed."""
        if delivery.delivery_id not in self._named or not delivery.source.is_fifo:
            return False
        is_behind = delivery.group in self._groups
        self._groups.add(delivery.group)
        return is_behind

    def error_of(self, delivery: Delivery) -> UnexplainedFailure | None:
        """The error of a message; None if it is acknowledged."""
        return self._of_named if delivery.delivery_id in self._named else self._others


def effective_verdict(said: Verdict | None, said_of_batch: Verdict | None) -> Verdict | None:
    """What was said of the message, else of its batch; a `retry()` without a delay takes the batch's."""
    if is_a(said, Retry) and is_a(said_of_batch, Retry) and leaves_delay_open(said):
        return said_of_batch
    return said_of_batch if said is None else said


def leaves_delay_open(signal: Retry) -> bool:
    try:
        return signal.delay is None
    except BaseException:  # noqa: BLE001 an odd subclass: what it wants is read again, and refused, with its message
        return False


def stands_alone(said: Verdict | None) -> bool:
    """Return whether a verdict holds behind a message of its group that stays in the queue: it takes this one out."""
    return said is ACK or is_a(said, (Discard, Reject))


def culprit_of(batch: Batch[Any], raised: BaseException | None) -> int | None:
    """The index of the message that a `BatchError` names, if it names one of this batch."""
    if not is_a(raised, BatchError):
        return None
    try:
        named, index = raised.message, raised.index
    except BaseException:  # noqa: BLE001 an odd subclass names no message
        return None
    if named is not None:
        return next((index for index, message in enumerate(batch) if message is named), None)
    return index if type(index) is int and 0 <= index < len(batch) else None
