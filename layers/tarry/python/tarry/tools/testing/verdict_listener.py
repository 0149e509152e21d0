"""Deliveries that report the moment of each verdict: a delay counts from that moment (SPEC C11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tarry.message.delivery import Delivery
from tarry.message.signals import Defer, Discard, Reject, Retry
from tarry.message.verdicts import ACK
from tarry.support.causes import is_a

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.message.verdicts import Verdict


KINDS: dict[Any, str] = {Retry: "retry", Reject: "reject", Discard: "discard", Defer: "defer"}


class VerdictListener(Protocol):
    """A listener to verdicts."""

    def now(self) -> float:
        """Return the time, in epoch seconds."""

    def on_verdict(self, delivery: Delivery, verdict: str, fell_at: float) -> None:
        """Take a verdict on a message, given at ``fell_at``; the first one on it counts."""


def listen_to_verdicts(deliveries: Iterable[Delivery], listener: VerdictListener) -> None:
    """Report each verdict on these messages to the listener from now on."""
    for delivery in deliveries:
        delivery.__class__ = ReportingDelivery
        delivery.__dict__["_listener"] = listener


class ReportingDelivery(Delivery):
    """A delivery that reports its verdicts; its handler sees no difference."""

    _listener: VerdictListener

    def ack_eagerly(self) -> None:  # by `ack` and `ack_all`; reported first, as the process may die in the delete
        if self.verdict is ACK or self.can_be_deleted_now:
            self._listener.on_verdict(self, "ack", self._listener.now())
        super().ack_eagerly()

    def take_verdict(self, verdict: Verdict) -> None:
        began = self._listener.now()
        super().take_verdict(verdict)
        if verdict is not ACK:
            name = next((name for signal, name in KINDS.items() if is_a(verdict, signal)), "fail")
            self._listener.on_verdict(self, name, began)
