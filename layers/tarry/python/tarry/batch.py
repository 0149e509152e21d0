"""What a batch handler sees of its messages together, and what it can say of them all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from tarry.message import Message, T
from tarry.signals import Retry
from tarry.verdict import ACK, Verdict

if TYPE_CHECKING:
    from tarry.delay import Delay
    from tarry.execution.return_values import Answer


class Batch(Sequence[Message[T]]):
    """The messages of one invocation, for a batch handler.

    What is said of the batch holds for every message of which nothing was said itself; the first word wins.
    """

    __slots__ = ("_answer", "_messages", "_word", "context")

    def __init__(self, context: Any) -> None:
        self.context = context
        """The Lambda context of this invocation."""
        self._messages: list[Message[T]] = []
        self._word: Verdict | None = None
        self._answer: Answer | None = None

    def ack_all(self) -> None:
        """Acknowledges all messages of which nothing else was or will be said. `retry` on one comes too late then.

        With ``ack="eager"`` they are deleted at once, and every other word on one comes too late too (not on FIFO).
        """
        self._say(ACK)
        if self._word is ACK:
            for message in self._messages:
                message._ack_eagerly()

    def retry_all(self, delay: Delay | None = None) -> None:
        """Retries all messages of which nothing else was or will be said. `ack` on one comes too late then.

        In an ``except`` block the exception at hand is kept as the reason. ``message.retry(delay)`` on one of them
        sharpens its delay. Raises like `Message.retry`.
        """
        word = Retry(delay)
        for message in self._messages:
            message._check_delay(word)
        word.__cause__ = sys.exception()  # said in an `except` block: that is why
        self._say(word)

    def _say(self, word: Verdict) -> None:
        if self._word is None:
            self._word = word
        else:
            for message in self._messages:
                message._ignore(word, self._word)

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

    def _is_clean(self, unsaid_fails: bool) -> bool:
        """Whether all messages are acknowledged, by a word or without one."""
        if self._answer is not None or (self._word is not None and self._word is not ACK):
            return False
        if unsaid_fails and self._word is None:
            return all(message._word is ACK for message in self._messages)
        return all(message._word is None or message._word is ACK for message in self._messages)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"
