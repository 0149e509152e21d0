"""The messages that a batch handler gets, the verdicts it can give on all of them, and the error that names one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tarry.message.message import Message, T, delivery_of
from tarry.message.outcomes import ACK, BatchVerdict, Retry, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, overload

    from tarry.support.values import Delay
else:
    from tarry.support.values import overload


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


class BatchError(Exception):
    """Raised by a batch handler to name the message that failed.

    The messages before it are acknowledged, and the messages after it are released. A verdict on a single message
    holds. ``raise BatchError(index=3) from error`` records the error.

    Args:
        text: The text of the exception.
        index: The index of the message in the batch.
        message: The message itself.

    Raises:
        ValueError: Not exactly one of ``index`` and ``message`` is given.
    """

    def __init__(self, text: str = "", *, index: int | None = None, message: Message[Any] | None = None) -> None:
        if (index is None) == (message is None):
            raise ValueError("BatchError names one message: give either index= or message=")
        super().__init__(text or (f"message {index} of the batch failed" if message is None else "this message failed"))
        self.index = index
        self.message = message


BatchError.__module__ = "tarry"  # the name that users import it by, in records and logs
