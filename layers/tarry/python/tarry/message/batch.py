"""The messages that a batch handler gets, and the verdicts it can give on all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from tarry.message.message import Message, T, delivery_of
from tarry.message.signals import Retry
from tarry.message.verdicts import ACK, BatchVerdict, Verdict

if TYPE_CHECKING:
    from tarry.support.delays import Delay


class Batch(Sequence[Message[T]]):
    """The messages of one invocation, for a batch handler.

    A verdict on the batch holds for each message without a verdict of its own; the first one counts.
    """

    __slots__ = ("_messages", "_verdict", "context")

    def __init__(self, context: Any, messages: list[Message[T]], verdict: BatchVerdict | None = None) -> None:
        self.context = context
        """The Lambda context of this invocation."""
        self._messages = messages
        self._verdict = BatchVerdict() if verdict is None else verdict

    def ack_all(self) -> None:
        """Acknowledge all messages without a verdict of their own.

        A later verdict on a message takes precedence, except `Message.retry`. With ``ack="eager"``, the messages are
        deleted at once (not on FIFO), and any later verdict is ignored.
        """
        self._give(ACK)
        if self._verdict.verdict is ACK and self._verdict.deletes_at_once:
            for message in self._messages:
                delivery_of(message).ack_eagerly()

    def retry_all(self, delay: Delay | None = None) -> None:
        """Retry all messages without a verdict of their own.

        A later verdict on a message takes precedence, except `Message.ack`; ``message.retry(delay)`` sets the delay of
        that message. In an ``except`` block, the exception that is being handled is recorded as the reason.

        Raises:
            ValueError: ``delay`` is not a delay.
            DelayNotSupported: As for `Message.retry`.
        """
        verdict = Retry(delay)
        for message in self._messages:
            delivery_of(message).check_delay(verdict)
        verdict.__cause__ = sys.exception()  # in an `except` block, the exception is the cause
        self._give(verdict)

    def _give(self, verdict: Verdict) -> None:
        if self._verdict.verdict is None:
            self._verdict.verdict = verdict
        else:
            for message in self._messages:
                delivery_of(message).ignore(verdict, self._verdict.verdict)

    @overload
    def __getitem__(self, index: int) -> Message[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[T]]: ...
    def __getitem__(self, index: int | slice) -> Message[T] | Sequence[Message[T]]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message[T]]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"


def batch_verdict_of(batch: Batch[Any]) -> BatchVerdict:
    """Return the verdict on the batch as a whole, and the answer that its handler returned."""
    return batch._verdict
