"""Facts of a history: copies of messages, their deliveries, invocations, and runs of handlers."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tarry.record.attribute import ATTRIBUTE, body_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.timeline import CopySteps, Timeline

DONE = frozenset({"ack", "discard"})
"""Verdicts after which a message is finished."""
FAILED = frozenset({"fail", "retry", "reject"})
GONE = ("deleted", "expired", "purged")
LEFT = (*GONE, "moved")
TRANSFERS = frozenset({"carried", "failure", "hops"})
"""Keys of a record that travels with a copy or a dead letter; the record of a producer has none of them."""


T = TypeVar("T")


class RunTerms(NamedTuple):
    """The settings of a consumer for the messages of a queue."""

    limit: int | None
    """The policy's ``max_attempts``; None where nothing is retried in place."""
    retries_errors: bool
    """Whether `RetryInPlace` is a failure step. If not, ``limit`` holds only for retries that are asked for."""
    has_own_steps: bool
    """Whether one of the failure steps is not tarry's: its outcome cannot be predicted."""
    longest: float
    """The longest delay of the policy, in seconds."""
    is_fifo: bool
    local_retries: int = 0
    """How often `LocalRetry` runs a message again within a delivery."""


class RunMessage(NamedTuple):
    """A message of a run, in the event ``run_started``."""

    id: str
    """The stable id."""
    receive_count: int
    attempt: int
    is_exact: bool
    """Whether the attempt was counted by an attempt store."""
    terms: RunTerms


class OneEntry(Mapping[str, T]):
    """A mapping with one key, of a run with one message. A history has many, and a dict takes 184 bytes."""

    __slots__ = ("_key", "_value")

    def __init__(self, key: str, value: T) -> None:
        self._key, self._value = key, value

    def __getitem__(self, key: str) -> T:
        if key != self._key:
            raise KeyError(key)
        return self._value

    def __iter__(self) -> Iterator[str]:
        yield self._key

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return repr(dict(self))


class RunVerdict(NamedTuple):
    """The verdict of a run on a message, in the event ``run_ended``."""

    kind: str
    """``ack``, ``discard``, ``retry``, ``reject``, ``defer``, ``fail``, ``release`` or ``left``."""
    error: str | None = None
    """The name of the type of error with which the message failed."""
    wait: tuple[float, float] | None = None
    """The shortest and longest time after which the message is to be tried again; None where that is open."""
    due: float | None = None
    """The moment that was requested instead of a delay, in epoch seconds."""
    is_of_batch: bool = False
    """Whether it was given on the batch as a whole."""


NONE: Any = ()
NO_ENTRIES: Any = MappingProxyType({})
"""Stand for empty lists and dicts, of which a history has many; the first element replaces them."""


def grown(those: list[T], new: T) -> list[T]:
    """Append to a list, or begin one instead of `NONE`; return it."""
    if not those:
        return [new]
    those.append(new)
    return those


class HandlerRun:
    """One call of a handler."""

    __slots__ = ("began", "ended", "first_verdicts", "is_batch", "messages", "request_id", "verdicts", "was_abandoned")

    def __init__(self, began: HistoryEvent, fields: Mapping[str, Any]) -> None:
        self.began = began
        self.request_id: str = fields["request_id"]
        self.is_batch: bool = fields["is_batch"]
        self.messages: Mapping[str, RunMessage] = fields["messages"]
        """Its messages, by delivery id."""
        self.ended: HistoryEvent | None = None
        """None if its process died first."""
        self.verdicts: Mapping[str, RunVerdict] = NO_ENTRIES
        """Its verdicts, by delivery id; none if its process died first."""
        self.first_verdicts: dict[str, HistoryEvent] = NO_ENTRIES
        """The first verdict that it gave on each message while it ran, by delivery id."""
        self.was_abandoned = False
        """Whether its thread was abandoned: it ended after its message was decided, or its invocation had answered."""

    def attempt(self, delivery_id: str) -> int:
        return self.messages[delivery_id].attempt

    def terms(self, delivery_id: str) -> RunTerms:
        return self.messages[delivery_id].terms

    def verdict(self, delivery_id: str) -> str | None:
        """The kind of its verdict on a message; None if the process died."""
        given = self.verdicts.get(delivery_id)
        return None if given is None else given.kind

    def promised(self, delivery_id: str) -> tuple[float, float] | None:
        """The moments between which a message is to come back (SPEC C11), in epoch seconds; None where that is open.

        A delay counts from the moment of the verdict: the handler's end, or when the message's own verdict was given.
        A verdict on the batch counts from the handler's end. An abandoned run has failed at some moment since its
        start, and its wait counts from that moment.
        """
        given = self.verdicts.get(delivery_id)
        if given is None or given.wait is None or self.ended is None:
            return None
        earlier = self.ended.at - self.began.at if self.was_abandoned else 0.0
        if given.due is not None:
            return given.due - earlier, given.due
        own = self.first_verdicts.get(delivery_id) if self.is_batch else None
        first = self.ended.at if own is None else float(own.fields["fell_at"])
        last = self.ended.at if own is None or given.is_of_batch else own.at
        return first + given.wait[0] - earlier, last + math.ceil(given.wait[1])


class ObservedInvocation:
    """One call of a function; ``answered`` is None while it runs."""

    failed: frozenset[str] = frozenset()
    """The delivery ids that it left in the queue."""

    def __init__(self, invoked: HistoryEvent, fields: Mapping[str, Any], copies: list[MessageCopy]) -> None:
        self.invoked = invoked
        self.copies = copies
        """The messages of its batch, in order; a message that is in the batch twice is listed twice."""
        self.request_id = str(fields["request_id"])
        self.batch: list[str] = fields["delivery_ids"]
        self.deliveries: dict[str, ObservedDelivery] = {}
        """The deliveries in its batch, by delivery id; for a message that is in it twice, the later delivery."""
        self.answered: HistoryEvent | None = None
        self.ended_well = False
        self.handler_called: HistoryEvent | None = None
        self.handler_returned: HistoryEvent | None = None
        self.consumed: HistoryEvent | None = None
        """The event that a consumer of tarry took it; None for any other function."""
        self.requests: list[HistoryEvent] = NONE
        """Its requests, but for those by which its handler sends."""
        self.runs: list[HandlerRun] = []
        self.running = 0
        """The number of runs that have not ended."""
        self.faults: list[HistoryEvent] = NONE
        self.refusals: list[HistoryEvent] = NONE
        self.sent: list[HistoryEvent] = NONE
        """The messages that it sent, including those that SQS dropped as duplicates."""

    def take(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Note an event of this invocation."""
        match event.what:
            case "answered":
                self.answered = event
                if fields["failed"]:  # else that of the class: an empty frozenset takes 216 bytes
                    self.failed = frozenset(fields["failed"])
                self.ended_well = fields.get("kind") == "returned"
            case "handler_returned" | "consumed" | "handler_called":
                setattr(self, event.what, event)
            case "request" if not (self.running and fields["operation"].startswith("SendMessage")):
                self.requests = grown(self.requests, event)  # a handler sends while it runs, tarry before or after
            case "refused":
                self.refusals = grown(self.refusals, event)

    @property
    def answered_at(self) -> float:
        """When it answered; infinity while it runs."""
        return math.inf if self.answered is None else self.answered.at

    def struck(self, *operations: str) -> bool:
        """Whether a fault struck one of its requests with these operations."""
        return any(fault.fields.get("operation") in operations for fault in self.faults)

    @cached_property
    def places(self) -> dict[str, int]:
        """The first place of each delivery id in the batch."""
        places: dict[str, int] = {}
        for place, delivery_id in enumerate(self.batch):
            places.setdefault(delivery_id, place)
        return places

    @cached_property
    def _heads(self) -> dict[str | None, int]:
        """The place of the first message of each group that stays in the queue."""
        heads: dict[str | None, int] = {}
        for copy in self.copies:
            if copy.delivery_id in self.failed:
                heads.setdefault(copy.group, self.places[copy.delivery_id])
        return heads

    def stays_before(self, delivery: ObservedDelivery) -> bool:
        """Whether a message of the delivery's group, before it in the batch, stays in the queue."""
        return self._heads.get(delivery.copy.group, math.inf) < self.places[delivery.copy.delivery_id]


class ObservedDelivery:
    """One receive of a message."""

    __slots__ = (
        "at", "copy", "count", "handle", "invocation", "is_duplicate", "lease_ends_at", "other_copies", "runs", "sends",
    )  # fmt: skip

    def __init__(self, copy: MessageCopy, received: HistoryEvent, fields: Mapping[str, Any]) -> None:
        self.copy = copy
        self.at = received.at
        self.count = int(fields["receive_count"])
        self.handle: str | None = fields.get("receipt_handle")
        self.is_duplicate: bool = fields.get("duplicate", False)
        self.lease_ends_at = float(fields["visible_until"])
        """When the message is visible again, unless a request changes its visibility."""
        self.invocation: ObservedInvocation | None = None
        """None if no function got it, or only a later receive of the same message."""
        self.runs: list[HandlerRun] = NONE
        self.sends: list[HistoryEvent] = NONE
        """The copies that its invocation sent in its place: ``sent`` or ``deduplicated``."""
        self.other_copies: list[ObservedDelivery] = NONE
        """Deliveries of other copies of the message in the same batch: it is unknown for which one a copy was sent."""

    @property
    def handled_in(self) -> ObservedInvocation:
        """The invocation of a delivery that has one."""
        assert self.invocation is not None
        return self.invocation

    @property
    def run(self) -> HandlerRun | None:
        """The last run, whose verdict counts."""
        return self.runs[-1] if self.runs else None

    @property
    def last_run(self) -> HandlerRun:
        """The last run of a delivery that has one."""
        return self.runs[-1]

    @property
    def message(self) -> RunMessage:
        """The message as its last run had it."""
        return self.last_run.messages[self.copy.delivery_id]

    @property
    def verdict(self) -> str | None:
        return self.runs[-1].verdict(self.copy.delivery_id) if self.runs else None

    @property
    def ended_well(self) -> bool:
        return self.invocation is not None and self.invocation.ended_well

    @property
    def was_reported(self) -> bool:
        """Whether the function's answer left it in the queue."""
        return self.invocation is not None and self.copy.delivery_id in self.invocation.failed

    @property
    def decided_at(self) -> float:
        """When its last run ended or was abandoned: from then on it had to be settled."""
        run, invocation = self.run, self.invocation
        if run is None or run.ended is None or invocation is None or invocation.answered is None:
            return math.inf
        if not run.was_abandoned:
            return run.ended.at
        return min(invocation.answered_at, self.visibility_changes[-1].at if self.visibility_changes else math.inf)

    @property
    def promised(self) -> tuple[float, float] | None:
        """The moments between which it is to come back (`HandlerRun.promised`)."""
        return None if self.run is None else self.run.promised(self.copy.delivery_id)

    @property
    def held_until(self) -> float:
        """The end of its lease, after the receive and all later changes of its visibility."""
        return max([self.lease_ends_at, *(float(event.fields["visible_until"]) for event in self.visibility_changes)])

    @property
    def visibility_changes(self) -> list[HistoryEvent]:
        """The changes of its visibility that its invocation made."""
        if self.invocation is None or not self.copy.changes:
            return []
        return self.copy.changes_by_handle.get((self.handle, self.invocation.request_id), [])

    @property
    def log_lines(self) -> list[HistoryEvent]:
        """The lines of tarry's log about the message, from its invocation."""
        if self.invocation is None or not self.copy.log_lines:
            return []
        return self.copy.log_lines.get(self.invocation.request_id, [])

    @property
    def log_events(self) -> set[str]:
        """The names of tarry's log events in its log lines."""
        return {event.fields["event"] for event in self.log_lines}

    def logged(self, name: str) -> bool:
        """Whether any of its log lines has a field."""
        return any(name in event.fields for event in self.log_lines)

    @property
    def following(self) -> ObservedDelivery | None:
        """The next delivery of the same copy."""
        return self.copy.delivery(self.count + 1)


class MessageCopy:
    """One message of SQS, from its send to its end. A copy that tarry sends is another one with the same ``id``."""

    __slots__ = (
        "attributes", "body", "came_from", "changes", "changes_by_handle", "deliveries", "delivery_id",
        "end", "events", "group", "has_unclear_origin", "id", "invocations", "is_dead_letter", "left_at", "log_lines",
        "queue", "record", "redriven_from", "sender", "sent", "sent_to", "steps", "timeline", "visible_at",
    )  # fmt: skip

    def __init__(self, sent: HistoryEvent, fields: Mapping[str, Any], redriven_from: MessageCopy | None) -> None:
        self.sent = sent
        self.redriven_from = redriven_from
        """The dead letter that SQS moved back as this copy."""
        self.sender: str | None = fields.get("by")
        """The request id of the invocation that sent it; None for a test or a redrive."""
        self.delivery_id: str = fields["delivery_id"]
        self.body = str(fields["body"])
        self.attributes: Mapping[str, Any] = fields.get("attributes") or NO_ENTRIES
        self.record = record_of(self.attributes, self.body)
        self.id = str((self.record or {}).get("id") or self.delivery_id)
        """The stable id: the same for all copies of a message."""
        self.sent_to: str = fields["queue"]
        self.queue: str = self.sent_to
        """The queue that it is in, or was in last."""
        self.group: str | None = fields.get("group")
        self.timeline: Timeline
        self.steps: CopySteps
        """Its part of the timeline of its message."""
        self.events: list[HistoryEvent] = []
        self.events.append(sent)  # has room for four, the literal for one, and later eight
        self.deliveries: list[ObservedDelivery] = NONE
        self.invocations: list[ObservedInvocation] = NONE
        """In `ProjectedHistory` only."""
        self.changes: list[HistoryEvent] = NONE
        """The changes of its visibility."""
        self.changes_by_handle: dict[tuple[str | None, str | None], list[HistoryEvent]] = NO_ENTRIES
        """The same, by the receipt handle that was used and the invocation that used it."""
        self.visible_at = 0.0
        """When it is visible again, since its last receive."""
        self.log_lines: dict[str | None, list[HistoryEvent]] = NO_ENTRIES
        """The lines of tarry's log about it, by the invocation's request id."""
        self.end: HistoryEvent | None = None
        """Its deletion, expiry or purge, or its redrive, which makes another copy; None if it is still there.

        SQS may deliver a message once more after its deletion: then the end is that of this delivery.
        """
        self.left_at = math.inf
        """When it left the queue to which it was sent: deleted, expired, purged, or moved by SQS."""
        self.came_from: ObservedDelivery | None = None
        """The delivery in whose place it was sent, as far as `RecordedHistory` can tell."""
        self.is_dead_letter = False
        """Whether it was sent as a dead letter: its attempts are counted from 1 again."""
        self.has_unclear_origin = False
        """Whether its original, or that of a copy before it, is unknown: several copies were in one batch."""

    def take(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Note an event of this copy."""
        self.events.append(event)
        match event.what:
            case "received":
                self.deliveries = grown(self.deliveries, ObservedDelivery(self, event, fields))
                self.visible_at, self.group = fields["visible_until"], fields.get("group") or self.group
                return
            case "visibility_changed":
                self.changes = grown(self.changes, event)
                self.changes_by_handle = self.changes_by_handle or {}
                self.changes_by_handle.setdefault((fields.get("receipt_handle"), fields.get("by")), []).append(event)
                self.visible_at = fields["visible_until"]
            case "moved":
                self.queue = fields["to"]
            case "reappeared":
                self.end = None
        if self.end is None and (event.what in GONE or "new_delivery_id" in fields):
            self.end = event
        if event.what in LEFT and math.isinf(self.left_at):
            self.left_at = float(fields.get("expired_at", event.at))

    def shorten(self, most: int) -> list[ObservedInvocation]:
        """Forget all but the first delivery and the latest ones; return the invocations that are forgotten."""
        forgotten = list(self.invocations[:-most])
        keys = {invocation.request_id for invocation in forgotten}
        self.forget_receives(most)
        self.invocations = self.invocations[-most:]
        self.log_lines = {key: value[-most:] for key, value in self.log_lines.items() if key not in keys}
        return forgotten

    def forget_receives(self, most: int) -> None:
        """Forget all but the first receive and the latest ones, with the changes of its visibility."""
        del self.events[1:-most]
        self.deliveries = [*self.deliveries[:1], *self.deliveries[1:][-most:]]
        self.changes = self.changes[-most:]
        handles = {delivery.handle for delivery in self.deliveries}
        self.changes_by_handle = {key: value for key, value in self.changes_by_handle.items() if key[0] in handles}

    @property
    def is_fifo(self) -> bool:
        return self.queue.endswith(".fifo")

    @property
    def before(self) -> MessageCopy | None:
        """The copy that was sent on as this one, or moved back by SQS."""
        return self.came_from.copy if self.came_from is not None else self.redriven_from

    @property
    def was_plain(self) -> bool:
        """Whether a producer sent it, and it was received, run, acknowledged and deleted, each once, in this order."""
        if (
            len(self.events) != 3
            or self.sender is not None
            or self.redriven_from is not None
            or self.record is not None
        ):
            return False
        sent, *_, end = self.events
        if end.what != "deleted" or len(self.deliveries) != 1 or self.log_lines:
            return False
        [delivery], runs, invocation = self.deliveries, self.deliveries[0].runs, self.deliveries[0].invocation
        if delivery.count != 1 or len(runs) != 1 or invocation is None or end.fields.get("receive_count") != 1:
            return False
        run, given = runs[0], runs[0].verdicts.get(self.delivery_id)
        is_acknowledged = given is not None and given.kind == "ack" and run.ended is not None and not run.was_abandoned
        is_first = run.attempt(self.delivery_id) == 1 and not run.messages[self.delivery_id].is_exact
        is_settled = invocation.ended_well and invocation.consumed is not None and not delivery.was_reported
        in_order = run.ended is not None and sent.at <= delivery.at <= run.began.at <= run.ended.at <= end.at
        return is_acknowledged and is_first and is_settled and in_order and not delivery.sends

    def all(self, *what: str) -> Iterator[HistoryEvent]:
        return (event for event in self.events if event.what in what)

    def changed_between(self, first: float, last: float) -> list[HistoryEvent]:
        """The changes of its visibility from ``first`` to ``last``, both in epoch seconds and included."""
        begin = bisect_left(self.changes, first, key=lambda event: event.at)
        return self.changes[begin : bisect_right(self.changes, last, key=lambda event: event.at)]

    def delivery(self, count: int) -> ObservedDelivery | None:
        """The delivery with this receive count; the counts are usually consecutive."""
        if not self.deliveries:
            return None
        place = count - self.deliveries[0].count
        if 0 <= place < len(self.deliveries) and self.deliveries[place].count == count:
            return self.deliveries[place]
        return next((each for each in self.deliveries if each.count == count), None)


def record_of(attributes: Mapping[str, Any], body: str) -> dict[str, Any] | None:
    """The `Tarry` record among attributes as they were sent; None if there is none that belongs to the body."""
    if ATTRIBUTE not in attributes:
        return None
    try:
        record: dict[str, Any] = json.loads(attributes[ATTRIBUTE]["StringValue"])
        return record if record["sum"] == body_sum(body) else None
    except (KeyError, TypeError, ValueError):
        return None
