"""The retry policy: which errors are retried, how often, and after which delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tarry.decide.backoff import BadDelay, Exponential, Fixed, bounds_of, delay_of, is_backoff, is_known, longest_of
from tarry.errors import ConfigurationError, DelayNotSupported, Undecodable, UnexplainedFailure
from tarry.message.verdicts import Reject, Signal
from tarry.support.causes import bases_of, everything_in, is_a
from tarry.support.delays import whole_seconds
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from random import Random

    from tarry.decide.backoff import Backoff
    from tarry.message.failure import Failure

    RetryWhen: TypeAlias = Callable[[Failure], bool | float | timedelta | None]

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class _Default(int):
    """A default that is not the same object as an equal number that a user gives."""


DEFAULT_MAX_ATTEMPTS = _Default(5)
MAX_ATTEMPTS_LIMIT = 1_000  # the maximum of SQS's maxReceiveCount
SHORTEST_UNHANDLED_WAIT = 900
STANDARD_BACKOFF = Exponential(initial=30, multiplier=3, maximum=900, jitter="equal")
FIFO_BACKOFF = Fixed(30)  # the wait holds up the whole group


class RetryPolicy(Value):
    """The rules for retries: which errors are retried, how often, and after which delay.

        patient = RetryPolicy(max_attempts=8, backoff=Exponential(60, maximum=3600), fatal=CardDeclined)

        @consumer(policy=patient)
        def handler(message: Message) -> None: ...

    Several consumers can share one policy.

    Args:
        max_attempts: The number of attempts, the first included, 1 to 1,000.
        backoff: The delay after each attempt (`Backoff`). None is about 30 s, 90 s, 4.5 and 13.5 minutes on a standard
            queue, and 30 s on FIFO.
        fatal: Exception classes that are not retried. The most specific class of both lists wins.
        retry_on: Exception classes that are retried. Without ``fatal``, all others are fatal.
        retry_when: A function of the `Failure` that has the last word on errors. It returns True (retry), False
            (fatal), seconds or a ``timedelta`` (retry after that), or None (no opinion). If it raises, it has no
            opinion.
        traverse_causes: Whether to look at causes, contexts and exception groups too, until an error is named.

    Raises:
        ConfigurationError: A number is out of range, a class is in both lists, or the backoff fails for an attempt
            below ``max_attempts``.
    """

    max_attempts: int
    backoff: Backoff | None
    fatal: tuple[type[BaseException], ...]
    retry_on: tuple[type[BaseException], ...] | None
    retry_when: RetryWhen | None
    traverse_causes: bool
    _is_limit_set: bool  # by the user: then ``max_attempts`` limits the retries asked for, whatever the failure steps
    _longest: float | None  # the longest delay of a user's backoff, which is called for it only once; else None

    def __init__(
        self,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        backoff: Backoff | None = None,
        fatal: Errors = (),
        retry_on: Errors | None = None,
        retry_when: RetryWhen | None = None,
        traverse_causes: bool = False,
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
            raise ConfigurationError(f"max_attempts must be a whole number, got {max_attempts!r}")
        if not 1 <= max_attempts <= MAX_ATTEMPTS_LIMIT:
            raise ConfigurationError(f"max_attempts must be 1 to {MAX_ATTEMPTS_LIMIT}, got {max_attempts!r}")
        if backoff is not None and not is_backoff(backoff):
            raise ConfigurationError(
                "backoff must be Fixed, Linear, Exponential, Schedule or an object with a method "
                f"delay(attempt, rng=None) that returns seconds, got {backoff!r}"
            )
        fatal = _classes("fatal", fatal)
        retried = None if retry_on is None else _classes("retry_on", retry_on)
        for kind in set(fatal) & set(retried or ()):
            raise ConfigurationError(f"{kind.__name__} is in both fatal and retry_on: name it in one of them")
        if retry_when is not None and not callable(retry_when):
            raise ConfigurationError(f"retry_when takes a function of one Failure, got {retry_when!r}")
        if not isinstance(traverse_causes, bool):
            raise ConfigurationError(f"traverse_causes must be True or False, got {traverse_causes!r}")
        self._freeze(
            max_attempts=int(max_attempts),
            backoff=backoff,
            fatal=fatal,
            retry_on=retried,
            retry_when=retry_when,
            traverse_causes=traverse_causes,
            _is_limit_set=max_attempts is not DEFAULT_MAX_ATTEMPTS,
            # for tarry's own, which cannot fail, only when it is needed: that saves time at a cold start
            _longest=None if backoff is None or is_known(backoff) else longest_of("backoff", backoff, max_attempts - 1),
        )

    def reason(self, error: BaseException) -> str:
        """Return the reason of a failure from its error: ``error`` (to be retried), ``fatal``, ``rejected``, ..."""
        if is_a(error, Signal):
            return "rejected" if is_a(error, Reject) else "error"
        if is_a(error, Undecodable):
            return "undecodable"
        if is_a(error, (UnexplainedFailure, DelayNotSupported)):
            # The error is not known, or the handler asked for another attempt, which an invalid delay must not prevent.
            return "error"
        return "fatal" if self._is_fatal(error) else "error"

    def _is_fatal(self, error: BaseException) -> bool:
        if not self.fatal and self.retry_on is None:
            return False
        for link in everything_in(error) if self.traverse_causes else (error,):
            for kind in bases_of(link):
                if _is_among(kind, self.fatal):
                    return True
                if self.retry_on is not None and _is_among(kind, self.retry_on):
                    return False
        # "all others" are exceptions: a SystemExit is not the fault of the message
        return self.retry_on is not None and not self.fatal and is_a(error, Exception)

    def limit(self, *, retries_in_place: bool, was_asked_for: bool = True) -> int | None:
        """Return the number of attempts; None if only the queue of the message limits them (SPEC B7).

        ``retries_in_place``: whether the failure steps include `RetryInPlace`. ``was_asked_for``: whether the handler
        or ``retry_when`` asked for the retry.
        """
        return self.max_attempts if retries_in_place or (was_asked_for and self._is_limit_set) else None

    def opinion(self, failure: Failure) -> Failure:
        """Return the failure as ``retry_when`` decides; raise its exceptions, or `ValueError` for an invalid answer."""
        if self.retry_when is None or failure.reason not in ("error", "fatal") or failure.was_requested:
            return failure
        from tarry.support.hooks import call

        answer = call("retry_when", self.retry_when, failure)
        if answer is None:
            return failure
        if isinstance(answer, bool):
            return failure.changed(reason="error" if answer else "fatal")
        return failure.changed(reason="error", delay=whole_seconds(answer))

    def backoff_of(self, *, fifo: bool) -> Backoff:
        """Return the backoff that applies on a standard or a FIFO queue."""
        return _default(fifo) if self.backoff is None else self.backoff

    def delay_after(self, attempt: int, *, fifo: bool, rng: Random | None) -> tuple[float, str | None]:
        """Return the seconds to wait after ``attempt`` failed, and the reason if the default backoff set them.

        The reason is None unless the policy's own backoff failed; it is a text for the log.
        """
        try:
            return delay_of(self.backoff_of(fifo=fifo), attempt, rng), None
        except BadDelay as error:
            return _default(fifo).delay(attempt, rng), f"The consumer's backoff failed: {error}"

    def delay_bounds(self, attempt: int, *, fifo: bool) -> tuple[float, float] | None:
        """Return the shortest and the longest wait after ``attempt``; None for a backoff that may fail."""
        backoff = self.backoff_of(fifo=fifo)
        return bounds_of(backoff, attempt) if is_known(backoff) else None

    def longest_delay(self, *, fifo: bool) -> float:
        """Return for how many seconds an unhandled message waits: the longest delay of all attempts, at least 900."""
        longest = self._longest
        if longest is None:
            longest = longest_of("backoff", self.backoff_of(fifo=fifo), self.max_attempts - 1)
        return max(SHORTEST_UNHANDLED_WAIT, longest)


def _default(fifo: bool) -> Fixed | Exponential:
    return FIFO_BACKOFF if fifo else STANDARD_BACKOFF


def _is_among(kind: type, classes: tuple[type, ...]) -> bool:
    """Return whether ``kind`` is one of ``classes``, by identity: a metaclass may define ``==``."""
    return any(kind is each for each in classes)


def _classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(
                f"{name} takes an exception class or a tuple of them, as except does; got {kind!r}"
            )
    return classes
