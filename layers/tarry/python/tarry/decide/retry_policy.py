"""The retry policy: which errors are retried, how often, and after which delay.

Backoffs are the delay before the next attempt, as pure functions of the attempt that failed:

    >>> Exponential(initial=30, multiplier=3, maximum=900).delay(3)
    270.0

Attempts start at 1: ``delay(1)`` is the wait after the first failure. Delays are seconds. Nothing overflows, whatever
the attempt. Numbers out of range raise `ConfigurationError` when the object is made.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from tarry import world
from tarry.errors import ConfigurationError, DelayNotSupported, Undecodable, UnexplainedFailure
from tarry.message.outcomes import Reject, Signal
from tarry.support.guards import bases_of, everything_in, is_a, name_of
from tarry.support.values import MAX_VISIBILITY_SECONDS, Value, whole_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta
    from random import Random
    from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

    from tarry.message.delivery import Failure

    RetryWhen: TypeAlias = Callable[[Failure], bool | float | timedelta | None]
    Jitter: TypeAlias = Literal["full", "equal"] | float | None
    Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
else:
    Protocol = object  # to import typing is slow


class Backoff(Protocol):
    """The delays between attempts: any object with this method, one of tarry's or your own.

        class PerMinute:
            def delay(self, attempt: int, rng: Random | None = None) -> float:
                return 60 * attempt

    tarry calls it once for each attempt when the consumer is made, to check the delays. An optional method
    ``bounds(attempt) -> (shortest, longest)`` returns the limits of a delay with jitter.
    """

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        """Return the seconds to wait after ``attempt`` failed, 0 or more.

        Args:
            attempt: The attempt that failed, from 1. For `SendAgain` the number of the re-send, for `LocalRetry` the
                number of the run.
            rng: The source of jitter. Use it, not the ``random`` module: in the sandbox it makes a seed repeatable.

        If it raises, or returns a number below 0, NaN, infinity or another type, while the consumer is made, that is a
        `ConfigurationError`. If it does so later, the default backoff sets the delay of that message, and the log has
        an ERROR.
        """


Wait: TypeAlias = "float | timedelta | Backoff"  # the ``delay`` argument of a failure step


class JitteredBackoff(Value, ABC):
    """The base of tarry's own backoffs: jitter, and its bounds.

    ``jitter`` spreads messages that failed at the same time. ``None``: none. ``"full"``: from min(1, t) to t.
    ``"equal"``: from t/2 to t. A fraction f: from t·(1-f) to t, so ``0.1`` is 90 to 100 %. It is applied after the cap
    and never exceeds it.
    """

    jitter: Jitter

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        """Return the seconds to wait after ``attempt`` (from 1) failed; ``rng`` is the source of jitter.

        Raises:
            ValueError: ``attempt`` is below 1.
        """
        earliest, latest = self.bounds(attempt)
        if earliest == latest:
            return latest
        return min(latest, (rng or world.current().random).uniform(earliest, latest))

    def bounds(self, attempt: int) -> tuple[float, float]:
        """Return the shortest and the longest delay after ``attempt``, in seconds."""
        if attempt < 1:
            raise ValueError(f"attempts start at 1, got {attempt!r}")
        latest = self._without_jitter(attempt)
        match self.jitter:
            case None:
                return latest, latest
            case "full":
                return min(1.0, latest), latest
            case "equal":
                return latest / 2, latest
            case fraction:
                return latest * (1 - float(fraction)), latest

    @abstractmethod
    def _without_jitter(self, attempt: int) -> float:
        """Return the seconds after ``attempt``, at most the maximum."""


class Fixed(JitteredBackoff):
    """The same delay after each attempt.

    Args:
        delay: Seconds, 0 to 43,200 (12 hours).
        jitter: None, ``"full"``, ``"equal"`` or a fraction, which shortens delays: see `JitteredBackoff`.

    Raises:
        ConfigurationError: The delay or the jitter is out of range.
    """

    seconds: float

    def __init__(self, delay: float, jitter: Jitter = None) -> None:
        self._freeze(seconds=_seconds("delay", delay), jitter=_jitter(jitter))

    def __repr__(self) -> str:
        return f"Fixed(delay={self.seconds!r}, jitter={self.jitter!r})"

    def _without_jitter(self, attempt: int) -> float:
        return self.seconds


class Linear(JitteredBackoff):
    """A delay that grows by the same number of seconds after each attempt.

    Args:
        initial: The seconds after the first attempt, 0 to 43,200 (12 hours).
        increment: How many seconds are added after each further attempt.
        maximum: The longest delay in seconds, from ``initial`` to 43,200.
        jitter: None, ``"full"``, ``"equal"`` or a fraction, which shortens delays: see `JitteredBackoff`.

    Raises:
        ConfigurationError: A number is out of range, or ``maximum`` is below ``initial``.
    """

    initial: float
    increment: float
    maximum: float

    def __init__(
        self, initial: float, increment: float, maximum: float = MAX_VISIBILITY_SECONDS, jitter: Jitter = None
    ) -> None:
        self._freeze(
            initial=_seconds("initial", initial),
            increment=_seconds("increment", increment),
            maximum=_maximum(maximum, initial),
            jitter=_jitter(jitter),
        )

    def _without_jitter(self, attempt: int) -> float:
        if not self.increment:
            return self.initial
        try:
            return min(self.maximum, self.initial + self.increment * (attempt - 1))
        except OverflowError:  # the attempt is too large for a float
            return self.maximum


class Exponential(JitteredBackoff):
    """A delay that is multiplied after each attempt.

    Cloudflare's ``base ** attempts`` is ``Exponential(base, base)``.

    Args:
        initial: The seconds after the first attempt, 0 to 43,200 (12 hours).
        multiplier: The factor after each further attempt, above 0.
        maximum: The longest delay in seconds, from ``initial`` to 43,200.
        jitter: None, ``"full"``, ``"equal"`` or a fraction, which shortens delays: see `JitteredBackoff`.

    Raises:
        ConfigurationError: A number is out of range, or ``maximum`` is below ``initial``.
    """

    initial: float
    multiplier: float
    maximum: float

    def __init__(
        self, initial: float, multiplier: float = 2, maximum: float = MAX_VISIBILITY_SECONDS, jitter: Jitter = None
    ) -> None:
        if not _is_number(multiplier) or multiplier <= 0:
            raise ConfigurationError(f"multiplier must be a number above 0, got {multiplier!r}")
        self._freeze(
            initial=_seconds("initial", initial),
            multiplier=float(multiplier),
            maximum=_maximum(maximum, initial),
            jitter=_jitter(jitter),
        )

    def _without_jitter(self, attempt: int) -> float:
        if not self.initial or self.multiplier == 1:
            return self.initial
        try:
            return min(self.maximum, self.initial * self.multiplier ** (attempt - 1))
        except OverflowError:
            return self.maximum if self.multiplier > 1 else 0.0


class Schedule(JitteredBackoff):
    """A list of delays, one for each attempt; the last one repeats.

    Args:
        delays: At least one number of seconds, 0 to 43,200 (12 hours) each.
        jitter: None, ``"full"``, ``"equal"`` or a fraction, which shortens delays: see `JitteredBackoff`.

    Raises:
        ConfigurationError: The list is empty, or a number is out of range.
    """

    delays: tuple[float, ...]

    def __init__(self, delays: Sequence[float], jitter: Jitter = None) -> None:
        if not isinstance(delays, (list, tuple)) or not delays:
            raise ConfigurationError(f"a Schedule needs a list of at least one delay, got {delays!r}")
        self._freeze(delays=tuple(_seconds("a delay", delay) for delay in delays), jitter=_jitter(jitter))

    @classmethod
    def rocketmq(cls, jitter: Jitter = None) -> Schedule:
        """Return the delays of RocketMQ: 10 s, 30 s, 1 to 10 minutes, 20 and 30 minutes, 1 and 2 hours.

        Its 16 delays take ``max_attempts=17``.
        """
        minutes = [60 * minute for minute in range(1, 11)]
        return cls([10, 30, *minutes, 1200, 1800, 3600, 7200], jitter)

    def _without_jitter(self, attempt: int) -> float:
        return self.delays[min(attempt, len(self.delays)) - 1]


# users' own backoffs, which may return or raise anything


class BadDelay(ValueError):
    """A backoff raised an exception, or returned something that is not a delay."""


def is_backoff(value: object) -> TypeGuard[Backoff]:
    """Return whether ``value`` is an object, not a class, with a method ``delay``."""
    return not isinstance(value, type) and callable(getattr(value, "delay", None))


def is_known(backoff: Backoff) -> TypeGuard[JitteredBackoff]:
    """Return whether ``backoff`` is one of tarry's own, which cannot fail."""
    return type(backoff) in (Fixed, Linear, Exponential, Schedule)


def delay_of(backoff: Backoff, attempt: int, rng: Random | None) -> float:
    """Return ``backoff.delay(attempt, rng)``; raise `BadDelay` if that is not a finite number of seconds, 0 or more."""
    if is_known(backoff):
        return backoff.delay(attempt, rng)
    from tarry.support.hooks import call

    what = f"delay({attempt})"
    try:
        seconds: Any = call(what, backoff.delay, attempt, rng)
        if _is_number(seconds) and seconds >= 0:
            return float(seconds)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadDelay(f"{what} raised {name_of(type(error))}") from error
    raise BadDelay(f"{what} returned {_shown(seconds)}, which is not a number of seconds, 0 or more")


def bounds_of(backoff: Backoff, attempt: int) -> tuple[float, float] | None:
    """Return the shortest and the longest ``delay(attempt)``; None if the backoff does not tell."""
    its: Any = backoff
    try:
        earliest, latest = its.bounds(attempt)
        if _is_number(earliest) and _is_number(latest) and 0 <= earliest <= latest:
            return float(earliest), float(latest)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 the backoff has no such method, or it fails
        return None
    return None


def longest_of(name: str, backoff: Backoff, last: int) -> float:
    """Return the longest wait in seconds after attempts 1 to ``last``; ``name`` names the setting in error texts."""
    longest = 0.0
    if is_known(backoff):
        return max((backoff.bounds(attempt)[1] for attempt in range(1, last + 1)), default=longest)
    from random import Random

    rng = Random(0)  # not the world's, whose random numbers are for real delays
    for attempt in range(1, last + 1):
        try:
            delay = delay_of(backoff, attempt, rng)
        except BadDelay as error:
            raise ConfigurationError(f"{name} {_shown(backoff)} cannot be used: {error}") from error
        bounds = bounds_of(backoff, attempt)
        longest = max(longest, delay if bounds is None else bounds[1])
    if longest > MAX_VISIBILITY_SECONDS:
        text = f"{name} {_shown(backoff)} cannot be used: it waits {longest:g} s, and SQS keeps a message for at most"
        raise ConfigurationError(f"{text} {MAX_VISIBILITY_SECONDS} s")
    return longest


def as_backoff(delay: object) -> Backoff:
    """Return a failure step's ``delay`` as a backoff; seconds or a ``timedelta`` become a `Fixed`."""
    if isinstance(delay, (int, float)):
        return Fixed(delay)
    if is_backoff(delay):
        return delay
    from datetime import timedelta

    if isinstance(delay, timedelta):
        return Fixed(delay.total_seconds())
    raise ConfigurationError(
        f"delay must be a number of seconds, a timedelta or a backoff such as Exponential(5), got {_shown(delay)}"
    )


def _shown(value: object) -> str:
    """Return the repr of a value for an error text, also if ``__repr__`` raises."""
    try:
        return f"{value!r:.100}"
    except BaseException:  # noqa: BLE001 the user's code
        return f"a {name_of(type(value))}"


def _is_number(value: Any) -> bool:
    if not issubclass(type(value), (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _seconds(name: str, value: float) -> float:
    if not _is_number(value) or not 0 <= value <= MAX_VISIBILITY_SECONDS:
        raise ConfigurationError(
            f"{name} must be a number of seconds from 0 to {MAX_VISIBILITY_SECONDS} (12 hours), got {value!r}"
        )
    return float(value)


def _maximum(maximum: float, initial: float) -> float:
    if _seconds("maximum", maximum) < initial:
        raise ConfigurationError(f"maximum must not be below initial ({initial!r}), got {maximum!r}")
    return float(maximum)


def _jitter(jitter: object) -> Jitter:
    if jitter is None or jitter == "full" or jitter == "equal":
        return jitter
    if not isinstance(jitter, (int, float)) or not _is_number(jitter) or not 0 <= jitter <= 1:
        raise ConfigurationError(f'jitter must be None, "full", "equal" or a fraction from 0 to 1, got {jitter!r}')
    return float(jitter)


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

    Several consumers can share one policy. Its attributes are its arguments; `RetryPolicy.reason` tells how it
    classifies an error. Its other methods are for tarry's own decisions.

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
        """Return the number of attempts; None if only the queue limits them, as without `RetryInPlace`."""
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
        """Return the seconds to wait after ``attempt``, and a text for the log if the policy's own backoff failed."""
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
