"""What becomes of a failure: an ordered list of steps, each of which answers with an outcome or passes it on.

The default list is ``[RetryInPlace(), DeadLetter()]``. A step of your own is a class with one method:

    class Page:
        def handle(self, failure, next_step):
            if failure.reason == "fatal":
                page_somebody(failure.error)
            return next_step(failure)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tarry.errors import ConfigurationError
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.outcome import Outcome

Record: TypeAlias = Mapping[str, Any]
NextStep: TypeAlias = "Callable[[Failure], Outcome]"

NEVER_UNHANDLED = frozenset({"fatal", "rejected", "undecodable"})
"""Reasons for which waiting in place is no answer: what no step takes is dead-lettered (SPEC E1)."""


class Failure(Value):
    """One failed attempt, as the steps see it."""

    __slots__ = ("message", "error", "attempt", "queue", "reason", "delay")  # noqa: RUF023
    message: Message[Any]
    error: BaseException | None
    """The exception; None where the handler only said `retry`."""
    attempt: int
    """The attempt that failed, from 1."""
    queue: str
    """The name of the queue it came from now."""
    reason: str
    """``error``, ``exhausted``, ``fatal``, ``rejected`` or ``undecodable``."""
    delay: int | None
    """The delay in seconds the handler asked for, if it did."""

    def __init__(
        self, message: Message[Any], error: BaseException | None, reason: str, delay: int | None = None
    ) -> None:
        self._freeze(
            message=message, error=error, attempt=message.attempt, queue=message.queue, reason=reason, delay=delay
        )

    @property
    def crashes(self) -> int | None:
        """Deliveries of this message in which the process died; None, since only an attempt store knows."""
        return None


class FailureStep(Protocol):
    """A step of the list."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """An outcome of its own, or ``next_step(failure)``. If it raises, the message stays in its queue."""


class RetryInPlace(Value):
    """Retries what failed with an error, as the consumer's policy says; all else it passes on.

    The message stays where it is, hidden for the delay: no new message, no hop.
    """

    __slots__ = ()

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        from tarry.outcome import Outcome

        return Outcome.retry(failure.delay) if failure.reason == "error" else next_step(failure)


class DeadLetter(Value):
    """Sends what failed to the dead-letter queue, with the record of why.

    ``queue`` (a name, URL or ARN) overrides the one in the source queue's redrive policy. ``include_traceback=False``
    leaves the traceback out. ``redact(record) -> record`` sees the record before it leaves the process, to the queue
    or into the log; if it raises, only the bare reason does.
    """

    __slots__ = ("queue", "include_traceback", "redact")  # noqa: RUF023
    queue: str | None
    include_traceback: bool
    redact: Callable[[dict[str, Any]], Record] | None

    def __init__(
        self,
        queue: str | None = None,
        *,
        include_traceback: bool = True,
        redact: Callable[[dict[str, Any]], Record] | None = None,
    ) -> None:
        if redact is not None and not callable(redact):
            raise ConfigurationError(f"redact takes a function of the record, got {redact!r}")
        self._freeze(queue=queue, include_traceback=include_traceback, redact=redact)

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        from tarry.outcome import Outcome

        return Outcome.dead_letter(failure.reason, self.queue)


class FailureSteps(Value):
    """The list of one consumer, checked once.

    Raises `ConfigurationError` for what is no step.
    """

    __slots__ = ("steps",)
    steps: tuple[FailureStep, ...]

    def __init__(self, steps: Sequence[FailureStep] | None = None) -> None:
        if steps is not None and not isinstance(steps, (list, tuple)):
            raise ConfigurationError(f"on_failure takes a list of failure steps, got {steps!r}")
        steps = tuple(steps) if steps else (RetryInPlace(), DeadLetter())
        for step in steps:
            if isinstance(step, type) or not callable(getattr(step, "handle", None)):
                raise ConfigurationError(f"on_failure takes objects with a method handle(failure, next_step): {step!r}")
        for step in steps[:-1]:
            if isinstance(step, DeadLetter):
                raise ConfigurationError(f"DeadLetter() takes all that comes to it, so it comes last, got {steps!r}")
        self._freeze(steps=steps)

    @property
    def retries_in_place(self) -> bool:
        """Whether the policy's attempts count at all."""
        return any(isinstance(step, RetryInPlace) for step in self.steps)

    @property
    def dead_letter(self) -> DeadLetter:
        """How records are written: as the list's first `DeadLetter` says, whichever step asks for one."""
        return next((step for step in self.steps if isinstance(step, DeadLetter)), DeadLetter())

    def handle(self, failure: Failure) -> Outcome:
        """Runs the failure through the list. What a step raises is the caller's to catch."""
        return self._from(0, failure)

    def _from(self, index: int, failure: Failure) -> Outcome:
        if index < len(self.steps):
            return self.steps[index].handle(failure, lambda passed: self._from(index + 1, passed))
        if failure.reason in NEVER_UNHANDLED:
            return DeadLetter().handle(failure, self.handle)
        from tarry.outcome import Outcome

        return Outcome.unhandled()
