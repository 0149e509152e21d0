"""A failure as the failure steps see it, their protocol, and the facts of its queue that decisions depend on.

The default list is ``[RetryInPlace(), DeadLetter()]``. A step of your own is a class with one method:

    class Page:
        def handle(self, failure, next_step):
            if failure.reason == "fatal":
                page_somebody(failure.error)
            return next_step(failure)

A function with these parameters is a step too.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tarry.message.message import delivery_of
from tarry.support.values import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS, Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tarry.message.delivery import Delivery
    from tarry.message.diagnosis import Diagnosis
    from tarry.message.message import Message
    from tarry.message.notices import Notice
    from tarry.message.outcomes import Outcome
    from tarry.support.values import QueueArn

# SQS's defaults, used if the queue's attributes cannot be read
ASSUMED_VISIBILITY_TIMEOUT_SECONDS = 30
ASSUMED_RETENTION_SECONDS = 4 * 86_400

LOOK_UP_SECONDS = MAX_VISIBILITY_SECONDS  # an unknown retention is assumed only if age and wait exceed this
MARGIN_SECONDS = 3_600  # A wait is too long if it ends less than an hour before the message expires (SPEC C10)
MARGIN_SHARE = 1 / 12  # of a retention below 12 hours, where an hour would be too large a part


class QueueFacts(Value):
    """The attributes of a source queue that decisions depend on; None for one that is unset or unknown."""

    dead_letter: QueueArn | None = None  # the dead-letter queue of its redrive policy
    max_receive_count: int | None = None
    visibility_timeout: int | None = None  # in seconds, like ``retention``
    retention: int | None = None
    error: Exception | None = None  # the error of the look-up, if the attributes are unknown

    def is_last_delivery(self, delivery: Delivery) -> bool:
        """Return whether SQS moves a message to the dead-letter queue, with no failure record, at its next receive."""
        return self.max_receive_count is not None and delivery.receive_count >= self.max_receive_count

    def seconds_left_if_short(self, delivery: Delivery, delay: float, now: float) -> float | None:
        """Return the seconds until the message expires, if it expires before or soon after a wait of ``delay`` seconds.

        0 or less for a message that expired while its handler ran; None for one that outlasts the wait (SPEC C10).
        """
        sent_at, started_at = delivery.sent_to_queue_at, delivery.invocation.started_at
        if sent_at is None:
            return None
        retention = self.retention
        if retention is None:
            if now + delay - sent_at <= LOOK_UP_SECONDS:
                return None
            retention = ASSUMED_RETENTION_SECONDS
        expires_at = sent_at + retention
        if expires_at <= started_at - UNKNOWN_RECEIVE_SECONDS:
            return None  # older than any message can be: a sample event, run by hand
        return expires_at - now if expires_at < now + delay + min(MARGIN_SECONDS, retention * MARGIN_SHARE) else None

    def would_expire(self, delivery: Delivery, delay: float, now: float) -> bool:
        """Return whether the message expires before, or soon after, it has waited ``delay`` seconds in its queue."""
        return self.seconds_left_if_short(delivery, delay, now) is not None


NextStep: TypeAlias = "Callable[[Failure], Outcome]"


class Failure(Value):
    """One failed attempt, as failure steps see it."""

    message: Message[Any]
    error: BaseException | None
    """The exception; None if the handler called `Message.retry` without one."""
    attempt: int
    """The attempt that failed, from 1."""
    queue: str
    """The name of the queue that the message came from."""
    reason: str
    """``error``, ``exhausted``, ``fatal``, ``rejected``, ``undecodable`` or ``expiring``."""
    failed_at: float
    """When the handler failed, in epoch seconds."""
    diagnosis: Diagnosis | None
    """The error as text. The exception's frames are freed when the steps have decided."""
    delay: int | None = None
    """The delay in seconds that the handler, or ``retry_when``, asked for."""
    until: float | None = None
    """The moment that the handler asked for with a ``datetime``, in epoch seconds; else None."""
    said: str | None = None
    """The text of ``raise Reject("text") from error``; else None."""
    tries: int = 1
    """The number of the run within this delivery, from 1 (`LocalRetry`)."""
    was_requested: bool = False
    """Whether the handler asked for this by a verdict or a signal, and not by an error."""
    does_not_fit: bool = False
    """Whether there is no space for a record beside the message, so that no copy can be sent."""
    context: StepContext | None = None
    """Set while the steps are asked."""

    def __init__(
        self,
        message: Message[Any],
        error: BaseException | None,
        reason: str,
        delay: int | None = None,
        *,
        failed_at: float | None = None,
        diagnosis: Diagnosis | None = None,
        **more: Any,
    ) -> None:
        delivery = delivery_of(message)
        if diagnosis is None and error is not None:  # made by hand, to test a step
            from tarry.message.diagnosis import diagnose

            diagnosis = diagnose(error)
        failed_at = delivery.invocation.now() if failed_at is None else failed_at
        super().__init__(message, error, delivery.attempt, delivery.queue, reason, failed_at, diagnosis, delay, **more)

    changed = Value._changed

    @cached_property
    def delivery(self) -> Delivery:
        return delivery_of(self.message)

    @property
    def was_deferral(self) -> bool:
        """Whether the handler deferred the message, which would expire while it waits (SPEC C10)."""
        return self.reason == "expiring" and self.diagnosis is None and not self.was_requested

    @property
    def policy_delay(self) -> float | None:
        """The delay in seconds that the policy sets after this attempt; None for a failure made by hand."""
        return None if self.context is None else self.context.policy_delay(self)

    @property
    def asks_for_retry(self) -> bool:
        """Whether the handler, or ``retry_when``, asked for another attempt (SPEC B7)."""
        return self.reason == "error" and (self.was_requested or self.delay is not None)

    def note(self, id: str) -> int | str:
        """Return the note that a step wrote under ``id`` on an earlier copy (`Outcome.resend`); 0 if there is none.

        A note is a whole number from 0 to 1,000, or a text of at most 256 characters. `SendAgain` counts its copies
        under its id.
        """
        envelope = self.delivery.envelope
        if envelope is None:
            return 0
        return envelope.notes[id] if id in envelope.notes else envelope.steps.get(id, 0)

    @property
    def crashes(self) -> int | None:
        """How many earlier deliveries left no trace: the process died, or Lambda did not run the function.

        None without an attempt store (``attempts=``).
        """
        return self.delivery.crashes


class StepContext:
    """Further arguments of tarry's own steps, made anew each time the steps are asked."""

    __slots__ = ("_drawn", "is_expiring", "notices", "policy", "rng", "time_left")

    def __init__(self, rng: Random, time_left: Callable[[], float]) -> None:
        self.policy: Any = None  # the consumer's `RetryPolicy`; None for a failure made by hand
        self._drawn: tuple[int, float] | None = None  # the attempt whose delay was drawn, and the delay
        self.rng = rng
        self.time_left = time_left  # the seconds until Lambda kills the process; an earlier step may have taken some
        self.notices: list[Notice] = []  # log lines that the steps ask for
        self.is_expiring = False  # whether they were asked again: the message would expire during its wait

    def policy_delay(self, failure: Failure) -> float | None:
        """Return the seconds that the policy waits after an attempt, drawn once; None without a policy."""
        if self.policy is None:
            return None
        if self._drawn is None or self._drawn[0] != failure.attempt:
            seconds, why = self.policy.delay_after(failure.attempt, fifo=failure.delivery.source.is_fifo, rng=self.rng)
            self._drawn = failure.attempt, seconds
            if why is not None:
                self.notice("backoff_failed", f"{why}. The default backoff sets this delay.")
        return self._drawn[1]

    def is_policy_delay(self, outcome: Outcome) -> bool:
        """Return whether the delay of a retry is the policy's, as drawn for this failure."""
        return self._drawn is not None and outcome.kind == "retry" and outcome.delay == math.ceil(self._drawn[1])

    def notice(self, event: str, text: str, error: BaseException | None = None) -> None:
        """Ask for a log line, once."""
        from tarry.message.notices import Notice

        if (notice := Notice(event, text, error)) not in self.notices:
            self.notices.append(notice)


class FailureStep(Protocol):
    """A failure step: an object with this method."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Return an outcome, or ``next_step(failure)``. If it raises, the message stays in its queue."""


Step: TypeAlias = "FailureStep | Callable[[Failure, NextStep], Outcome]"
"""An element of ``on_failure``: a failure step, or a function with the parameters of `FailureStep.handle`."""
