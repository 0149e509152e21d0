"""Verdicts, which a handler gives on a message; outcomes, which tarry decides; the states of a message.

A verdict is `ACK`, a signal, or the error that the handler raised. Signals are exceptions that carry a verdict, raised
at any depth below a handler: ``raise Retry(60) from error`` (the failure record then has the error), or ``class
CardDeclined(Reject)``.
"""

from __future__ import annotations

from enum import StrEnum

from tarry.support.guards import cause_of, is_a, leaves_of, name_of, text_of
from tarry.support.values import Delay, Value, moment_of, whole_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    Kind = Literal["ack", "retry", "again", "resend", "dead_letter", "discard", "defer", "wait", "release", "unhandled"]


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

DONE: frozenset[Kind] = frozenset({"ack", "discard"})
"""Outcomes that need no request: Lambda deletes messages that are not reported as failed."""
STOPS_ITS_GROUP: frozenset[Kind] = frozenset({"retry", "defer", "wait", "release", "unhandled"})
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
        """Report the message as failed, invisible for the policy's longest delay: no failure step took it."""
        return cls("unhandled")


class Signal(Exception):
    """The base of the signals. They can be subclassed."""


class Retry(Signal):
    """The attempt failed; retry the message.

    Args:
        delay: Seconds, a ``timedelta`` or an aware ``datetime``; None is the delay of the backoff.

    Raises:
        ValueError: ``delay`` is not a delay.
    """

    delay: int | None = None  # for a subclass that sets its own, or does not call super().__init__
    until: float | None = None

    def __init__(self, delay: Delay | None = None) -> None:
        super().__init__(*(() if delay is None else (delay,)))
        delay = type(self).delay if delay is None else delay
        self.delay = None if delay is None else whole_seconds(delay)
        self.until = moment_of(delay)


class Reject(Signal):
    """Dead-letter the message now. ``reason`` goes into the failure record."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Discard(Signal):
    """Delete the message without a dead letter. ``reason`` goes into the log."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Defer(Signal):
    """Deliver the message again after a delay. This is neither a failure nor an attempt.

    Args:
        delay: Seconds, a ``timedelta`` or an aware ``datetime``; less than a second is a second.

    Raises:
        ValueError: ``delay`` is not a delay.
    """

    delay: int = 1
    until: float | None = None
    """The epoch seconds of a delay that was given as a ``datetime``."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(delay)
        self.delay = max(1, whole_seconds(delay))
        self.until = moment_of(delay)


for _public in (Retry, Reject, Discard, Defer):
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs

MAX_REASON_CHARACTERS = 1_000

_MOST_CAUTIOUS_FIRST = (Retry, Defer, Reject, Discard)


def find_signal(error: BaseException) -> Signal | None:
    """Return the signal that ``error`` is or was explicitly raised from, the outermost one; None if there is none."""
    if cause_of(error) is None and not is_a(error, (Signal, BaseExceptionGroup)):
        return None
    # A group counts only if every leaf has a signal; then the most cautious one wins. An implicit ``__context__`` is
    # not searched: it is another error, which was being handled.
    found: list[Signal] = []
    groups = set[int]()
    todo = [error]
    while todo:
        link = _first_of_causes(todo.pop())
        if link is None:
            return None
        if is_a(link, Signal):
            found.append(link)
        elif id(link) not in groups:  # several errors may share a group, and groups may form a cycle
            groups.add(id(link))
            todo += reversed(leaves_of(link))  # type: ignore[arg-type]  # it is a group
    return next((signal for kind in _MOST_CAUTIOUS_FIRST for signal in found if is_a(signal, kind)), None)


def _first_of_causes(error: BaseException) -> Signal | BaseExceptionGroup[BaseException] | None:
    """Return the first signal or group among an error and its explicit causes."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if is_a(link, Signal) or is_a(link, BaseExceptionGroup):
            return link
        seen.add(id(link))
        link = cause_of(link)
    return None


def delay_of(signal: Retry | Defer) -> int | None:
    """Return the delay that a signal asks for, in whole seconds; None if the policy sets it. It may raise anything."""
    delay: object = signal.delay
    return None if delay is None else whole_seconds(delay)  # type: ignore[arg-type]


def until_of(signal: Retry | Defer) -> float | None:
    """Return the epoch seconds of a delay given as a ``datetime``, else None. A broken subclass may raise anything."""
    until: object = signal.until
    return until if isinstance(until, float) else None


def reason_of(signal: Reject | Discard) -> str | None:
    """Return the reason of a signal as text. A broken subclass may raise anything."""
    reason: object = signal.reason
    return None if reason is None else text_of(reason, MAX_REASON_CHARACTERS) or None


class Ack:
    """The verdict of an acknowledged message; the only verdict that is not an exception, since no handler raises it."""

    def __repr__(self) -> str:
        return "ACK"


ACK = Ack()
Verdict = Ack | BaseException


class BatchVerdict:
    """A batch handler's verdict on the whole batch, and its return value."""

    __slots__ = ("answer", "deletes_at_once", "verdict")

    def __init__(self, *, deletes_at_once: bool = False) -> None:
        self.deletes_at_once = deletes_at_once  # whether `Batch.ack_all` deletes at once (``ack="eager"``)
        self.verdict: Verdict | None = None  # of `Batch.ack_all` or `retry_all`, for messages without one of their own
        self.answer: Answer | None = None  # the ``batchItemFailures`` that the handler returned


class Answer(Value):
    """The messages that a batch handler's ``batchItemFailures`` name."""

    named: frozenset[str] = frozenset()  # the delivery ids of the messages
    refusal: str | None = None  # why Lambda would reject the answer and return the whole batch


def outcome_of(verdict: Verdict) -> Outcome | None:
    """Return the outcome that a verdict asks for; None for an error, whose outcome the policy decides."""
    if verdict is ACK:
        return Outcome.ack()
    if is_a(verdict, Retry):
        return Outcome.retry(delay_of(verdict))
    if is_a(verdict, Defer):
        return Outcome.defer(delay_of(verdict))  # type: ignore[arg-type]  # None is refused
    if is_a(verdict, Reject):
        return Outcome.dead_letter(reason_of(verdict) or "rejected")
    if is_a(verdict, Discard):
        return Outcome.discard(reason_of(verdict))
    return None


def name_of_verdict(verdict: Verdict) -> str:
    return name_of(type(verdict)).rpartition(".")[2]
