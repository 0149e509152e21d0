"""The retry policy: limits, classes of errors, and the effective backoff."""

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


class Parent(Exception):
    pass


class Child(Parent):
    pass


class ChildKeyError(Child, KeyError):
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
def test_any_other_max_attempts_is_refused_and_the_error_names_the_value(limit: Any) -> None:  # SPEC C1, C5
    with pytest.raises(ConfigurationError, match="max_attempts") as caught:
        RetryPolicy(limit)
    assert repr(limit) in str(caught.value)


@pytest.mark.parametrize("backoff", [60, "fixed", Fixed, lambda attempt: 1, [1, 2]])
def test_an_invalid_backoff_is_refused(backoff: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="backoff"):
        RetryPolicy(backoff=backoff)


@pytest.mark.parametrize("name", ["fatal", "retry_on"])
@pytest.mark.parametrize(
    "classes", ["ValueError", [ValueError], ValueError(), int, (ValueError, int), {ValueError}], ids=repr
)
def test_a_value_that_is_not_an_exception_class_is_refused(name: str, classes: Any) -> None:  # SPEC D1, C5
    with pytest.raises(ConfigurationError, match=name):
        RetryPolicy(**{name: classes})


def test_a_class_in_both_lists_is_refused() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="Parent"):
        RetryPolicy(fatal=(KeyError, Parent), retry_on=Parent)


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({}, Parent(), "error"),
        ({}, Undecodable("x"), "undecodable"),
        ({"retry_on": Undecodable}, Undecodable("x"), "undecodable"),
        ({"fatal": ValueError}, Undecodable("x"), "undecodable"),
        ({}, Reject(), "rejected"),
        ({"fatal": Exception}, Retry(), "error"),
        ({"retry_on": Parent}, Reject(), "rejected"),
        ({"fatal": Parent}, Child(), "fatal"),
        ({"fatal": Child}, Parent(), "error"),
        ({"fatal": ()}, Parent(), "error"),
        ({"retry_on": Parent}, Child(), "error"),
        ({"retry_on": Child}, Parent(), "fatal"),
        ({"retry_on": Parent}, Retry(), "error"),
        ({"fatal": KeyError, "retry_on": Parent}, TypeError(), "error"),
        ({"fatal": KeyError, "retry_on": Parent}, KeyError(), "fatal"),
        ({"fatal": Child, "retry_on": Parent}, ChildKeyError(), "fatal"),
        ({"fatal": Exception, "retry_on": Parent}, Child(), "error"),
        ({"fatal": Parent, "retry_on": KeyError}, ChildKeyError(), "fatal"),
        ({"fatal": KeyError, "retry_on": Parent}, ChildKeyError(), "error"),
        ({"fatal": (Parent,), "retry_on": (Child,)}, ChildKeyError(), "error"),
        ({"retry_on": Parent}, SystemExit(), "error"),
        ({"fatal": SystemExit}, SystemExit(), "fatal"),
        ({"retry_on": ()}, Parent(), "fatal"),
        ({"fatal": BaseException}, KeyboardInterrupt(), "fatal"),
    ],
)
def test_the_most_specific_class_wins(settings: Any, error: BaseException, reason: str) -> None:  # SPEC D1, D4, E1
    assert RetryPolicy(**settings).reason(error) == reason


# causes


def linked(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    """Set the cause and the context of ``error`` and return it."""
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


def suppressing(error: BaseException) -> Any:
    """Suppress the context of ``error``, as ``raise error from None`` does, and return it."""
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


FATAL = {"fatal": Parent}
BOTH = {"fatal": Parent, "retry_on": KeyError}


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        pytest.param(FATAL, chain(2_000, Parent(), explicit=True), "fatal", id="2,000 causes down"),
        pytest.param(FATAL, chain(2_000, Parent(), explicit=False), "fatal", id="2,000 contexts down"),
        pytest.param(FATAL, chain(2_000, KeyError(), explicit=True), "error", id="2,000 causes without one"),
        pytest.param(FATAL, linked(OSError(), cause=group(OSError(), Child())), "fatal", id="a group as cause"),
        pytest.param(FATAL, linked(OSError(), context=group(OSError(), Child())), "fatal", id="a group as context"),
        pytest.param(FATAL, group(OSError(), linked(OSError(), cause=Parent())), "fatal", id="the cause of a leaf"),
        pytest.param(FATAL, group(OSError(), group(OSError(), Parent())), "fatal", id="a nested group"),
        pytest.param(FATAL, linked(OSError(), cause=KeyError(), context=Parent()), "error", id="a context and a cause"),
        pytest.param(FATAL, suppressing(linked(OSError(), context=Parent())), "error", id="from None"),
        pytest.param(
            FATAL, linked(OSError(), cause=suppressing(linked(OSError(), context=Parent()))), "error", id="deep"
        ),
        pytest.param(FATAL, circle(OSError(), KeyError(), explicit=True), "error", id="causes in a circle"),
        pytest.param(FATAL, circle(OSError(), KeyError(), Parent(), explicit=True), "fatal", id="a circle with one"),
        pytest.param(FATAL, circle(OSError(), KeyError(), explicit=False), "error", id="contexts in a circle"),
        pytest.param(FATAL, group_in_a_circle(KeyError()), "error", id="a group in a circle"),
        pytest.param(FATAL, group_in_a_circle(Parent()), "fatal", id="a group in a circle with one"),
        pytest.param({"retry_on": Parent}, linked(OSError(), cause=group(Parent())), "error", id="retry_on below"),
        pytest.param({"retry_on": Parent}, linked(OSError(), cause=KeyError()), "fatal", id="retry_on nowhere"),
        pytest.param({"retry_on": Parent}, suppressing(linked(OSError(), context=Parent())), "fatal", id="suppressed"),
        pytest.param(BOTH, linked(KeyError(), cause=Parent()), "error", id="the error before its cause"),
        pytest.param(BOTH, linked(Parent(), cause=KeyError()), "fatal", id="the error before its cause, reversed"),
        pytest.param(BOTH, group(OSError(), KeyError(), Parent()), "error", id="the first listed leaf"),
        pytest.param(BOTH, linked(group(OSError(), Parent()), cause=KeyError()), "fatal", id="a leaf before a cause"),
    ],
)  # fmt: skip
def test_the_first_listed_class_among_the_causes_decides(settings: Any, error: Any, reason: str) -> None:  # SPEC D1, D2
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
def test_the_longest_delay_is_that_of_all_attempts_and_at_least_15_minutes(
    policy: RetryPolicy, seconds: float
) -> None:  # SPEC E4
    assert policy.longest_delay(fifo=False) == seconds


def test_policies_are_equal_by_value() -> None:  # SPEC C5
    assert RetryPolicy(3, Fixed(1), fatal=Parent) == RetryPolicy(3, Fixed(1.0), fatal=(Parent,))
    assert RetryPolicy(3) != RetryPolicy(4)
    assert "max_attempts=3" in repr(RetryPolicy(3))
    assert len({RetryPolicy(3), RetryPolicy(3)}) == 1


def test_the_policy_does_not_classify_a_discard() -> None:  # SPEC E1
    assert RetryPolicy(fatal=Exception).reason(Discard()) != "fatal"
