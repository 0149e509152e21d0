"""The overview: which queue needs a person, its rates and charts; reading the queues, also from an SQS that refuses."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.guard.decision import Note, Setting
from tarry.guard.operations import TAG
from tarry.tools.console import overview as reading_queues
from tarry.tools.console.access import Console, Place, WatchedQueue
from tarry.tools.console.overview import METRICS, interrupted, last_hour
from tarry.tools.console.overview.rows import (
    SOON,
    Concern,
    OverviewRows,
    QueueHistory,
    QueueReading,
    Series,
    TimeSpan,
    chart,
    rows_of,
)
from tests.consoles import Guest, visited

NOW = 1_800_000_000.0
MINUTE, DAY = 60.0, 86_400


def history(*readings: QueueReading, problem: str = "", is_gone: bool = False, **metrics: Series) -> QueueHistory:
    found = QueueHistory(metrics=metrics, problem=problem, is_gone=is_gone)
    for each in readings:
        found.add(each)
    return found


def reading(ready: int = 0, at: float = 0.0, in_flight: int = 0, **more: Any) -> QueueReading:
    """A reading ``at`` minutes before now."""
    return QueueReading(NOW - at * MINUTE, ready, in_flight, 0, **more)


def overview(own: QueueHistory, dead: QueueHistory | None = None) -> OverviewRows:
    histories = {"orders": own} | ({"orders-dlq": dead} if dead else {})
    return rows_of([WatchedQueue("orders", "orders-dlq" if dead else None)], histories, NOW)


def concerns(own: QueueHistory, dead: QueueHistory | None = None) -> list[str]:
    [row] = overview(own, dead).rows
    return [each.text for each in row.concerns]


def steady(value: float, minutes: int = 20) -> Series:
    """A series with a value for each of the last minutes."""
    return tuple((NOW - each * MINUTE, value) for each in range(minutes, -1, -1))


BUSY = steady(30)


@pytest.mark.parametrize(
    ("own", "dead", "texts"),
    [
        (history(reading(40), left=BUSY), None, []),
        (history(), history(reading(0)), []),
        (history(), history(reading(1)), ["1 dead letter waits for a decision."]),
        (history(), history(reading(2, at=30), reading(1_002)),
         ["1,002 dead letters; 1,000 arrived in the last 30 min."]),
        (history(), history(reading(9, at=30), reading(3)), ["3 dead letters wait for a decision."]),
        (history(is_gone=True), None, ["The queue does not exist."]),
        (history(), history(is_gone=True),
         ["The dead-letter queue does not exist: SQS refuses to move messages there."]),
        (history(problem="AWS denies access."), None, ["It cannot be read: AWS denies access."]),
        (history(reading(5, at=20), reading(7), left=steady(0)), None,
         ["No message has left the queue for 10 min; 7 are ready."]),
        (history(reading(0, at=5), reading(7), left=steady(0)), None, []),  # they have just come
        (history(reading(5, at=20), reading(7)), None, []),  # how many leave is not known
        (history(reading(10, at=11), reading(500), left=BUSY), None,
         ["The queue grows: 500 are ready, 10 were 10 min ago."]),
        (history(reading(400, at=11), reading(500), left=BUSY), None, []),
        (history(reading(1, oldest=3.5 * DAY, retention=4 * DAY)), None,
         ["The oldest message is deleted in 12 h, when its retention ends."]),
        (history(reading(in_flight=119_000), left=BUSY), None,
         ["119,000 messages are in flight; at 120,000 SQS delivers no more of them."]),
    ],
)  # fmt: skip
def test_the_state_that_needs_a_person_is_said_in_words(
    own: QueueHistory, dead: QueueHistory | None, texts: list[str]
) -> None:
    assert concerns(own, dead) == texts


def test_a_paused_or_suspended_consumer_is_named_with_the_command_that_resumes_it() -> None:
    """Mappings of other sources, accounts and states are none of its."""
    note = Note("suspended", NOW, NOW, None, Setting(False, None), Setting(True, None), ended=240, failed=230)
    sqs, function = "arn:aws:sqs:eu-west-1", "arn:aws:lambda:eu-west-1:123456789012:function:"
    mappings = [
        (f"{sqs}:123456789012:orders", "Disabled", "shop-orders:live"),
        (f"{sqs}:123456789012:orders", "Enabled", "shop-copies"),
        (f"{sqs}:210987654321:payments", "Disabled", "shop-payments"),
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "Disabled", "shop-stream"),
        (f"{sqs}:123456789012:scans", "Disabled", "shop-scans"),
    ]
    keys = ("EventSourceMappingArn", "EventSourceArn", "State", "FunctionArn")

    class Lambda:
        def get_paginator(self, operation: str) -> "Lambda":
            assert operation == "list_event_source_mappings"
            return self

        def paginate(self) -> list[dict[str, Any]]:
            values = [(name, arn, state, function + name) for arn, state, name in mappings]
            return [{"EventSourceMappings": [dict(zip(keys, each, strict=True))]} for each in values]

        def list_tags(self, *, Resource: str) -> dict[str, Any]:
            assert Resource in ("shop-orders:live", "shop-scans")
            return {"Tags": {TAG: note.text()} if Resource == "shop-scans" else {}}

    paused, suspended = interrupted(Lambda(), "123456789012")
    assert paused == {"orders": ("shop-orders:live",), "scans": ("shop-scans",)}
    assert suspended == {"scans": "suspended since 08:00 UTC: 96% of 240 runs failed; next probe 08:05"}
    own = history(reading(3))
    resume = "tarry resume --queue orders"
    own.guard = suspended["scans"]
    [row] = overview(own).rows
    assert (row.interrupted, row.concerns) == ("suspended", (Concern(SOON, f"Its consumer is {own.guard}.", resume),))
    own.guard, own.paused = "", paused["orders"]
    [row] = overview(own).rows
    text = "shop-orders:live is paused: Lambda delivers no messages of this queue to it."
    assert (row.interrupted, row.concerns) == ("paused", (Concern(SOON, text, resume),))


def test_the_most_urgent_queue_comes_first_then_the_one_with_most_dead_letters() -> None:
    dead_letters = {"quiet": 0, "few": 2, "many": 90, "new": 1}
    histories = {f"{name}-dlq": history(reading(count)) for name, count in dead_letters.items()}
    histories["new-dlq"] = history(reading(0, at=5), reading(1))
    found = rows_of([WatchedQueue(name, f"{name}-dlq") for name in dead_letters], histories, NOW)
    assert [row.name for row in found.rows] == ["new", "many", "few", "quiet"]
    assert found.rows[0].dead_letter_chart.label == "Dead letters, the last 5 min: at most 1, now 1"  # type: ignore[union-attr]
    assert found.summary == "3 of 4 queues need attention."


def test_without_concerns_the_summary_says_that_no_queue_needs_attention() -> None:
    assert overview(history(reading(3))).summary == "No queue needs attention (1 read)."
    assert rows_of([WatchedQueue("orders")], {"orders": history()}, NOW).summary == "Reading the queues."


def test_rates_are_those_of_cloudwatch_or_of_the_counts_of_tarry_local() -> None:
    [row] = overview(history(reading(5), arrived=steady(12), left=steady(3))).rows
    assert (row.arrived, row.left) == (12, 3)
    [row] = overview(history(reading(5, at=4, ever=100), reading(25, at=2, ever=140), reading(5, ever=140))).rows
    assert (row.arrived, row.left) == (10, 10)
    [row] = overview(history(reading(5, at=1), reading(6))).rows
    assert (row.arrived, row.left) == (None, None)
    [row] = overview(history(reading(5, at=1, ever=100), reading(5, ever=40))).rows
    assert (row.arrived, row.left) == (0, 0)  # it began to count again
    [row] = overview(history(reading(5, at=3, ever=0), reading(5, at=1, ever=0), reading(5, ever=60))).rows
    assert row.arrived == (0 + 60) / 2  # the mean of the minutes


def test_the_age_of_the_oldest_message_is_unknown_rather_than_guessed() -> None:
    assert overview(history(reading(1))).rows[0].oldest is None
    assert overview(history(reading(1, oldest=90.0))).rows[0].oldest == 90
    assert overview(history(reading(1), age=steady(70))).rows[0].oldest == 70
    assert overview(history(reading(0), age=steady(70))).rows[0].oldest is None  # the queue is empty now


def test_readings_older_than_an_hour_are_forgotten() -> None:
    found = history(*(reading(each, at=each) for each in (90, 61, 60, 30, 0)))
    assert [each.ready for each in found.readings] == [60, 30, 0]


def test_a_chart_joins_cloudwatch_and_own_readings_and_says_its_values() -> None:
    own = history(reading(8, at=1), reading(4), ready=steady(2, minutes=10))
    series = own.ready(NOW)
    assert [value for _, value in series] == [2] * 9 + [8, 4]
    found = chart("Ready", ("", series), span=TimeSpan(NOW, 600.0))
    assert found is not None
    assert found.label == "Ready, the last 10 min: at most 8, now 4"
    first, *_, last = (tuple(map(float, point.split(","))) for point in found.lines[0].split())
    assert (first[0], last[0]) == (0, found.width)
    assert all(0 <= float(number) <= found.width for point in found.area.split() for number in point.split(","))
    assert chart("Ready", ("", series[:1]), span=TimeSpan(NOW, 600.0)) is None
    spike = tuple((NOW - each, 9.0 if each == 305 else 1.0) for each in range(600, -1, -1))
    drawn = chart("Ready", ("", spike), span=TimeSpan(NOW, 600.0))
    assert drawn is not None
    assert sum(point.endswith(",2") for point in drawn.lines[0].split()) == 1  # of each part the highest value


class CloudWatch:
    """CloudWatch's GetMetricData, with pages."""

    def __init__(self) -> None:
        self.requests: list[list[dict[str, Any]]] = []

    def get_paginator(self, operation: str) -> "CloudWatch":
        assert operation == "get_metric_data"
        return self

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        queries = request["MetricDataQueries"]
        self.requests.append(queries)
        assert (request["EndTime"] - request["StartTime"]).total_seconds() == 3600
        at = [datetime.fromtimestamp(NOW - each * MINUTE, UTC) for each in (2, 1)]
        results = [[{"Id": each["Id"], "Timestamps": [when], "Values": [7.0]} for each in queries] for when in at]
        return [{"MetricDataResults": page} for page in results]


def test_cloudwatch_is_asked_for_at_most_500_metrics_at_once() -> None:
    cloudwatch = CloudWatch()
    found = last_hour([f"q{number}" for number in range(150)], cloudwatch, NOW)
    assert [len(each) for each in cloudwatch.requests] == [500, 100]
    assert len({each["Id"] for each in cloudwatch.requests[0]}) == 500
    assert found["q149"] == dict.fromkeys(METRICS, ((NOW - 2 * MINUTE, 7.0), (NOW - MINUTE, 7.0)))


# reading the queues

PATIENCE_SECONDS = 60.0
FOUND = {"ApproximateNumberOfMessages": "4321"}


def refused(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "Rate exceeded"}}, operation)


class Clients:
    """The clients of an account whose only requests are those of the overview."""

    is_aws = True
    endpoint = None
    region = "eu-west-1"

    def __init__(self, attributes: Callable[[], dict[str, str]], metrics: Callable[[], list[Any]] = list) -> None:
        self._attributes = attributes
        self._metrics = metrics

    def client(self, service: str) -> "Clients":
        assert service in {"sqs", "cloudwatch"}
        return self

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": self._attributes()}

    def get_paginator(self, _: str) -> "Clients":
        return self

    def paginate(self, **_: Any) -> list[Any]:
        return self._metrics()


@contextmanager
def seen(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """Visit a console with one queue."""
    monkeypatch.setattr(reading_queues, "AWS_SECONDS", 0.01)
    place = Place("AWS", "eu-west-1", "123456789012")
    with visited(Console(clients, place, [WatchedQueue("https://sqs/123456789012/orders")])) as guest:
        yield guest


def once_it_has(guest: Guest, *texts: str) -> str:
    """Return the overview once it has these texts."""
    for _ in range(10_000):
        if all(text in (page := guest.page("/")) for text in texts):
            return page
    raise AssertionError(page)


def test_an_sqs_that_throttles_leaves_the_last_numbers_on_the_page_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Account, region and access are on the page as well."""
    answers = iter([FOUND])

    def attributes() -> dict[str, str]:
        if (found := next(answers, None)) is None:
            raise refused("ThrottlingException", "GetQueueAttributes")
        return found

    with seen(Clients(attributes), monkeypatch) as guest:
        text = once_it_has(guest, "4,321", "cannot be read")
    assert "It cannot be read: An error occurred (ThrottlingException) when calling the GetQueueAttributes" in text
    for each in ("AWS", "account 123456789012", "eu-west-1", "read-only"):
        assert f">{each}<" in text


def test_the_first_page_waits_for_no_request_and_gets_a_reading_that_came_before_it_listened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, end = threading.Event(), threading.Event(), threading.Event()
    begun = iter([first])

    def attributes() -> dict[str, str]:
        if (answers := next(begun, end)) is end:
            second.set()  # so the first reading is published
        assert answers.wait(PATIENCE_SECONDS)
        return FOUND

    with seen(Clients(attributes), monkeypatch) as guest:
        try:
            page = guest.page("/")
            first.set()
            assert second.wait(PATIENCE_SECONDS)
            with guest.stream("/live?topic=overview") as lines:
                assert any("4,321" in line for line in lines)
        finally:
            first.set()
            end.set()
    assert ("Reading the queues." in page, "4,321" in page) == (True, False)


def test_cloudwatch_that_refuses_leaves_ages_and_rates_unknown_with_the_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def metrics() -> list[Any]:
        raise refused("AccessDenied", "GetMetricData")

    with seen(Clients(lambda: FOUND, metrics), monkeypatch) as guest:
        text = once_it_has(guest, "4,321")
    assert "CloudWatch does not tell ages and rates, so these are not known. AWS denies access:" in text
    assert text.count("not known</span>") == 2
