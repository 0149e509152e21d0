"""The timeline of each message: its states, over all its copies, dead letters and redrives."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from tarry.message.outcomes import State
from tarry.record.attribute import attempt_number
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.events import StoryEvent
from tarry.tools.story.lines import LogEntry, TarryLine, event_fields
from tarry.tools.testing.deliveries import MessageCopy

GONE = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED, State.RESENT})
"""States in which a delivery has left its queue."""
A_MOMENT_SECONDS = 0.1
"""Delays are whole seconds; in real time, less than this passes between two readings of the clock."""
REPORTED = "reported as failed"
"""The reason for a retry, if the function gave no other."""
IGNORED = "deleted, though it was reported as failed: its event source mapping lacks ReportBatchItemFailures"


@dataclass(frozen=True, slots=True)
class Transition(StoryEvent):
    """One step of a message: an event of its story whose state is known.

    ``at`` is epoch seconds. ``queue`` is the queue that the message is in. ``attempt`` counts from 1; None if no
    handler ran. ``delay`` is in seconds, for a message that waits. ``why`` is the reason and the error, if known.
    """

    state: State

    @property
    def sent_on(self) -> bool:
        """Whether it goes on as a copy."""
        return "sent_to" in self.line

    @property
    def is_gone(self) -> bool:
        """Whether this delivery has left its queue."""
        return self.sent_on or self.state in GONE


class Timeline:
    """One message's timeline. ``id`` is its stable id, ``body`` the body as it was first sent.

    ``on_step`` is called with the timeline after each transition.
    """

    __slots__ = ("body", "copies", "dead_letter", "faults", "id", "on_step", "transitions")

    def __init__(self, id: str, body: str, on_step: "Callable[[Timeline], None]") -> None:
        self.id = id
        self.body = body
        self.on_step = on_step
        self.transitions: list[Transition] = []
        self.copies: list[MessageCopy] = []
        self.dead_letter: Mapping[str, Any] | None = None
        """The record of the dead letter sent for it, until a log line or the function's answer confirms it."""
        self.faults: list[tuple[float, str]] = []
        """The faults of its invocations: the time and a description of each."""

    @property
    def state(self) -> State:
        """The state it is in."""
        return self.transitions[-1].state

    @property
    def latest_body(self) -> str:
        """The body of the latest send: a dead letter can be edited and retried."""
        return self.copies[-1].body if self.copies else self.body

    @property
    def is_in_a_queue(self) -> bool:
        """Whether a queue holds a copy of it.

        False for a copy that was first seen when it was received: its SQS does not report all that is deleted there.
        """
        return any(copy.end is None and copy.sent.what == "sent" for copy in self.copies)

    def join(self, copy: MessageCopy) -> None:
        """Add a copy of this message."""
        copy.timeline = self
        self.copies.append(copy)

    def replace(self, step: Transition, *instead: Transition) -> None:
        """Replace one of the last steps by other steps, or by none."""
        for place in reversed(range(len(self.transitions))):
            if self.transitions[place] is step:
                self.transitions[place : place + 1] = instead
                return


class CopySteps:
    """The steps that one copy adds to its message's timeline."""

    __slots__ = ("_copy", "_is_deleted", "_is_ignored", "_now")

    def __init__(self, copy: MessageCopy) -> None:
        self._copy = copy
        self._is_deleted = False
        """Whether its function deleted it; a log line with the reason may follow."""
        self._is_ignored = False
        """Whether its function reported it as failed, to a mapping that ignores this and deletes it."""
        self._now: Transition | None = None

    def appears(self) -> None:
        """Add the step of its sending."""
        sent = self._copy.sent
        delay = sent.fields.get("visible_at", sent.at) - sent.at
        self._step(sent.at, State.READY, delay=delay if delay > A_MOMENT_SECONDS else None)

    def restored(self) -> None:
        """Add the step of a dead letter about which nothing else is known."""
        self._step(self._copy.sent.at, State.DEAD_LETTERED)

    def begins(self, at: float, attempt: int | None) -> None:
        """Add the step of an invocation with it."""
        self._step(at, State.IN_FLIGHT, attempt=attempt)

    def refused(self, at: float, why: str) -> None:
        """Add the step of an invocation with it that Lambda refused."""
        self._step(at, State.WAITING_RETRY, delay=max(0.0, self._copy.visible_at - at), text=why)

    def runs(self, attempt: int) -> None:
        """Set the attempt of its latest step, which is known once the handler runs."""
        if self._now is not None and self._now.state is State.IN_FLIGHT and self._now.attempt is None:
            before, self._now = self._now, replace(self._now, attempt=attempt)
            self._copy.timeline.replace(before, self._now)

    def take(self, event: HistoryEvent, fields: Mapping[str, Any]) -> None:
        """Add the step of an event, if it makes one."""
        match event.what:
            case "deleted" if fields.get("by") is not None and self._now is not None and not self._now.is_gone:
                self._deleted(event.at, fields["by"], self._now.state)
            case "filtered":
                self._step(event.at, State.DISCARDED, text="no filter of the mapping matches it")
            case "expired":
                self._step(fields["expired_at"], State.DISCARDED, text="expired")
            case "purged":
                self._step(event.at, State.DISCARDED, text="purged")
            case "moved" if fields.get("origin") != "redrive":
                count = fields["receive_count"]
                why = f"by SQS itself, after {count} receive{'s'[: count != 1]}"
                self._step(event.at, State.DEAD_LETTERED, origin=fields["queue"], sent_to=fields["to"], text=why)

    def answered(self, at: float, fields: Mapping[str, Any]) -> None:
        """Add the step of a function's answer, unless a log line about the message has told its state."""
        timeline = self._copy.timeline
        if self._now is None or self._now.state is not State.IN_FLIGHT:
            return
        if self._is_deleted:
            record, timeline.dead_letter = timeline.dead_letter, None
            failure = record["failure"] if record is not None else {}
            why = ": ".join(filter(None, map(failure.get, ("reason", "type", "message"))))
            self._step(at, State.COMMITTED if record is None else State.DEAD_LETTERED, text=why)
        elif self._copy.delivery_id in fields.get("ignored", ()):
            self._is_ignored = True
        elif self._copy.delivery_id in fields["failed"]:
            delay = max(0.0, self._copy.visible_at - at)
            own = fields.get("errors", {}).get(self._copy.delivery_id)  # else the error is that of its batch
            self._step(at, State.WAITING_RETRY, delay=delay, text=own or fields["why"] or REPORTED)

    def logged(self, at: float, fields: Mapping[str, Any]) -> None:
        """Add the step that tarry logged, in place of the delete or the answer of the function that belongs to it."""
        state, now, timeline = State(fields["state"]), self._now, self._copy.timeline
        # The line comes after the requests that it is about, and one of these has made a step already.
        is_part = now is not None and now.state in GONE and (state in GONE or "sent_to" in fields)
        timeline.dead_letter = None
        if now is not None and (is_part or now.why == REPORTED):
            timeline.replace(now)
        found = event_fields(TarryLine(LogEntry(at, ""), str(fields.get("event") or ""), fields))
        self._step(at, state, **{name: value for name, value in found.items() if value not in (None, "")})

    def _deleted(self, at: float, by: str, state: State) -> None:
        """Add the step of its deletion, by its function or by the mapping; any other deletion is odd."""
        if state is State.IN_FLIGHT and by == "http":
            self._is_deleted = True
        elif state is State.IN_FLIGHT:
            self._step(at, State.COMMITTED, text=IGNORED if self._is_ignored else "")
        else:
            odd = "deleted by something other than its function" if by == "http" else f"deleted, though it was {state}"
            self._step(at, State.COMMITTED, text=odd)

    def _step(self, at: float, state: State, **more: Any) -> None:
        copy = self._copy
        own: dict[str, Any] = {"delivery_id": copy.delivery_id, "origin": copy.queue}
        if copy.invocations:
            invoked = copy.invocations[-1].invoked.fields
            own |= {"function": str(invoked.get("function") or ""), "request_id": str(invoked["request_id"])}
        self._now = Transition(at, state, **own | more)
        copy.timeline.transitions.append(self._now)
        copy.timeline.on_step(copy.timeline)


def without_copies(steps: Sequence[Transition]) -> Iterator[Transition]:
    """Yield the steps without the sending of a copy to the same queue, which the step after it tells with its delay."""
    for step, after in zip_longest(steps, steps[1:]):
        is_covered = after is not None and after.sent_on and after.delivery_id != step.delivery_id
        if not (
            is_covered and step.state is State.READY and step.queue == after.queue and (after.delay or not step.delay)
        ):
            yield step


def attempt_of(copy: MessageCopy, *, behind: bool) -> int:
    """Return the attempt of a copy's latest delivery; ``behind``: another message of its FIFO group precedes it."""
    record = copy.record or {}
    first_received_at = copy.deliveries[0].at if copy.deliveries else None
    receives = copy.deliveries[-1].count if copy.deliveries else 0
    carried, due = int(record.get("carried") or 0), record.get("due")
    number, _ = attempt_number(
        receives, None, due=due, first_received_at=first_received_at, behind=behind, untraced=False
    )
    return carried + number
