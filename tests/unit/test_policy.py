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


# causes


def linked(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    """``error`` with what it was raised from, and what was being handled."""
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


def suppressing(error: BaseException) -> Any:
    """As ``raise error from None`` does."""
    error.__suppress_context__ = True
    return error


def chain(length: int, end: BaseException, *, explicit: bool) -> Any:
    for _ in range(length):
        end = linked(OSError(), cause=end) if explicit else linked(OSError(), context=end)
    return end


def circle(*errors: BaseException, explicit: bool) -> Any:
    for error, following in zip(errors, [*errors[1:], errors[0]], strict=True):
        linked(error, **{"cause" if explicit else "context": following})
    return errors[0]


def group(*errors: Exception) -> Any:
    return ExceptionGroup("several", errors)


def group_in_a_circle(*leaves: Exception) -> Any:
    whole = group(OSError(), *leaves)
    linked(whole.exceptions[0], cause=whole)
    return whole


OOPS = {"fatal": Oops}
BOTH = {"fatal": Oops, "retry_on": KeyError}


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        pytest.param(OOPS, chain(2_000, Oops(), explicit=True), "fatal", id="2,000 causes down"),
        pytest.param(OOPS, chain(2_000, Oops(), explicit=False), "fatal", id="2,000 contexts down"),
        pytest.param(OOPS, chain(2_000, KeyError(), explicit=True), "error", id="2,000 causes without one"),
        pytest.param(OOPS, linked(OSError(), cause=group(OSError(), Worse())), "fatal", id="a group as cause"),
        pytest.param(OOPS, linked(OSError(), context=group(OSError(), Worse())), "fatal", id="a group as context"),
        pytest.param(OOPS, group(OSError(), linked(OSError(), cause=Oops())), "fatal", id="the cause of a leaf"),
        pytest.param(OOPS, group(OSError(), group(OSError(), Oops())), "fatal", id="a nested group"),
        pytest.param(OOPS, linked(OSError(), cause=KeyError(), context=Oops()), "error", id="a context behind a cause"),
        pytest.param(OOPS, suppressing(linked(OSError(), context=Oops())), "error", id="from None"),
        pytest.param(OOPS, linked(OSError(), cause=suppressing(linked(OSError(), context=Oops()))), "error", id="deep"),
        pytest.param(OOPS, circle(OSError(), KeyError(), explicit=True), "error", id="causes in a circle"),
        pytest.param(OOPS, circle(OSError(), KeyError(), Oops(), explicit=True), "fatal", id="a circle with one"),
        pytest.param(OOPS, circle(OSError(), KeyError(), explicit=False), "error", id="contexts in a circle"),
        pytest.param(OOPS, group_in_a_circle(KeyError()), "error", id="a group in a circle"),
        pytest.param(OOPS, group_in_a_circle(Oops()), "fatal", id="a group in a circle with one"),
        pytest.param({"retry_on": Oops}, linked(OSError(), cause=group(Oops())), "error", id="retry_on below"),
        pytest.param({"retry_on": Oops}, linked(OSError(), cause=KeyError()), "fatal", id="retry_on nowhere"),
        pytest.param({"retry_on": Oops}, suppressing(linked(OSError(), context=Oops())), "fatal", id="retry_on hidden"),
        pytest.param(BOTH, linked(KeyError(), cause=Oops()), "error", id="the error before its cause"),
        pytest.param(BOTH, linked(Oops(), cause=KeyError()), "fatal", id="and the other way round"),
        pytest.param(BOTH, group(OSError(), KeyError(), Oops()), "error", id="the first leaf that is named"),
        pytest.param(BOTH, linked(group(OSError(), Oops()), cause=KeyError()), "fatal", id="a leaf before a cause"),
    ],
)  # fmt: skip
def test_causes_are_walked_to_the_first_that_is_named(settings: Any, error: Any, reason: str) -> None:  # SPEC D1, D2
    assert RetryPolicy(**settings, traverse_causes=True).reason(error) == reason


# limits


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
