"""Outcomes, which say what to do with a message, and the states of a message."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from tarry.support.delays import Delay, whole_seconds
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """The state of a message. COMMITTED, DEAD_LETTERED, DISCARDED and RESENT are final for a delivery id."""

    READY = "READY"
    IN_FLIGHT = "IN_FLIGHT"
    WAITING_RETRY = "WAITING_RETRY"
    COMMITTED = "COMMITTED"
    DEAD_LETTERED = "DEAD_LETTERED"
    DISCARDED = "DISCARDED"
    DEFERRED = "DEFERRED"
    RESENT = "RESENT"


Kind = Literal["ack", "retry", "again", "resend", "dead_letter", "discard", "defer", "wait", "release", "unhandled"]

_STATES: dict[Kind, State] = {
    "ack": State.COMMITTED,
    "retry": State.WAITING_RETRY,
    "again": State.IN_FLIGHT,
    "resend": State.RESENT,
    "dead_letter": State.DEAD_LETTERED,
    "discard": State.DISCARDED,
    "defer": State.DEFERRED,
    "wait": State.DEFERRED,
    "release": State.READY,
    "unhandled": State.WAITING_RETRY,
}

RUNS_ELSEWHERE = "in_progress"
"""The reason of a message that waits in place, because another delivery of it may still run (SPEC K4)."""

DONE = frozenset[Kind]({"ack", "discard"})
"""Outcomes that need no request: Lambda deletes messages that are not reported as failed."""
STOPS_ITS_GROUP = frozenset[Kind]({"retry", "defer", "wait", "release", "unhandled"})
"""Outcomes that leave the message in the queue: on FIFO, no message behind it in its group may run (SPEC H1)."""


class Outcome(Value):
    """The decision on one message, made by a class method such as ``Outcome.retry(30)``."""

    kind: Kind
    delay: float | None
    reason: str | None
    queue: str | None
    note: Mapping[str, int | str] | None
    body: Any
    """Another body for the copy; None keeps the message's."""
    attributes: Mapping[str, Any] | None
    """Other attributes for the copy; None keeps the message's."""

    def __init__(
        self,
        kind: Kind,
        delay: Delay | None = None,
        reason: str | None = None,
        queue: str | None = None,
        note: Mapping[str, int | str] | None = None,
        *,
        body: Any = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        if kind not in _STATES:
            raise ValueError(
                f"an outcome is one of {', '.join(_STATES)}, got {kind!r}: use a class method such as Outcome.retry(30)"
            )
        for name, text in (("reason", reason), ("queue", queue)):  # a failure record, and an ARN, are made of them
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} of an outcome is a text or None, got a value of type {type(text).__name__}")
        seconds: float | None = None if delay is None else whole_seconds(delay)
        if kind == "again" and isinstance(delay, (int, float)):
            seconds = delay  # this delay is not sent to SQS, so it need not be whole seconds
        self._freeze(
            kind=kind, delay=seconds, reason=reason, queue=queue or None, note=note, body=body, attributes=attributes
        )

    def __repr__(self) -> str:
        names = ("kind", "delay", "reason", "queue", "note")  # without the body, which logs must not show by default
        return f"Outcome({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def state(self) -> State:
        """The state that this outcome leads to."""
        return _STATES[self.kind]

    @classmethod
    def ack(cls) -> Outcome:
        """Acknowledge the message: it is deleted."""
        return cls("ack")

    @classmethod
    def retry(cls, delay: Delay | None = None) -> Outcome:
        """Keep the message invisible for ``delay``, then deliver it again; None is the delay of the backoff."""
        return cls("retry", delay)

    @classmethod
    def again(cls, delay: Delay = 0) -> Outcome:
        """Run the handler again within this delivery, after ``delay``."""
        return cls("again", delay)

    @classmethod
    def resend(
        cls,
        queue: str | None = None,
        delay: Delay | None = None,
        note: Mapping[str, int | str] | None = None,
        body: Any = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Send a copy of the message, then delete the original.

        Args:
            queue: The name, URL or ARN of the target; None is the message's own queue.
            delay: Seconds, a ``timedelta`` or an aware ``datetime``, at most 12 hours; None is the queue's own delay.
            note: Names with whole numbers from 0 to 1,000 or texts of at most 256 characters. They travel with the
                copy, and `Failure.note` reads them.
            body: Another body for the copy, as `Queue.send` takes it: a str, or a dict, list, dataclass or pydantic
                model, which becomes JSON. None keeps the message's.
            attributes: Other message attributes for the copy, as `Queue.send` takes them; ``{}`` is none. None keeps
                the message's.

        A copy with another body or other attributes keeps the message's id, attempts and history, and its record says
        when it was edited. If they are beyond SQS's limits, the next failure step decides.

        Raises:
            ValueError: A note has another type or is out of range.
        """
        from tarry.record.attribute import MAX_COUNT, MAX_NOTE_LENGTH

        for name, value in dict(note or {}).items():
            is_count = type(value) is int and 0 <= value <= MAX_COUNT
            is_text = type(value) is str and len(value) <= MAX_NOTE_LENGTH
            if type(name) is not str or not (is_count or is_text):
                raise ValueError(
                    f"a note is a name with a whole number from 0 to {MAX_COUNT} or a text of at most "
                    f"{MAX_NOTE_LENGTH} characters, got {name!r}: {value!r:.300}"
                )
        return cls("resend", delay, queue=queue, note=note, body=body, attributes=attributes)

    @classmethod
    def dead_letter(cls, reason: str, queue: str | None = None) -> Outcome:
        """Send the message to its dead-letter queue, or to ``queue`` (a name, URL or ARN), then delete the original."""
        return cls("dead_letter", reason=reason, queue=queue)

    @classmethod
    def discard(cls, reason: str | None = None) -> Outcome:
        """Delete the message; only a log line remains."""
        return cls("discard", reason=reason)

    @classmethod
    def defer(cls, delay: Delay) -> Outcome:
        """Deliver the message again after ``delay``, at least 1 second, without an attempt."""
        return cls("defer", max(1, whole_seconds(delay)))

    @classmethod
    def wait(cls, delay: Delay) -> Outcome:
        """Keep the message invisible for the ``delay`` that is left: it was sent with a delay and is not due yet."""
        return cls("wait", delay, "not_due")

    @classmethod
    def release(cls) -> Outcome:
        """Return the message unrun, visible immediately."""
        return cls("release", 0)

    @classmethod
    def unhandled(cls) -> Outcome:
        """Report the message as failed, hidden for the policy's longest delay: no failure step took it."""
        return cls("unhandled")
