"""What a history tells of: copies of messages, their deliveries, runs of handlers, invocations.

A message that tarry sends on is another life of the same stable id.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tarry.envelope.attribute import ATTRIBUTE, body_sum, is_dead_letter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.simulator.history import HistoryEvent

DONE = frozenset({"ack", "discard"})
"""Verdicts of a handler that is done with a message."""
FAILED = frozenset({"fail", "retry", "reject"})
GONE = ("deleted", "expired", "purged")
TRANSFERS = frozenset({"carried", "failure", "hops"})
"""What a record has that travels with a copy or a dead letter; that of a producer has none of it."""


@dataclass
class HandlerRun:
    """One call of a handler; ``ended`` is None if its process died first."""

    began: HistoryEvent
    ended: HistoryEvent | None = None
    verdicts: list[HistoryEvent] = field(default_factory=list)
    """The verdicts that it gave on its messages while it ran, in their order."""
    was_abandoned: bool = False
    """It was given up, in its thread: it ended after its invocation had answered."""

    @property
    def request_id(self) -> str:
        return str(self.began.fields["request_id"])

    @property
    def delivery_ids(self) -> Mapping[str, str]:
        """The stable ids, by delivery id."""
        ids: Mapping[str, str] = self.began.fields["delivery_ids"]
        return ids

    def attempt(self, delivery_id: str) -> int:
        return int(self.began.fields["attempts"][delivery_id])

    def limit(self, delivery_id: str) -> int | None:
        """The policy's ``max_attempts``; None where nothing is retried in place."""
        limit: int | None = self.began.fields["limits"][delivery_id]
        return limit

    def has_own_steps(self, delivery_id: str) -> bool:
        """Whether a failure step that is none of tarry's may decide as it likes."""
        return bool(self.began.fields["own_steps"][delivery_id])

    def verdict(self, delivery_id: str) -> str | None:
        """``ack``, ``discard``, ``retry``, ``reject``, ``defer``, ``fail``, ``release`` or ``left``.

        None if the process died.
        """
        return None if self.ended is None else self.ended.fields["verdicts"].get(delivery_id)

    def wait(self, delivery_id: str) -> tuple[float, float] | None:
        """The shortest and longest time after which it is to be tried again; None where that is open."""
        return None if self.ended is None else self.ended.fields["waits"].get(delivery_id)

    def error(self, delivery_id: str) -> str | None:
        """The name of the type of error with which it failed."""
        return None if self.ended is None else self.ended.fields["errors"].get(delivery_id)

    def verdict_event(self, delivery_id: str) -> HistoryEvent | None:
        """The first verdict that it gave on a message; None if its end was the verdict."""
        return next((each for each in self.verdicts if each.fields["delivery_id"] == delivery_id), None)

    def promised(self, delivery_id: str) -> tuple[float, float] | None:
        """The moments between which a message is to come back (SPEC C11), in epoch seconds; None where that is open.

        A delay counts from the moment at which the verdict fell: the handler's end, or when the message's own verdict
        was given. A verdict on the batch counts from the handler's end.
        """
        wait = self.wait(delivery_id)
        if wait is None or self.ended is None:
            return None
        due = self.ended.fields["dues"].get(delivery_id)
        if due is not None:
            return due, due
        own = self.verdict_event(delivery_id) if self.began.fields["is_batch"] else None
        first = self.ended.at if own is None else float(own.fields["fell_at"])
        last = self.ended.at if own is None or delivery_id in self.ended.fields["of_batch"] else own.at
        return first + wait[0], last + math.ceil(wait[1])

    @property
    def how(self) -> str:
        """``returned``, ``raised ValueError: ...``, ``died``."""
        return "died" if self.ended is None else str(self.ended.fields["how"])


@dataclass
class ObservedInvocation:
    """One call of a function; ``answered`` is None while it runs."""

    invoked: HistoryEvent
    answered: HistoryEvent | None = None
    handed: HistoryEvent | None = None
    responded: HistoryEvent | None = None
    consumed: HistoryEvent | None = None
    """A consumer of tarry's took it; None for a function that is none of tarry's."""
    requests: list[HistoryEvent] = field(default_factory=list)
    """Without those by which its handler sends."""
    runs: list[HandlerRun] = field(default_factory=list)
    faults: list[HistoryEvent] = field(default_factory=list)
    refusals: list[HistoryEvent] = field(default_factory=list)
    sent: list[HistoryEvent] = field(default_factory=list)
    """What it sent, also what SQS swallowed."""

    @property
    def request_id(self) -> str:
        return str(self.invoked.fields["request_id"])

    @property
    def batch(self) -> list[str]:
        return list(self.invoked.fields["delivery_ids"])

    @property
    def ended_well(self) -> bool:
        return self.answered is not None and self.answered.fields["kind"] == "returned"

    @property
    def failed(self) -> frozenset[str]:
        """What it left in the queue."""
        return frozenset(self.answered.fields["failed"]) if self.answered is not None else frozenset()

    def struck(self, *operations: str) -> bool:
        """Whether a fault struck one of these requests of it."""
        return any(fault.fields.get("operation") in operations for fault in self.faults)


@dataclass
class Delivery:
    """One receive of a message.

    ``invocation`` is None if no function was ever handed it, or with a later receive of the same message.
    """

    life: MessageCopy
    received: HistoryEvent
    invocation: ObservedInvocation | None = None
    runs: list[HandlerRun] = field(default_factory=list)
    copies: list[HistoryEvent] = field(default_factory=list)
    """What its invocation sent in its place: ``sent`` or ``swallowed``."""

    twins: list[Delivery] = field(default_factory=list)
    """Deliveries of other copies of the message in the same batch: who was sent on for whom cannot be told."""

    @property
    def at(self) -> float:
        return self.received.at

    @property
    def count(self) -> int:
        return int(self.received.fields["receive_count"])

    @property
    def lease_ends_at(self) -> float:
        """When it comes back if nobody does anything."""
        return float(self.received.fields["visible_until"])

    @property
    def run(self) -> HandlerRun | None:
        """The last run, whose verdict counts."""
        return self.runs[-1] if self.runs else None

    @property
    def verdict(self) -> str | None:
        return self.run.verdict(self.life.delivery_id) if self.run is not None else None

    @property
    def ended_well(self) -> bool:
        return self.invocation is not None and self.invocation.ended_well

    @property
    def was_reported(self) -> bool:
        """Whether the function's answer left it in the queue."""
        return self.invocation is not None and self.life.delivery_id in self.invocation.failed

    @property
    def decided_at(self) -> float:
        """When its last run had ended, or was given up and its end not waited for: by then it was to be settled."""
        run, invocation = self.run, self.invocation
        if run is None or run.ended is None or invocation is None or invocation.answered is None:
            return math.inf
        if not run.was_abandoned:
            return run.ended.at
        return min(invocation.answered.at, self.hidden[-1].at if self.hidden else math.inf)

    @property
    def promised(self) -> tuple[float, float] | None:
        """The moments between which it is to come back (`HandlerRun.promised`); if abandoned, from then."""
        run = self.run
        promised = None if run is None else run.promised(self.life.delivery_id)
        if run is None or run.ended is None or promised is None or not run.was_abandoned:
            return promised
        earlier = max(0.0, run.ended.at - self.decided_at)
        return promised[0] - earlier, promised[1]

    @property
    def held_until(self) -> float:
        """Until when it was its invocation's, by the receive and all that was asked for since."""
        return max([self.lease_ends_at, *(float(event.fields["visible_until"]) for event in self.hidden)])

    @property
    def hidden(self) -> list[HistoryEvent]:
        """The visibility that its invocation gave it."""
        if self.invocation is None:
            return []
        by, handle = self.invocation.request_id, self.received.fields["receipt_handle"]
        return [event for event in self.life.changes.get(handle, ()) if event.fields.get("by") == by]

    def __hash__(self) -> int:
        return hash((self.life.delivery_id, self.count))


@dataclass
class MessageCopy:
    """One message of SQS, from its send to its end. A copy that tarry sends is another life of the same `id`."""

    delivery_id: str
    id: str
    """The stable id: what all lives of a message have in common."""
    sent: HistoryEvent
    queue: str
    """Where it is, or was last."""
    events: list[HistoryEvent] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    changes: dict[str, list[HistoryEvent]] = field(default_factory=dict)
    """The changes of its visibility, by the receipt handle that was used."""
    came_from: Delivery | None = None
    """The delivery in whose place it was sent."""
    redriven_from: MessageCopy | None = None
    """What it was in a dead-letter queue, before SQS moved it back."""
    is_letter: bool = False
    """Whether it was sent on as a dead letter: with it begins a new count of attempts."""

    @property
    def before(self) -> MessageCopy | None:
        """What it was before it was sent on, or moved back by SQS."""
        return self.came_from.life if self.came_from is not None else self.redriven_from

    @property
    def has_twins(self) -> bool:
        """Whether it cannot be told whose copy it is, or what it was before."""
        life: MessageCopy | None = self
        while life is not None:
            if life.came_from is not None and life.came_from.twins:
                return True
            life = life.before
        return False

    @property
    def body(self) -> str:
        return str(self.sent.fields["body"])

    @property
    def attributes(self) -> Mapping[str, Any]:
        attributes: Mapping[str, Any] = self.sent.fields.get("attributes") or {}
        return attributes

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """Its `Tarry` record."""
        return record_of(self.attributes, self.body)

    @property
    def end(self) -> HistoryEvent | None:
        """Its deletion, expiry or purge, or its redrive, which makes another life of it; None if it is still there.

        SQS may deliver a message once more after its deletion: then its end is what became of it after that.
        """
        end = None
        for event in self.events:
            if event.what == "reappeared":
                end = None
            elif end is None and (event.what in GONE or "new_delivery_id" in event.fields):
                end = event
        return end

    @property
    def left_at(self) -> float | None:
        """When it had left the queue to which it was sent: gone, or moved by SQS."""
        event = next((event for event in self.events if event.what in (*GONE, "moved")), None)
        return None if event is None else float(event.fields.get("expired_at", event.at))

    @property
    def sender(self) -> str | None:
        """The request id of the invocation that sent it; None for a test or a redrive."""
        return self.sent.fields.get("by")

    def all(self, *what: str) -> Iterator[HistoryEvent]:
        return (event for event in self.events if event.what in what)

    def delivery(self, count: int) -> Delivery | None:
        if 0 < count <= len(self.deliveries) and self.deliveries[count - 1].count == count:
            return self.deliveries[count - 1]
        return next((each for each in self.deliveries if each.count == count), None)


def is_letter(record: Mapping[str, Any]) -> bool:
    """Whether what was sent on with this record, or none, is a dead letter, and not a copy that was sent again.

    Only a dead letter is sent without its record, where there is no room for one.
    """
    return not record or is_dead_letter(record)


def record_of(attributes: Mapping[str, Any], body: str) -> dict[str, Any] | None:
    """The `Tarry` record among attributes as they were sent; None if there is none that belongs to the body."""
    try:
        record = json.loads(attributes[ATTRIBUTE]["StringValue"])
        return record if record["sum"] == body_sum(body) else None
    except (KeyError, TypeError, ValueError):
        return None
