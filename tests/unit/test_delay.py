"""Delays: converting them to seconds, and the longest that SQS supports."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.support.values import epoch_seconds, longest_wait, moment_of, whole_seconds
from tarry.world import World, use
from tests.wire import TestClock

NOW = 1_800_000_000.0
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _clock() -> Iterator[None]:
    with use(World(clock=TestClock(NOW))):
        yield


numbers = st.floats(0, 1e12) | st.integers(0, 10**12) | st.decimals(0, 10**6, places=3)


@given(numbers | st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_a_delay_is_rounded_up_to_whole_seconds(delay: Any) -> None:  # SPEC B6
    exact = -(-delay // timedelta(seconds=1)) if isinstance(delay, timedelta) else math.ceil(delay)
    whole = whole_seconds(delay)
    assert (whole, type(whole)) == (exact, int)


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        (FIRST, 0),
        (LAST, LAST.timestamp() - NOW),
        *(
            (datetime.fromtimestamp(NOW + ahead, UTC), max(0, math.ceil(ahead)))
            for ahead in (0, 90, 0.5, -0.5, -(10**6), 10**6)
        ),
    ],
    ids=str,
)
def test_a_datetime_means_the_seconds_until_then_and_at_least_0(moment: datetime, seconds: float) -> None:  # SPEC B6
    assert whole_seconds(moment) == seconds


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, True, "60", None, timedelta(-1), NAIVE, 10**400])
def test_an_invalid_delay_raises_a_value_error_that_names_the_value(delay: Any) -> None:  # SPEC B6
    with pytest.raises(ValueError, match="delay") as caught:
        whole_seconds(delay)
    assert repr(delay) in str(caught.value)


def wait_of(received_ago: float | None, invoked_ago: float) -> int:
    received_at = None if received_ago is None else NOW - received_ago
    return longest_wait(received_at=received_at, invoked_at=NOW - invoked_ago, now=NOW)


@given(received_ago=st.none() | st.floats(-100, 10**6), invoked_ago=st.floats(0, 900))
def test_the_longest_wait_and_the_time_since_the_receive_never_exceed_twelve_hours(
    received_ago: float | None, invoked_ago: float
) -> None:  # SPEC C6
    wait = wait_of(received_ago, invoked_ago)
    assert isinstance(wait, int)
    assert 0 <= wait <= 43_199
    if received_ago is not None and 0 <= received_ago <= 43_200:
        assert received_ago + wait <= 43_199.001  # the resolution of the clock


@pytest.mark.parametrize(
    ("received_ago", "invoked_ago", "wait"),
    [
        (0, 0, 43_199), (100, 50, 43_099), (43_198.5, 0, 0), (43_200, 0, 0), (None, 0, 42_869), (None, 100, 42_769),
        (-60, 0, 43_199),
    ],
)  # fmt: skip
def test_the_longest_wait(received_ago: float | None, invoked_ago: float, wait: int) -> None:  # SPEC C6
    assert wait_of(received_ago, invoked_ago) == wait


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [
        ("1800000000500", NOW + 0.5), (1500, 1.5), ("0", 0), ("253402300799999", 253_402_300_799.999),
        ("253402300800000", None), ("-1", None), ("soon", None), (None, None), (math.inf, None),
    ],
)  # fmt: skip
def test_a_timestamp_of_sqs_is_a_time_before_the_year_10000(milliseconds: object, seconds: float | None) -> None:
    assert epoch_seconds(milliseconds) == seconds


def test_only_an_aware_datetime_is_a_moment() -> None:  # SPEC C11
    assert moment_of(datetime.fromtimestamp(NOW, UTC)) == NOW
    assert [moment_of(delay) for delay in (None, 60, 0.5, timedelta(1), NAIVE)] == [None] * 5
