"""A complete history, for checkers: the facts, and which delivery each copy replaces."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from tarry.failed.queue_names import Redrive, redrive_of
from tarry.record.attribute import is_dead_letter
from tarry.sqs.client import FAILURE_KEPT_SECONDS
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.lines import is_transition
from tarry.tools.testing.deliveries import DONE, HandlerRun, MessageCopy, ObservedDelivery, ObservedInvocation, grown
from tarry.tools.testing.timeline import CopySteps, Timeline, attempt_of

RECURSION = "Lambda refused the invocation: recursive loop (set RecursiveLoop: Allow)"


class HistoryFacts:
    """The facts of a history, taken event by event."""

    def __init__(self) -> None:
        self.copies: dict[str, MessageCopy] = {}
        """By delivery id, in the order of their sending."""
        self.invocations: dict[str, ObservedInvocation] = {}
        """By request id."""
        self.runs: list[HandlerRun] = []
        self.problems: list[HistoryEvent] = []
        """The lines of tarry's log about problems; lines about a message's new state are in `MessageCopy.log_lines`."""
        self.deduplicated: list[HistoryEvent] = []
        self.faults: list[HistoryEvent] = []
        self.planned_faults: list[HistoryEvent] = []
        self.queues: dict[str, Mapping[str, str]] = {}
        """The attributes of each queue, by name."""
        self.connected: dict[str, HistoryEvent] = {}
        """The event that connected a function, by queue."""
        self.mapping_states: dict[str, str] = {}
        """The states of the mappings that were changed, by queue."""
        self._runs: dict[int, HandlerRun] = {}
        self._redriven: dict[str, MessageCopy] = {}
        self._take: dict[str, Callable[[HistoryEvent, Mapping[str, Any]], None]] = {
            "sent": self._sent,
            "received": self._received,
            "deleted": self._went_on,
            "invoked": self._invoked,
            "run_started": self._ran,
            "verdict": self._gave_verdict,
            "run_ended": self._ended,
            "transition_logged": lambda event, fields: self._logged(event, fields, fields),
            "logged": self._wrote,
            "problem": lambda event, _: self.problems.append(event),
            "deduplicated": lambda event, _: self.deduplicated.append(event),
            "fault": self._fault,
            "fault_added": lambda event, _: self.planned_faults.append(event),
            "recursion_stopped": self._recursion_stopped,
            "queue_configured": lambda _, fields: self.queues.update({fields["queue"]: fields["attributes"]}),
            "connected": lambda event, fields: self.connected.update({fields["queue"]: event}),
            "mapping_changed": lambda _, fields: self.mapping_states.update({fields["queue"]: fields["state"]}),
        }

    def take(self, event: HistoryEvent) -> None:
        """Note the facts of the next event."""
        self._take.get(event.what, self._goes_on)(event, event.fields)

    def _known(self, delivery_ids: Iterable[str]) -> list[MessageCopy]:
        return [self.copies[each] for each in delivery_ids if each in self.copies]

    def _sent(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        copy = MessageCopy(event, fields, self._redriven.pop(fields["delivery_id"], None))
        self.copies[copy.delivery_id] = copy

    def _received(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        copy = self.copies.get(fields["delivery_id"])
        if copy is None:  # sent to an SQS that does not report what is sent
            unsent = {**fields, "by": None}
            self._sent(HistoryEvent(event.at, event.what, unsent), unsent)
            copy = self.copies[fields["delivery_id"]]
        copy.take(event, fields)

    def _invoked(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        invocation = ObservedInvocation(event, fields, self._known(fields["delivery_ids"]))
        self.invocations[invocation.request_id] = invocation

    def _ran(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        run = self._runs[fields["run"]] = HandlerRun(event, fields)
        self.runs.append(run)
        invocation = self.invocations[run.request_id]
        invocation.runs.append(run)
        invocation.running += 1
        for delivery_id, message in run.messages.items():
            delivery = self.copies[delivery_id].delivery(message.receive_count)
            if delivery is not None:
                delivery.runs = grown(delivery.runs, run)

    def _gave_verdict(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        if (run := self._runs.get(fields["run"])) is not None:
            run.first_verdicts = run.first_verdicts or {}
            run.first_verdicts.setdefault(fields["delivery_id"], event)

    def _ended(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        run = self._runs.pop(fields["run"])
        invocation = self.invocations[run.request_id]
        invocation.running -= 1
        run.ended, run.verdicts = event, fields["verdicts"]
        run.was_abandoned = invocation.answered is not None or fields.get("was_abandoned", False)

    def _wrote(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Note a line that a process wrote; a line of tarry about a message's state counts as its transition."""
        written = fields.get("fields")
        if written and is_transition(written):
            self._logged(event, fields, {name: value for name, value in written.items() if value is not None})

    def _logged(self, event: HistoryEvent, fields: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        copy = self.copies.get(line.get("delivery_id", ""))
        if copy is not None:
            copy.log_lines = copy.log_lines or {}
            copy.log_lines.setdefault(fields.get("request_id"), []).append(event)

    def _goes_on(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Note an event of an invocation or of a copy."""
        invocation = self.invocations.get(fields.get("request_id", ""))
        if invocation is not None:
            self._of_invocation(invocation, event, fields)
        if invocation is None or event.what == "garbled":
            self._went_on(event, fields)

    def _went_on(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Note an event of a copy."""
        if (copy := self.copies.get(fields.get("delivery_id", ""))) is not None:
            self._of_copy(copy, event, fields)

    def _of_copy(self, copy: MessageCopy, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        copy.take(event, fields)
        if "new_delivery_id" in fields:  # SQS moved it; the copy that it made is the same message
            self._redriven[fields["new_delivery_id"]] = copy

    def _of_invocation(self, invocation: ObservedInvocation, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        invocation.take(event, fields)
        if event.what != "handler_called":
            return
        latest = dict(sorted(fields["receives"], key=lambda each: int(each[1])))
        for copy in dict.fromkeys(invocation.copies):
            delivery = copy.delivery(latest.get(copy.delivery_id, 0))
            if delivery is not None:
                delivery.invocation = invocation
                invocation.deliveries[copy.delivery_id] = delivery

    def _fault(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        self.faults.append(event)
        invocation = self.invocations.get(fields.get("request_id", ""))
        if invocation is not None:
            invocation.faults = grown(invocation.faults, event)

    def _recursion_stopped(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Do nothing: it changes no message."""


class ProjectedHistory(HistoryFacts):
    """The facts of a history, with the timeline of each message; finished messages can be forgotten.

    ``on_step`` is called with a message's timeline after each transition. ``by_deliveries``: attempts are counted from
    SQS's receives, for a history without events of handler runs.
    """

    def __init__(
        self, on_step: Callable[[Timeline], None] = lambda timeline: None, *, by_deliveries: bool = False
    ) -> None:
        super().__init__()
        self.timelines: dict[str, Timeline] = {}
        """By stable id, in the order of their sending."""
        self._on_step = on_step
        self._by_deliveries = by_deliveries
        self._unnamed: dict[tuple[str, str, str], list[MessageCopy]] = {}
        """Copies without a stable id, by their sender, queue and body."""

    def find(self, message_id: str) -> Timeline | None:
        """Return a message's timeline by its stable id, or by the id of one of its deliveries."""
        copy = self.copies.get(message_id)
        return copy.timeline if copy is not None else self.timelines.get(message_id)

    def forget(self, timeline: Timeline) -> None:
        """Forget all facts about a message."""
        self.timelines.pop(timeline.id, None)
        for copy in timeline.copies:
            self.copies.pop(copy.delivery_id, None)
            self._unnamed.pop((copy.sender or "", copy.sent_to, copy.body), None)
            self._forget_invocations(copy.invocations)

    def shorten(self, timeline: Timeline, most: int) -> None:
        """Forget the older half of a timeline that has more than ``most`` steps, except its first step."""
        if len(timeline.transitions) > most:
            del timeline.transitions[1 : most // 2]
            for copy in timeline.copies:
                self._forget_invocations(copy.shorten(most))

    def _forget_invocations(self, invocations: Iterable[ObservedInvocation]) -> None:
        for invocation in invocations:
            self.invocations.pop(invocation.request_id, None)
            invocation.copies.clear()  # a message that is kept would keep the others of its batches

    def _sent(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._sent(event, fields)
        copy = self.copies[fields["delivery_id"]]
        copy.steps = CopySteps(copy)
        if copy.redriven_from is not None:
            copy.redriven_from.timeline.join(copy)
        else:
            if copy.id not in self.timelines:
                self.timelines[copy.id] = Timeline(copy.id, copy.body, self._on_step)
            self.timelines[copy.id].join(copy)
            record = copy.record or {}
            if copy.sender is not None and is_dead_letter(record):
                if copy.timeline.transitions:
                    copy.timeline.dead_letter = record
                    return  # the step is that of the delivery in whose place it was sent
                if not str(record.get("origin")).endswith(f":{copy.sent_to}"):
                    copy.steps.restored()  # its message was forgotten
                    return
            if copy.sender is not None and not record:
                self._unnamed.setdefault((copy.sender, copy.sent_to, copy.body), []).append(copy)
        copy.steps.appears()

    def _invoked(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._invoked(event, fields)
        groups: set[str] = set()
        invocation = self.invocations[fields["request_id"]]
        for copy in invocation.copies:
            copy.invocations = grown(copy.invocations, invocation)
        for copy in invocation.copies:
            attempt = attempt_of(copy, behind=copy.group in groups) if self._by_deliveries else None
            copy.steps.begins(event.at, attempt)
            if copy.group and copy.is_fifo:
                groups.add(copy.group)

    def _ran(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._ran(event, fields)
        for delivery_id, message in fields["messages"].items():
            self.copies[delivery_id].steps.runs(message.attempt)

    def _logged(self, event: HistoryEvent, fields: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        super()._logged(event, fields, line)
        copy = self.copies.get(line.get("delivery_id", ""))
        if copy is None:
            return
        if "dead_letter_queue" in line:
            self._join_unnamed(copy, line["dead_letter_queue"])
        copy.steps.logged(event.at, line)

    def _join_unnamed(self, copy: MessageCopy, queue: str) -> None:
        """Add a dead letter without a record, which has no stable id, to the timeline of its message."""
        sender = copy.invocations[-1].request_id if copy.invocations else ""
        dead_letters = self._unnamed.get((sender, queue, copy.timeline.body))
        if dead_letters:
            alone = dead_letters.pop(0).timeline
            self.timelines.pop(alone.id, None)
            for each in alone.copies:
                copy.timeline.join(each)

    def _of_copy(self, copy: MessageCopy, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._of_copy(copy, event, fields)
        copy.steps.take(event, fields)

    def _of_invocation(self, invocation: ObservedInvocation, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._of_invocation(invocation, event, fields)
        if event.what == "answered":
            for copy in tuple(invocation.copies):  # a step may let the invocation be forgotten
                if copy.invocations[-1] is invocation:  # else another invocation has it by now
                    copy.steps.answered(event.at, fields)

    def _fault(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        super()._fault(event, fields)
        of = f" of {fields['operation']}" if fields.get("operation") else ""
        invocation = self.invocations.get(fields.get("request_id", ""))
        for copy in invocation.copies if invocation is not None else ():
            copy.timeline.faults.append((event.at, f"{fields['kind']}{of}"))

    def _recursion_stopped(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        for copy in self._known(fields["delivery_ids"]):
            copy.steps.refused(event.at, RECURSION)


class RecordedHistory(HistoryFacts):
    """A complete history, for checkers. It links each copy to the delivery that it replaces.

    ``settled``: whether the sandbox had come to rest at the end of the history.
    """

    def __init__(self, events: Iterable[HistoryEvent], *, settled: bool | None = None) -> None:
        super().__init__()
        self.events = tuple(events)
        self.settled = settled
        handlers, other = self._take, self._goes_on
        for event in self.events:  # as `take` does, without calls for each: a message has seven events
            _, what, names, *values = event
            handlers.get(what, other)(event, dict(zip(names, values, strict=True)))
        for invocation in self.invocations.values():
            for same in _grouped(invocation, lambda each: each.copy.id).values():
                for delivery in same if len(same) > 1 else ():
                    delivery.other_copies = [each for each in same if each is not delivery]
        self._batches: dict[str, tuple[_Grouped, _Grouped]] = {}
        """The deliveries of each invocation that sent copies, by stable id and by body."""
        for copy in self.copies.values():
            if copy.sender in self.invocations:
                self._trace(copy, self.invocations[copy.sender])
            origin, before = copy.came_from, copy.before
            if (origin is not None and origin.other_copies) or (before is not None and before.has_unclear_origin):
                copy.has_unclear_origin = True
        for event in self.deduplicated:
            if (sender := self.invocations.get(str(event.fields.get("by")))) is not None:
                self._note_deduplicated(event, sender)

    def _batch(self, sender: ObservedInvocation) -> "tuple[_Grouped, _Grouped]":
        """Return the deliveries in whose place an invocation may have sent copies, by stable id and by body."""
        if sender.request_id not in self._batches:
            by_id, by_body = _grouped(sender, lambda each: each.copy.id), _grouped(sender, lambda each: each.copy.body)
            self._batches[sender.request_id] = by_id, by_body
        return self._batches[sender.request_id]

    def _trace(self, copy: MessageCopy, sender: ObservedInvocation) -> None:
        """Find the delivery in whose place a copy was sent, and give the copy its stable id."""
        sender.sent = grown(sender.sent, copy.sent)
        by_id, by_body = self._batch(sender)
        candidates = by_id.get(copy.id, [])
        if copy.record is None:
            candidates = [each for each in by_body.get(copy.body, []) if self._may_lack_record(each, copy.sent_to)]
        if candidates:  # two copies of one message may be in one batch
            delivery = min(candidates, key=lambda each: _unlikeliness(each, copy))
            copy.came_from, copy.id = delivery, delivery.copy.id
            copy.is_dead_letter = not copy.record or is_dead_letter(copy.record)  # only a dead letter may lack a record
            delivery.sends = grown(delivery.sends, copy.sent)

    def _note_deduplicated(self, event: HistoryEvent, sender: ObservedInvocation) -> None:
        """Note a copy that SQS dropped, since it had the same deduplication id as an earlier one."""
        sender.sent = grown(sender.sent, event)
        for delivery in self._batch(sender)[0].get(self.copies[event.fields["delivery_id"]].id, ()):
            delivery.sends = grown(delivery.sends, event)

    def _may_lack_record(self, delivery: ObservedDelivery, target: str) -> bool:
        """Whether a delivery may have been dead-lettered without a record: by the log, or before its process died."""
        redrive = self.redrive(delivery.copy.sent_to)
        may_be_its_own = redrive is not None and redrive[0] == target
        return _is_logged(delivery, target) or (may_be_its_own and delivery.verdict not in DONE)

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
    def eventful(self) -> list[MessageCopy]:
        """The copies that may break a rule about single messages: most were just received, run and deleted."""
        return [copy for copy in self.copies.values() if not copy.was_plain]

    @cached_property
    def eventful_deliveries(self) -> list[ObservedDelivery]:
        return [delivery for copy in self.eventful for delivery in copy.deliveries]

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

    def is_only_reported(self, delivery: ObservedDelivery) -> bool:
        """Return whether a delivery has no log line, since there was no time to settle it: its invocation logged that.

        That counts near its deadline: in the last third of its time, the most that is kept for settlement (SPEC I2).
        """
        invocation = delivery.handled_in
        if delivery.log_lines or ("out_of_time", None, invocation.request_id) not in self._problems:
            return False
        deadline = float(invocation.invoked.fields["deadline"])
        near = deadline - (deadline - invocation.invoked.at) / 3
        return invocation.answered is not None and invocation.answered.at >= near

    @cached_property
    def _problems(self) -> set[tuple[object, ...]]:
        """The problems that were logged, each with its message and invocation."""
        fields = (event.fields for event in self.problems)
        return {(each["event"], each.get("delivery_id"), each.get("request_id")) for each in fields}

    def look_up_failed(self, delivery: ObservedDelivery) -> bool:
        """Return whether a look-up of a queue failed in a delivery's invocation, or before it and is still cached."""
        began, failed = delivery.handled_in.invoked.at, self._failed_look_ups
        since = bisect_left(failed, began - FAILURE_KEPT_SECONDS - 60)
        return delivery.handled_in.struck("GetQueueAttributes") or since < bisect_right(failed, began)

    @cached_property
    def _failed_look_ups(self) -> list[float]:
        """When a fault struck a look-up of a queue."""
        return [event.at for event in self.faults if event.fields.get("operation") == "GetQueueAttributes"]


_Grouped = dict[str, list[ObservedDelivery]]


def _grouped(invocation: ObservedInvocation, by: Callable[[ObservedDelivery], str]) -> _Grouped:
    groups: _Grouped = {}
    for delivery in invocation.deliveries.values():
        groups.setdefault(by(delivery), []).append(delivery)
    return groups


def _is_logged(delivery: ObservedDelivery, target: str) -> bool:
    """Whether the log says that a delivery was dead-lettered to a queue."""
    return any(event.fields.get("dead_letter_queue") == target for event in delivery.log_lines)


def _unlikeliness(delivery: ObservedDelivery, copy: MessageCopy) -> tuple[bool, bool, int]:
    """Rank the deliveries that a copy may replace, the likeliest first.

    Only the log tells which of two messages with the same body was dead-lettered.
    """
    return delivery.verdict in DONE, not _is_logged(delivery, copy.sent_to), len(delivery.sends)
