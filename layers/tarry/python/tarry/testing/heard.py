"""A message that tells when a verdict is given on it: a delay counts from that moment (SPEC C11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tarry.message import Message
from tarry.verdict import ACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.delay import Delay


class Listener(Protocol):
    """Whoever wants to know of verdicts."""

    def now(self) -> float:
        """The time, in epoch seconds."""

    def hears(self, message: Message[Any], verdict: str, fell_at: float) -> None:
        """A verdict was given on a message, at ``fell_at``; the first one on it counts."""


def listen_to(messages: Iterable[Message[Any]], listener: Listener) -> None:
    """Tell the listener of each verdict on these messages from now on."""
    for message in messages:
        message.__class__ = HeardMessage
        message.__dict__["_listener"] = listener


class HeardMessage(Message[Any]):
    """The same message to its handler."""

    _listener: Listener

    def _ack_eagerly(self) -> None:  # by `ack` and `ack_all`; told before, since the process may die in the delete
        if self._word is ACK or self._can_be_deleted_now:
            self._listener.hears(self, "ack", self._listener.now())
        super()._ack_eagerly()

    def retry(self, delay: Delay | None = None) -> None:
        began = self._listener.now()
        super().retry(delay)
        self._listener.hears(self, "retry", began)

    def reject(self, reason: str | None = None) -> None:
        began = self._listener.now()
        super().reject(reason)
        self._listener.hears(self, "reject", began)

    def discard(self, reason: str | None = None) -> None:
        began = self._listener.now()
        super().discard(reason)
        self._listener.hears(self, "discard", began)

    def defer(self, delay: Delay) -> None:
        began = self._listener.now()
        super().defer(delay)
        self._listener.hears(self, "defer", began)

    def fail(self, error: BaseException) -> None:
        began = self._listener.now()
        super().fail(error)
        self._listener.hears(self, "fail", began)
