"""The event source mapping, with a fake queue and a fake function."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import InvalidParameterValue, MappingSettings
from tarry.tools.simulator.scheduler import START, AsyncioScheduler, Scheduler
from tarry.tools.template import TemplateMapping
from tests.wire import arn

LATENCY = 0.001

Answering = Callable[[list[str]], InvocationResult]


def well(ids: list[str]) -> InvocationResult:
    return InvocationResult("returned", {"batchItemFailures": []})


def returns(value: Any) -> Answering:
    return lambda ids: InvocationResult("returned", value)


def fails(*failed: str) -> Answering:
    """Return a function that reports these messages as failed."""
    return lambda ids: InvocationResult(
        "returned", {"batchItemFailures": [{"itemIdentifier": i} for i in ids if i in failed]}
    )


def settings_of(queue: str = "orders", function: str = "function", **settings: Any) -> MappingSettings:
    """Return the settings of a mapping; those of its queue and its function are told by their names."""
    beside = {name: settings.pop(name) for name in list(settings) if name.startswith(("queue_", "function_"))}
    return MappingSettings(TemplateMapping("", arn(queue), function, **settings), **beside)


class MappingRig:
    """A mapping with its queue and its function, both fakes."""

    def __init__(
        self, answer: Answering = well, queue: str = "orders", scheduler: Scheduler | None = None, **settings: Any
    ) -> None:
        self.scheduler = scheduler or Scheduler()
        self.history = History(lambda: self.scheduler.now)
        self.waiting: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.deletes: list[int] = []
        self.receives: list[int] = []
        self.batches: list[list[str]] = []
        self.events: list[dict[str, Any]] = []
        self.invoked_at: list[float] = []
        self.running = self.most_running = 0
        self.answer = answer
        self.takes_seconds = 1.0
        self.receive_fails = self.delete_fails = 0
        mapping = settings_of(queue, "handle-orders", **{"reports_failures": True, **settings})
        self.mapping = EventSourceMapping(self.scheduler, self, self, self.history, mapping)
        self.mapping.start()

    # the queue

    def on_change(self, callback: Callable[[], None]) -> None:
        self.notify = callback

    def receive(self, max_messages: int, then: Callable[[Any], None]) -> None:
        self.receives.append(max_messages)
        self.scheduler.after(LATENCY, lambda: then(self._take(max_messages)))

    def _take(self, max_messages: int) -> Any:
        if self.receive_fails:
            self.receive_fails -= 1
            return ConnectionError("no SQS there")
        taken, self.waiting = self.waiting[:max_messages], self.waiting[max_messages:]
        return taken

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        self.deletes.append(len(receipt_handles))
        error = ConnectionError("no SQS there") if self.delete_fails else None
        if self.delete_fails:
            self.delete_fails -= 1
        else:
            self.deleted += [handle.removeprefix("handle-") for handle in receipt_handles]
        self.scheduler.after(LATENCY, partial(then, error))

    def send(self, *bodies: str, at: float = 0, group: str | None = None) -> None:
        """Send messages; the id of each is the first 20 characters of its body."""
        messages = [message(body, group) for body in bodies]

        def arrive() -> None:
            self.waiting += messages
            self.notify()

        self.scheduler.at(self.scheduler.now + at, arrive)

    # the function

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        ids = [record["messageId"] for record in event["Records"]]
        answer = self.answer(ids)
        self.batches.append(ids)
        self.events.append(event)
        self.invoked_at.append(round(self.scheduler.now - START, 2))
        takes = 0 if answer.kind == "throttled" else self.takes_seconds
        self.running += answer.kind != "throttled"
        self.most_running = max(self.running, self.most_running)

        def end() -> None:
            self.running -= answer.kind != "throttled"
            done(answer)

        self.scheduler.after(takes, end)

    # results

    def run(self) -> "MappingRig":
        assert self.scheduler.run(limit=START + 100_000) == "idle"
        return self

    def recorded(self, what: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.history.events if event.what == what]


def message(body: str, group: str | None = None) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": "1"} | ({"MessageGroupId": group} if group else {})
    return {
        "MessageId": body[:20],
        "ReceiptHandle": f"handle-{body[:20]}",
        "Body": body,
        "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        "Attributes": attributes,
    }


def names(count: int) -> list[str]:
    return [f"m{index}" for index in range(count)]


# batches


def test_the_function_gets_the_records_of_sqs() -> None:
    rig = MappingRig(queue="orders.fifo")
    rig.send('{"n": 1}', group="g1")
    rig.run()
    [record] = rig.events[0]["Records"]
    assert record == {
        "messageId": '{"n": 1}',
        "receiptHandle": 'handle-{"n": 1}',
        "body": '{"n": 1}',
        "attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": "g1"},
        "messageAttributes": {},
        "md5OfBody": hashlib.md5(b'{"n": 1}', usedforsecurity=False).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": arn("orders.fifo"),
        "awsRegion": "us-east-1",
    }


def test_without_a_window_messages_go_to_the_function_at_once_up_to_the_batch_size() -> None:  # PLATFORM 13
    rig = MappingRig(batch_size=3)
    rig.send(*names(7))
    rig.send("a", at=0.5)
    rig.run()
    assert [len(batch) for batch in rig.batches] == [3, 3, 1, 1]
    assert rig.invoked_at == [0, 0, 0, 0.5]


def test_a_window_starts_with_the_receive_of_its_first_message() -> None:  # PLATFORM 13
    rig = MappingRig(window_seconds=20)
    for at, body in [(100, "a"), (105, "b"), (119, "c"), (125, "d")]:
        rig.send(body, at=at)
    rig.run()
    assert rig.batches == [["a", "b", "c"], ["d"]]
    assert rig.invoked_at == [120, 145]


def test_a_window_ends_when_the_batch_is_full() -> None:  # PLATFORM 13
    rig = MappingRig(batch_size=25, window_seconds=300)
    rig.send(*names(30))
    rig.run()
    assert [len(batch) for batch in rig.batches] == [25, 5]
    assert rig.invoked_at[0] < 1
    assert 300 <= rig.invoked_at[1] < 301


def test_a_large_batch_is_received_ten_messages_at_a_time() -> None:
    rig = MappingRig(batch_size=10_000, window_seconds=1)
    rig.send(*names(95))
    rig.run()
    assert [len(batch) for batch in rig.batches] == [95]
    assert max(rig.receives) == 10
    assert max(rig.deletes) == 10
    assert sorted(rig.deleted) == sorted(names(95))


def test_an_event_has_at_most_six_megabytes() -> None:  # PLATFORM 13
    """Five messages of a megabyte fit into one event; the others go into the next one without another receive."""
    rig = MappingRig()
    rig.send(*(name + "x" * 1_048_550 for name in ("a" * 18, "b" * 18, "c" * 18, "d" * 18)))
    rig.send(*(name + "x" * 1_048_550 for name in ("e" * 18, "f" * 18, "g" * 18, "h" * 18)))
    rig.run()
    assert [len(batch) for batch in rig.batches] == [5, 3]
    assert len(rig.deleted) == 8


def test_an_idle_mapping_makes_no_requests() -> None:
    """In virtual time a mapping does not poll in a loop: a day without messages takes one receive."""
    rig = MappingRig()
    rig.send("a", at=24 * 3600)
    rig.run()
    assert len(rig.receives) <= 4


# responses


@pytest.mark.parametrize(
    ("answer", "failed", "why"),
    [
        (fails("b"), ["b"], ""),
        (returns(None), [], ""),
        (
            returns({"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "z"}]}),
            ["a", "b", "c"],
            "an itemIdentifier is not the id of a message of the batch: z",
        ),
    ],
)
def test_the_response_decides_which_messages_are_deleted_and_is_recorded(
    answer: Answering, failed: list[str], why: str
) -> None:  # PLATFORM 10
    rig = MappingRig(lambda ids: replace(answer(ids), request_id="r1"))
    rig.send("a", "b", "c")
    rig.run()
    assert rig.deleted == [each for each in "abc" if each not in failed]
    what = {"function": "handle-orders", "queue": "orders", "request_id": "r1", "kind": "returned"}
    assert rig.recorded("answered") == [{**what, "failed": failed, "ignored": [], "why": why}]


@pytest.mark.parametrize(
    ("response", "ignored"),
    [
        ({"batchItemFailures": [{"itemIdentifier": "b"}]}, ["b"]),
        ({"batchItemFailures": [{"itemIdentifier": "unknown"}]}, ["a", "b"]),
        ({"batchItemFailures": []}, []),
        ({"statusCode": 200}, []),
        ("{not json", []),
        (None, []),
    ],
)
def test_without_report_batch_item_failures_the_failures_are_ignored_and_recorded(
    response: Any, ignored: list[str]
) -> None:  # PLATFORM 10
    rig = MappingRig(returns(response), reports_failures=False)
    rig.send("a", "b")
    rig.run()
    [answered] = rig.recorded("answered")
    assert (answered["failed"], answered["ignored"], rig.deleted) == ([], ignored, ["a", "b"])


@pytest.mark.parametrize("kind", ["error", "timeout", "crash"])
def test_a_function_error_returns_the_whole_batch(kind: Any) -> None:  # PLATFORM 11
    for reports_failures in (True, False):
        result = InvocationResult(kind, {"batchItemFailures": []}, "it failed")
        rig = MappingRig(lambda ids, result=result: result, reports_failures=reports_failures)  # type: ignore[misc]
        rig.send("a", "b")
        rig.run()
        assert (rig.batches, rig.deleted) == ([["a", "b"]], [])


# filters


def test_a_message_that_matches_no_filter_is_deleted_without_an_invocation() -> None:  # PLATFORM 15c
    rig = MappingRig(filters=['{"body": {"n": [1]}}'])
    rig.send('{"n": 1}', '{"n": 2}', "no json")
    rig.run()
    assert rig.batches == [['{"n": 1}']]
    assert sorted(rig.deleted) == sorted(['{"n": 1}', '{"n": 2}', "no json"])
    assert [event["delivery_id"] for event in rig.recorded("filtered")] == ['{"n": 2}', "no json"]


def test_the_function_is_not_invoked_if_all_messages_are_filtered_out() -> None:  # PLATFORM 15c
    rig = MappingRig(filters=['{"body": {"n": [1]}}'], window_seconds=5)
    rig.send(*(json.dumps({"n": 2, "i": index}) for index in range(25)))
    rig.run()
    assert (rig.batches, len(rig.deleted)) == ([], 25)


# concurrency


def test_invocations_do_not_exceed_the_maximum_concurrency() -> None:  # PLATFORM 15
    rig = MappingRig(batch_size=1, maximum_concurrency=3)
    rig.send(*names(20))
    rig.run()
    assert (rig.most_running, len(rig.deleted)) == (3, 20)


def test_concurrency_starts_at_five_and_grows_under_load() -> None:  # PLATFORM 15a
    rig = MappingRig(batch_size=1)
    rig.takes_seconds = 60
    rig.send(*names(100))
    rig.run()
    at_once = [at for at in rig.invoked_at if at < 0.1]
    assert len(at_once) == 5
    assert len([at for at in rig.invoked_at if at <= 10]) == pytest.approx(5 + 10 * 300 / 60, abs=1)


def test_a_function_error_lowers_the_concurrency() -> None:  # PLATFORM 15a
    """Failures that are reported in the response do not lower the concurrency."""

    def at_once(answer: Answering) -> int:
        rig = MappingRig(answer, batch_size=1)
        rig.takes_seconds = 0.1
        rig.send(*names(5))
        rig.run()
        rig.most_running = 0
        rig.send(*(f"second {name}" for name in names(20)))
        rig.run()
        return rig.most_running

    assert at_once(lambda ids: InvocationResult("error", text="it failed")) < 5
    assert at_once(lambda ids: fails(*ids)(ids)) >= 5


# throttles


def throttled_until(seconds: float, scheduler: Callable[[], Scheduler]) -> Answering:
    return lambda ids: InvocationResult("throttled") if scheduler().now < START + seconds else well(ids)


def test_a_throttled_batch_is_retried_with_growing_pauses() -> None:  # PLATFORM 15
    rig = MappingRig(queue_visibility_seconds=60)
    rig.answer = throttled_until(20, lambda: rig.scheduler)
    rig.send("a", "b")
    rig.run()
    assert rig.invoked_at == [0, 1, 3, 7, 15, 31]
    assert rig.deleted == ["a", "b"]
    assert len(rig.recorded("throttled")) == 5


def test_a_throttled_batch_is_dropped_when_its_messages_are_visible_again() -> None:  # PLATFORM 15
    rig = MappingRig(queue_visibility_seconds=30)
    rig.answer = throttled_until(3600, lambda: rig.scheduler)
    rig.send("a", "b")
    rig.run()
    assert rig.invoked_at == [0, 1, 3, 7, 15]
    assert rig.deleted == []
    assert [event["delivery_ids"] for event in rig.recorded("dropped")] == [["a", "b"]]
    assert rig.scheduler.now == pytest.approx(START + 30, abs=0.1)


def test_a_throttled_batch_still_counts_towards_the_concurrency() -> None:
    """Otherwise the mapping would keep receiving messages that cannot run."""
    rig = MappingRig(batch_size=1, queue_visibility_seconds=30, maximum_concurrency=5)
    rig.answer = throttled_until(3600, lambda: rig.scheduler)
    rig.send(*names(12))
    rig.scheduler.run(START + 29)
    assert len(rig.waiting) == 7


# FIFO


def test_a_message_group_is_in_one_invocation_at_a_time() -> None:  # PLATFORM 14
    """This holds even if its messages become visible again while the function still runs."""
    rig = MappingRig(queue="orders.fifo", batch_size=1)
    rig.takes_seconds = 10
    rig.send("a1", group="a")
    rig.send("b1", group="b")
    rig.send("a2", group="a", at=1)
    rig.run()
    assert rig.batches == [["a1"], ["b1"], ["a2"]]
    assert rig.invoked_at == [0, 0, 10]


def test_a_waiting_batch_is_not_overtaken_by_a_later_batch_of_its_group() -> None:  # PLATFORM 14
    rig = MappingRig(queue="orders.fifo", batch_size=2)
    rig.takes_seconds = 10
    rig.send("a1", group="a")
    rig.send("a2", group="a", at=1)
    rig.send("b1", group="b", at=1)
    rig.send("b2", group="b", at=2)
    rig.run()
    assert rig.batches == [["a1"], ["a2", "b1"], ["b2"]]


def test_a_waiting_batch_is_dropped_when_its_messages_are_visible_again() -> None:  # PLATFORM 14, 15
    rig = MappingRig(queue="orders.fifo", batch_size=1, queue_visibility_seconds=30)
    rig.takes_seconds = 60
    rig.send("a1", group="a")
    rig.send("a2", group="a", at=1)
    rig.run()
    assert (rig.batches, rig.deleted) == ([["a1"]], ["a1"])
    assert [event["delivery_ids"] for event in rig.recorded("dropped")] == [["a2"]]


def test_group_ids_on_a_standard_queue_do_not_order_messages() -> None:  # PLATFORM 14
    rig = MappingRig(batch_size=1)
    for body in ("a1", "a2"):
        rig.send(body, group="a")
    rig.run()
    assert (rig.most_running, rig.invoked_at) == (2, [0, 0])


# failing requests


def test_a_failed_receive_is_repeated() -> None:
    rig = MappingRig()
    rig.receive_fails = 5
    rig.send("a")
    rig.run()
    assert rig.deleted == ["a"]
    assert rig.invoked_at[0] >= 5


def test_a_failed_delete_is_repeated() -> None:
    rig = MappingRig()
    rig.delete_fails = 2
    rig.send("a", "b")
    rig.run()
    assert (rig.deletes, rig.deleted) == ([2, 2, 2], ["a", "b"])


def test_a_failing_delete_is_abandoned_when_the_messages_are_visible_again() -> None:
    rig = MappingRig(queue_visibility_seconds=30)
    rig.delete_fails = 1_000
    rig.send("a")
    rig.run()
    assert rig.deleted == []
    assert 25 <= len(rig.deletes) <= 30


# starting and stopping


def test_a_limited_mapping_receives_only_the_messages_that_it_may_run() -> None:
    rig = MappingRig(batch_size=1).run()
    rig.mapping.limit_to(0)
    receives = len(rig.receives)
    rig.send(*names(4))
    rig.run()
    assert (rig.batches, rig.receives[receives:], len(rig.waiting)) == ([], [], 4)
    rig.mapping.limit_to(1)
    rig.run()
    assert (len(rig.batches), rig.most_running) == (4, 1)
    rig.mapping.limit_to(None)
    rig.send(*names(4))
    rig.run()
    assert (len(rig.batches), rig.most_running) == (8, 4)


def test_a_stopped_mapping_makes_no_receives_and_still_deletes_the_messages_of_running_invocations() -> None:
    rig = MappingRig()
    rig.takes_seconds = 10
    rig.send("a")
    rig.send("b", at=5)
    rig.scheduler.run(START + 2)
    rig.mapping.stop()
    rig.run()
    assert (rig.batches, rig.deleted) == ([["a"]], ["a"])
    rig.mapping.start()
    rig.run()
    assert rig.deleted == ["a", "b"]


def test_a_mapping_runs_in_real_time_too() -> None:
    async def in_real_time() -> MappingRig:
        rig = MappingRig(scheduler=AsyncioScheduler(), window_seconds=0.05)
        rig.takes_seconds = 0.01
        rig.send("a")
        rig.send("b", at=0.02)
        async with asyncio.timeout(30):
            while len(rig.deleted) < 2:  # noqa: ASYNC110 there is no event to wait for
                await asyncio.sleep(0.01)
        return rig

    assert asyncio.run(in_real_time()).batches == [["a", "b"]]


# settings


@pytest.mark.parametrize(
    ("queue", "settings", "text"),
    [
        ("orders", {"batch_size": 0}, "between 1 and 10000, got 0"),
        ("orders", {"batch_size": 10_001, "window_seconds": 1}, "between 1 and 10000, got 10001"),
        ("orders.fifo", {"batch_size": 11}, "between 1 and 10, got 11"),
        (
            "orders",
            {"batch_size": 11},
            "must be greater than 0 if maximum batch size is greater than 10",
        ),
        ("orders", {"window_seconds": 301}, "between 0 and 300 seconds, got 301"),
        ("orders.fifo", {"window_seconds": 1}, "not supported for FIFO"),
        ("orders", {"maximum_concurrency": 1}, "between 2 and 1000, got 1"),
        ("orders", {"maximum_concurrency": 1_001}, "between 2 and 1000, got 1001"),
        ("orders", {"filters": ["{"]}, "Invalid filter pattern definition."),
        (
            "orders",
            {"queue_visibility_seconds": 36, "function_timeout_seconds": 450},
            "^Invalid request provided: Queue visibility timeout: 36 seconds is less than Function timeout: 450",
        ),
    ],
)
def test_invalid_settings_are_refused(queue: str, settings: dict[str, Any], text: str) -> None:  # PLATFORM 13, 15
    with pytest.raises(InvalidParameterValue, match=text):
        settings_of(queue, **settings)


@pytest.mark.parametrize(("window", "visibility"), [(0, 180), (150, 180), (151, 211)])
def test_the_visibility_timeout_is_that_of_the_queue_unless_window_and_function_take_longer(
    window: int, visibility: int
) -> None:
    settings = settings_of(window_seconds=window, queue_visibility_seconds=180, function_timeout_seconds=30)
    assert settings.visibility_timeout_seconds == visibility
