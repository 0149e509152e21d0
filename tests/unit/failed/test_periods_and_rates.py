"""Times, durations, rates and shares as a user gives them."""

import pytest

from tarry import ConfigurationError
from tarry.failed.pacing import Limits, parse_rate, parse_share
from tarry.failed.text import moment, parsed_duration, progress_text, when
from tests.unit.failed.dead_letters import dead_letter, recorded_dead_letter

NOW = 1_795_248_000.0  # 2026-11-21T08:00:00Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", NOW - 7_200),
        ("1h30m", NOW - 5_400),
        ("1.5d", NOW - 129_600),
        ("2026-11-21T07:00Z", NOW - 3_600),
        ("2026-11-21T07:00", NOW - 3_600),
        ("2026-11-21T09:00+01:00", NOW),
        ("2026-11-21", NOW - 28_800),
    ],
)
def test_a_time_is_a_moment_or_a_duration_before_now(text: str, seconds: float) -> None:  # SPEC M2
    assert moment(text, "--since", NOW) == seconds


@pytest.mark.parametrize("text", ["", "2", "2 h", "h", "yesterday", "-2h", "2h later", "2026-13-01"])
def test_another_text_is_no_time(text: str) -> None:  # SPEC M6
    with pytest.raises(ConfigurationError, match="--since must be a time such as 2026-11-21T08:00Z, or a duration"):
        moment(text, "--since", NOW)
    with pytest.raises(ConfigurationError, match="--within must be a duration such as 90s"):
        parsed_duration(text, "--within")
    with pytest.raises(ConfigurationError, match=r"--until 9{14}h is before 1970: SQS keeps a message for at most 14"):
        moment("9" * 14 + "h", "--until", NOW)


def test_a_rate_has_a_unit_and_is_above_0() -> None:  # SPEC M6
    assert [parse_rate(text) for text in ("20", "20/s", "90/m", "1800/h", "0.5/s")] == [20, 20, 1.5, 0.5, 0.5]
    assert [Limits(rate).size for rate in (None, 0.2, 4.5, 300)] == [10, 1, 4, 10]
    for text in ("0", "0/s", "-1/s", "fast", "20/d", "20 a second", ""):
        with pytest.raises(ConfigurationError, match="--rate must be a number of messages above 0"):
            parse_rate(text)


def test_a_share_is_a_percentage() -> None:  # SPEC M6
    assert [parse_share(text) for text in ("5%", "0%", "100%", "2.5%")] == [0.05, 0, 1, 0.025]
    for text in ("5", "101%", "-1%", "some"):
        with pytest.raises(ConfigurationError, match="--max-return must be a percentage"):
            parse_share(text)


def test_without_a_failure_record_a_dead_letter_has_the_time_when_it_was_sent() -> None:  # SPEC M2
    assert when(recorded_dead_letter()) == "2026-11-21T08:21:40.112Z"
    assert (when(dead_letter()) or "").startswith("2027-01-15T08:00:00")


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 1_000, 20, "0 of about 1,000"),
        (500, 1_000, 0.5, "500 of about 1,000"),
        (500, 1_000, 5, "500 of about 1,000, 100/s, 5 s left"),
        (6, 1_000, 4, "6 of about 1,000, 1.5/s, 11 min 3 s left"),
        (1_200, 1_000, 60, "1,200 of about 1,200, 20/s"),
    ],
)
def test_progress_has_a_rate_and_the_time_left(done: int, total: int, seconds: float, text: str) -> None:  # SPEC M6
    assert progress_text(done, total, seconds) == text
