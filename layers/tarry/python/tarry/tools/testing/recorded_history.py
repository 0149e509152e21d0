"""A complete history, for checkers: the facts, and which delivery each copy replaces."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from tarry.failed.queue_names import redrive_of
from tarry.record.attribute import is_dead_letter
from tarry.sqs.topology import FAILURE_KEPT_SECONDS
from tarry.tools.testing.deliveries import DONE
from tarry.tools.testing.history import HistoryFacts, ProjectedHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tarry.failed.queue_names import Redrive
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import MessageCopy, ObservedDelivery, ObservedInvocation
    from tarry.tools.testing.timeline import Timeline


class RecordedHistory(HistoryFacts):
    """A complete history, for checkers. It links each copy to the delivery that it replaces.

    ``settled``: whether the sandbox had come to rest at the end of the history.
    """

    def __init__(self, events: Iterable[HistoryEvent], *, settled: bool | None = None) -> None:
        super().__init__()
        self.events = list(events)
        self.settled = settled
        self.take_all(self.events)
        for invocation in self.invocations.values():
            _note_other_copies(invocation)
        self._senders: dict[str, _Sender] = {}
        for copy in self.copies.values():
            if copy.sender is not None and (sender := self._sender(copy.sent)) is not None:
                sender.trace(copy)
            if copy.came_from is None and copy.redriven_from is None:
                continue
            origin, before = copy.came_from, copy.before
            if (origin is not None and origin.other_copies) or (before is not None and before.has_unclear_origin):
                copy.has_unclear_origin = True
        for event in self.deduplicated:
            if (sender := self._sender(event)) is not None:
                sender.note_deduplicated(event, self.copies[event.fields["delivery_id"]].id)

    def _sender(self, event: HistoryEvent) -> _Sender | None:
        """The invocation of an event's sender; None if it was not sent by an invocation."""
        by = str(event.fields.get("by"))
        if by not in self._senders and by in self.invocations:
            self._senders[by] = _Sender(self, self.invocations[by])
        return self._senders.get(by)

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """The timeline of each message, by stable id, in the order of their sending."""
        return self._projected.timelines

    def find(self, message_id: str) -> Timeline | None:
        """Return a message's timeline by its stable id, or by the id of one of its deliveries."""
        return self._projected.find(message_id)

    @cached_property
    def _projected(self) -> ProjectedHistory:
        """The history with timelines, which no checker needs: made when a report shows one."""
        projected = ProjectedHistory()
        for event in self.events:
            projected.take(event)
        return projected

    def deliveries(self) -> Iterator[ObservedDelivery]:
        """Return all deliveries."""
        return iter(self._deliveries)

    @cached_property
    def _deliveries(self) -> list[ObservedDelivery]:
        return [delivery for copy in self.copies.values() for delivery in copy.deliveries]

    @cached_property
    def uses_attempt_store(self) -> bool:
        """Whether an attempt store has counted any run."""
        runs = (event.fields["messages"].values() for event in self.events if event.what == "run_started")
        return any(message.is_exact for messages in runs for message in messages)

    def redrive(self, queue: str) -> tuple[str, int] | None:
        """Return the name of a queue's dead-letter queue, and its ``maxReceiveCount``."""
        redrive = self._redrives.get(queue)
        return redrive and (redrive.target.name, redrive.max_receive_count or 0)

    @cached_property
    def _redrives(self) -> dict[str, Redrive | None]:
        return {queue: redrive_of(attributes) for queue, attributes in self.queues.items()}

    def had_problem(self, delivery: ObservedDelivery, name: str) -> bool:
        """Return whether a delivery's invocation logged a problem of this name with its message."""
        by = delivery.invocation and delivery.invocation.request_id
        return (name, delivery.copy.delivery_id, by) in self._problems

    def was_out_of_time(self, invocation: ObservedInvocation) -> bool:
        """Return whether an invocation logged, near its deadline, that there was no time to settle a message.

        Near: in the last third of its time, the most that is kept for settlement (SPEC I2).
        """
        deadline, answered = float(invocation.invoked.fields["deadline"]), invocation.answered
        near = deadline - (deadline - invocation.invoked.at) / 3
        logged = ("out_of_time", None, invocation.request_id) in self._problems
        return logged and answered is not None and answered.at >= near

    @cached_property
    def _problems(self) -> set[tuple[object, ...]]:
        """The problems that were logged, each with its message and invocation."""
        fields = (event.fields for event in self.problems)
        return {(each["event"], each.get("delivery_id"), each.get("request_id")) for each in fields}

    def look_up_failed(self, delivery: ObservedDelivery) -> bool:
        """Return whether a look-up of a queue failed in a delivery's invocation, or before it and is still cached."""
        assert delivery.invocation is not None
        began, failed = delivery.invocation.invoked.at, self._failed_look_ups
        since = bisect_left(failed, began - FAILURE_KEPT_SECONDS - 60)
        return delivery.invocation.struck("GetQueueAttributes") or since < bisect_right(failed, began)

    @cached_property
    def _failed_look_ups(self) -> list[float]:
        """When a fault struck a look-up of a queue."""
        return [event.at for event in self.faults if event.fields.get("operation") == "GetQueueAttributes"]


def _note_other_copies(invocation: ObservedInvocation) -> None:
    if len({delivery.copy.id for delivery in invocation.deliveries.values()}) == len(invocation.deliveries):
        return
    by_id: dict[str, list[ObservedDelivery]] = {}
    for delivery in invocation.deliveries.values():
        by_id.setdefault(delivery.copy.id, []).append(delivery)
    for other_copies in by_id.values():
        for delivery in other_copies:
            delivery.other_copies = [each for each in other_copies if each is not delivery]


class _Sender:
    """An invocation that sent copies, and the deliveries in whose place it may have sent them."""

    def __init__(self, history: RecordedHistory, invocation: ObservedInvocation) -> None:
        self._history = history
        self._sent = invocation.sent
        self._by_id: dict[str, list[ObservedDelivery]] = {}
        self._by_body: dict[str, list[ObservedDelivery]] = {}
        for delivery in invocation.deliveries.values():
            self._by_id.setdefault(delivery.copy.id, []).append(delivery)
            self._by_body.setdefault(delivery.copy.body, []).append(delivery)

    def trace(self, copy: MessageCopy) -> None:
        """Find the delivery in whose place a copy was sent, and give the copy its stable id."""
        self._sent.append(copy.sent)
        if copy.record is not None:
            candidates = self._by_id.get(copy.id, [])
        else:
            candidates = [
                each for each in self._by_body.get(copy.body, []) if self._may_lack_record(each, copy.sent_to)
            ]
        if candidates:  # two copies of one message may be in one batch
            delivery = min(candidates, key=lambda each: _unlikeliness(each, copy))
            copy.came_from, copy.id = delivery, delivery.copy.id
            copy.is_dead_letter = not copy.record or is_dead_letter(copy.record)  # only a dead letter may lack a record
            delivery.sends.append(copy.sent)

    def note_deduplicated(self, event: HistoryEvent, stable_id: str) -> None:
        """Note a copy that SQS dropped, since it had the same deduplication id as an earlier one."""
        self._sent.append(event)
        for delivery in self._by_id.get(stable_id, ()):
            delivery.sends.append(event)

    def _may_lack_record(self, delivery: ObservedDelivery, target: str) -> bool:
        """Whether a delivery may have been dead-lettered without a record: by the log, or before its process died."""
        redrive = self._history.redrive(delivery.copy.sent_to)
        may_be_its_own = redrive is not None and redrive[0] == target
        return _is_logged(delivery, target) or (may_be_its_own and delivery.verdict not in DONE)


def _is_logged(delivery: ObservedDelivery, target: str) -> bool:
    """Whether the log says that a delivery was dead-lettered to a queue."""
    return any(event.fields.get("dead_letter_queue") == target for event in delivery.log_lines)


def _unlikeliness(delivery: ObservedDelivery, copy: MessageCopy) -> tuple[bool, bool, int]:
    """Rank the deliveries that a copy may replace, the likeliest first.

    Only the log tells which of two messages with the same body was dead-lettered.
    """
    return delivery.verdict in DONE, not _is_logged(delivery, copy.sent_to), len(delivery.sends)
