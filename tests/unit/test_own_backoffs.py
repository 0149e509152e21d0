"""Backoffs of the user: any object with a method ``delay``, and backoffs that fail."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tarry import ConfigurationError, Exponential, Fixed, LocalRetry, RetryPolicy, SendAgain
from tarry.decide.retry_policy import FIFO_BACKOFF


class Squares:
    """A backoff of 1, 4, 9 ... seconds that records the attempts it is called with."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        self.attempts.append(attempt)
        return attempt**2


class Returning:
    """A backoff that returns, or raises, the given value after attempt ``good_until``."""

    def __init__(self, answer: Any, good_until: int = 0) -> None:
        self._answer = answer
        self._good_until = good_until

    def __repr__(self) -> str:
        return "Returning()"

    def delay(self, attempt: int, rng: Random | None = None) -> Any:
        if attempt <= self._good_until:
            return 7.0
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class BackoffWithoutRandomSource:
    def delay(self, attempt: int) -> float:
        return 1.0


class Bounded(Squares):
    def bounds(self, attempt: int) -> tuple[float, float]:
        return 0, attempt**2 + 1_000


UNUSABLE = [
    (Returning(-5), r"delay\(1\) returned -5, which is not a number of seconds, 0 or more"),
    (Returning(float("nan")), r"delay\(1\) returned nan, which"),
    (Returning(float("inf")), r"delay\(1\) returned inf, which"),
    (Returning("30"), r"delay\(1\) returned '30', which"),
    (Returning(None), r"delay\(1\) returned None, which"),
    (Returning(True), r"delay\(1\) returned True, which"),
    (Returning(FailingRepr()), r"delay\(1\) returned a .*FailingRepr, which"),
    (Returning(10**400), r"delay\(1\) returned 1000"),
    (Returning(ZeroDivisionError()), r"delay\(1\) raised ZeroDivisionError"),
    (BackoffWithoutRandomSource(), r"delay\(1\) raised TypeError"),
]


def test_any_object_with_a_method_delay_is_a_backoff() -> None:  # SPEC C1
    policy = RetryPolicy(4, backoff := Squares())
    assert policy.backoff is backoff
    assert policy.delay_after(3, fifo=False, rng=Random(0)) == (9.0, None)


def test_a_policy_calls_an_own_backoff_once_for_each_attempt_when_it_is_made() -> None:  # SPEC C1
    policy = RetryPolicy(4, backoff := Squares())
    assert backoff.attempts == [1, 2, 3]
    policy.longest_delay(fifo=False)
    assert backoff.attempts == [1, 2, 3]


@pytest.mark.parametrize(("backoff", "text"), UNUSABLE)
def test_a_policy_refuses_a_backoff_that_fails_when_it_is_made(backoff: Any, text: str) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=text):
        RetryPolicy(backoff=backoff)


def test_the_refusal_names_the_setting_the_object_and_the_attempt() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(backoff=Returning(-5, good_until=2))
    assert str(caught.value) == (
        "backoff Returning() cannot be used: delay(3) returned -5, which is not a number of seconds, 0 or more"
    )


def test_a_backoff_may_fail_for_an_attempt_after_which_there_is_no_wait() -> None:  # SPEC C5
    """Attempt 3 is the last one; no wait follows it."""
    assert RetryPolicy(3, Returning(-5, good_until=2)).max_attempts == 3


@pytest.mark.parametrize(("backoff", "text"), UNUSABLE)
@pytest.mark.parametrize("fifo", [False, True])
def test_the_default_backoff_replaces_one_that_fails_later(backoff: Any, text: str, fifo: bool) -> None:  # SPEC C5, C7
    policy = RetryPolicy(1, backoff)
    seconds, trouble = policy.delay_after(1, fifo=fifo, rng=Random(0))
    assert (seconds == FIFO_BACKOFF.seconds) if fifo else (15 <= seconds <= 30)
    assert trouble is not None
    assert trouble.startswith("The consumer's backoff failed: delay(1) r")


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [(Squares(), 900), (Returning(30_000), 30_000), (Bounded(), 1_081)],
    ids=["at least 900", "the result of delay", "the result of bounds"],
)
def test_the_longest_delay_comes_from_the_method_bounds_if_there_is_one(
    backoff: Any, seconds: float
) -> None:  # SPEC E4
    assert RetryPolicy(10, backoff).longest_delay(fifo=False) == seconds


@pytest.mark.parametrize("bounds", [None, lambda attempt: 5, lambda attempt: (2, 1), lambda attempt: 1 / 0])
def test_bounds_that_fail_are_ignored(bounds: Any) -> None:  # SPEC E4
    backoff = Returning(30_000)
    backoff.bounds = bounds  # type: ignore[attr-defined]
    policy = RetryPolicy(10, backoff)
    assert policy.longest_delay(fifo=False) == 30_000
    assert policy.delay_bounds(1, fifo=False) is None


def test_a_backoff_that_is_false_in_a_boolean_context_is_used() -> None:  # SPEC C1
    class EmptyBackoff(Squares):
        def __len__(self) -> int:
            return 0

    policy = RetryPolicy(4, backoff := EmptyBackoff())
    assert policy.backoff_of(fifo=False) is backoff


def test_a_backoff_class_is_refused_and_the_error_describes_a_valid_backoff() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=r"an object with a method delay\(attempt, rng=None\) that returns"):
        RetryPolicy(backoff=Squares)  # type: ignore[arg-type]


# in steps


@pytest.mark.parametrize(
    ("delay", "backoff"),
    [
        (5, Fixed(5)),
        (0.5, Fixed(0.5)),
        (timedelta(minutes=2), Fixed(120)),
        (Exponential(1, 2), Exponential(1, 2)),
    ],
    ids=str,
)
def test_a_step_takes_seconds_a_timedelta_or_a_backoff(delay: Any, backoff: Any) -> None:  # SPEC E3
    assert SendAgain("slow", delay=delay).delay == backoff
    assert LocalRetry(2, delay).delay == backoff


@pytest.mark.parametrize(
    "delay", [-1, timedelta(seconds=-1), True, float("nan"), "5", [1, 2], Fixed, Squares, Returning("5"), Returning(-1)]
)
def test_a_step_refuses_any_other_delay(delay: Any) -> None:  # SPEC E3, C5
    with pytest.raises(ConfigurationError, match="delay"):
        SendAgain("slow", delay=delay)
    with pytest.raises(ConfigurationError, match="delay"):
        LocalRetry(2, delay)


def test_the_error_names_the_delays_that_a_step_takes() -> None:  # SPEC E3
    with pytest.raises(ConfigurationError) as caught:
        LocalRetry(2, "5")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "delay must be a number of seconds, a timedelta or a backoff such as Exponential(5), got '5'"
    )


def test_the_error_names_the_step_whose_backoff_cannot_be_used() -> None:  # SPEC E3
    with pytest.raises(
        ConfigurationError, match=r"SendAgain\('slow'\)'s delay Returning\(\) cannot be used: delay\(3\)"
    ):
        SendAgain("slow", times=3, delay=Returning("x", good_until=2))


@pytest.mark.parametrize("backoff", [Returning(43_201), Returning(43_201, good_until=2), Bounded()])
def test_an_own_backoff_beyond_12_hours_is_refused(backoff: Any) -> None:  # SPEC C5, E7
    with pytest.raises(ConfigurationError, match="at most 43200 s"):
        SendAgain("slow", times=207, delay=backoff)
    with pytest.raises(ConfigurationError, match="at most 43200 s"):
        RetryPolicy(208, backoff)
