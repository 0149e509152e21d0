"""A history, indexed for checkers: by message copy, delivery, run and invocation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tarry.sqs.topology import FAILURE_KEPT_SECONDS
from tarry.testing.deliveries import DONE, Delivery, HandlerRun, MessageCopy, ObservedInvocation, is_letter
from tarry.tooling.queues import redrive_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tarry.simulator.history import HistoryEvent


class RecordedHistory:
    """All that happened, by whom it happened to. ``settled`` says that nothing was left to happen at its end."""

    def __init__(self, events: Iterable[HistoryEvent], *, settled: bool | None = None) -> None:
        self.events = list(events)
        self.settled = settled
        self.lives: dict[str, MessageCopy] = {}
        self.invocations: dict[str, ObservedInvocation] = {}
        self.runs: list[HandlerRun] = []
        self.said: dict[str, list[HistoryEvent]] = {}
        """What tarry said of each delivery id."""
        self.problems: list[HistoryEvent] = []
        """What else it said: of what went wrong, or was not as it should be."""
        self.swallowed: list[HistoryEvent] = []
        self.queues: dict[str, Mapping[str, str]] = {}
        """The attributes of the queues that were made."""
        self.connected: dict[str, HistoryEvent] = {}
        """What feeds on each queue."""
        self._runs: dict[int, HandlerRun] = {}
        self._redriven: dict[str, MessageCopy] = {}
        for event in self.events:
            self._take(event)
        for invocation in self.invocations.values():
            self._find_twins(invocation)
        for life in self.lives.values():
            if life.sender in self.invocations:
                self._trace(life, self.invocations[life.sender])
        for event in self.swallowed:
            self._note_swallowed(event)

    @cached_property
    def families(self) -> dict[str, list[MessageCopy]]:
        """The lives of each message, by its stable id, in the order of their sending."""
        families: dict[str, list[MessageCopy]] = {}
        for life in self.lives.values():
            families.setdefault(life.id, []).append(life)
        return families

    @cached_property
    def _problems(self) -> set[tuple[object, ...]]:
        """Which there were, with which message, in which invocation."""
        told = (event.fields for event in self.problems)
        return {(each["event"], each.get("delivery_id"), each.get("request_id")) for each in told}

    @cached_property
    def _failed_look_ups(self) -> list[float]:
        """When a fault struck a look-up of a queue."""
        faults = (event for event in self.events if event.what == "fault")
        return [event.at for event in faults if event.fields.get("operation") == "GetQueueAttributes"]

    def deliveries(self) -> Iterator[Delivery]:
        """All of them."""
        return (delivery for life in self.lives.values() for delivery in life.deliveries)

    def redrive(self, queue: str) -> tuple[str, int] | None:
        """The name of its dead-letter queue, and its ``maxReceiveCount``."""
        redrive = redrive_of(self.queues.get(queue, {}))
        return redrive and (redrive.target.name, redrive.max_receive_count or 0)

    def said_by(self, delivery: Delivery) -> list[HistoryEvent]:
        """What tarry said of a message in the invocation of a delivery."""
        if delivery.invocation is None:
            return []
        by = delivery.invocation.request_id
        said = self.said.get(delivery.life.delivery_id, [])
        return [event for event in said if event.fields.get("request_id") == by]

    def had_problem(self, delivery: Delivery, name: str) -> bool:
        """Whether the log tells of such a problem with a message in the invocation of a delivery."""
        by = delivery.invocation and delivery.invocation.request_id
        return (name, delivery.life.delivery_id, by) in self._problems

    def look_up_failed(self, delivery: Delivery) -> bool:
        """Whether its queue, or another, could not be looked up, lately enough for that to be remembered."""
        assert delivery.invocation is not None
        began = delivery.invocation.invoked.at
        return delivery.invocation.struck("GetQueueAttributes") or any(
            began - FAILURE_KEPT_SECONDS - 60 <= at <= began for at in self._failed_look_ups
        )

    # reading

    def _take(self, event: HistoryEvent) -> None:
        fields = event.fields
        match event.what:
            case "sent":
                self._sent(event)
            case "received":
                life = self.lives[fields["delivery_id"]]
                life.events.append(event)
                life.deliveries.append(Delivery(life, event))
            case "ran":
                self._ran(event)
            case "verdict" | "ended":
                self._of_run(self._runs[fields["run"]], event)
            case "said" | "problem" | "swallowed":
                self._told(event)
            case "created" | "connected":
                self._set_up(event)
            case "invoked":
                self.invocations[fields["request_id"]] = ObservedInvocation(event)
            case _ if fields.get("request_id") in self.invocations:
                self._of_invocation(self.invocations[fields["request_id"]], event)
            case _ if fields.get("delivery_id") in self.lives:
                self._of_life(self.lives[fields["delivery_id"]], event)

    def _of_run(self, run: HandlerRun, event: HistoryEvent) -> None:
        if event.what == "ended":
            run.ended, run.was_abandoned = event, self.invocations[run.request_id].answered is not None
        elif run.ended is None:
            run.verdicts.append(event)

    def _told(self, event: HistoryEvent) -> None:
        match event.what:
            case "said":
                self.said.setdefault(event.fields["delivery_id"], []).append(event)
            case "problem":
                self.problems.append(event)
            case "swallowed":
                self.swallowed.append(event)

    def _set_up(self, event: HistoryEvent) -> None:
        if event.what == "created":
            self.queues[event.fields["queue"]] = event.fields["attributes"]
        else:
            self.connected[event.fields["queue"]] = event

    def _of_invocation(self, invocation: ObservedInvocation, event: HistoryEvent) -> None:
        match event.what:
            case "answered" | "responded" | "consumed":
                setattr(invocation, event.what, event)
            case "handed":
                self._handed(invocation, event)
            case "request" if not _is_handlers_own(event, invocation):
                invocation.requests.append(event)
            case "fault":
                invocation.faults.append(event)
            case "refused":
                invocation.refusals.append(event)
            case "garbled":
                self._of_life(self.lives[event.fields["delivery_id"]], event)

    def _handed(self, invocation: ObservedInvocation, event: HistoryEvent) -> None:
        invocation.handed = event
        latest = dict(sorted(event.fields["receives"], key=lambda each: int(each[1])))
        for delivery_id, receive_count in latest.items():  # of one that is in it twice, the later receive
            delivery = self.lives[delivery_id].delivery(receive_count)
            if delivery is not None:
                delivery.invocation = invocation

    def _of_life(self, life: MessageCopy, event: HistoryEvent) -> None:
        life.events.append(event)
        if event.what == "hidden":
            life.changes.setdefault(event.fields["receipt_handle"], []).append(event)
        if event.what == "moved":
            life.queue = event.fields["to"]
        if "new_delivery_id" in event.fields:
            self._redriven[event.fields["new_delivery_id"]] = life

    def _ran(self, event: HistoryEvent) -> None:
        run = self._runs[event.fields["run"]] = HandlerRun(event)
        self.runs.append(run)
        self.invocations[run.request_id].runs.append(run)
        for delivery_id, receive_count in event.fields["receives"].items():
            delivery = self.lives[delivery_id].delivery(receive_count)
            if delivery is not None:
                delivery.runs.append(run)

    def _sent(self, event: HistoryEvent) -> None:
        delivery_id = event.fields["delivery_id"]
        life = MessageCopy(delivery_id, delivery_id, event, event.fields["queue"], [event])
        life.redriven_from = self._redriven.get(delivery_id)
        if life.record and life.record.get("id"):
            life.id = str(life.record["id"])
        self.lives[delivery_id] = life

    # what was sent in whose place

    def _trace(self, life: MessageCopy, sender: ObservedInvocation) -> None:
        """Finds the delivery that a life was sent in place of, and gives it its stable id."""
        sender.sent.append(life.sent)
        has_record = life.record is not None
        candidates = [
            each
            for each in self.received_by(sender)
            if (each.life.id == life.id if has_record else each.life.body == life.body and self._is_told(each, life))
        ]
        if candidates:  # two copies of one message may be in one batch
            delivery = min(candidates, key=lambda each: self._unlikeliness(each, life))
            life.came_from, life.id = delivery, delivery.life.id
            life.is_letter = is_letter(life.record or {})
            delivery.copies.append(life.sent)

    def _find_twins(self, invocation: ObservedInvocation) -> None:
        of_one: dict[str, list[Delivery]] = {}
        for delivery in self.received_by(invocation):
            of_one.setdefault(delivery.life.id, []).append(delivery)
        for twins in of_one.values():
            for delivery in twins:
                delivery.twins = [each for each in twins if each is not delivery]

    def _is_told(self, delivery: Delivery, life: MessageCopy) -> bool:
        """Whether a life without a record is a dead letter: the log says so, or whoever was to say it was cut short."""
        redrive = self.redrive(delivery.life.sent.fields["queue"])
        may_be_its_own = redrive is not None and redrive[0] == life.sent.fields["queue"]
        return self._is_said(delivery, life) or (may_be_its_own and delivery.verdict not in DONE)

    def _is_said(self, delivery: Delivery, life: MessageCopy) -> bool:
        """Whether the log says that a delivery was dead-lettered to the queue of a life."""
        target = life.sent.fields["queue"]
        return any(event.fields.get("dead_letter_queue") == target for event in self.said_by(delivery))

    def _unlikeliness(self, delivery: Delivery, life: MessageCopy) -> tuple[bool, bool, int]:
        """Rank the deliveries that a copy may replace, the likeliest first.

        Only the log tells which of two messages with the same body was dead-lettered.
        """
        return delivery.verdict in DONE, not self._is_said(delivery, life), len(delivery.copies)

    def _note_swallowed(self, event: HistoryEvent) -> None:
        sender, first = self.invocations.get(event.fields.get("by", "")), self.lives[event.fields["delivery_id"]]
        if sender is None:
            return
        sender.sent.append(event)
        for delivery in self.received_by(sender):
            if delivery.life.id == first.id:
                delivery.copies.append(event)

    def received_by(self, invocation: ObservedInvocation) -> Iterator[Delivery]:
        """The deliveries of a batch."""
        for delivery_id in dict.fromkeys(invocation.batch):
            yield from (each for each in self.lives[delivery_id].deliveries if each.invocation is invocation)


def _is_handlers_own(request: HistoryEvent, invocation: ObservedInvocation) -> bool:
    """Whether a handler sends: what tarry sends for it, it sends before or after its runs."""
    is_running = any(run.ended is None for run in invocation.runs)
    return is_running and request.fields["operation"].startswith("SendMessage")
