"""The story of each message, read from a history: its states, over all its copies, dead letters and redrives."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tarry.arn import queue_arn
from tarry.envelope import ATTRIBUTE, body_sum
from tarry.outcome import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.simulator.history import Event

GONE = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED, State.RESENT})
"""States in which a delivery is no more in its queue."""


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
        self.faults: list[tuple[float, str]] = []
        """What went wrong in invocations that had it: when, and what."""

    @property
    def state(self) -> State:
        """The state it is in."""
        return self.transitions[-1].state


class Stories:
    """The stories of a history: that of each message by its stable id, in the order of their sending."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.by_id: dict[str, Story] = {}
        self._lives: dict[str, _Life] = {}
        self._batches: dict[str, list[_Life]] = {}
        self._unnamed: dict[tuple[str, str], list[_Life]] = {}
        """What an invocation sent to a queue without an id of its own."""
        for event in events:
            self._take(event)

    def find(self, message_id: str) -> Story | None:
        """By the stable id, or that of any delivery."""
        life = self._lives.get(message_id)
        return life.story if life is not None else self.by_id.get(message_id)

    def _take(self, event: Event) -> None:
        fields = event.fields
        match event.what:
            case "sent":
                self._sent(event)
            case "invoked":
                lives = [self._lives[each] for each in fields["delivery_ids"] if each in self._lives]
                self._batches[fields["request_id"]] = lives
                for life in lives:
                    life.begins(event.at, fields["request_id"])
            case "answered":
                for life in self._batches.get(fields["request_id"], ()):
                    life.answered(event, failed=life.delivery_id in fields["failed"])
            case "fault" | "ran":
                self._in_invocation(event)
            case _ if fields.get("delivery_id") in self._lives:
                self._of_life(self._lives[fields["delivery_id"]], event)

    def _sent(self, event: Event) -> None:
        fields = event.fields
        delivery_id, queue, sender = fields["delivery_id"], fields["queue"], fields.get("by")
        if delivery_id in self._lives:  # SQS made it of another one
            life = self._lives[delivery_id]
        else:
            record = _record(fields)
            stable_id = str(record.get("id") or delivery_id)
            story = self.by_id.setdefault(stable_id, Story(stable_id, fields["body"]))
            life = self._lives[delivery_id] = _Life(delivery_id, story, queue)
            if sender is not None and _is_letter(record, queue):
                return  # it is told of with what it was made of
            if sender is not None and not record:
                self._unnamed.setdefault((sender, queue), []).append(life)
        delay = fields.get("visible_at", event.at) - event.at
        life.step(event.at, State.READY, delay=delay or None)

    def _in_invocation(self, event: Event) -> None:
        fields = event.fields
        if event.what == "ran":
            for delivery_id, attempt in fields["attempts"].items():
                if delivery_id in self._lives:
                    self._lives[delivery_id].runs(attempt)
            return
        of = f" of {fields['operation']}" if fields.get("operation") else ""
        for life in self._batches.get(fields.get("request_id", ""), ()):
            life.story.faults.append((event.at, f"{fields['kind']}{of}"))

    def _of_life(self, life: _Life, event: Event) -> None:
        fields = event.fields
        if event.what == "said" and "dead_letter_queue" in fields:
            self._join_letter(life, fields["dead_letter_queue"])
        life.take(event)
        if "new_delivery_id" in fields:  # SQS moved it, and the copy that it made is the same message
            self._lives[fields["new_delivery_id"]] = _Life(fields["new_delivery_id"], life.story, fields["to"])

    def _join_letter(self, life: _Life, queue: str) -> None:
        """A dead letter without a record has no id but its own; it is the same message all the same."""
        for letter in self._unnamed.get((life.request_id, queue), ()):
            if letter.story.body == life.story.body and letter.story.id in self.by_id:
                del self.by_id[letter.story.id]
                letter.story = life.story
                return


class _Life:
    """One message of SQS, as long as it is there."""

    def __init__(self, delivery_id: str, story: Story, queue: str) -> None:
        self.delivery_id = delivery_id
        self.story = story
        self.queue = queue
        self.request_id = ""
        """The invocation that had it last."""
        self._visible_at = 0.0
        self._now: Transition | None = None

    def step(self, at: float, state: State, **more: Any) -> None:
        self._now = Transition(at, state, self.delivery_id, self.queue, **more)
        self.story.transitions.append(self._now)

    def begins(self, at: float, request_id: str) -> None:
        self.request_id = request_id
        self.step(at, State.IN_FLIGHT)

    def runs(self, attempt: int) -> None:
        """A handler runs on it: only now is it known which attempt this is."""
        if self._now is not None and self._now.state is State.IN_FLIGHT and self._now.attempt is None:
            self._replace(replace(self._now, attempt=attempt))

    def take(self, event: Event) -> None:
        """Something that happened to it."""
        fields = event.fields
        match event.what:
            case "received" | "hidden":
                self._visible_at = fields["visible_until"]
            case "said":
                self._said(event)
            case "deleted" if fields.get("by") is not None and self._now is not None and not self._now.is_gone:
                odd = self._now.state is not State.IN_FLIGHT
                self.step(event.at, State.COMMITTED, why=f"deleted, though it was {self._now.state}" if odd else "")
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

    def answered(self, event: Event, *, failed: bool) -> None:
        """The function has ended; of what tarry has said nothing, the mapping decides."""
        if failed and self._now is not None and self._now.state is State.IN_FLIGHT:
            fields = event.fields
            why = fields["why"] or "reported as failed"
            self.step(event.at, State.WAITING_RETRY, delay=max(0.0, self._visible_at - event.at), why=why)

    def _said(self, event: Event) -> None:
        """What tarry says; a delete just before was part of it."""
        fields = event.fields
        sent_on = "sent_to" in fields
        state = State(fields["state"])
        if (state in GONE or sent_on) and self._now is not None and self._now.state is State.COMMITTED:
            self.story.transitions.remove(self._now)
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


def _is_letter(record: Mapping[str, Any], queue: str) -> bool:
    """Whether it is a dead letter: its attempts begin anew, in another queue than the one where it failed."""
    origin = queue_arn(record.get("origin")).name
    return bool(record.get("failure")) and not record.get("carried") and origin != queue


def _record(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The `Tarry` record that a message was sent with; empty if it has none that belongs to its body."""
    try:
        record: dict[str, Any] = json.loads(sent["attributes"][ATTRIBUTE]["StringValue"])
        return record if record["sum"] == body_sum(sent["body"]) else {}
    except (KeyError, TypeError, ValueError):
        return {}
