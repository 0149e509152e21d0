"""The arguments of `tarry plan`: backoffs without running code, rates, shares and times."""

from typing import Any

import pytest

from tarry import Exponential, Fixed, Linear, Schedule
from tarry.failed.usage import UsageError
from tarry.tools.plan.request import backoff_from
from tarry.tools.plan.units import duration_of, range_text, rate_of, share_of


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("Fixed(30)", Fixed(30)),
        (" Linear(10, increment=5) ", Linear(10, 5)),
        ('Exponential(30, 3, 900, jitter="equal")', Exponential(30, 3, 900, jitter="equal")),
        ("Schedule([10, 30.5])", Schedule([10, 30.5])),
        ("Schedule.rocketmq(jitter=0.1)", Schedule.rocketmq(0.1)),
    ],
)
def test_a_backoff_is_read_by_its_name_and_literals(text: str, backoff: Any) -> None:
    assert backoff_from(text) == backoff


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an expression"),
        ("Fixed(30", "not an expression"),
        ("Fixed(" + "(" * 900, "not an expression"),
        ("Fixed(1)\x00", "not an expression"),
        ("Fixed", "it must be one of Fixed,"),
        ("Random(3)", "it must be one of Fixed,"),
        ("__import__('os').system('id')", "it must be one of Fixed,"),
        ("Fixed(print())", "must be numbers, strings or lists"),
        ("Fixed(*[1])", "must be numbers, strings or lists"),
        ("Fixed(**{'delay': 1})", "must be numbers, strings or lists"),
        ("Fixed()", "missing 1 required positional argument: 'delay'"),
        ("Fixed(1, 2, 3)", "Fixed takes from 2 to 3 positional arguments"),
        ("Fixed(-1)", "from 0 to 43200 (12 hours), got -1"),
        ('Fixed(30, jitter="some")', "jitter must be"),
    ],
)
def test_another_text_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        backoff_from(text)
    assert why in str(refused.value)
    assert "An example: --backoff" in str(refused.value)


def test_rates_shares_and_times_have_units() -> None:
    assert rate_of("--rate", "50/s") == 50
    assert rate_of("--rate", "90/min") == 1.5
    assert share_of("--failing", "0.5%") == 0.005
    assert [duration_of("--outage", text, "15m") for text in ("250ms", "90s", "15m", "1.5h", "2d")] == [
        0.25, 90, 900, 5400, 172_800,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["0/s", "50", "-5/s", "fast", "", "1/0", "1e9/s", "5/w"])
def test_a_rate_without_messages_or_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 50/s"):
        rate_of("--rate", text)


@pytest.mark.parametrize("text", ["0%", "20", "101%", "0.2", "all"])
def test_a_share_is_a_percentage_above_0(text: str) -> None:
    with pytest.raises(UsageError, match="such as 20%"):
        share_of("--failing", text)


@pytest.mark.parametrize("text", ["0s", "15", "soon", "-1m"])
def test_a_time_needs_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="such as 15m"):
        duration_of("--outage", text, "15m")


def test_a_range_names_a_common_unit_once() -> None:
    assert range_text(10, 20) == "10 to 20 s"
    assert range_text(2.5, 2.5) == "2.5 s"
    assert range_text(45, 90) == "45 s to 1 min 30 s"
