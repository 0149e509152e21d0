"""The messages that a queue holds, and what time does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tarry.simulator.sqs.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.order import Order


class Depth(NamedTuple):
    """How many messages a queue holds, and since when the oldest (epoch seconds)."""

    ready: int
    in_flight: int
    delayed: int
    oldest: float | None


class Stock:
    """Messages by position. Nothing here takes longer where there are more of them."""

    def __init__(self, order: Order, now: Callable[[], float]) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.next_position = 1
        self._order = order
        self._now = now
        self._delayed = Agenda()  # by the time at which they are shown
        self._in_flight = Agenda()
        self._retained = Agenda()  # by the time from which retention counts

    # what is there

    @property
    def in_flight(self) -> int:
        """How many messages were received and are hidden."""
        return len(self._in_flight)

    def depth(self) -> Depth:
        delayed, in_flight, oldest = len(self._delayed), len(self._in_flight), self._retained.first()
        ready = len(self.messages) - delayed - in_flight
        return Depth(ready, in_flight, delayed, oldest[0] if oldest is not None else None)

    def next_shown_at(self) -> float | None:
        """When the next hidden or delayed message is shown."""
        delayed, hidden = self._delayed.first(), self._in_flight.first()
        if delayed is None:
            return hidden[0] if hidden is not None else None
        return delayed[0] if hidden is None else min(delayed[0], hidden[0])

    def receivable(self) -> Iterator[StoredMessage]:
        """Those that can be received, in turn: see `Order`."""
        return self._order.receivable()

    # what is done to it

    def add(self, message: StoredMessage) -> None:
        self.messages[message.position] = message
        self.next_position = message.position + 1
        self._retained.put(message, message.sent_at)
        self._order.add(message)
        if message.visible_at > self._now():
            self._delayed.put(message, message.visible_at)
        else:
            self._order.show(message)

    def hide(self, message: StoredMessage, until: float) -> bool:
        """Hides a message; whether it is the next to be shown, or is shown already."""
        message.visible_at = until
        if until <= self._now():
            self._in_flight.discard(message)
            self._order.show(message)
            return True
        self._order.hide(message)
        self._in_flight.put(message, until)
        first = self._in_flight.first()
        return first is None or first[1] is message

    def show_early(self, message: StoredMessage, at: float) -> None:
        """Shows a hidden message before its time, as if it had not been received."""
        if message in self._in_flight:
            self._in_flight.put(message, at)

    def remove(self, message: StoredMessage) -> None:
        del self.messages[message.position]
        self._delayed.discard(message)
        self._in_flight.discard(message)
        self._retained.discard(message)
        self._order.remove(message)

    def settle(self, retention_seconds: int) -> Iterator[tuple[StoredMessage, float]]:
        """Does what time has done, in its order: shows messages, and removes the expired, which it yields.

        With each goes the time at which it expired.
        """
        now = self._now()
        while True:
            oldest, shown_at = self._retained.first(), self.next_shown_at()
            expires_at = None if oldest is None else oldest[0] + retention_seconds
            if oldest is not None and expires_at is not None and expires_at <= min(now, shown_at or now):
                self.remove(oldest[1])
                yield oldest[1], expires_at
            elif shown_at is not None and shown_at <= now:
                self._show_next()
            else:
                return

    def _show_next(self) -> None:
        delayed, hidden = self._delayed.first(), self._in_flight.first()
        is_delayed = hidden is None or (delayed is not None and delayed[0] < hidden[0])
        message = (self._delayed if is_delayed else self._in_flight).pop()
        if message is not None:
            self._order.show(message)
