"""What becomes of a failure: an ordered list of steps, each of which answers with an outcome or passes it on.

The default list is ``[RetryInPlace(), DeadLetter()]``. A step of your own is a class with one method:

    class Page:
        def handle(self, failure, next_step):
            if failure.reason == "fatal":
                page_somebody(failure.error)
            return next_step(failure)

A function of both is a step too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tarry.message import delivery_of
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tarry.delivery import Delivery
    from tarry.message import Message
    from tarry.outcome import Outcome
    from tarry.telemetry.diagnosis import Diagnosis
    from tarry.telemetry.notices import Notice

NextStep: TypeAlias = "Callable[[Failure], Outcome]"


class Failure(Value):
    """One failed attempt, as the steps see it."""

    message: Message[Any]
    error: BaseException | None
    """The exception; None where the handler only called `retry`."""
    attempt: int
    """The attempt that failed, from 1."""
    queue: str
    """The name of the queue it came from now."""
    reason: str
    """``error``, ``exhausted``, ``fatal``, ``rejected``, ``undecodable`` or ``expiring``."""
    delay: int | None
    """The delay in seconds that the handler, or ``retry_when``, asked for."""
    failed_at: float
    """When the handler failed on it, in epoch seconds."""
    until: float | None
    """The epoch seconds of ``delay``, where the handler asked for a ``datetime``."""
    said: str | None
    """The text of a verdict that was raised from an error: ``raise Reject("text") from error``. Else None."""
    tries: int
    """Which run of the handler within this delivery it was, from 1 (`LocalRetry`)."""
    was_requested: bool
    """Whether the handler asked for it, by a method of the message or a signal, and did not fail with an error."""
    does_not_fit: bool
    """Whether it was found that there is no room for a record beside the message, so that it cannot be sent again."""
    diagnosis: Diagnosis | None
    """The error in words, as it was raised: its frames are let go when the steps have answered."""
    context: StepContext | None
    """For tarry's own steps; set while the steps are asked."""

    def __init__(  # noqa: PLR0913
        self,
        message: Message[Any],
        error: BaseException | None,
        reason: str,
        delay: int | None = None,
        *,
        failed_at: float | None = None,
        until: float | None = None,
        said: str | None = None,
        tries: int = 1,
        was_requested: bool = False,
        does_not_fit: bool = False,
        diagnosis: Diagnosis | None = None,
        context: StepContext | None = None,
    ) -> None:
        delivery = delivery_of(message)
        if diagnosis is None and error is not None:  # made by hand, to test a step
            from tarry.telemetry.diagnosis import diagnose

            diagnosis = diagnose(error)
        invocation = delivery.invocation
        self._freeze(
            message=message,
            error=error,
            attempt=delivery.attempt,
            queue=delivery.queue,
            reason=reason,
            delay=delay,
            failed_at=invocation.now() if failed_at is None else failed_at,
            until=until,
            said=said,
            tries=tries,
            was_requested=was_requested,
            does_not_fit=does_not_fit,
            diagnosis=diagnosis,
            context=context,
        )

    def changed(self, **fields: Any) -> Failure:
        """The same failure with some fields changed."""
        return self._changed(**fields)

    @property
    def delivery(self) -> Delivery:
        """The delivery behind the message."""
        return delivery_of(self.message)

    def note(self, id: str) -> int | str:
        """The note that a step wrote under ``id`` on an earlier copy (`Outcome.resend`); 0 if there is none.

        A whole number from 0 to 1,000, or a text of at most 256 characters. `SendAgain` counts its re-sends under its
        id.
        """
        envelope = self.delivery.envelope
        if envelope is None:
            return 0
        return envelope.notes[id] if id in envelope.notes else envelope.steps.get(id, 0)

    @property
    def crashes(self) -> int | None:
        """Deliveries of this message in which the process died; None, since only an attempt store knows."""
        return None


class StepContext:
    """What tarry's own steps need besides the failure: made anew each time the list is asked."""

    __slots__ = ("notices", "rng", "time_left")

    def __init__(self, rng: Random, time_left: Callable[[], float]) -> None:
        self.rng = rng
        self.time_left = time_left
        """Seconds until Lambda kills the process; a step before may have taken some."""
        self.notices: list[Notice] = []
        """Lines for the log."""


class FailureStep(Protocol):
    """A step of the list."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """An outcome of its own, or ``next_step(failure)``. If it raises, the message stays in its queue."""


Step: TypeAlias = "FailureStep | Callable[[Failure, NextStep], Outcome]"
"""What a list may hold: a step, or a function that does what its `FailureStep.handle` would do."""
