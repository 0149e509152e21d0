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
from tarry.steps import DeadLetter, DropMessage, LocalRetry, RetryInPlace, SendAgain
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.outcome import Outcome

NextStep: TypeAlias = "Callable[[Failure], Outcome]"

NEVER_UNHANDLED = frozenset({"fatal", "rejected", "undecodable", "expiring"})
"""Reasons for which waiting in place is no answer: what no step takes is dead-lettered (SPEC E1)."""


class Failure(Value):
    """One failed attempt, as the steps see it."""

    __slots__ = ("message", "error", "attempt", "queue", "reason", "delay", "tries", "was_said", "does_not_fit")  # noqa: RUF023
    message: Message[Any]
    error: BaseException | None
    """The exception; None where the handler only said `retry`."""
    attempt: int
    """The attempt that failed, from 1."""
    queue: str
    """The name of the queue it came from now."""
    reason: str
    """``error``, ``exhausted``, ``fatal``, ``rejected``, ``undecodable`` or ``expiring``."""
    delay: int | None
    """The delay in seconds that the handler, or ``retry_when``, asked for."""
    tries: int
    """Which run of the handler within this delivery it was, from 1 (`LocalRetry`)."""
    was_said: bool
    """Whether the handler asked for it, by a word or a signal, and not by an error."""
    does_not_fit: bool
    """Whether it was found that there is no room for a record beside the message, so that it cannot be sent again."""

    def __init__(
        self,
        message: Message[Any],
        error: BaseException | None,
        reason: str,
        delay: int | None = None,
        *,
        tries: int = 1,
        was_said: bool = False,
        does_not_fit: bool = False,
    ) -> None:
        self._freeze(
            message=message,
            error=error,
            attempt=message.attempt,
            queue=message.queue,
            reason=reason,
            delay=delay,
            tries=tries,
            was_said=was_said,
            does_not_fit=does_not_fit,
        )

    def changed(self, **fields: Any) -> Failure:
        """The same failure with some fields changed."""
        names = ("message", "error", "reason", "delay", "tries", "was_said", "does_not_fit")
        return Failure(**{**{name: getattr(self, name) for name in names}, **fields})

    def note(self, id: str) -> int:
        """What a step wrote under ``id`` on an earlier copy: how often it has sent the message again; 0 if never."""
        envelope = self.message._envelope
        return envelope.steps.get(id, 0) if envelope else 0

    @property
    def crashes(self) -> int | None:
        """Deliveries of this message in which the process died; None, since only an attempt store knows."""
        return None


class FailureStep(Protocol):
    """A step of the list."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """An outcome of its own, or ``next_step(failure)``. If it raises, the message stays in its queue."""


class FailureSteps(Value):
    """The lists of one consumer, checked once: one for all its queues, or one for each, by queue name.

    Raises `ConfigurationError` for what is no step, and for two steps of a list with one id.
    """

    __slots__ = ("by_queue", "default")
    default: StepList
    by_queue: Mapping[str, StepList]

    def __init__(self, steps: Sequence[FailureStep] | Mapping[str, Sequence[FailureStep]] | None = None) -> None:
        if not isinstance(steps, Mapping):
            self._freeze(default=StepList(steps), by_queue={})
            return
        default = StepList(steps.get("default"))
        by_queue = {name: StepList(given) for name, given in steps.items() if given and name != "default"}
        self._freeze(default=default, by_queue=by_queue)

    def of(self, queue: str) -> StepList:
        """The list for what comes from ``queue``: its own if it has one that is not empty, else the default."""
        return self.by_queue.get(queue, self.default)

    @property
    def all(self) -> tuple[StepList, ...]:
        return (self.default, *self.by_queue.values())


class StepList(Value):
    """The failure steps for one queue, in their order."""

    __slots__ = ("retries_in_place", "steps")
    steps: tuple[FailureStep, ...]
    retries_in_place: bool
    """Whether the policy's attempts count at all."""

    def __init__(self, steps: Sequence[FailureStep] | None) -> None:
        if steps is not None and not isinstance(steps, (list, tuple)):
            raise ConfigurationError(f"on_failure takes a list of failure steps, or one for each queue, got {steps!r}")
        steps = tuple(steps) if steps else (RetryInPlace(), DeadLetter())
        for step in steps:
            if isinstance(step, type) or not callable(getattr(step, "handle", None)):
                raise ConfigurationError(f"on_failure takes objects with a method handle(failure, next_step): {step!r}")
        ids = [step.id for step in steps if isinstance(step, SendAgain)]
        for twice in {each for each in ids if ids.count(each) > 1}:
            raise ConfigurationError(f"two steps of a list have the id {twice!r}: each needs one of its own")
        for step in steps[:-1]:
            if isinstance(step, (DeadLetter, DropMessage)):
                raise ConfigurationError(f"{step!r} takes all that comes to it, so it comes last, got {steps!r}")
        self._freeze(steps=steps, retries_in_place=any(isinstance(step, RetryInPlace) for step in steps))

    @property
    def dead_letter(self) -> DeadLetter:
        """How records are written: as the list's first `DeadLetter` says, whichever step asks for one."""
        return next((step for step in self.steps if isinstance(step, DeadLetter)), DeadLetter())

    @property
    def tries_locally(self) -> bool:
        return any(isinstance(step, LocalRetry) for step in self.steps)

    def without_local_retry(self) -> StepList:
        """The list for a message that cannot run again within this delivery."""
        rest = StepList(None)
        steps = tuple(step for step in self.steps if not isinstance(step, LocalRetry))
        rest._freeze(steps=steps, retries_in_place=self.retries_in_place)
        return rest

    def handle(self, failure: Failure) -> Outcome:
        """Runs the failure through the list. What a step raises is the caller's to catch."""
        return self._from(0, failure)

    def _from(self, index: int, failure: Failure) -> Outcome:
        from tarry.outcome import Outcome

        if index < len(self.steps):
            return self.steps[index].handle(failure, lambda passed: self._from(index + 1, passed))
        if failure.reason in NEVER_UNHANDLED:
            return DeadLetter().handle(failure, self.handle)
        return Outcome.unhandled()
