"""The retry policy: backoffs, those of the user, limits, and classes of errors."""

import math
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarry import (
    ConfigurationError,
    DelayNotSupported,
    Discard,
    Exponential,
    Fixed,
    Linear,
    LocalRetry,
    Reject,
    Retry,
    RetryPolicy,
    Schedule,
    SendAgain,
    Undecodable,
)
from tarry.decide.retry_policy import FIFO_BACKOFF, Backoff
from tarry.errors import UnexplainedFailure
from tarry.world import World, use

MAX_SECONDS = 43_200.0
seconds = st.floats(0, MAX_SECONDS) | st.integers(0, int(MAX_SECONDS))
jitters: st.SearchStrategy[Any] = st.sampled_from([None, "full", "equal", 0, 1]) | st.floats(0, 1)
attempts = st.integers(1, 100) | st.sampled_from([10**6, 10**400]) | st.integers(1, 10**400)


@st.composite
def growing(draw: st.DrawFn, least_multiplier: float = 1) -> Linear | Exponential:
    initial, jitter = draw(seconds), draw(jitters)
    maximum = draw(st.floats(initial, MAX_SECONDS))
    if draw(st.booleans()):
        return Linear(initial, draw(seconds), maximum, jitter)
    return Exponential(initial, draw(st.floats(least_multiplier, 100) | st.just(1e300)), maximum, jitter)


schedules = st.builds(Schedule, st.lists(seconds, min_size=1, max_size=20), jitters)
backoffs: st.SearchStrategy[Backoff] = st.builds(Fixed, seconds, jitters) | schedules | growing(1e-300)


def cap(backoff: Any) -> float:
    match backoff:
        case Fixed():
            return backoff.seconds
        case Schedule():
            return max(backoff.delays)
    return float(backoff.maximum)


# tarry's backoffs


@given(backoffs, attempts, st.integers())
@example(Linear(0, 5e-324), 10**400, 1)
@example(Exponential(0, 1e300), 10**6, 1)
@example(Exponential(1, 0.5, jitter="equal"), 10**400, 1)
def test_a_delay_is_finite_and_within_its_bounds_at_any_attempt_and_the_same_for_the_same_random_source(
    backoff: Any, attempt: int, seed: int
) -> None:  # SPEC C3, C4
    """Reading the bounds draws no random number."""
    source = Random(seed)
    before = source.getstate()
    with use(World(random=source)):
        earliest, latest = backoff.bounds(attempt)
    assert source.getstate() == before
    delay = backoff.delay(attempt, source)
    assert math.isfinite(delay)
    assert 0 <= earliest <= delay <= latest <= cap(backoff)
    assert delay == backoff.delay(attempt, Random(seed))


@given(growing(), attempts)
def test_the_delay_of_a_growing_backoff_never_decreases(backoff: Any, attempt: int) -> None:  # SPEC C3
    assert backoff.bounds(attempt)[1] <= backoff.bounds(attempt + 1)[1]


MINUTES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)


@pytest.mark.parametrize(
    ("backoff", "delays", "after_very_many"),
    [
        (Fixed(60), [60, 60, 60], 60),
        (Fixed(0), [0, 0], 0),
        (Linear(10, 5), [10, 15, 20], 43_200),
        (Linear(10, 5, maximum=12), [10, 12, 12], 12),
        (Linear(10, 0, maximum=12), [10, 10], 10),
        (Exponential(30, 3, maximum=900), [30, 90, 270, 810, 900, 900], 900),
        (Exponential(2), [2, 4, 8, 16], 43_200),
        (Exponential(5, 5), [5, 25, 125], 43_200),  # Cloudflare's base ** attempts
        (Exponential(64, 0.5), [64, 32, 16], 0),
        (Exponential(7, 1), [7, 7], 7),
        (Exponential(5, 1.5, 60), [5, 7.5, 11.25], 60),
        (Schedule([10]), [10, 10], 10),
        (Schedule((3, 2, 1)), [3, 2, 1, 1], 1),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_delays_after_the_first_attempts_and_after_very_many(
    backoff: Backoff, delays: list[float], after_very_many: float
) -> None:  # SPEC C3
    assert [backoff.delay(attempt) for attempt in range(1, len(delays) + 1)] == delays
    assert [backoff.delay(attempt) for attempt in (10**6, 10**400)] == [after_very_many] * 2


@pytest.mark.parametrize(
    ("delay", "jitter", "bounds"),
    [
        *((100, None, (100, 100)), (100, "equal", (50, 100))),
        *((100, 0, (100, 100)), (100, 0.25, (75, 100)), (100, 1, (0, 100))),
        *((100, "full", (1, 100)), (2, "full", (1, 2)), (1, "full", (1, 1)), (0.5, "full", (0.5, 0.5))),
        (0, "full", (0, 0)),
    ],
)
def test_jitter_spreads_below_the_delay_and_full_jitter_keeps_a_second_unless_the_delay_is_shorter(
    delay: float, jitter: Any, bounds: tuple[float, float]
) -> None:  # SPEC C4
    assert Fixed(delay, jitter).bounds(1) == bounds


def test_jitter_is_drawn_from_the_given_random_source_or_that_of_the_world_also_at_the_maximum() -> None:  # SPEC C4
    backoff, world = Exponential(30, 3, maximum=900, jitter="equal"), World(random=Random(3))
    with use(world):
        drawn = [backoff.delay(50) for _ in range(100)]
    assert drawn == [backoff.delay(50, source) for source in [Random(3)] for _ in range(100)]
    assert len({*drawn}) == 100
    assert min(drawn) < 500 < 850 < max(drawn)
    fresh = World()  # its source is made on first use
    assert fresh._random is None
    assert fresh.random is fresh.random


@pytest.mark.parametrize(
    "backoff",
    [
        Fixed(60, 0.1),
        Linear(1, 2, 30, "full"),
        Exponential(1, 2, 30, 0.5),
        Exponential(1, 2),
        Schedule([1, 2], "equal"),
    ],
)
def test_a_backoff_is_a_frozen_value_and_evaluating_its_repr_makes_an_equal_one(backoff: Any) -> None:  # SPEC C3
    names = {"Fixed": Fixed, "Linear": Linear, "Exponential": Exponential, "Schedule": Schedule}
    assert eval(repr(backoff), names) == backoff
    with pytest.raises(AttributeError):
        backoff.jitter = None


def test_backoffs_and_policies_are_equal_by_value_and_have_defaults() -> None:  # SPEC C1, C3, C5, C7
    assert {Fixed(60), Fixed(60.0)} == {Fixed(60, jitter=None)}
    assert {Exponential(1)} == {Exponential(1, 2, 43_200, None)} != {Exponential(1, 3)}
    assert Schedule.rocketmq("full") == Schedule([10, 30, *(60 * minutes for minutes in MINUTES)], "full")
    assert Linear(1, 2) == Linear(1, 2, 43_200, None)
    assert Fixed(60) not in (Fixed(60, "full"), Schedule([60]))
    delays = [1.0, 2.0]
    schedule = Schedule(delays)
    delays.append(9)  # does not change the schedule
    assert schedule == Schedule((1, 2), None)
    policy = RetryPolicy()
    assert policy.max_attempts == 5
    assert policy.backoff_of(fifo=False) == Exponential(initial=30, multiplier=3, maximum=900, jitter="equal")
    assert policy.backoff_of(fifo=True) == Fixed(30)
    assert RetryPolicy(3, Fixed(1), fatal=Parent) == RetryPolicy(3, Fixed(1.0), fatal=(Parent,))
    assert len({RetryPolicy(3), RetryPolicy(3), RetryPolicy(4)}) == 2
    assert "max_attempts=3" in repr(RetryPolicy(3))
    assert [RetryPolicy(limit).max_attempts for limit in (1, 1000)] == [1, 1000]


# invalid arguments

NAN, INFINITE, HUGE = float("nan"), float("inf"), 10**400
SECONDS: list[Any] = [
    *(-1, -0.001, 43_200.001, 90_000, NAN, INFINITE, HUGE, True, "60", None, timedelta(seconds=60), 1j, [60]),
]
JITTERS: list[Any] = [-0.1, 1.1, NAN, INFINITE, True, False, "half", "FULL", "", [0.1]]
CLASSES: list[Any] = ["ValueError", [ValueError], ValueError(), int, (ValueError, int), {ValueError}]


@pytest.mark.parametrize(
    ("make", "invalid", "named"),
    [
        (Fixed, SECONDS, "delay"),
        (lambda bad: Linear(bad, 1), SECONDS, "initial"),
        (lambda bad: Linear(1, bad), SECONDS, "increment"),
        (lambda bad: Linear(1, 1, maximum=bad), [*SECONDS, 0.5], "maximum"),
        (Exponential, SECONDS, "initial"),
        (lambda bad: Exponential(1, bad), [0, -1, NAN, INFINITE, True, "2", None], "multiplier"),
        (lambda bad: Exponential(1, 2, maximum=bad), [*SECONDS, 0.5], "maximum"),
        (lambda bad: Schedule([1, bad]), SECONDS, "a delay"),
        (Schedule, [[], (), "60", 60], "a list of at least one delay"),
        (lambda bad: Fixed(1, bad), JITTERS, "jitter"),
        (lambda bad: Linear(1, 1, jitter=bad), JITTERS, "jitter"),
        (lambda bad: Exponential(1, jitter=bad), JITTERS, "jitter"),
        (lambda bad: Schedule([1], bad), JITTERS, "jitter"),
        (Schedule.rocketmq, JITTERS, "jitter"),
        (RetryPolicy, [0, -1, 1001, 2.0, "5", None, True, HUGE], "max_attempts"),
        (lambda bad: RetryPolicy(backoff=bad), [60, "fixed", Fixed, lambda attempt: 1, [1, 2]], "backoff"),
        (lambda bad: RetryPolicy(fatal=bad), CLASSES, "fatal"),
        (lambda bad: RetryPolicy(retry_on=bad), CLASSES, "retry_on"),
        (lambda bad: RetryPolicy(retry_when=bad), [True, 5], "retry_when"),
        (lambda bad: RetryPolicy(traverse_causes=bad), ["yes", 1, None], "traverse_causes"),
    ],
)
def test_an_invalid_argument_is_refused_and_the_error_names_it_and_the_value(
    make: Any, invalid: list[Any], named: str
) -> None:  # SPEC C1, C5, D1
    for value in invalid:
        with pytest.raises(ConfigurationError, match=named) as caught:
            make(value)
        assert repr(value[-1] if isinstance(value, tuple) and value else value) in str(caught.value)
        assert isinstance(caught.value, ValueError)


def test_attempts_start_at_1_and_a_class_in_both_lists_is_refused() -> None:  # SPEC C3, C5
    for attempt in (0, -1):
        with pytest.raises(ValueError, match=str(attempt)):
            Fixed(1).delay(attempt)
    with pytest.raises(ConfigurationError, match="Parent"):
        RetryPolicy(fatal=(KeyError, Parent), retry_on=Parent)


# backoffs of the user


class Squares:
    """A backoff of 1, 4, 9 ... seconds that records the attempts it is called with, and is false."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def __len__(self) -> int:
        return 0

    def delay(self, attempt: int, rng: Random | None = None) -> float:
        self.attempts.append(attempt)
        return attempt**2


class Returning:
    """A backoff that returns, or raises, the given value after attempt ``good_until``."""

    def __init__(self, answer: Any, good_until: int = 0, bounds: Any = None) -> None:
        self._answer, self._good_until, self.bounds = answer, good_until, bounds

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


BOUNDED = Returning(5, bounds=lambda attempt: (0, attempt**2 + 1_000))
WITHOUT_BOUNDS: Any = type("WithoutBounds", (Fixed,), {"delay": lambda *_: 1_000, "bounds": None})(1)


def test_any_object_with_a_method_delay_is_a_backoff_and_called_once_for_each_attempt_but_the_last() -> None:
    """SPEC C1, C5."""
    policy = RetryPolicy(4, backoff := Squares())
    assert policy.longest_delay(fifo=False) == 900
    assert backoff.attempts == [1, 2, 3]
    assert policy.backoff is policy.backoff_of(fifo=False) is policy.backoff_of(fifo=True) is backoff
    assert policy.delay_after(3, fifo=False, rng=Random(0)) == (9.0, None)
    assert [RetryPolicy(3, Returning(each)).delay_after(1, fifo=True, rng=None) for each in (0, 0.5)] == [
        (0.0, None),
        (0.5, None),
    ]
    assert RetryPolicy(3, Returning(-5, good_until=2)).max_attempts == 3


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        (Returning(-5), r"delay\(1\) returned -5, which is not a number of seconds, 0 or more"),
        *((Returning(bad), rf"delay\(1\) returned {bad!r}, which") for bad in (NAN, INFINITE, "30", None, True)),
        (Returning(FailingRepr()), r"delay\(1\) returned a .*FailingRepr, which"),
        (Returning(HUGE), r"delay\(1\) returned 1000"),
        (Returning(ZeroDivisionError()), r"delay\(1\) raised ZeroDivisionError"),
        (BackoffWithoutRandomSource(), r"delay\(1\) raised TypeError"),
    ],
)
def test_a_policy_refuses_a_backoff_that_fails_when_it_is_made_and_the_default_replaces_one_that_fails_later(
    backoff: Any, text: str
) -> None:  # SPEC C5, C7
    with pytest.raises(ConfigurationError, match=text):
        RetryPolicy(backoff=backoff)
    for fifo in (False, True):
        delay, trouble = RetryPolicy(1, backoff).delay_after(1, fifo=fifo, rng=Random(0))
        assert (delay == FIFO_BACKOFF.seconds) if fifo else (15 <= delay <= 30)
        assert trouble is not None
        assert trouble.startswith("The consumer's backoff failed: delay(1) r")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RetryPolicy(backoff=Returning(-5, 2)), "backoff Returning() cannot be used: delay(3) returned -5, "),
        (lambda: SendAgain("slow", 3, Returning("x", 2)), "SendAgain('slow')'s delay Returning() cannot be used: dela"),
        (lambda: RetryPolicy(backoff=Squares), "an object with a method delay(attempt, rng=None) that returns seconds"),
        (lambda: LocalRetry(2, "5"), "a number of seconds, a timedelta or a backoff such as Exponential(5), got '5'"),
        *(
            (lambda make=make, backoff=backoff: make(backoff), "at most 43200 s")
            for backoff in (Returning(43_201), Returning(43_201, good_until=2), BOUNDED)
            for make in (lambda delay: SendAgain("slow", times=207, delay=delay), lambda delay: RetryPolicy(208, delay))
        ),
    ],
)
def test_the_refusal_of_a_backoff_names_the_setting_the_object_and_the_attempt(make: Any, text: str) -> None:
    """SPEC C5, E3, E7."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "longest"),
    [
        (RetryPolicy(), 900),
        (RetryPolicy(backoff=Fixed(1000)), 1000),
        (RetryPolicy(max_attempts=4, backoff=Linear(1000, 500)), 2000),
        (RetryPolicy(max_attempts=2, backoff=Schedule([1000, 5000])), 1000),
        (RetryPolicy(max_attempts=1, backoff=Fixed(10)), 900),
        (RetryPolicy(backoff=Fixed(2000, "full")), 2000),
        (RetryPolicy(10, Returning(43_200)), 43_200),
        (RetryPolicy(10, BOUNDED), 1_081),
        (RetryPolicy(10, WITHOUT_BOUNDS), 1_000),
        (RetryPolicy(2, Returning(5, bounds=lambda attempt: (1_500, 1_500))), 1_500),
    ],
    ids=repr,
)
def test_the_longest_delay_is_that_of_all_attempts_and_at_least_15_minutes(policy: RetryPolicy, longest: int) -> None:
    """SPEC E4."""
    assert policy.longest_delay(fifo=False) == longest


def interrupt(attempt: int) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("bounds", [5, (2, 1), (1, "2"), ("1", 2), (-1, 2), None])
def test_bounds_that_fail_are_ignored_but_not_ctrl_c(bounds: Any) -> None:  # SPEC E4
    policy = RetryPolicy(10, Returning(30_000, bounds=bounds and (lambda attempt: bounds)))
    assert policy.longest_delay(fifo=False) == 30_000
    assert policy.delay_bounds(1, fifo=False) is None
    assert [RetryPolicy().delay_bounds(2, fifo=fifo) for fifo in (False, True)] == [(45, 90), (30, 30)]
    for backoff in (Returning(5, bounds=interrupt), SimpleNamespace(delay=lambda attempt, rng: interrupt(attempt))):
        with pytest.raises(KeyboardInterrupt):
            RetryPolicy(2, backoff)


def test_a_step_takes_seconds_a_timedelta_or_a_backoff_and_refuses_any_other_delay() -> None:  # SPEC E3, C5
    assert [SendAgain("slow", delay=delay, queue="s.fifo").times for delay in (0, Returning(0))] == [1, 1]
    makers: list[Any] = [lambda delay: SendAgain("slow", delay=delay), lambda delay: LocalRetry(2, delay)]
    for make in makers:
        for delay, backoff in ((5, 5), (0.5, 0.5), (timedelta(minutes=2), 120)):
            assert make(delay).delay == Fixed(backoff)
        assert make(Exponential(1, 2)).delay == Exponential(1, 2)
        for bad in (-1, timedelta(-1), True, NAN, "5", [1, 2], Fixed, Squares, Returning("5"), Returning(-1)):
            with pytest.raises(ConfigurationError, match="delay"):
                make(bad)


# classes of errors


class Parent(Exception):
    pass


class Child(Parent):
    pass


class ChildKeyError(Child, KeyError):
    pass


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({}, Parent(), "error"),
        ({}, Undecodable("x"), "undecodable"),
        ({"retry_on": Undecodable}, Undecodable("x"), "undecodable"),
        ({"fatal": ValueError}, Undecodable("x"), "undecodable"),
        ({}, Reject(), "rejected"),
        ({"retry_on": Parent}, Reject(), "rejected"),
        ({"fatal": Exception}, Retry(), "error"),
        ({"fatal": Exception}, Discard(), "error"),
        ({"retry_on": Parent}, Retry(), "error"),
        *(({"fatal": Exception}, error, "error") for error in (DelayNotSupported("x"), UnexplainedFailure("x"))),
        ({"fatal": Parent}, Child(), "fatal"),
        ({"fatal": Child}, Parent(), "error"),
        ({"fatal": ()}, Parent(), "error"),
        ({"retry_on": ()}, Parent(), "fatal"),
        ({"retry_on": Parent}, Child(), "error"),
        ({"retry_on": Child}, Parent(), "fatal"),
        ({"fatal": KeyError, "retry_on": Parent}, TypeError(), "error"),
        ({"fatal": KeyError, "retry_on": Parent}, KeyError(), "fatal"),
        ({"fatal": Child, "retry_on": Parent}, ChildKeyError(), "fatal"),
        ({"fatal": Exception, "retry_on": Parent}, Child(), "error"),
        ({"fatal": Parent, "retry_on": KeyError}, ChildKeyError(), "fatal"),
        ({"fatal": KeyError, "retry_on": Parent}, ChildKeyError(), "error"),
        ({"fatal": (Parent,), "retry_on": (Child,)}, ChildKeyError(), "error"),
        ({"retry_on": Parent}, SystemExit(), "error"),
        ({"fatal": SystemExit}, SystemExit(), "fatal"),
        ({"fatal": BaseException}, KeyboardInterrupt(), "fatal"),
    ],
)
def test_the_most_specific_class_wins(settings: Any, error: BaseException, reason: str) -> None:  # SPEC D1, D4, E1
    assert RetryPolicy(**settings).reason(error) == reason


def linked(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    """Set the cause and the context of ``error`` and return it."""
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


def from_none(error: BaseException) -> Any:
    """Suppress the context of ``error``, as ``raise error from None`` does, and return it."""
    error.__suppress_context__ = True
    return error


def chain(length: int, end: BaseException, kind: str) -> Any:
    for _ in range(length):
        end = linked(OSError(), **{kind: end})
    return end


def circle(*errors: BaseException, kind: str = "cause") -> Any:
    for error, following in zip(errors, [*errors[1:], errors[0]], strict=True):
        linked(error, **{kind: following})
    return errors[0]


def group(*errors: Exception) -> Any:
    return ExceptionGroup("several", errors)


def group_in_a_circle(*leaves: Exception) -> Any:
    whole = group(OSError(), *leaves)
    linked(whole.exceptions[0], cause=whole)
    return whole


FATAL, RETRIED = {"fatal": Parent}, {"retry_on": Parent}
BOTH = {"fatal": Parent, "retry_on": KeyError}


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        (FATAL, chain(2_000, Parent(), "cause"), "fatal"),
        (FATAL, chain(2_000, Parent(), "context"), "fatal"),
        (FATAL, chain(2_000, KeyError(), "cause"), "error"),
        (FATAL, linked(OSError(), cause=group(OSError(), Child())), "fatal"),
        (FATAL, linked(OSError(), context=group(OSError(), Child())), "fatal"),
        (FATAL, group(OSError(), linked(OSError(), cause=Parent())), "fatal"),
        (FATAL, group(OSError(), group(OSError(), Parent())), "fatal"),
        (FATAL, linked(OSError(), cause=KeyError(), context=Parent()), "error"),
        (FATAL, from_none(linked(OSError(), context=Parent())), "error"),
        (FATAL, linked(OSError(), cause=from_none(linked(OSError(), context=Parent()))), "error"),
        (FATAL, circle(OSError(), KeyError()), "error"),
        (FATAL, circle(OSError(), KeyError(), Parent()), "fatal"),
        (FATAL, circle(OSError(), KeyError(), kind="context"), "error"),
        (FATAL, group_in_a_circle(KeyError()), "error"),
        (FATAL, group_in_a_circle(Parent()), "fatal"),
        (RETRIED, linked(OSError(), cause=group(Parent())), "error"),
        (RETRIED, linked(OSError(), cause=KeyError()), "fatal"),
        (RETRIED, from_none(linked(OSError(), context=Parent())), "fatal"),
        (BOTH, linked(KeyError(), cause=Parent()), "error"),
        (BOTH, linked(Parent(), cause=KeyError()), "fatal"),
        (BOTH, group(OSError(), KeyError(), Parent()), "error"),
        (BOTH, linked(group(OSError(), Parent()), cause=KeyError()), "fatal"),
    ],
)
def test_the_first_listed_class_among_the_causes_decides(settings: Any, error: Any, reason: str) -> None:  # SPEC D2, D1
    assert RetryPolicy(**settings, traverse_causes=True).reason(error) == reason
    without = RetryPolicy(**settings).reason(error)
    assert without == ("fatal" if settings is RETRIED or type(error) is Parent else "error")
