"""The story of each message, read from a history: its states, over all its copies, dead letters and redrives."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tarry.envelope.attempts import attempt_number
from tarry.envelope.attribute import ATTRIBUTE, body_sum, is_dead_letter
from tarry.outcome import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tarry.simulator.history import HistoryEvent

GONE = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED, State.RESENT})
"""States in which a delivery is no more in its queue."""
A_MOMENT_SECONDS = 0.1
"""What a message is delayed by is whole seconds; less passes in real time between two looks at the clock."""
RECURSION = "Lambda refused the invocation: recursive loop (set RecursiveLoop: Allow)"
REPORTED = "reported as failed"
"""Why a message goes back of which a function said no more than that."""


@dataclass(frozen=True)
class Transition:
    """One step of a message's life.

    ``at`` is epoch seconds. ``attempt`` counts from 1; None where no handler ran. ``delay`` is in seconds, where it
    waits. ``why`` is the reason and the error, as far as they are known.
    """

    at: float
    state: State
    delivery_id: str
    queue: str
    attempt: int | None = None
    delay: float | None = None
    why: str = ""
    sent_on: bool = False
    """Whether it goes on as a copy."""

    @property
    def is_gone(self) -> bool:
        """Whether this delivery is no more in its queue."""
        return self.sent_on or self.state in GONE


class Story:
    """One message. ``id`` is its stable id, ``body`` the body as it was first sent."""

    def __init__(self, id: str, body: str) -> None:
        self.id = id
        self.body = body
        self.transitions: list[Transition] = []
        self.delivery_ids: list[str] = []
        """SQS's ids of it and of its copies."""
        self.letter: Mapping[str, Any] | None = None
        """The record of a dead letter that was sent of it, as long as nobody has told of that."""
        self.faults: list[tuple[float, str]] = []
        """What went wrong in invocations that had it: when, and what."""

    @property
    def state(self) -> State:
        """The state it is in."""
        return self.transitions[-1].state


class Stories:
    """The stories of a history: that of each message by its stable id, in the order of their sending.

    ``on_step`` is told of each story as it goes on. ``by_deliveries``: attempts are counted from SQS's receives, since
    nothing is told of a handler's runs.
    """

    def __init__(
        self,
        events: Iterable[HistoryEvent] = (),
        on_step: Callable[[Story], None] = lambda story: None,
        *,
        by_deliveries: bool = False,
    ) -> None:
        self.by_id: dict[str, Story] = {}
        self._on_step = on_step
        self._by_deliveries = by_deliveries
        self._lives: dict[str, _Life] = {}
        self._batches: dict[str, list[_Life]] = {}
        self._unnamed: dict[tuple[str, str], list[_Life]] = {}
        """What an invocation sent to a queue without an id of its own."""
        for event in events:
            self.take(event)

    def find(self, message_id: str) -> Story | None:
        """By the stable id, or that of any delivery."""
        life = self._lives.get(message_id)
        return life.story if life is not None else self.by_id.get(message_id)

    def forget(self, story: Story) -> None:
        """Keep nothing of it."""
        self.by_id.pop(story.id, None)
        for delivery_id in story.delivery_ids:
            life = self._lives.pop(delivery_id, None)
            for key in life.keys if life is not None else ():
                self._batches.pop(key, None) if isinstance(key, str) else self._unnamed.pop(key, None)

    def take(self, event: HistoryEvent) -> None:
        """Go on with what happened next."""
        fields = event.fields
        match event.what:
            case "sent":
                self._sent(event)
            case "received" if fields["delivery_id"] not in self._lives:
                self._appeared(event)
            case "invoked":
                self._invoked(event)
            case "answered":
                for life in self._batches.get(fields["request_id"], ()):
                    if life.request_id == fields["request_id"]:  # else it is with another invocation by now
                        life.answered(event, failed=life.delivery_id in fields["failed"])
            case "fault" | "ran" | "recursion_stopped":
                self._in_invocation(event)
            case _ if fields.get("delivery_id") in self._lives:
                self._of_life(self._lives[fields["delivery_id"]], event)

    def _sent(self, event: HistoryEvent) -> None:
        fields = event.fields
        delivery_id, queue, sender = fields["delivery_id"], fields["queue"], fields.get("by")
        if delivery_id in self._lives:  # SQS made it of another one
            life = self._lives[delivery_id]
        else:
            record = _record(fields)
            stable_id = str(record.get("id") or delivery_id)
            story = self.by_id.setdefault(stable_id, Story(stable_id, fields["body"]))
            life = self._live(delivery_id, story, queue, record)
            if sender is not None and is_dead_letter(record):
                story.letter = record
                return  # it is told of with what it was made of
            if sender is not None and not record:
                self._unnamed.setdefault((sender, queue), []).append(life)
                life.keys.append((sender, queue))
        delay = fields.get("visible_at", event.at) - event.at
        life.step(event.at, State.READY, delay=delay if delay > A_MOMENT_SECONDS else None)

    def _appeared(self, event: HistoryEvent) -> None:
        """It was sent to an SQS that tells nothing of its sending."""
        self._sent(replace(event, fields={**event.fields, "by": None}))
        self._lives[event.fields["delivery_id"]].take(event)

    def _live(self, delivery_id: str, story: Story, queue: str, record: Mapping[str, Any]) -> _Life:
        story.delivery_ids.append(delivery_id)
        life = self._lives[delivery_id] = _Life(delivery_id, story, queue, record, self._on_step)
        return life

    def _invoked(self, event: HistoryEvent) -> None:
        fields = event.fields
        lives = [self._lives[each] for each in fields["delivery_ids"] if each in self._lives]
        self._batches[fields["request_id"]] = lives
        groups: set[str] = set()
        for life in lives:
            attempt = life.attempt(behind=life.group in groups) if self._by_deliveries else None
            life.begins(event.at, fields["request_id"], attempt)
            if life.group and life.queue.endswith(".fifo"):
                groups.add(life.group)

    def _in_invocation(self, event: HistoryEvent) -> None:
        fields = event.fields
        if event.what == "recursion_stopped":
            for life in (self._lives[each] for each in fields["delivery_ids"] if each in self._lives):
                life.story.faults.append((event.at, RECURSION))
            return
        if event.what == "ran":
            for delivery_id, attempt in fields["attempts"].items():
                if delivery_id in self._lives:
                    self._lives[delivery_id].runs(attempt)
            return
        of = f" of {fields['operation']}" if fields.get("operation") else ""
        for life in self._batches.get(fields.get("request_id", ""), ()):
            life.story.faults.append((event.at, f"{fields['kind']}{of}"))

    def _of_life(self, life: _Life, event: HistoryEvent) -> None:
        fields = event.fields
        if event.what == "said" and "dead_letter_queue" in fields:
            self._join_letter(life, fields["dead_letter_queue"])
        life.take(event)
        if "new_delivery_id" in fields:  # SQS moved it, and the copy that it made is the same message
            self._live(fields["new_delivery_id"], life.story, fields["to"], {})

    def _join_letter(self, life: _Life, queue: str) -> None:
        """A dead letter without a record has no id but its own; it is the same message all the same."""
        for letter in self._unnamed.get((life.request_id, queue), ()):
            if letter.story.body == life.story.body and letter.story.id in self.by_id:
                del self.by_id[letter.story.id]
                life.story.delivery_ids += letter.story.delivery_ids
                letter.story = life.story
                return


class _Life:
    """One message of SQS, as long as it is there."""

    def __init__(
        self,
        delivery_id: str,
        story: Story,
        queue: str,
        record: Mapping[str, Any],
        on_step: Callable[[Story], None],
    ) -> None:
        self.delivery_id = delivery_id
        self.story = story
        self.queue = queue
        self.group: str | None = None
        self.request_id = ""
        """The invocation that had it last."""
        self.keys: list[str | tuple[str, str]] = []
        """Under which more is kept of it: the invocations that had it, and who sent it where."""
        self._record = record
        self._on_step = on_step
        self._receives = 0
        self._first_received_at: float | None = None
        self._visible_at = 0.0
        self._is_deleted = False
        self._now: Transition | None = None

    def step(self, at: float, state: State, **more: Any) -> None:
        self._now = Transition(at, state, self.delivery_id, self.queue, **more)
        self.story.transitions.append(self._now)
        self._on_step(self.story)

    def attempt(self, *, behind: bool) -> int:
        """Which attempt its delivery is, as tarry counts."""
        carried, due = int(self._record.get("carried") or 0), self._record.get("due")
        return carried + attempt_number(self._receives, None, self._first_received_at, due=due, behind=behind)

    def begins(self, at: float, request_id: str, attempt: int | None) -> None:
        self.request_id = request_id
        self.keys.append(request_id)
        self.step(at, State.IN_FLIGHT, attempt=attempt)

    def runs(self, attempt: int) -> None:
        """A handler runs on it: only now is it known which attempt this is."""
        if self._now is not None and self._now.state is State.IN_FLIGHT and self._now.attempt is None:
            self._replace(replace(self._now, attempt=attempt))

    def take(self, event: HistoryEvent) -> None:
        """Something that happened to it."""
        fields = event.fields
        match event.what:
            case "received":
                self._visible_at = fields["visible_until"]
                self._receives, self.group = fields["receive_count"], fields.get("group")
                self._first_received_at = self._first_received_at or event.at
            case "hidden":
                self._visible_at = fields["visible_until"]
            case "said":
                self._said(event)
            case "deleted" if fields.get("by") is not None and self._now is not None and not self._now.is_gone:
                self._deleted(event.at, fields["by"], self._now.state)
            case "filtered":
                self.step(event.at, State.DISCARDED, why="no filter of the mapping matches it")
            case "expired":
                self.step(fields["expired_at"], State.DISCARDED, why="expired")
            case "purged":
                self.step(event.at, State.DISCARDED, why="purged")
            case "moved":
                self.queue = fields["to"]
                if fields.get("origin") != "redrive":
                    why = f"by SQS itself, after {fields['receive_count']} receives"
                    self.step(event.at, State.DEAD_LETTERED, why=why)

    def _deleted(self, at: float, by: str, state: State) -> None:
        """Its function alone may delete it, while it has it; or the mapping, in whose name it does so."""
        if state is State.IN_FLIGHT and by == "http":
            self._is_deleted = True  # by its function, which is about to say why
        elif state is State.IN_FLIGHT:
            self.step(at, State.COMMITTED)
        else:
            odd = "somebody beside its function deleted it" if by == "http" else f"deleted, though it was {state}"
            self.step(at, State.COMMITTED, why=odd)

    def answered(self, event: HistoryEvent, *, failed: bool) -> None:
        """The function has ended; of what tarry has said nothing, the mapping decides."""
        if self._now is None or self._now.state is not State.IN_FLIGHT:
            return
        if self._is_deleted:
            self._ended(event.at)
        elif failed:
            fields = event.fields
            why = fields["why"] or REPORTED
            self.step(event.at, State.WAITING_RETRY, delay=max(0.0, self._visible_at - event.at), why=why)

    def _ended(self, at: float) -> None:
        """Its function has deleted it, and said nothing that could be heard."""
        record, self.story.letter = self.story.letter, None
        if record is None:
            self.step(at, State.COMMITTED)
        else:
            failure = record["failure"]
            self.step(
                at, State.DEAD_LETTERED, why=": ".join(filter(None, map(failure.get, ("reason", "type", "message"))))
            )

    def _said(self, event: HistoryEvent) -> None:
        """What tarry says; a delete just before was part of it, and so was the answer of a process that ran ahead."""
        fields = event.fields
        sent_on = "sent_to" in fields
        state, now = State(fields["state"]), self._now
        is_part = now is not None and now.state in GONE and (state in GONE or sent_on)
        self.story.letter = None
        if now is not None and (is_part or now.why == REPORTED):
            self.story.transitions.remove(now)
        queue, letters = self.queue, fields.get("dead_letter_queue")
        self.queue = letters or queue
        attempt, delay, why = fields.get("attempt"), fields.get("delay"), because(fields)
        self.step(event.at, state, attempt=attempt, delay=delay, why=why, sent_on=sent_on)
        self.queue = queue

    def _replace(self, now: Transition) -> None:
        """The last step, known better now."""
        transitions = self.story.transitions
        index = len(transitions) - 1
        while transitions[index] is not self._now:
            index -= 1
        transitions[index] = self._now = now


def because(fields: Mapping[str, Any]) -> str:
    """Why a message is in its state, as far as a line of tarry's log told it."""
    reason, error = fields.get("not_sent") or fields.get("reason"), fields.get("error")
    if reason == "error":
        reason = "the handler asked for it" if not error and fields["state"] == State.WAITING_RETRY else None
    return ": ".join(str(each) for each in (reason, error) if each)


def _record(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The `Tarry` record that a message was sent with; empty if it has none that belongs to its body."""
    try:
        record: dict[str, Any] = json.loads(sent["attributes"][ATTRIBUTE]["StringValue"])
        return record if record["sum"] == body_sum(sent["body"]) else {}
    except (KeyError, TypeError, ValueError):
        return {}
