"""Backoffs: the delay after a failed attempt."""

import math
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarry import ConfigurationError, Exponential, Fixed, Linear, Schedule
from tarry.decide.retry_policy import Backoff
from tarry.world import World, use

MAX_SECONDS = 43_200.0
seconds = st.floats(0, MAX_SECONDS) | st.integers(0, int(MAX_SECONDS))
jitters: st.SearchStrategy[Any] = st.sampled_from([None, "full", "equal", 0, 1]) | st.floats(0, 1)
attempts = st.integers(1, 100) | st.sampled_from([10**6, 10**400]) | st.integers(1, 10**400)


@st.composite
def linears(draw: st.DrawFn) -> Linear:
    initial = draw(seconds)
    return Linear(initial, draw(seconds), maximum=draw(st.floats(initial, MAX_SECONDS)), jitter=draw(jitters))


@st.composite
def exponentials(draw: st.DrawFn) -> Exponential:
    initial = draw(seconds)
    multiplier = draw(st.floats(0.01, 100) | st.floats(1e-300, 1e300))
    return Exponential(initial, multiplier, maximum=draw(st.floats(initial, MAX_SECONDS)), jitter=draw(jitters))


fixed = st.builds(Fixed, seconds, jitters)
schedules = st.builds(Schedule, st.lists(seconds, min_size=1, max_size=20), jitters)
backoffs: st.SearchStrategy[Backoff] = fixed | linears() | exponentials() | schedules


def cap(backoff: Backoff) -> float:
    match backoff:
        case Fixed():
            return backoff.seconds
        case Schedule():
            return max(backoff.delays)
        case Linear() | Exponential():
            return backoff.maximum
    raise AssertionError(backoff)


# properties


@given(backoffs, attempts, st.integers())
@example(Exponential(30, 3, maximum=900, jitter="equal"), 10**400, 1)
@example(Linear(0, 1e-300), 10**400, 1)
@example(Linear(0, 5e-324), 10**400, 1)
@example(Linear(1, 0), 10**400, 1)
@example(Exponential(1, 0.5), 10**400, 1)
@example(Exponential(1, 1), 10**400, 1)
@example(Exponential(0, 1e300), 10**6, 1)
def test_a_delay_is_finite_and_within_its_bounds_at_any_attempt_and_the_same_for_the_same_random_source(
    backoff: Backoff, attempt: int, seed: int
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


@given(st.one_of(linears(), exponentials()).filter(lambda b: isinstance(b, Linear) or b.multiplier >= 1), attempts)
def test_the_delay_of_a_growing_backoff_never_decreases(backoff: Backoff, attempt: int) -> None:  # SPEC C3
    assert backoff.bounds(attempt)[1] <= backoff.bounds(attempt + 1)[1]


# values


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Fixed(60), [60, 60, 60]),
        (Fixed(0), [0, 0]),
        (Linear(10, 5), [10, 15, 20]),
        (Linear(10, 5, maximum=12), [10, 12, 12]),
        (Linear(10, 0, maximum=12), [10, 10]),
        (Exponential(30, 3, maximum=900), [30, 90, 270, 810, 900, 900]),
        (Exponential(2), [2, 4, 8, 16]),
        (Exponential(5, 5), [5, 25, 125]),  # Cloudflare's base ** attempts
        (Exponential(64, 0.5), [64, 32, 16]),
        (Exponential(7, 1), [7, 7]),
        (Exponential(5, 1.5, 60), [5, 7.5, 11.25]),
        (Schedule([1, 10, 100]), [1, 10, 100, 100]),
        (Schedule([10]), [10, 10]),
        (Schedule((3, 2, 1)), [3, 2, 1, 1]),
    ],
    ids=repr,
)
def test_the_delays_of_the_first_attempts(backoff: Backoff, delays: list[float]) -> None:  # SPEC C3
    assert [backoff.delay(attempt) for attempt in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize(
    ("backoff", "delay"),
    [
        (Exponential(1, 0.5), 0),
        (Exponential(1, 2), 43_200),
        (Exponential(7, 1), 7),
        (Linear(7, 1, maximum=60), 60),
        (Linear(7, 0), 7),
        (Schedule([5, 6]), 6),
        (Fixed(5), 5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("attempt", [10**6, 10**400], ids=["a million", "10 to the 400"])
def test_the_delay_after_very_many_attempts(backoff: Backoff, delay: float, attempt: int) -> None:  # SPEC C3
    assert backoff.delay(attempt) == delay


def test_the_schedule_of_rocketmq() -> None:  # SPEC C3
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert [Schedule.rocketmq().delay(attempt) for attempt in range(1, 18)] == [10, 30, *minutes, 7200]


def test_the_defaults_are_multiplier_2_twelve_hours_and_no_jitter() -> None:  # SPEC C1
    assert Exponential(30) == Exponential(30, 2, 43_200, None)
    assert Linear(1, 2) == Linear(1, 2, 43_200, None)
    assert Fixed(1).jitter is None
    assert Schedule([1]).jitter is None


@pytest.mark.parametrize(
    ("jitter", "bounds"),
    [
        (None, (100, 100)),
        ("full", (1, 100)),
        ("equal", (50, 100)),
        (0, (100, 100)),
        (0.25, (75, 100)),
        (1, (0, 100)),
    ],
)
def test_jitter_spreads_below_the_delay(jitter: Any, bounds: tuple[float, float]) -> None:  # SPEC C4
    assert Fixed(100, jitter).bounds(1) == bounds


@pytest.mark.parametrize(("delay", "bounds"), [(0, (0, 0)), (0.5, (0.5, 0.5)), (1, (1, 1)), (2, (1, 2))])
def test_full_jitter_keeps_a_second_unless_the_delay_is_shorter(delay: float, bounds: Any) -> None:  # SPEC C4
    assert Fixed(delay, "full").bounds(1) == bounds


def test_jitter_spreads_delays_at_the_maximum_too() -> None:  # SPEC C4
    source = Random(5)
    backoff = Exponential(30, 3, maximum=900, jitter="equal")
    delays = {backoff.delay(50, source) for _ in range(100)}
    assert len(delays) == 100
    assert min(delays) < 500
    assert max(delays) > 850


def test_without_a_random_source_that_of_the_world_is_used() -> None:  # SPEC C4
    backoff = Fixed(1000, "full")
    with use(World(random=Random(3))):
        drawn = [backoff.delay(1) for _ in range(3)]
    assert drawn == [backoff.delay(1, source) for source in [Random(3)] for _ in range(3)]


def test_the_random_source_of_the_world_is_made_on_first_use() -> None:  # SPEC C4
    world = World()
    assert world._random is None
    assert world.random is world.random


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_start_at_1(attempt: int) -> None:  # SPEC C3
    with pytest.raises(ValueError, match=str(attempt)):
        Fixed(1).delay(attempt)


# by value

SAMPLES: list[Backoff] = [
    Linear(1, 2, 30, "full"),
    Exponential(1, 2, 30, 0.5),
    Exponential(1, 2),
    Schedule([1, 2], "equal"),
]


@pytest.mark.parametrize(
    "backoff",
    [
        *SAMPLES,
        Fixed(60, 0.1),
    ],
    ids=lambda backoff: type(backoff).__name__,
)
def test_evaluating_the_repr_makes_an_equal_backoff(backoff: Backoff) -> None:  # SPEC C3
    names = {"Fixed": Fixed, "Linear": Linear, "Exponential": Exponential, "Schedule": Schedule}
    assert eval(repr(backoff), names) == backoff


def test_equal_settings_make_equal_values() -> None:  # SPEC C3
    assert Fixed(60) == Fixed(60.0)
    assert hash(Fixed(60)) == hash(Fixed(60.0))
    assert Schedule([1, 2]) == Schedule((1.0, 2.0))
    assert len({Exponential(1), Exponential(1, 2), Exponential(1, 3)}) == 2
    assert Fixed(60) != Fixed(60, "full")
    assert Fixed(60) != Schedule([60])


def test_a_backoff_is_frozen() -> None:  # SPEC C3
    backoff = Fixed(60)
    with pytest.raises(AttributeError):
        backoff.seconds = 1
    with pytest.raises(AttributeError):
        del backoff.seconds
    assert backoff == Fixed(60)


def test_changing_the_list_does_not_change_the_schedule_made_from_it() -> None:  # SPEC C3
    delays = [1.0, 2.0]
    backoff = Schedule(delays)
    delays.append(9)
    assert backoff.delay(3) == 2


# invalid arguments

NAN, INFINITE, HUGE = float("nan"), float("inf"), 10**400
INVALID_SECONDS: list[Any] = [
    -1,
    -0.001,
    43_200.001,
    90_000,
    NAN,
    INFINITE,
    HUGE,
    True,
    "60",
    None,
    timedelta(seconds=60),
    1j,
]


@pytest.mark.parametrize("value", INVALID_SECONDS, ids=lambda value: repr(value)[:20])
def test_invalid_seconds_are_refused_and_the_error_names_the_value(value: Any) -> None:  # SPEC C5
    makers: list[Any] = [
        Fixed,
        lambda bad: Linear(bad, 1),
        lambda bad: Linear(1, bad),
        lambda bad: Linear(1, 1, maximum=bad),
        Exponential,
        lambda bad: Exponential(1, 2, maximum=bad),
        lambda bad: Schedule([1, bad]),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError) as caught:
            make(value)
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("multiplier", [0, -1, NAN, INFINITE, True, "2", None], ids=repr)
def test_a_multiplier_must_be_above_0(multiplier: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="multiplier") as caught:
        Exponential(1, multiplier)
    assert repr(multiplier) in str(caught.value)


@pytest.mark.parametrize("make", [lambda: Linear(10, 1, 9), lambda: Exponential(10, 2, 9)])
def test_a_maximum_below_initial_is_refused(make: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="maximum"):
        make()


@pytest.mark.parametrize("jitter", [-0.1, 1.1, NAN, INFINITE, True, False, "half", "FULL", "", [0.1]], ids=repr)
def test_an_invalid_jitter_is_refused(jitter: Any) -> None:  # SPEC C5
    makers: list[Any] = [
        lambda: Fixed(1, jitter),
        lambda: Linear(1, 1, jitter=jitter),
        lambda: Exponential(1, jitter=jitter),
        lambda: Schedule([1], jitter),
        lambda: Schedule.rocketmq(jitter),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError, match="jitter") as caught:
            make()
        assert repr(jitter) in str(caught.value)


@pytest.mark.parametrize(
    "delays",
    [
        [],
        (),
        "60",
        [[60]],
        60,
    ],
    ids=repr,
)
def test_a_schedule_needs_a_list_of_delays(delays: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError):
        Schedule(delays)


def test_a_configuration_error_is_a_value_error() -> None:  # SPEC C5
    with pytest.raises(ValueError, match="-1"):
        Fixed(-1)
