"""Backoffs of the user's: any object with a method ``delay``, and what becomes of one that fails."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tarry import ConfigurationError, Exponential, Fixed, LocalRetry, RetryPolicy, SendAgain
from tarry.policy.retry_policy import FIFO_BACKOFF


class Squares:
    """1, 4, 9 ... seconds; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        self.asked.append(attempt)
        return attempt**2


class Answers:
    """Returns what it was made with, or raises it."""

    def __init__(self, answer: Any, good_until: int = 0) -> None:
        self._answer = answer
        self._good_until = good_until

    def __repr__(self) -> str:
        return "Answers()"

    def delay(self, attempt: int, rng: Random | None = None) -> Any:
        if attempt <= self._good_until:
            return 7.0
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class OfTheAttemptAlone:
    def delay(self, attempt: int) -> float:
        return 1.0


class Bounded(Squares):
    def bounds(self, attempt: int) -> tuple[float, float]:
        return 0, attempt**2 + 1_000


BAD = [
    (Answers(-5), r"delay\(1\) returned -5, which is not a number of seconds, 0 or more"),
    (Answers(float("nan")), r"delay\(1\) returned nan, which"),
    (Answers(float("inf")), r"delay\(1\) returned inf, which"),
    (Answers("30"), r"delay\(1\) returned '30', which"),
    (Answers(None), r"delay\(1\) returned None, which"),
    (Answers(True), r"delay\(1\) returned True, which"),
    (Answers(Hostile()), r"delay\(1\) returned a .*Hostile, which"),
    (Answers(10**400), r"delay\(1\) returned 1000"),
    (Answers(ZeroDivisionError()), r"delay\(1\) raised ZeroDivisionError"),
    (OfTheAttemptAlone(), r"delay\(1\) raised TypeError"),
]


def test_any_object_with_a_method_delay_is_a_backoff() -> None:  # SPEC C1
    policy = RetryPolicy(4, backoff := Squares())
    assert policy.backoff is backoff
    assert policy.delay_after(3, fifo=False, rng=Random(0)) == (9.0, None)


def test_an_own_backoff_is_asked_once_for_each_wait_when_it_is_made() -> None:  # SPEC C1
    policy = RetryPolicy(4, backoff := Squares())
    assert backoff.asked == [1, 2, 3]
    policy.longest_delay(fifo=False)
    assert backoff.asked == [1, 2, 3]


@pytest.mark.parametrize(("backoff", "text"), BAD)
def test_a_backoff_that_fails_is_refused_when_it_is_made(backoff: Any, text: str) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=text):
        RetryPolicy(backoff=backoff)


def test_the_refusal_names_the_setting_the_object_and_the_attempt() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(backoff=Answers(-5, good_until=2))
    assert str(caught.value) == (
        "backoff Answers() cannot be used: delay(3) returned -5, which is not a number of seconds, 0 or more"
    )


def test_a_wait_that_the_policy_never_makes_may_be_bad() -> None:  # SPEC C5
    """Attempt 3 is the last one; nothing waits after it."""
    assert RetryPolicy(3, Answers(-5, good_until=2)).max_attempts == 3


@pytest.mark.parametrize(("backoff", "text"), BAD)
@pytest.mark.parametrize("fifo", [False, True])
def test_a_backoff_that_fails_later_leaves_the_delay_to_the_default(
    backoff: Any, text: str, fifo: bool
) -> None:  # SPEC C5, C7
    policy = RetryPolicy(1, backoff)
    seconds, trouble = policy.delay_after(1, fifo=fifo, rng=Random(0))
    assert (seconds == FIFO_BACKOFF.seconds) if fifo else (15 <= seconds <= 30)
    assert trouble is not None
    assert trouble.startswith("The consumer's backoff failed: delay(1) r")


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [(Squares(), 900), (Answers(50_000), 50_000), (Bounded(), 1_081)],
    ids=["at least 900", "what delay returns", "what bounds says"],
)
def test_the_longest_delay_is_read_from_bounds_if_there_is_such_a_method(
    backoff: Any, seconds: float
) -> None:  # SPEC E4
    assert RetryPolicy(10, backoff).longest_delay(fifo=False) == seconds


@pytest.mark.parametrize("bounds", [None, lambda attempt: 5, lambda attempt: (2, 1), lambda attempt: 1 / 0])
def test_bounds_that_fail_are_ignored(bounds: Any) -> None:  # SPEC E4
    backoff = Answers(50_000)
    backoff.bounds = bounds  # type: ignore[attr-defined]
    policy = RetryPolicy(10, backoff)
    assert policy.longest_delay(fifo=False) == 50_000
    assert policy.delay_bounds(1, fifo=False) is None


def test_a_backoff_that_is_false_or_empty_is_one_all_the_same() -> None:  # SPEC C1
    class Empty(Squares):
        def __len__(self) -> int:
            return 0

    policy = RetryPolicy(4, backoff := Empty())
    assert policy.backoff_of(fifo=False) is backoff


def test_a_class_of_backoffs_is_refused_and_the_text_says_what_is_taken() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=r"an object with a method delay\(attempt, rng=None\) that returns"):
        RetryPolicy(backoff=Squares)  # type: ignore[arg-type]


# in steps


@pytest.mark.parametrize(
    ("given", "backoff"),
    [
        (5, Fixed(5)),
        (0.5, Fixed(0.5)),
        (timedelta(minutes=2), Fixed(120)),
        (Exponential(1, 2), Exponential(1, 2)),
    ],
    ids=str,
)
def test_a_step_takes_seconds_a_timedelta_or_a_backoff(given: Any, backoff: Any) -> None:  # SPEC E3
    assert SendAgain("slow", delay=given).delay == backoff
    assert LocalRetry(2, given).delay == backoff


@pytest.mark.parametrize(
    "delay", [-1, timedelta(seconds=-1), True, float("nan"), "5", [1, 2], Fixed, Squares, Answers("5"), Answers(-1)]
)
def test_a_step_refuses_any_other_delay(delay: Any) -> None:  # SPEC E3, C5
    with pytest.raises(ConfigurationError, match="delay"):
        SendAgain("slow", delay=delay)
    with pytest.raises(ConfigurationError, match="delay"):
        LocalRetry(2, delay)


def test_the_error_says_which_delays_a_step_takes() -> None:  # SPEC E3
    with pytest.raises(ConfigurationError) as caught:
        LocalRetry(2, "5")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "delay must be a number of seconds, a timedelta or a backoff such as Exponential(5), got '5'"
    )


def test_the_step_is_named_whose_backoff_cannot_be_used() -> None:  # SPEC E3
    with pytest.raises(ConfigurationError, match=r"SendAgain\('slow'\)'s delay Answers\(\) cannot be used: delay\(3\)"):
        SendAgain("slow", times=3, delay=Answers("x", good_until=2))


@pytest.mark.parametrize("backoff", [Answers(43_201), Answers(43_201, good_until=2), Bounded()])
def test_an_own_backoff_beyond_12_hours_is_refused_by_send_again(backoff: Any) -> None:  # SPEC E7
    with pytest.raises(ConfigurationError, match="at most 43200 s"):
        SendAgain("slow", times=207, delay=backoff)
