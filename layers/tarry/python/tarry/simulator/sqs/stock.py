"""The messages that a queue holds, and what time does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from tarry.simulator.sqs.order import Agenda

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


class Change(NamedTuple):
    """What time has done to a message that the queue must record, and when."""

    what: Literal["expired", "reappeared"]
    message: StoredMessage
    at: float


class Stock:
    """Messages by position. Nothing here takes longer where there are more of them."""

    def __init__(self, order: Order, now: Callable[[], float]) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.next_position = 1
        self._order = order
        self._now = now
        self._delayed = Agenda()  # by the time at which they are shown
        self._in_flight = Agenda()
        self._echoes = Agenda()  # by the time at which they are delivered once more
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
        """When the next hidden, delayed or doubled message is shown."""
        first = self._next_agenda()
        return None if first is None else first[0]

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

    def show_again(self, message: StoredMessage, at: float) -> None:
        """Show a message at that time, even if it is hidden or deleted by then."""
        self._echoes.put(message, at)

    def delete(self, message: StoredMessage) -> None:
        """Remove a message, but not its copy on a server that does not hear of the deletion (`show_again`)."""
        echo = self._echoes.time_of(message)
        self.remove(message)
        if echo is not None:
            self._echoes.put(message, echo)

    def remove(self, message: StoredMessage) -> None:
        del self.messages[message.position]
        self._echoes.discard(message)
        self._delayed.discard(message)
        self._in_flight.discard(message)
        self._retained.discard(message)
        self._order.remove(message)

    def settle(self, retention_seconds: int) -> Iterator[Change]:
        """Apply what time has done, in its order; yield the messages that have expired or reappeared."""
        now = self._now()
        while True:
            oldest, shown_at = self._retained.first(), self.next_shown_at()
            expires_at = None if oldest is None else oldest[0] + retention_seconds
            if oldest is not None and expires_at is not None and expires_at <= min(now, shown_at or now):
                self.remove(oldest[1])
                yield Change("expired", oldest[1], expires_at)
            elif shown_at is not None and shown_at <= now:
                message = self._show_next()
                if message is not None and message.sent_at + retention_seconds > shown_at:
                    self._restore(message, shown_at)
                    yield Change("reappeared", message, shown_at)
            else:
                return

    def _next_agenda(self) -> tuple[float, Agenda] | None:
        """The time at which the next message is shown, and the agenda that holds it."""
        found: tuple[float, Agenda] | None = None
        for agenda in (self._in_flight, self._delayed, self._echoes):
            first = agenda.first()
            if first is not None and (found is None or first[0] < found[0]):
                found = first[0], agenda
        return found

    def _show_next(self) -> StoredMessage | None:
        """Show the next message; return it instead if it was deleted."""
        found = self._next_agenda()
        message = None if found is None else found[1].pop()
        if message is None or found is None:
            return None
        if found[1] is not self._echoes:
            self._order.show(message)
        elif message.position not in self.messages:
            return message
        elif self._in_flight.discard(message):
            message.comes_again = True
            self._order.show(message)
        return None

    def _restore(self, message: StoredMessage, at: float) -> None:
        message.visible_at, message.comes_again, message.has_reappeared = at, True, True
        self.messages[message.position] = message
        self._retained.put(message, message.sent_at)
        self._order.add(message)
        self._order.show(message)
