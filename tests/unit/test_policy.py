"""The retry policy: limits, classes of errors, and the backoff in force."""

from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    Discard,
    Exponential,
    Fixed,
    Linear,
    Reject,
    Retry,
    RetryPolicy,
    Schedule,
    Undecodable,
)


class Oops(Exception):
    pass


class Worse(Oops):
    pass


class Both(Worse, KeyError):
    pass


def test_the_defaults() -> None:  # SPEC C1, C7
    policy = RetryPolicy()
    assert policy.max_attempts == 5
    assert policy.backoff_of(fifo=False) == Exponential(initial=30, multiplier=3, maximum=900, jitter="equal")
    assert policy.backoff_of(fifo=True) == Fixed(30)


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_max_attempts_may_be_1_to_1000(limit: int) -> None:  # SPEC C1
    assert RetryPolicy(limit).max_attempts == limit


@pytest.mark.parametrize("limit", [0, -1, 1001, 2.0, "5", None, True, 10**400], ids=lambda limit: repr(limit)[:20])
def test_another_max_attempts_is_refused_with_its_value(limit: Any) -> None:  # SPEC C1, C5
    with pytest.raises(ConfigurationError, match="max_attempts") as caught:
        RetryPolicy(limit)
    assert repr(limit) in str(caught.value)


@pytest.mark.parametrize("backoff", [60, "fixed", Fixed, lambda attempt: 1, [1, 2]])
def test_a_backoff_that_is_none_is_refused(backoff: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="backoff"):
        RetryPolicy(backoff=backoff)


@pytest.mark.parametrize("name", ["fatal", "retry_on"])
@pytest.mark.parametrize(
    "classes", ["ValueError", [ValueError], ValueError(), int, (ValueError, int), {ValueError}], ids=repr
)
def test_what_is_no_class_of_exceptions_is_refused(name: str, classes: Any) -> None:  # SPEC D1, C5
    with pytest.raises(ConfigurationError, match=name):
        RetryPolicy(**{name: classes})


def test_a_class_in_both_lists_is_refused() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="Oops"):
        RetryPolicy(fatal=(KeyError, Oops), retry_on=Oops)


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({}, Oops(), "error"),
        ({}, Undecodable("x"), "undecodable"),
        ({"retry_on": Undecodable}, Undecodable("x"), "undecodable"),
        ({"fatal": ValueError}, Undecodable("x"), "undecodable"),
        ({}, Reject(), "rejected"),
        ({"fatal": Exception}, Retry(), "error"),
        ({"retry_on": Oops}, Reject(), "rejected"),
        ({"fatal": Oops}, Worse(), "fatal"),
        ({"fatal": Oops, "retry_on": KeyError}, Both(), "fatal"),
        ({"fatal": KeyError, "retry_on": Oops}, Both(), "error"),
        ({"fatal": (Oops,), "retry_on": (Worse,)}, Both(), "error"),
        ({"retry_on": Oops}, SystemExit(), "error"),
        ({"fatal": SystemExit}, SystemExit(), "fatal"),
        ({"retry_on": ()}, Oops(), "fatal"),
        ({"fatal": BaseException}, KeyboardInterrupt(), "fatal"),
    ],
)
def test_the_most_specific_class_wins(settings: Any, error: BaseException, reason: str) -> None:  # SPEC D1, D4, E1
    assert RetryPolicy(**settings).reason(error) == reason


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (RetryPolicy(), 900),
        (RetryPolicy(backoff=Fixed(10)), 900),
        (RetryPolicy(backoff=Fixed(1000)), 1000),
        (RetryPolicy(max_attempts=4, backoff=Linear(1000, 500)), 2000),
        (RetryPolicy(max_attempts=2, backoff=Schedule([1000, 5000])), 1000),
        (RetryPolicy(max_attempts=1, backoff=Fixed(10)), 900),
        (RetryPolicy(backoff=Fixed(2000, "full")), 2000),
    ],
    ids=repr,
)
def test_the_longest_delay_is_that_of_all_attempts_and_at_least_a_quarter_of_an_hour(
    policy: RetryPolicy, seconds: float
) -> None:  # SPEC E4
    assert policy.longest_delay(fifo=False) == seconds


def test_policies_are_equal_by_value() -> None:  # SPEC C5
    assert RetryPolicy(3, Fixed(1), fatal=Oops) == RetryPolicy(3, Fixed(1.0), fatal=(Oops,))
    assert RetryPolicy(3) != RetryPolicy(4)
    assert "max_attempts=3" in repr(RetryPolicy(3))
    assert len({RetryPolicy(3), RetryPolicy(3)}) == 1


def test_a_discard_is_not_the_policy_s_business() -> None:  # SPEC E1
    assert RetryPolicy(fatal=Exception).reason(Discard()) != "fatal"
