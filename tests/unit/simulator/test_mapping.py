"""The event source mapping, with a fake queue and a fake function: batches, responses, concurrency, settings."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult, WholeBatchFailed, failed_ids
from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import InvalidParameterValue, MappingSettings, Scaling
from tarry.tools.simulator.scheduler import START, AsyncioScheduler, Scheduler
from tarry.tools.template import TemplateMapping
from tests.wire import arn

LATENCY = 0.001

Answering = Callable[[list[str]], InvocationResult]


def reporting(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


def returns(value: Any) -> Answering:
    return lambda ids: InvocationResult("returned", value)


well = returns(reporting())


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

    def run(self, *bodies: str) -> "MappingRig":
        """Send messages and run until nothing is left to do."""
        if bodies:
            self.send(*bodies)
        assert self.scheduler.run(limit=START + 100_000) == "idle"
        return self

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def recorded(self, what: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.history.events if event.what == what]


def message(body: str, group: str | None = None) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": "1"} | ({"MessageGroupId": group} if group else {})
    name, md5 = body[:20], hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
    return {
        "MessageId": name,
        "ReceiptHandle": f"handle-{name}",
        "Body": body,
        "MD5OfBody": md5,
        "Attributes": attributes,
    }


def names(count: int) -> list[str]:
    return [f"m{index}" for index in range(count)]


# batches


def test_the_function_gets_the_records_of_sqs() -> None:
    rig = MappingRig(queue="orders.fifo")
    rig.send('{"n": 1}', group="g1")
    [record] = rig.run().events[0]["Records"]
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


@pytest.mark.parametrize(
    ("settings", "sends", "sizes", "invoked_at"),
    [
        ({"batch_size": 3}, {0: 7, 0.5: 1}, [3, 3, 1, 1], [0, 0, 0, 0.5]),  # without a window, at once
        ({"window_seconds": 20}, {100: 1, 105: 1, 119: 1, 125: 1}, [3, 1], [120, 145]),  # from the first receive on
        ({"batch_size": 25, "window_seconds": 300}, {0: 30}, [25, 5], [0.02, 300.02]),  # ends when the batch is full
        ({"batch_size": 10_000, "window_seconds": 1}, {0: 95}, [95], [1]),  # ten at a time, in each direction
        ({}, {24 * 3600: 1}, [1], [24 * 3600]),  # a day without messages takes a few receives, not a loop
    ],
)
def test_messages_go_to_the_function_when_a_batch_is_full_or_its_window_ends(
    settings: dict[str, Any], sends: dict[float, int], sizes: list[int], invoked_at: list[float]
) -> None:  # PLATFORM 13
    rig = MappingRig(**settings)
    for at, number in sends.items():
        rig.send(*(f"{at} {name}" for name in names(number)), at=at)
    rig.run()
    assert rig.sizes == sizes
    assert rig.invoked_at == pytest.approx(invoked_at, abs=0.02)
    assert len(set(rig.deleted)) == len(rig.deleted) == sum(sizes)
    assert (max(rig.receives) <= 10, max(rig.deletes) <= 10, len(rig.receives) < 20) == (True, True, True)


# responses


@pytest.mark.parametrize(
    ("response", "failed", "why"),
    [
        *((each, "", "") for each in (None, {}, reporting(), {"batchItemFailures": None}, {"somethingElse": 1})),
        (reporting("b"), "b", ""),
        (reporting("a", "c"), "ac", ""),
        (reporting("b", "b"), "b", ""),
        *((each, "abc", "not an object") for each in ("ok", [])),
        ({"batchItemFailures": "a"}, "abc", "not a list"),
        *(({"batchItemFailures": each}, "abc", "without itemIdentifier") for each in (["a"], [{"foo": "a"}])),
        *((reporting(each), "abc", f"not a non-empty string: {each!r}") for each in ("", None, 1)),
        (reporting("a", "z"), "abc", "an itemIdentifier is not the id of a message of the batch: z"),
    ],
)
def test_the_response_names_the_messages_that_failed_or_fails_the_whole_batch(
    response: Any, failed: str, why: str
) -> None:  # PLATFORM 10
    try:
        found, text = failed_ids(response, list("abc")), ""
    except WholeBatchFailed as error:
        found, text = set("abc"), str(error)
    assert found == set(failed)
    assert why in text
    assert bool(text) == bool(why)


@pytest.mark.parametrize(
    ("reports_failures", "response", "failed", "ignored", "why"),
    [
        (True, reporting("b"), ["b"], [], ""),
        (True, "{not json", ["a", "b"], [], "the response is not an object"),
        (False, reporting("b"), [], ["b"], ""),
    ],
)
def test_the_answer_of_the_function_is_recorded(
    reports_failures: bool, response: Any, failed: list[str], ignored: list[str], why: str
) -> None:  # PLATFORM 10
    answer = InvocationResult("returned", response, request_id="r1")
    rig = MappingRig(lambda ids: answer, reports_failures=reports_failures).run("a", "b")
    assert rig.deleted == [each for each in "ab" if each not in failed]
    [answered] = rig.recorded("answered")
    assert (text := answered.pop("why")).startswith(why)
    assert bool(text) == bool(why)
    assert answered == {
        "function": "handle-orders", "queue": "orders", "request_id": "r1", "kind": "returned", "failed": failed,
        "ignored": ignored,
    }  # fmt: skip


def test_a_message_that_matches_no_filter_is_deleted_without_an_invocation() -> None:  # PLATFORM 15c
    rig = MappingRig(filters=['{"body": {"n": [1]}}']).run('{"n": 1}', '{"n": 2}', "no json")
    assert rig.batches == [['{"n": 1}']]
    assert sorted(rig.deleted) == sorted(['{"n": 1}', '{"n": 2}', "no json"])
    assert [event["delivery_id"] for event in rig.recorded("filtered")] == ['{"n": 2}', "no json"]
    rig = MappingRig(filters=['{"body": {"n": [1]}}'], window_seconds=5)
    rig.run(*(json.dumps({"n": 2, "i": index}) for index in range(25)))
    assert (rig.batches, len(rig.deleted)) == ([], 25)


# concurrency


def test_concurrency_starts_at_five_and_grows_under_load() -> None:  # PLATFORM 15a
    rig = MappingRig(batch_size=1)
    rig.takes_seconds = 60
    rig.run(*names(100))
    assert len([at for at in rig.invoked_at if at < 0.1]) == 5
    assert len([at for at in rig.invoked_at if at <= 10]) == pytest.approx(5 + 10 * 300 / 60, abs=1)


@pytest.mark.parametrize("fails", [True, False])
def test_a_function_error_lowers_the_concurrency_and_reported_failures_do_not(fails: bool) -> None:  # PLATFORM 15a
    rig = MappingRig(lambda ids: InvocationResult("error", text="no") if fails else well(ids), batch_size=1)
    rig.takes_seconds = 0.1
    rig.run(*names(5))
    rig.most_running = 0
    rig.run(*(f"second {name}" for name in names(20)))
    assert (rig.most_running < 5) == fails


def test_concurrency_grows_by_300_a_minute_under_load_to_its_maximum_and_returns_to_its_start_when_idle() -> None:
    # PLATFORM 15, 15a
    scaling = Scaling()
    assert (scaling.limit(0), scaling.limit(3600), scaling.more_wanted(3600)) == (5, 5, 3600.2)
    limits = {0.1: 5, 0.2: 6, 1: 10, 60: 305, 248: 1_245, 249: 1_250, 3600: 1_250}
    assert {seconds: scaling.limit(3600 + seconds) for seconds in limits} == limits
    assert scaling.more_wanted(7200) is None
    scaling = Scaling()
    scaling.more_wanted(0)
    scaling.enough(10, running=55)
    assert scaling.limit(3600) == 55
    scaling.more_wanted(3600)
    scaling.enough(3610, running=0)
    assert scaling.limit(3610) == 5
    scaling.failed(3610, running=40)
    assert scaling.limit(3610) == 2
    scaling.failed(3610, running=1)
    assert scaling.limit(3610) == 1
    scaling.more_wanted(3610)
    assert scaling.limit(3612) == 11
    scaling = Scaling(maximum=7)
    scaling.more_wanted(0)
    assert (scaling.limit(0), scaling.limit(60)) == (5, 7)
    starts = [Scaling(maximum=2), Scaling(is_fifo=True), Scaling(50, is_fifo=True)]
    assert [each.limit(0) for each in starts] == [2, 1_250, 50]


def test_the_limit_rises_at_the_announced_time() -> None:
    """Otherwise a caller that waits until then would ask again at the same time, in an endless loop."""
    scaling, now = Scaling(), 1_800_000_000.0
    for limit in range(6, 100):
        when = scaling.more_wanted(now)
        assert when is not None
        assert when > now
        now = when
        assert scaling.limit(now) == limit


# throttles


def throttled_for(seconds: float, **settings: Any) -> MappingRig:
    rig = MappingRig(**settings)
    rig.answer = lambda ids: InvocationResult("throttled") if rig.scheduler.now < START + seconds else well(ids)
    return rig


def test_a_throttled_batch_is_retried_with_growing_pauses_and_dropped_when_its_messages_are_visible_again() -> None:
    # PLATFORM 15
    rig = throttled_for(20, queue_visibility_seconds=60).run("a", "b")
    assert (rig.invoked_at, rig.deleted) == ([0, 1, 3, 7, 15, 31], ["a", "b"])
    assert len(rig.recorded("throttled")) == 5
    rig = throttled_for(3600, queue_visibility_seconds=30).run("a", "b")
    assert (rig.invoked_at, rig.deleted) == ([0, 1, 3, 7, 15], [])
    assert [event["delivery_ids"] for event in rig.recorded("dropped")] == [["a", "b"]]
    assert rig.scheduler.now == pytest.approx(START + 30, abs=0.1)


def test_a_throttled_batch_still_counts_towards_the_concurrency() -> None:
    """Otherwise the mapping would keep receiving messages that cannot run."""
    rig = throttled_for(3600, batch_size=1, queue_visibility_seconds=30, maximum_concurrency=5)
    rig.send(*names(12))
    rig.scheduler.run(START + 29)
    assert len(rig.waiting) == 7


# FIFO


@pytest.mark.parametrize(
    ("batch_size", "sends", "batches", "invoked_at"),
    [
        (1, ["a1 0", "b1 0", "a2 1"], [["a1"], ["b1"], ["a2"]], [0, 0, 10]),  # also if they are visible again
        (2, ["a1 0", "a2 1", "b1 1", "b2 2"], [["a1"], ["a2", "b1"], ["b2"]], [0, 10, 20]),  # and do not overtake
    ],
)
def test_a_message_group_is_in_one_invocation_at_a_time(
    batch_size: int, sends: list[str], batches: list[list[str]], invoked_at: list[float]
) -> None:  # PLATFORM 14
    rig = MappingRig(queue="orders.fifo", batch_size=batch_size)
    rig.takes_seconds = 10
    for body, at in map(str.split, sends):
        rig.send(body, group=body[0], at=int(at))
    rig.run()
    assert (rig.batches, rig.invoked_at) == (batches, pytest.approx(invoked_at, abs=0.01))


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
    rig.send("a1", "a2", group="a")
    assert (rig.run().most_running, rig.invoked_at) == (2, [0, 0])


# failing requests, starting and stopping


def test_a_failed_receive_or_delete_is_repeated_until_the_messages_are_visible_again() -> None:
    rig = MappingRig()
    rig.receive_fails, rig.delete_fails = 5, 2
    rig.run("a", "b")
    assert (rig.invoked_at[0] >= 5, rig.deletes, rig.deleted) == (True, [2, 2, 2], ["a", "b"])
    rig = MappingRig(queue_visibility_seconds=30)
    rig.delete_fails = 1_000
    assert rig.run("a").deleted == []
    assert 25 <= len(rig.deletes) <= 30


def test_a_limited_mapping_receives_only_the_messages_that_it_may_run() -> None:
    rig = MappingRig(batch_size=1).run()
    rig.mapping.limit_to(0)
    receives = len(rig.receives)
    rig.run(*names(4))
    assert (rig.batches, rig.receives[receives:], len(rig.waiting)) == ([], [], 4)
    for limit, more, seen in ((1, [], (4, 1)), (None, names(4), (8, 4))):
        rig.mapping.limit_to(limit)
        rig.run(*more)
        assert (len(rig.batches), rig.most_running) == seen


def test_a_stopped_mapping_makes_no_receives_and_still_deletes_the_messages_of_running_invocations() -> None:
    rig = MappingRig()
    rig.takes_seconds = 10
    rig.send("a")
    rig.send("b", at=5)
    rig.scheduler.run(START + 2)
    rig.mapping.stop()
    assert (rig.run().batches, rig.deleted) == ([["a"]], ["a"])
    rig.mapping.start()
    assert rig.run().deleted == ["a", "b"]


def test_a_mapping_runs_in_real_time_too() -> None:
    async def in_real_time() -> MappingRig:
        rig = MappingRig(scheduler=AsyncioScheduler(), batch_size=2, window_seconds=30)
        rig.takes_seconds = 0.01
        rig.send("a")
        rig.send("b", at=0.02)
        async with asyncio.timeout(30):
            while len(rig.deleted) < 2:  # noqa: ASYNC110 there is no event to wait for
                await asyncio.sleep(0.01)
        return rig

    assert asyncio.run(in_real_time()).batches == [["a", "b"]]


# settings

TOO_SHORT = {"queue_visibility_seconds": 36, "function_timeout_seconds": 450}


@pytest.mark.parametrize(
    ("queue", "settings", "text"),
    [
        ("orders", {"batch_size": 0}, "between 1 and 10000, got 0"),
        ("orders", {"batch_size": 10_001, "window_seconds": 1}, "between 1 and 10000, got 10001"),
        ("orders.fifo", {"batch_size": 11}, "between 1 and 10, got 11"),
        ("orders", {"batch_size": 11}, "must be greater than 0 if maximum batch size is greater than 10"),
        ("orders", {"window_seconds": 301}, "between 0 and 300 seconds, got 301"),
        ("orders.fifo", {"window_seconds": 1}, "not supported for FIFO"),
        ("orders", {"maximum_concurrency": 1}, "between 2 and 1000, got 1"),
        ("orders", {"maximum_concurrency": 1_001}, "between 2 and 1000, got 1001"),
        ("orders", {"filters": ["{"]}, "Invalid filter pattern definition."),
        ("orders", TOO_SHORT, "^Invalid request provided: Queue visibility timeout: 36 seconds is less than .*: 450"),
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


def test_a_mapping_that_is_disabled_receives_until_it_is_and_batches_in_flight_run_to_their_end() -> None:
    rig = MappingRig(batch_size=1)
    rig.takes_seconds = 10
    rig.mapping.change(5, enabled=False, maximum_concurrency=None)
    for at in (3, 8, 20):
        rig.send(f"at {at}", at=at)
    rig.scheduler.run(START + 2)
    assert rig.mapping.state == "Disabling"
    rig.run()
    assert (rig.mapping.state, rig.batches, rig.deleted, len(rig.waiting)) == ("Disabled", [["at 3"]], ["at 3"], 2)
    rig.mapping.change(5, enabled=True, maximum_concurrency=2)
    assert rig.mapping.state == "Enabling"
    rig.run(*names(4))
    assert (rig.mapping.state, len(rig.batches), rig.most_running, rig.waiting) == ("Enabled", 7, 2, [])
    rig.mapping.change(1, enabled=True, maximum_concurrency=None)
    assert rig.mapping.state == "Updating"
    rig.run()
    rig.run(*names(9))
    assert rig.most_running >= 5


def test_a_mapping_that_is_scaled_starts_anew_below_its_maximum() -> None:
    scaling = Scaling(maximum=2)
    scaling.change(None, 0)
    assert (scaling.limit(0), scaling.more_wanted(0)) == (5, 0.2)
    assert scaling.limit(10) == 55
    scaling.change(10, 10)
    assert (scaling.limit(10), scaling.more_wanted(10)) == (10, None)
