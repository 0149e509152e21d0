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

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tarry.errors import ConfigurationError
from tarry.policy.steps import DeadLetter, DropMessage, LocalRetry, RetryInPlace, SendAgain
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.outcome import Outcome
    from tarry.telemetry.diagnosis import Diagnosis

NextStep: TypeAlias = "Callable[[Failure], Outcome]"

NEVER_UNHANDLED = frozenset({"fatal", "rejected", "undecodable", "expiring"})
"""Reasons for which waiting in place is no answer: what no step takes is dead-lettered (SPEC E1)."""


class Failure(Value):
    """One failed attempt, as the steps see it."""

    __slots__ = (  # noqa: RUF023
        "message", "error", "attempt", "queue", "reason", "delay", "failed_at", "until", "said", "tries", "was_said",
        "does_not_fit", "diagnosis",
    )  # fmt: skip
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
    failed_at: float
    """When the handler failed on it, in epoch seconds."""
    until: float | None
    """The epoch seconds of ``delay``, where the handler asked for a ``datetime``."""
    said: str | None
    """The text of a verdict that was raised from an error: ``raise Reject("text") from error``. Else None."""
    tries: int
    """Which run of the handler within this delivery it was, from 1 (`LocalRetry`)."""
    was_said: bool
    """Whether the handler asked for it, by a word or a signal, and not by an error."""
    does_not_fit: bool
    """Whether it was found that there is no room for a record beside the message, so that it cannot be sent again."""
    diagnosis: Diagnosis | None
    """The error in words, as it was raised: its frames are let go when the steps have answered."""

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
        was_said: bool = False,
        does_not_fit: bool = False,
        diagnosis: Diagnosis | None = None,
    ) -> None:
        if diagnosis is None and error is not None:
            diagnosis = message._invocation.diagnoses.of(error)
        self._freeze(
            message=message,
            error=error,
            attempt=message.attempt,
            queue=message.queue,
            reason=reason,
            delay=delay,
            failed_at=message._invocation.now() if failed_at is None else failed_at,
            until=until,
            said=said,
            tries=tries,
            was_said=was_said,
            does_not_fit=does_not_fit,
            diagnosis=diagnosis,
        )

    def changed(self, **fields: Any) -> Failure:
        """The same failure with some fields changed."""
        names = (
            "message", "error", "reason", "delay", "failed_at", "until", "said", "tries", "was_said", "does_not_fit",
            "diagnosis",
        )  # fmt: skip
        return Failure(**{**{name: getattr(self, name) for name in names}, **fields})

    def note(self, id: str) -> int | str:
        """The note that a step wrote under ``id`` on an earlier copy (`Outcome.resend`); 0 if there is none.

        A whole number from 0 to 1,000, or a text of at most 256 characters. `SendAgain` counts its re-sends under its
        id.
        """
        envelope = self.message._envelope
        if envelope is None:
            return 0
        return envelope.notes[id] if id in envelope.notes else envelope.steps.get(id, 0)

    @property
    def crashes(self) -> int | None:
        """Deliveries of this message in which the process died; None, since only an attempt store knows."""
        return None


class FailureStep(Protocol):
    """A step of the list."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """An outcome of its own, or ``next_step(failure)``. If it raises, the message stays in its queue."""


Step: TypeAlias = "FailureStep | Callable[[Failure, NextStep], Outcome]"
"""What a list may hold: a step, or a function that does what its `FailureStep.handle` would do."""


class FunctionStep(Value):
    """A function as a step."""

    __slots__ = ("function",)
    function: Callable[[Failure, NextStep], Outcome]

    def __init__(self, function: Callable[[Failure, NextStep], Outcome]) -> None:
        self._freeze(function=function)

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        return self.function(failure, next_step)


class FailureSteps(Value):
    """The lists of one consumer, checked once: one for all its queues, or one for each, by queue name.

    Raises `ConfigurationError` for an element that is not a step, and for two `SendAgain` steps with one id. One step
    object may be in several lists: it is one step, with one counter.
    """

    __slots__ = ("by_queue", "default")
    default: StepList
    by_queue: Mapping[str, StepList]

    def __init__(self, steps: Sequence[Step] | Mapping[str, Sequence[Step]] | None = None) -> None:
        if not isinstance(steps, Mapping):
            self._freeze(default=StepList(steps), by_queue={})
            return
        default = StepList(steps.get("default"))
        by_queue = {name: StepList(given) for name, given in steps.items() if given and name != "default"}
        self._freeze(default=default, by_queue=by_queue)
        self._refuse_shared_ids()

    def _refuse_shared_ids(self) -> None:
        by_id: dict[str, SendAgain] = {}
        for step in (step for steps in self.all for step in steps.steps if isinstance(step, SendAgain)):
            if by_id.setdefault(step.id, step) is not step:
                raise ConfigurationError(
                    f"two SendAgain steps have the id {step.id!r}, and would share one counter: give each an id of its "
                    "own, or put one step object into both lists"
                )

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

    def __init__(self, steps: Sequence[Step] | None) -> None:
        if steps is not None and not isinstance(steps, (list, tuple)):
            raise ConfigurationError(f"on_failure takes a list of failure steps, or one for each queue, got {steps!r}")
        steps = tuple(_step(step) for step in steps) if steps else (RetryInPlace(), DeadLetter())
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
            answer: Any = self.steps[index].handle(failure, lambda passed: self._from(index + 1, passed))
            asks_for_a_copy = isinstance(answer, Outcome) and answer.kind == "resend"
            if failure.does_not_fit and asks_for_a_copy:  # it was asked before, and no copy can be sent
                return self._from(index + 1, failure)
            outcome: Outcome = answer
            return outcome
        if failure.reason in NEVER_UNHANDLED:
            return DeadLetter().handle(failure, self.handle)
        return Outcome.unhandled()


def _step(step: Any) -> FailureStep:
    """A step of a list as an object with a method ``handle``.

    Raises `ConfigurationError` if it is not a step.
    """
    is_object = not isinstance(step, type) and callable(getattr(step, "handle", None))
    if isinstance(step, type) or not (is_object or callable(step)):
        raise ConfigurationError(
            "on_failure takes objects with a method handle(failure, next_step), or functions of both, got "
            f"{step!r}{': make an object of the class' if isinstance(step, type) else ''}"
        )
    code = getattr(step.handle if is_object else step, "__code__", None)
    if code is not None and code.co_flags & _ANSWERS_LATER:
        raise ConfigurationError(f"a failure step must not be async or a generator, got {step!r}")
    if is_object:
        handles: FailureStep = step
        return handles
    if isinstance(step, FunctionType) and not _takes_two(step):
        raise ConfigurationError(f"a function as a failure step takes (failure, next_step), got {step!r}")
    return FunctionStep(step)


_CO_VARARGS = 0x04
_ANSWERS_LATER = 0x20 | 0x80 | 0x200  # generator, coroutine, async generator: inspect's flags, without its import


def _takes_two(function: FunctionType) -> bool:
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    return needed <= 2 and (code.co_argcount >= 2 or bool(code.co_flags & _CO_VARARGS))
