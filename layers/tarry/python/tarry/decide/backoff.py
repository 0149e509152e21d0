"""Backoffs: the delay before the next attempt, as pure functions of the attempt that failed.

    >>> Exponential(initial=30, multiplier=3, maximum=900).delay(3)
    270.0

Attempts start at 1: ``delay(1)`` is the wait after the first failure. Delays are seconds. Nothing overflows, whatever
the attempt. Numbers out of range raise `ConfigurationError` when the object is made.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard

from tarry import world
from tarry.errors import ConfigurationError
from tarry.support.causes import name_of
from tarry.support.delays import MAX_VISIBILITY_SECONDS
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from random import Random

Jitter: TypeAlias = Literal["full", "equal"] | float | None


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
    """The same delay after each attempt."""

    seconds: float

    def __init__(self, delay: float, jitter: Jitter = None) -> None:
        self._freeze(seconds=_seconds("delay", delay), jitter=_jitter(jitter))

    def __repr__(self) -> str:
        return f"Fixed(delay={self.seconds!r}, jitter={self.jitter!r})"

    def _without_jitter(self, attempt: int) -> float:
        return self.seconds


class Linear(JitteredBackoff):
    """``initial`` seconds after the first attempt, ``increment`` more after each further one, at most ``maximum``."""

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
    """``initial`` seconds after the first attempt, ``multiplier`` times as much after each further one.

    A delay is at most ``maximum`` seconds.

    Cloudflare's ``base ** attempts`` is ``Exponential(base, base)``.
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
    """A list of delays in seconds, one for each attempt; the last one repeats."""

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


def is_known(backoff: Backoff) -> bool:
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
    if isinstance(backoff, JitteredBackoff) and is_known(backoff):
        return max((backoff.bounds(attempt)[1] for attempt in range(1, last + 1)), default=0.0)
    from random import Random

    rng, longest = Random(0), 0.0  # not the world's, whose random numbers are for real delays
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
