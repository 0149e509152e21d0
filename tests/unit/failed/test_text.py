"""Times, durations, rates and shares as a user gives them; progress, and the causes of several queues, as text."""

from collections.abc import Iterator

import pytest

from tarry import ConfigurationError
from tarry.failed import Canary, DeadLetterMessage, Group
from tarry.failed.groups import GroupBy, GroupCounts, causes
from tarry.failed.pacing import Limits, parse_rate, parse_share
from tarry.failed.selection import select
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


def test_a_rate_has_a_unit_and_a_share_is_a_percentage() -> None:  # SPEC M6
    assert [parse_rate(text) for text in ("20", "20/s", "90/m", "1800/h", "0.5/s")] == [20, 20, 1.5, 0.5, 0.5]
    assert [parse_share(text) for text in ("5%", "0%", "100%", "2.5%")] == [0.05, 0, 1, 0.025]
    assert [Limits(rate).size for rate in (None, 0.2, 4.5, 300)] == [10, 1, 4, 10]
    for text in ("0", "0/s", "-1/s", "fast", "20/d", "20 a second", ""):
        with pytest.raises(ConfigurationError, match="--rate must be a number of messages above 0"):
            parse_rate(text)
    for text in ("5", "101%", "-1%", "some"):
        with pytest.raises(ConfigurationError, match="--max-return must be a percentage"):
            parse_share(text)


def test_limits_times_and_canaries_that_make_no_sense_are_refused() -> None:  # SPEC M3, M6
    for settings in ({"rate": 0}, {"rate": -1}, {"max_return": 1.1}, {"max_return": -0.1}):
        with pytest.raises(ConfigurationError):
            Limits(**settings)
    with pytest.raises(ConfigurationError, match="1 or more"):
        Canary(0)
    with pytest.raises(ConfigurationError, match="less than 12 h"):
        Canary(1, within=43_200)
    with pytest.raises(ConfigurationError, match="--since 1h is not before --until 2h: no time is between them"):
        select(since="1h", until="2h")


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


# the causes of several queues


def failed_so(fingerprint: str, message: str, count: int = 1, **more: str) -> Iterator[DeadLetterMessage]:
    for index in range(count):
        record = {"type": "app.GatewayTimeout", "fingerprint": fingerprint, "message": message, **more}
        yield recorded_dead_letter(message_id=f"id-{index}", **record)


def groups(*found: Iterator[DeadLetterMessage], by: GroupBy = "fingerprint") -> list[Group]:
    counts = GroupCounts(by)
    for each in (each for some in found for each in some):
        counts.add(each)
    return counts.largest_first()


def test_one_error_in_two_handlers_is_one_cause_though_it_has_two_fingerprints() -> None:
    orders = groups(failed_so("of-orders", "no answer for 636e0ad2 in 3 s", 2), failed_so("else", "status 503"))
    refunds = groups(failed_so("of-refunds", "no answer for 9f164b01 in 3 s", 3), failed_so("other", "status 404"))
    first, *others = causes([("orders-dlq", orders), ("refunds-dlq", refunds)])
    assert (first.count, first.queues) == (5, {"refunds-dlq": 3, "orders-dlq": 2})
    assert [group.value for _, group in first.groups] == ["of-refunds", "of-orders"]  # which select the dead letters
    assert [each.queues for each in others] == [{"orders-dlq": 1}, {"refunds-dlq": 1}]


def test_one_fingerprint_no_record_and_one_value_of_something_else_are_one_cause_each() -> None:
    found = causes([("a", groups(failed_so("same", "no Ada"))), ("b", groups(failed_so("same", "no Bob")))])
    assert [each.queues for each in found] == [{"a": 1, "b": 1}]
    found = causes([("a", groups(iter([dead_letter()]))), ("b", groups(iter([dead_letter(), dead_letter()])))])
    assert [each.count for each in found] == [3]
    both = [("a", groups(failed_so("x", "1"), by="type")), ("b", groups(failed_so("y", "2"), by="type"))]
    assert [each.count for each in causes(both)] == [2]
