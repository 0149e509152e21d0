"""The event source mapping, between a queue and a function that do what the test says."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tarry.simulator.errors import InvalidParameterValue
from tarry.simulator.history import History
from tarry.simulator.invocations import InvocationResult
from tarry.simulator.mapping import EventSourceMapping
from tarry.simulator.mapping_settings import MappingSettings
from tarry.simulator.timeline import START, Timeline
from tarry.simulator.wall import LoopTimeline
from tests.wire import arn

LATENCY = 0.001

Answering = Callable[[list[str]], InvocationResult]


def well(ids: list[str]) -> InvocationResult:
    return InvocationResult("returned", {"batchItemFailures": []})


def returns(value: Any) -> Answering:
    return lambda ids: InvocationResult("returned", value)


def fails(*failed: str) -> Answering:
    """Reports these of its messages as failed."""
    return lambda ids: InvocationResult(
        "returned", {"batchItemFailures": [{"itemIdentifier": i} for i in ids if i in failed]}
    )


class Desk:
    """A mapping, the queue before it and the function behind it."""

    def __init__(
        self, answer: Answering = well, queue: str = "orders", timeline: Timeline | None = None, **settings: Any
    ) -> None:
        self.timeline = timeline or Timeline()
        self.history = History(lambda: self.timeline.now)
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
        settings = {"reports_failures": True, **settings}
        self.mapping = EventSourceMapping(
            self.timeline, self, self, self.history, MappingSettings(arn(queue), "handle-orders", **settings)
        )
        self.mapping.start()

    # the queue

    def on_change(self, look: Callable[[], None]) -> None:
        self.look = look

    def receive(self, most: int, then: Callable[[Any], None]) -> None:
        self.receives.append(most)
        self.timeline.after(LATENCY, lambda: then(self._take(most)))

    def _take(self, most: int) -> Any:
        if self.receive_fails:
            self.receive_fails -= 1
            return ConnectionError("no SQS there")
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        self.deletes.append(len(receipt_handles))
        error = ConnectionError("no SQS there") if self.delete_fails else None
        if self.delete_fails:
            self.delete_fails -= 1
        else:
            self.deleted += [handle.removeprefix("handle-") for handle in receipt_handles]
        self.timeline.after(LATENCY, partial(then, error))

    def send(self, *bodies: str, at: float = 0, group: str | None = None) -> None:
        """Messages whose ids are their bodies, as far as they are short."""
        messages = [message(body, group) for body in bodies]

        def arrive() -> None:
            self.waiting += messages
            self.look()

        self.timeline.at(self.timeline.now + at, arrive)

    # the function

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None]) -> None:
        ids = [record["messageId"] for record in event["Records"]]
        answer = self.answer(ids)
        self.batches.append(ids)
        self.events.append(event)
        self.invoked_at.append(round(self.timeline.now - START, 2))
        takes = 0 if answer.kind == "throttled" else self.takes_seconds
        self.running += answer.kind != "throttled"
        self.most_running = max(self.running, self.most_running)

        def end() -> None:
            self.running -= answer.kind != "throttled"
            done(answer)

        self.timeline.after(takes, end)

    # what came of it

    def run(self) -> "Desk":
        assert self.timeline.run(limit=START + 100_000) == "idle"
        return self

    def told(self, what: str) -> list[dict[str, Any]]:
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


def test_what_is_there_goes_to_the_function_and_is_deleted_when_that_went_well() -> None:  # PLATFORM 10
    desk = Desk()
    desk.send("a", "b")
    desk.run()
    assert (desk.batches, desk.deleted) == ([["a", "b"]], ["a", "b"])


def test_the_function_gets_the_records_of_sqs() -> None:
    desk = Desk(queue="orders.fifo")
    desk.send('{"n": 1}', group="g1")
    desk.run()
    [record] = desk.events[0]["Records"]
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


def test_a_batch_is_no_larger_than_the_batch_size() -> None:  # PLATFORM 13
    desk = Desk(batch_size=3)
    desk.send(*names(7))
    desk.run()
    assert [len(batch) for batch in desk.batches] == [3, 3, 1]


def test_without_a_window_whatever_is_there_goes_at_once() -> None:  # PLATFORM 13
    desk = Desk()
    desk.send("a")
    desk.send("b", at=0.5)
    desk.run()
    assert (desk.batches, desk.invoked_at) == ([["a"], ["b"]], [0, 0.5])


def test_a_window_collects_from_the_first_message_on() -> None:  # PLATFORM 13
    desk = Desk(window_seconds=20)
    for at, body in [(100, "a"), (105, "b"), (119, "c"), (125, "d")]:
        desk.send(body, at=at)
    desk.run()
    assert desk.batches == [["a", "b", "c"], ["d"]]
    assert desk.invoked_at == [120, 145]


def test_a_window_ends_when_the_batch_is_full() -> None:  # PLATFORM 13
    desk = Desk(batch_size=25, window_seconds=300)
    desk.send(*names(30))
    desk.run()
    assert [len(batch) for batch in desk.batches] == [25, 5]
    assert desk.invoked_at[0] < 1
    assert 300 <= desk.invoked_at[1] < 301


def test_a_large_batch_is_received_in_tens() -> None:
    desk = Desk(batch_size=10_000, window_seconds=1)
    desk.send(*names(95))
    desk.run()
    assert [len(batch) for batch in desk.batches] == [95]
    assert max(desk.receives) == 10
    assert max(desk.deletes) == 10
    assert sorted(desk.deleted) == sorted(names(95))


def test_an_event_holds_six_megabytes() -> None:  # PLATFORM 13
    """Of messages of a megabyte five go together; the rest is not received again, and not lost."""
    desk = Desk()
    desk.send(*(name + "x" * 1_048_550 for name in ("a" * 18, "b" * 18, "c" * 18, "d" * 18)))
    desk.send(*(name + "x" * 1_048_550 for name in ("e" * 18, "f" * 18, "g" * 18, "h" * 18)))
    desk.run()
    assert [len(batch) for batch in desk.batches] == [5, 3]
    assert len(desk.deleted) == 8


def test_nothing_is_asked_while_nothing_happens() -> None:
    """In virtual time there is no busy polling: a day without messages is one receive."""
    desk = Desk()
    desk.send("a", at=24 * 3600)
    desk.run()
    assert len(desk.receives) <= 4


# answers


@pytest.mark.parametrize(
    ("answer", "deleted"),
    [
        (fails("b"), ["a", "c"]),
        (fails("a", "b", "c"), []),
        (returns({}), ["a", "b", "c"]),
        (returns(None), ["a", "b", "c"]),
        (returns({"batchItemFailures": None}), ["a", "b", "c"]),
        (returns({"batchItemFailures": [{"itemIdentifier": ""}]}), []),
        (returns({"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "unknown"}]}), []),
        (returns({"batchItemFailures": [{"id": "a"}]}), []),
        (returns("{not json"), []),
    ],
)
def test_a_response_says_which_messages_are_deleted(answer: Answering, deleted: list[str]) -> None:  # PLATFORM 10
    desk = Desk(answer)
    desk.send("a", "b", "c")
    desk.run()
    assert desk.deleted == deleted


@pytest.mark.parametrize("answer", [fails("a", "b"), returns("{not json")])
def test_without_the_setting_the_response_means_nothing(answer: Answering) -> None:  # PLATFORM 10
    desk = Desk(answer, reports_failures=False)
    desk.send("a", "b")
    desk.run()
    assert desk.deleted == ["a", "b"]


@pytest.mark.parametrize("kind", ["error", "timeout", "crash"])
@pytest.mark.parametrize("reports_failures", [True, False])
def test_a_function_that_fails_returns_the_whole_batch(kind: Any, reports_failures: bool) -> None:  # PLATFORM 11
    desk = Desk(
        lambda ids: InvocationResult(kind, {"batchItemFailures": []}, "it failed"), reports_failures=reports_failures
    )
    desk.send("a", "b")
    desk.run()
    assert desk.deleted == []


def test_each_answer_is_recorded_with_what_it_failed() -> None:
    desk = Desk(
        lambda ids: InvocationResult("returned", {"batchItemFailures": [{"itemIdentifier": "b"}]}, request_id="r1")
    )
    desk.send("a", "b")
    desk.run()
    assert desk.told("answered") == [
        {
            "function": "handle-orders",
            "queue": "orders",
            "request_id": "r1",
            "kind": "returned",
            "failed": ["b"],
            "why": "",
        }
    ]


def test_why_a_whole_batch_failed_is_recorded() -> None:
    desk = Desk(returns({"batchItemFailures": [{"itemIdentifier": "z"}]}))
    desk.send("a")
    desk.run()
    [answered] = desk.told("answered")
    assert (answered["failed"], answered["why"]) == (["a"], "an itemIdentifier names no message of the batch: z")


# filters


def test_what_matches_no_filter_is_deleted_unseen() -> None:  # PLATFORM 15c
    desk = Desk(filters=['{"body": {"n": [1]}}'])
    desk.send('{"n": 1}', '{"n": 2}', "no json")
    desk.run()
    assert desk.batches == [['{"n": 1}']]
    assert sorted(desk.deleted) == sorted(['{"n": 1}', '{"n": 2}', "no json"])
    assert [told["delivery_id"] for told in desk.told("filtered")] == ['{"n": 2}', "no json"]


def test_a_function_is_not_invoked_for_what_is_filtered_out() -> None:  # PLATFORM 15c
    desk = Desk(filters=['{"body": {"n": [1]}}'], window_seconds=5)
    desk.send(*(json.dumps({"n": 2, "i": index}) for index in range(25)))
    desk.run()
    assert desk.batches == []
    assert len(desk.deleted) == 25


# concurrency


def test_at_most_as_many_run_as_the_maximum_concurrency_says() -> None:  # PLATFORM 15
    desk = Desk(batch_size=1, maximum_concurrency=3)
    desk.send(*names(20))
    desk.run()
    assert (desk.most_running, len(desk.deleted)) == (3, 20)


def test_five_run_at_first_and_more_and_more_while_there_is_more_to_do() -> None:  # PLATFORM 15a
    desk = Desk(batch_size=1)
    desk.takes_seconds = 60
    desk.send(*names(100))
    desk.run()
    at_once = [at for at in desk.invoked_at if at < 0.1]
    assert len(at_once) == 5
    assert len([at for at in desk.invoked_at if at <= 10]) == pytest.approx(5 + 10 * 300 / 60, abs=1)


def test_after_a_function_error_fewer_run_at_once() -> None:  # PLATFORM 15a
    """Failures that are reported in the response do not lower it."""

    def at_once(answer: Answering) -> int:
        desk = Desk(answer, batch_size=1)
        desk.takes_seconds = 0.1
        desk.send(*names(5))
        desk.run()
        desk.most_running = 0
        desk.send(*(f"again {name}" for name in names(20)))
        desk.run()
        return desk.most_running

    assert at_once(lambda ids: InvocationResult("error", text="it failed")) < 5
    assert at_once(lambda ids: fails(*ids)(ids)) >= 5


# throttles


def throttled_until(seconds: float, timeline: Callable[[], Timeline]) -> Answering:
    return lambda ids: InvocationResult("throttled") if timeline().now < START + seconds else well(ids)


def test_a_throttled_batch_is_tried_again_more_and_more_slowly() -> None:  # PLATFORM 15
    desk = Desk(queue_visibility_seconds=60)
    desk.answer = throttled_until(20, lambda: desk.timeline)
    desk.send("a", "b")
    desk.run()
    assert desk.invoked_at == [0, 1, 3, 7, 15, 31]
    assert desk.deleted == ["a", "b"]
    assert len(desk.told("throttled")) == 5


def test_a_throttled_batch_is_dropped_when_its_messages_are_visible_again() -> None:  # PLATFORM 15
    desk = Desk(queue_visibility_seconds=30)
    desk.answer = throttled_until(3600, lambda: desk.timeline)
    desk.send("a", "b")
    desk.run()
    assert desk.invoked_at == [0, 1, 3, 7, 15]
    assert desk.deleted == []
    assert [told["delivery_ids"] for told in desk.told("dropped")] == [["a", "b"]]
    assert desk.timeline.now == pytest.approx(START + 30, abs=0.1)


def test_a_throttled_batch_keeps_its_place() -> None:
    """So that a mapping does not receive without end what nobody runs."""
    desk = Desk(batch_size=1, queue_visibility_seconds=30, maximum_concurrency=5)
    desk.answer = throttled_until(3600, lambda: desk.timeline)
    desk.send(*names(12))
    desk.timeline.run(START + 29)
    assert len(desk.waiting) == 7


# FIFO


def test_a_group_is_in_one_invocation_at_a_time() -> None:  # PLATFORM 14
    """Also where its messages are visible again while the function still runs."""
    desk = Desk(queue="orders.fifo", batch_size=1)
    desk.takes_seconds = 10
    desk.send("a1", group="a")
    desk.send("b1", group="b")
    desk.send("a2", group="a", at=1)
    desk.run()
    assert desk.batches == [["a1"], ["b1"], ["a2"]]
    assert desk.invoked_at == [0, 0, 10]


def test_a_group_that_waits_is_not_overtaken_by_itself() -> None:  # PLATFORM 14
    desk = Desk(queue="orders.fifo", batch_size=2)
    desk.takes_seconds = 10
    desk.send("a1", group="a")
    desk.send("a2", group="a", at=1)
    desk.send("b1", group="b", at=1)
    desk.send("b2", group="b", at=2)
    desk.run()
    assert desk.batches == [["a1"], ["a2", "b1"], ["b2"]]


def test_a_group_that_waits_until_it_is_visible_again_is_dropped() -> None:  # PLATFORM 14, 15
    desk = Desk(queue="orders.fifo", batch_size=1, queue_visibility_seconds=30)
    desk.takes_seconds = 60
    desk.send("a1", group="a")
    desk.send("a2", group="a", at=1)
    desk.run()
    assert (desk.batches, desk.deleted) == ([["a1"]], ["a1"])
    assert [told["delivery_ids"] for told in desk.told("dropped")] == [["a2"]]


def test_group_ids_of_a_standard_queue_keep_no_order() -> None:  # PLATFORM 14
    desk = Desk(batch_size=1)
    desk.send("a1", group="a")
    desk.send("a2", group="a")
    desk.run()
    assert (desk.most_running, desk.invoked_at) == (2, [0, 0])


# trouble with SQS


def test_an_sqs_that_is_not_there_is_asked_again() -> None:
    desk = Desk()
    desk.receive_fails = 5
    desk.send("a")
    desk.run()
    assert desk.deleted == ["a"]
    assert desk.invoked_at[0] >= 5


def test_a_delete_that_failed_is_made_again() -> None:
    desk = Desk()
    desk.delete_fails = 2
    desk.send("a", "b")
    desk.run()
    assert (desk.deletes, desk.deleted) == ([2, 2, 2], ["a", "b"])


def test_a_delete_is_given_up_when_the_messages_are_visible_again() -> None:
    desk = Desk(queue_visibility_seconds=30)
    desk.delete_fails = 1_000
    desk.send("a")
    desk.run()
    assert desk.deleted == []
    assert 25 <= len(desk.deletes) <= 30


# starting and stopping


def test_a_mapping_that_was_stopped_asks_no_more_and_answers_for_what_runs() -> None:
    desk = Desk()
    desk.takes_seconds = 10
    desk.send("a")
    desk.send("b", at=5)
    desk.timeline.run(START + 2)
    desk.mapping.stop()
    desk.run()
    assert (desk.batches, desk.deleted) == ([["a"]], ["a"])
    desk.mapping.start()
    desk.run()
    assert desk.deleted == ["a", "b"]


async def _under_the_wall_clock() -> Desk:
    desk = Desk(timeline=LoopTimeline(), window_seconds=0.05)
    desk.takes_seconds = 0.01
    desk.send("a")
    desk.send("b", at=0.02)
    await asyncio.sleep(0.2)
    return desk


def test_the_same_mapping_runs_under_the_wall_clock() -> None:
    desk = asyncio.run(_under_the_wall_clock())
    assert (desk.batches, desk.deleted) == ([["a", "b"]], ["a", "b"])


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
            "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10",
        ),
        ("orders", {"window_seconds": 301}, "between 0 and 300 seconds, got 301"),
        ("orders.fifo", {"window_seconds": 1}, "not supported for FIFO"),
        ("orders", {"maximum_concurrency": 1}, "between 2 and 1000, got 1"),
        ("orders", {"maximum_concurrency": 1_001}, "between 2 and 1000, got 1001"),
        ("orders", {"filters": ["{"]}, "Invalid filter pattern definition."),
    ],
)
def test_what_lambda_refuses_is_refused(queue: str, settings: dict[str, Any], text: str) -> None:  # PLATFORM 13, 15
    with pytest.raises(InvalidParameterValue, match=text):
        MappingSettings(arn(queue), "function", **settings)


@pytest.mark.parametrize(("window", "visibility"), [(0, 180), (150, 180), (151, 211)])
def test_messages_are_received_for_the_queues_own_time_unless_window_and_function_take_longer(
    window: int, visibility: int
) -> None:
    settings = MappingSettings(
        arn("orders"), "function", window_seconds=window, queue_visibility_seconds=180, function_timeout_seconds=30
    )
    assert settings.visibility_timeout_seconds == visibility


def test_a_queue_whose_visibility_timeout_is_below_the_functions_timeout_is_refused() -> None:  # PLATFORM 13
    text = "Queue visibility timeout: 36 seconds is less than Function timeout: 450 seconds"
    with pytest.raises(InvalidParameterValue, match=f"^Invalid request provided: {text}$"):
        MappingSettings(arn("orders"), "function", queue_visibility_seconds=36, function_timeout_seconds=450)
