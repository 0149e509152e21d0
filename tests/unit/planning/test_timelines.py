"""The arguments of `tarry plan`, and the timeline of a policy, against the arithmetic of its delays."""

from itertools import accumulate
from typing import Any

import pytest

from tarry import DeadLetter, DropMessage, Exponential, Fixed, Linear, LocalRetry, RetryInPlace, Schedule, SendAgain
from tarry.decide.retry_policy import RetryPolicy
from tarry.decide.steps import StepList
from tarry.failed.usage import UsageError
from tarry.tools.plan.policy import DelayBounds, policy_of
from tarry.tools.plan.request import backoff_from
from tarry.tools.plan.text import scale_of, then_text, timeline_text
from tarry.tools.plan.timeline import NOW, PolicyTimeline, timeline_of, without_tarry
from tarry.tools.plan.units import duration_of, range_text, rate_of, share_of
from tarry.tools.template import TemplateQueue

# arguments


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


READERS = {
    "50/s": lambda text: rate_of("--rate", text),
    "20%": lambda text: share_of("--failing", text),
    "15m": lambda text: duration_of("--outage", text, "15m"),
}
"""The functions that read a rate, a share and a time, by the example in their errors."""


@pytest.mark.parametrize(
    ("example", "values", "wrong"),
    [
        ("50/s", {"50/s": 50, "90/min": 1.5}, ["0/s", "50", "-5/s", "fast", "", "1/0", "1e9/s", "5/w"]),
        ("20%", {"0.5%": 0.005, "100%": 1}, ["0%", "20", "101%", "0.2", "all"]),
        ("15m", {"250ms": 0.25, "90s": 90, "15m": 900, "1.5h": 5400, "2d": 172_800}, ["0s", "15", "soon", "-1m"]),
    ],
)
def test_rates_shares_and_times_have_units(example: str, values: dict[str, float], wrong: list[str]) -> None:
    read = READERS[example]
    assert {text: read(text) for text in values} == values
    for text in wrong:
        with pytest.raises(UsageError, match=f"such as {example}"):
            read(text)


def test_a_range_names_a_common_unit_once() -> None:
    assert [range_text(*each) for each in ((10, 20), (2.5, 2.5), (45, 90))] == [
        "10 to 20 s",
        "2.5 s",
        "45 s to 1 min 30 s",
    ]


# timelines


def queue_of(name: str, dead_letters: str | None = None, receives: int = 10, **attributes: int) -> TemplateQueue:
    arn = f"arn:aws:sqs:us-east-1:123456789012:{dead_letters}" if dead_letters else None
    given = {key: str(value) for key, value in attributes.items()}
    return TemplateQueue(name, f"arn:aws:sqs:us-east-1:123456789012:{name}", None, given, arn, receives)


ORDERS = queue_of("orders", "orders-dlq", 50)
HOUR, DAY = 3600, 86_400


def planned(
    attempts: int, backoff: Any, *steps: Any, queue: TemplateQueue = ORDERS, timeout: float | None = None
) -> PolicyTimeline:
    policy = policy_of("orders", RetryPolicy(attempts, backoff), StepList(steps), fifo=queue.is_fifo)
    return timeline_of(policy, queue, timeout=timeout)


def shown(timeline: PolicyTimeline) -> list[tuple[int, int, float, str]]:
    """The attempts: number, receive count, latest time, what follows."""
    return [(each.number, each.receive_count, each.begins.latest, then_text(each)) for each in timeline.attempts]


@pytest.mark.parametrize(
    "backoff",
    [
        Fixed(77),
        Linear(10, 5, 42),
        Exponential(30, 3, 900, jitter="equal"),
        Exponential(2, 2.5, jitter="full"),
        Schedule([5, 60, 1800], jitter=0.1),
        Schedule.rocketmq(),
    ],
)
def test_attempts_begin_at_the_sums_of_the_delays_before_them(backoff: Any) -> None:
    bounds = [backoff.bounds(attempt) for attempt in range(1, 9)]
    earliest = accumulate((low for low, _ in bounds), initial=0.0)
    latest = accumulate((high for _, high in bounds), initial=0.0)
    timeline = planned(9, backoff)
    assert [attempt.begins for attempt in timeline.attempts] == [*zip(earliest, latest, strict=True)]
    assert timeline.attempts[-1].wait == NOW
    assert scale_of(planned(1, backoff), 0, 10).ticks(1)[-1] == (10, "1 s")
    assert [then_text(attempt) for attempt in timeline.attempts] == ["retry"] * 8 + ["dead letter"]
    assert timeline.last.target == "orders-dlq"
    assert sum(attempt.wait.latest for attempt in timeline.attempts) == sum(high for _, high in bounds)
    assert not timeline.warnings


TO_FIFO = queue_of("orders.fifo", "dlq.fifo", 50)
DAYS = queue_of("orders", "orders-dlq", 50, MessageRetentionPeriod=DAY)
TIMELINES: dict[str, tuple[PolicyTimeline, list[tuple[int, int, float, str]], str]] = {
    "one attempt ends at once": (planned(1, None), [(1, 1, 0, "dead letter")], "Ends in orders-dlq, at once."),
    "without tarry, SQS delivers after the visibility timeout and moves the message in the end": (
        without_tarry("Orders", queue_of("orders", "orders-dlq", 3, VisibilityTimeout=60)),
        [(1, 1, 0, "retry"), (2, 2, 60, "retry"), (3, 3, 120, "moved by SQS")],
        "Ends in orders-dlq, moved by SQS without a failure record, 3 min after the first attempt."),
    "without tarry, SQS deletes a message whose retention ends before its last delivery": (
        without_tarry("Orders", queue_of("orders", "dead", 9, VisibilityTimeout=60, MessageRetentionPeriod=150)),
        [(1, 1, 0, "retry"), (2, 2, 60, "retry"), (3, 3, 120, "deleted by SQS")],
        "its retention ends, 2 min 30 s after the first attempt."),
    "copies of a step follow the attempts with their own delays": (
        planned(2, Fixed(10), RetryInPlace(), SendAgain("slow", times=2, delay=Linear(600, 1200)), DropMessage()),
        [(1, 1, 0, "retry"), (2, 2, 10, "copy slow 1/2"), (3, 1, 610, "copy slow 2/2"),
         (4, 2, 2410, "drop")], ""),  # received once at 900 s, to wait out the remaining 15 minutes
    "a step before the retries sends its copies first": (
        planned(3, Fixed(10), SendAgain("once", delay=5), RetryInPlace(), DeadLetter()),
        [(1, 1, 0, "copy once 1/1"), (2, 1, 5, "retry"), (3, 2, 15, "dead letter")], ""),
    "a copy to another queue is the end": (
        planned(2, Fixed(10), RetryInPlace(), SendAgain("later", queue="orders-later"), DeadLetter()),
        [(1, 1, 0, "retry"), (2, 2, 10, "send to orders-later")], ""),
    "the queue ends the attempts at its maximum of receives": (
        planned(5, Fixed(10), queue=queue_of("orders", "orders-dlq", 3)),
        [(1, 1, 0, "retry"), (2, 2, 10, "retry"), (3, 3, 20, "dead letter")],
        "maxReceiveCount is 3, below max_attempts (5)"),
    "a message that would expire waits as a copy": (
        planned(5, Fixed(8 * HOUR), queue=DAYS),
        [(1, 1, 0, "retry"), (2, 2, 8 * HOUR, "retry"),  # 16 hours old at its end, of 24
         (3, 3, 16 * HOUR, "retry as a copy"), (4, 2, 24 * HOUR, "retry"), (5, 3, 32 * HOUR, "dead letter")],
        "the retention of the queue is 1 d"),
    "on FIFO, a message that would expire is dead-lettered": (
        planned(5, Fixed(8 * HOUR), queue=queue_of("orders.fifo", "dlq.fifo", 50, MessageRetentionPeriod=DAY)),
        [(1, 1, 0, "retry"), (2, 2, 8 * HOUR, "retry"), (3, 3, 16 * HOUR, "dead letter")], ""),
    "FIFO refuses copies that would lose their place or have a delay": (
        planned(2, None, RetryInPlace(), SendAgain("a"), SendAgain("b", delay=5), DeadLetter(), queue=TO_FIFO),
        [(1, 1, 0, "retry"), (2, 2, 30, "dead letter")], ""),
    "without a dead-letter queue the message stays": (
        planned(2, Fixed(10), queue=queue_of("orders")), [(1, 1, 0, "retry"), (2, 2, 10, "stays")],
        "every 15 min. Add a RedrivePolicy"),
    "a list without an end goes on until the last delivery": (
        planned(2, Fixed(10), RetryInPlace(), queue=queue_of("orders", "orders-dlq", 4)),
        [(1, 1, 0, "retry"), (2, 2, 10, "retry, unhandled"), (3, 3, 910, "retry, unhandled"),
         (4, 4, 1810, "dead letter")], ""),
}  # fmt: skip
"""The rule, a timeline, its attempts, and a part of its text or its warnings."""


@pytest.mark.parametrize("rule", TIMELINES)
def test_the_attempts_of_a_message(rule: str) -> None:
    timeline, attempts, text = TIMELINES[rule]
    assert shown(timeline) == attempts
    assert text in " ".join([*timeline_text(timeline).split(), *timeline.warnings])


def test_without_tarry_and_a_dead_letter_queue_a_message_stays() -> None:
    text = timeline_text(without_tarry("Orders", queue_of("orders", VisibilityTimeout=60)))
    assert "Does not end: it stays in orders." in text
    assert "attempt 1: it is tried again every 1 min, until its retention ends" in text


def test_each_copy_that_fifo_refuses_is_noted() -> None:
    timeline, _, _ = TIMELINES["FIFO refuses copies that would lose their place or have a delay"]
    assert [note.partition(" ")[0] for note in timeline.last.notes] == ["SendAgain('a')", "SendAgain('b')"]


def test_local_runs_lengthen_an_attempt_but_the_last_and_stop_at_the_functions_timeout() -> None:
    steps = LocalRetry(3, delay=Fixed(4, jitter="equal")), RetryInPlace(), DeadLetter()
    timeline = planned(2, Fixed(60), *steps, timeout=30)
    assert [(each.runs, each.local_wait) for each in timeline.attempts] == [(4, (6, 12)), (1, (0, 0))]
    assert timeline.ends == DelayBounds(66, 72)
    cut = planned(2, Fixed(60), *steps, timeout=10)
    assert cut.attempts[0].runs == 2
    assert "LocalRetry" in cut.warnings[0]


def test_a_delay_is_cut_to_what_sqs_allows_from_its_receive() -> None:
    timeline = planned(
        3, Fixed(12 * HOUR), queue=TemplateQueue("q", "", attributes={"MessageRetentionPeriod": str(14 * DAY)})
    )
    assert [each.wait.latest for each in timeline.attempts] == [43_198, 42_868, 0]
    assert "cut from 12 h to what SQS allows" in timeline.attempts[0].notes


def test_a_backoff_of_your_own_has_the_bounds_of_samples() -> None:
    class Noisy:
        def delay(self, attempt: int, rng: Any = None) -> float:
            return 10 * attempt + (rng.random() if rng else 0)

    timeline = planned(3, Noisy())
    (low, high), _, _ = (each.wait for each in timeline.attempts)
    assert 10 <= low < 10.1
    assert 10.9 < high <= 11
    assert "200 samples" in timeline_text(timeline)


def test_a_loop_of_copies_is_warned_of() -> None:
    timeline = planned(1, None, RetryInPlace(), SendAgain("slow", times=20, delay=1), DeadLetter())
    assert "sent to its own queue 20 times" in timeline.warnings[0]


def test_on_fifo_the_attempts_stop_before_the_retention_ends() -> None:
    queue = queue_of("orders.fifo", "dlq.fifo", 1000, MessageRetentionPeriod=200)
    assert planned(10, Fixed(30), queue=queue).warnings == (
        "The retention of the queue, 3 min 20 s, ends before the next retry: the attempts stop after at most 3 min. "
        "Raise MessageRetentionPeriod (at most 14 d), or lower max_attempts.",
    )


def test_the_labels_of_the_time_axis_have_space_between_them() -> None:
    axis = timeline_text(planned(4, Fixed(30))).splitlines()[-1]
    assert axis.split("  ")[-1].strip() == "1 min 30 s"


@pytest.mark.parametrize("backoff", [Fixed(43_000, jitter="full"), Exponential(0.1, 1.01), Schedule.rocketmq("equal")])
def test_the_text_of_the_longest_timelines_fits_80_columns(backoff: Any) -> None:
    queue = TemplateQueue("q", "", attributes={"MessageRetentionPeriod": str(14 * DAY)})
    lines = timeline_text(planned(1_000, backoff, queue=queue)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("more" in line for line in lines)
