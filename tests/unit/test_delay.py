"""Delays: converting them to seconds, and the longest that SQS supports."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.support.values import epoch_seconds, longest_wait, moment_of, whole_seconds
from tarry.world import World, use
from tests.wire import TestClock

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _clock() -> Any:
    with use(World(clock=TestClock(NOW))):
        yield


@given(st.floats(0, 1e12))
def test_a_delay_is_rounded_up_to_whole_seconds(seconds: float) -> None:  # SPEC B6
    whole = whole_seconds(seconds)
    assert isinstance(whole, int)
    assert whole == math.ceil(seconds)


@given(st.integers(0, 10**12))
def test_whole_seconds_stay_as_they_are(seconds: int) -> None:  # SPEC B6
    assert whole_seconds(seconds) == seconds


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_a_timedelta_is_rounded_up_to_whole_seconds(delay: timedelta) -> None:  # SPEC B6
    assert whole_seconds(delay) == -(-delay // timedelta(seconds=1))


@pytest.mark.parametrize(
    ("ahead", "seconds"), [(0, 0), (90, 90), (0.5, 1), (-0.5, 0), (-(10**6), 0), (10**6, 10**6)], ids=str
)
def test_a_datetime_means_the_seconds_until_then_and_at_least_0(ahead: float, seconds: int) -> None:  # SPEC B6
    assert whole_seconds(datetime.fromtimestamp(NOW + ahead, UTC)) == seconds


def test_the_first_and_last_datetimes_are_converted() -> None:  # SPEC B6
    assert whole_seconds(datetime(1, 1, 1, tzinfo=UTC)) == 0
    last = datetime(9999, 12, 31, tzinfo=UTC)
    assert whole_seconds(last) == last.timestamp() - NOW


@pytest.mark.parametrize(
    "delay",
    [-1, math.nan, math.inf, True, "60", None, timedelta(-1), datetime(2030, 1, 1), 10**400],  # noqa: DTZ001
)
def test_an_invalid_delay_raises_a_value_error_that_names_the_value(delay: Any) -> None:  # SPEC B6
    with pytest.raises(ValueError, match="delay") as caught:
        whole_seconds(delay)
    assert repr(delay) in str(caught.value)


@given(
    received_ago=st.none() | st.floats(-100, 10**6),
    invoked_ago=st.floats(0, 900),
)
def test_the_longest_wait_and_the_time_since_the_receive_never_exceed_twelve_hours(
    received_ago: float | None, invoked_ago: float
) -> None:  # SPEC C6
    received_at = None if received_ago is None else NOW - received_ago
    wait = longest_wait(received_at=received_at, invoked_at=NOW - invoked_ago, now=NOW)
    assert isinstance(wait, int)
    assert 0 <= wait <= 43_199
    if received_ago is not None and 0 <= received_ago <= 43_200:
        assert received_ago + wait <= 43_199.001  # the resolution of the clock


@pytest.mark.parametrize(
    ("received_ago", "invoked_ago", "wait"),
    [
        (0, 0, 43_199),
        (100, 50, 43_099),
        (43_198.5, 0, 0),
        (43_200, 0, 0),
        (None, 0, 42_869),
        (None, 100, 42_769),
        (-60, 0, 43_199),
    ],
)
def test_the_longest_wait(received_ago: float | None, invoked_ago: float, wait: int) -> None:  # SPEC C6
    received_at = None if received_ago is None else NOW - received_ago
    assert longest_wait(received_at=received_at, invoked_at=NOW - invoked_ago, now=NOW) == wait


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
    assert [moment_of(delay) for delay in (None, 60, 0.5, timedelta(1), datetime(2030, 1, 1))] == [None] * 5  # noqa: DTZ001
