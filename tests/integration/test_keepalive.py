"""`keepalive=`: leases are extended while handlers run."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Fixed, Message, Reject, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tarry.world import current
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Wire

CHANGE_VISIBILITY = "ChangeMessageVisibilityBatch"


class KeepaliveRun:
    """A queue with a short visibility timeout, and a consumer whose handler may take longer.

    Lambda refuses a mapping whose queue has a visibility timeout below the function's timeout, so each lease is
    shortened at the start of the invocation.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        handle: Callable[[Message], Any] = lambda _: None,
        *,
        visibility: int = 30,
        queue: str = "orders",
        handler: Any = None,
        **settings: Any,
    ) -> None:
        self.sandbox, self.queue = sandbox, queue
        self.ran: list[str] = []
        self.times: list[float] = []
        """When the runs of `ran` began."""
        self.handles: list[str] = []
        self.answers: list[list[str]] = []

        def note_and_handle(message: Message) -> None:
            self.ran.append(message.body)
            self.times.append(sandbox.elapsed)
            handle(message)

        inner = handler or consumer(**{"keepalive": 10, "backoff": Fixed(100), **settings})(note_and_handle)
        sandbox.queue(queue, visibility_timeout=900, dead_letter="dead.fifo" if queue.endswith(".fifo") else "dead")

        def function(the_event: Any, context: Any) -> Any:
            handles = [each["receiptHandle"] for each in the_event["Records"]]
            for handle in handles:
                self._call("ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=visibility)
            self.handles += handles
            answer = inner(the_event, context)
            self.answers.append(failed(answer))
            return answer

        sandbox.connect(function, queue, timeout=900)
        self._call("SetQueueAttributes", Attributes={"VisibilityTimeout": str(visibility)})

    def of(self, *bodies: str, until: Callable[[], bool] | None = None) -> "KeepaliveRun":
        for body in bodies:
            self.sandbox.send(self.queue, body, group_id="a" if self.queue.endswith(".fifo") else None)
        self.sandbox.run(until, check=False)
        return self

    def delete(self, handle: str) -> None:
        """Delete a message, as another consumer would: its lease is lost."""
        self._call("DeleteMessage", ReceiptHandle=handle)

    def _call(self, operation: str, **parameters: Any) -> None:
        self.sandbox.sqs.call(operation, {"QueueUrl": self.sandbox.sqs.url(self.queue), **parameters})

    def requests(self, operation: str = CHANGE_VISIBILITY) -> list[HistoryEvent]:
        made = (each for each in self.sandbox.history.events if each.what == "request")
        return [each for each in made if each.fields["operation"] == operation]

    @property
    def extended(self) -> list[tuple[int, int]]:
        """The visibility changes: the time, in seconds since the sandbox was made, and the new timeout in seconds."""
        began = self.sandbox.now - self.sandbox.elapsed
        changed = [each for each in self.sandbox.history.events if each.what == "visibility_changed"]
        own = [each for each in changed if each.fields.get("by") and each.at - began > 1]
        return [(round(each.at - began), each.fields["seconds"]) for each in own]


def test_at_each_interval_leases_are_extended_to_three_intervals(sandbox: Sandbox) -> None:  # SPEC I4
    """So the handler may take longer than the visibility timeout of its queue."""
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(45)).of("order")
    assert (run.ran, run.extended) == (["order"], [(10, 30), (20, 30), (30, 30), (40, 30)])


def test_without_keepalive_the_message_is_delivered_again_while_its_handler_runs(sandbox: Sandbox) -> None:  # SPEC I4
    assert len(KeepaliveRun(sandbox, lambda _: sandbox.sleep(45), keepalive=None).of("order").ran) > 1


def test_keepalive_never_shortens_a_lease(sandbox: Sandbox) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(25), visibility=300).of("order")
    assert [when for when, _ in run.extended] == [10, 20]
    assert all(290 <= when + seconds <= 301 for when, seconds in run.extended)


@pytest.mark.parametrize(("extends_at", "changes"), [(9.5, [300]), (10.3, [30, 300])], ids=["before", "during"])
def test_keepalive_does_not_undo_an_extension_of_the_handler(
    sandbox: Sandbox, extends_at: float, changes: list[int]
) -> None:  # SPEC I4, I6
    """Requests take a while to SQS: at 10 seconds, that of keepalive leaves before or after that of the handler."""

    def handle(message: Message) -> None:
        sandbox.sleep(extends_at)
        message.extend(300)
        sandbox.sleep(5)

    sandbox.faults.add("late", operation=CHANGE_VISIBILITY, times=2, seconds=0.9)
    assert [seconds for _, seconds in KeepaliveRun(sandbox, handle).of("order").extended] == changes


def test_keepalive_extends_a_lease_that_would_end_while_its_handler_waits_for_an_extension(sandbox: Sandbox) -> None:
    # SPEC I4, I6
    sandbox.faults.add("late", operation=CHANGE_VISIBILITY, seconds=4)
    run = KeepaliveRun(sandbox, lambda message: message.extend(5), keepalive=1, visibility=3)
    assert run.of("order").ran == ["order"]


def test_a_lease_of_unknown_length_is_assumed_to_last_as_long_as_the_functions_timeout(sandbox: Sandbox) -> None:
    """SPEC I4. Three intervals would be 3 seconds, less than the visibility timeout of any queue of this function."""
    sandbox.faults.add("denied", operation="GetQueueAttributes", times=None)
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(2.5), keepalive=1, visibility=900).of("order")
    assert [round(when + seconds) for when, seconds in run.extended] == [900, 900]


def test_the_leases_of_waiting_messages_are_extended_too_ten_in_a_request_until_they_end(sandbox: Sandbox) -> None:
    # SPEC I4
    """Leases of ended messages are not, and the request that deletes those is made before their leases end."""
    bodies = [f"order-{number}" for number in range(10)]
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(16)).of(*bodies)
    assert sorted(run.ran) == sorted(bodies)
    assert [run.extended.count((when, 30)) for when in (10, 20, 30, 40)] == [10, 9, 9, 8]
    assert [round(each.at - sandbox.now + sandbox.elapsed) for each in run.requests()].count(10) == 1
    assert run.requests("DeleteMessageBatch")


def test_a_finished_message_is_not_redelivered_before_the_response(sandbox: Sandbox) -> None:  # SPEC I4
    """Lambda deletes it only after the response, long after its lease would have ended."""
    run = KeepaliveRun(sandbox, lambda message: sandbox.sleep(1 if message.body == "first" else 200))
    assert run.of("first", "second").ran == ["first", "second"]


def test_a_failed_message_is_redelivered_after_its_delay_while_its_batch_still_runs(sandbox: Sandbox) -> None:
    """SPEC C11, I4. The first message fails at once; the second takes as long as the delay of the first."""

    def handle(message: Message) -> None:
        if message.body == "first" and message.receive_count == 1:
            raise ValueError
        sandbox.sleep(100)

    run = KeepaliveRun(sandbox, handle).of("first", "second")
    assert run.ran == ["first", "second", "first"]
    assert run.times[2] - run.times[0] == pytest.approx(100, abs=2)


def test_a_clean_batch_shorter_than_the_interval_makes_no_request(sandbox: Sandbox) -> None:  # SPEC G2
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(9)).of("order")
    assert run.requests() == run.requests("GetQueueAttributes") == []


def test_an_extension_in_progress_does_not_override_the_delay_of_a_failed_message(sandbox: Sandbox) -> None:  # SPEC I4
    """An extension is in progress when the handler fails. The message waits for the delay of its policy."""

    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(10.001)
            raise ValueError

    run = KeepaliveRun(sandbox, handle).of("order")
    assert run.times[1] - run.times[0] >= 110


@pytest.mark.parametrize("kind", ["async", "batch", "threads"])
def test_keepalive_works_for_all_kinds_of_handlers(kind: str, sandbox: Sandbox) -> None:  # SPEC I4
    ran: list[str] = []

    async def in_a_task(message: Message) -> None:
        ran.append(message.body)
        await current().clock.asleep(100)

    def of_the_batch(batch: Batch) -> None:
        ran.extend(message.body for message in batch)
        sandbox.sleep(100)

    def in_a_thread(message: Message) -> None:
        ran.append(message.body)
        sandbox.sleep(100)

    handlers: dict[str, Any] = {
        "async": consumer(keepalive=10)(in_a_task),
        "batch": batch_consumer(keepalive=10)(of_the_batch),
        "threads": consumer(keepalive=10, concurrency=2)(in_a_thread),
    }
    KeepaliveRun(sandbox, handler=handlers[kind]).of("a", "b")
    assert sorted(ran) == ["a", "b"]


@pytest.mark.parametrize("error", [None, ValueError(), Reject()], ids=["success", "a failure", "a verdict"])
def test_a_lease_is_lost_when_sqs_refuses_the_handle(error: Exception | None, sandbox: Sandbox, caplog: Caplog) -> None:
    """SPEC I4. A message that succeeds is acknowledged all the same; one that fails is only reported."""

    def handle(message: Message) -> None:
        run.delete(run.handles[-1])
        sandbox.sleep(25)
        if error is not None:
            raise error

    run = KeepaliveRun(sandbox, handle)
    run.of("order")
    assert len(run.answers[0]) == (error is not None)
    assert lines(caplog, level=30)[0] in lines(caplog, "lease_lost")
    assert len(lines(caplog, "lease_lost")) == len(run.requests()) == 1  # the refused extension
    assert (run.extended, run.requests("SendMessageBatch")) == ([], [])


@pytest.mark.parametrize("times", [2, None], ids=["once", "until its end"])
def test_a_lease_survives_an_extension_that_fails_once_and_is_lost_at_its_end(
    times: int | None, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I4
    """The lease is extended at 10 seconds, until 40; then extensions fail. Both tries of boto3 make one failure."""

    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(11)
            sandbox.faults.add("unavailable", operation=CHANGE_VISIBILITY, times=times)
            sandbox.sleep(24)
            assert not lines(caplog, "lease_lost")
            sandbox.sleep(20)
            sandbox.faults.clear()

    run = KeepaliveRun(sandbox, handle).of("order")
    found = [field(line, "text") for line in lines(caplog, "lease_lost")]
    if times is None:
        assert ["The lease has ended: another consumer may have the message" in text for text in found] == [True]
    else:
        assert (run.ran, found) == (["order"], [])


def test_on_fifo_a_message_that_loses_its_lease_while_it_waits_does_not_run(sandbox: Sandbox) -> None:  # SPEC I4, H4
    def handle(message: Message) -> None:
        if message.body == "first":
            run.delete(run.handles[1])
            sandbox.sleep(15)

    run = KeepaliveRun(sandbox, handle, queue="ledger.fifo")
    run.of("first", "second", "third")
    assert run.ran == ["first", "third"]
    assert len(run.answers[0]) == 2


@pytest.mark.parametrize(
    ("verdict", "settings"),
    [(Message.reject, {"queue": "ledger.fifo"}), (Message.ack, {"ack": "eager"})],
    ids=["dead-lettered on FIFO", "deleted eagerly"],
)
def test_a_message_settled_during_the_batch_does_not_count_as_a_lost_lease(
    verdict: Any, settings: Any, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I4
    """It is deleted before the batch ends, so SQS refuses its receipt handle afterwards."""

    def handle(message: Message) -> None:
        if message.body == "first":
            verdict(message)
        sandbox.sleep(25)

    assert KeepaliveRun(sandbox, handle, **settings).of("first", "second").ran == ["first", "second"]
    assert lines(caplog, "lease_lost") == []


def test_an_extension_that_hangs_delays_the_response_by_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC I4, G6
    ended: list[float] = []

    def handle(message: Message) -> None:
        sandbox.sleep(10.5)
        ended.append(sandbox.elapsed)

    sandbox.faults.add("hang", operation=CHANGE_VISIBILITY, times=None)
    run = KeepaliveRun(sandbox, handle)
    run.of("order", until=lambda: any(each.what == "answered" for each in sandbox.history.events))
    assert (sandbox.elapsed - ended[0] <= 2.5, run.ran) == (True, ["order"])


def test_an_interval_above_the_visibility_timeout_is_logged_with_a_remedy(sandbox: Sandbox, caplog: Caplog) -> None:
    # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(300), keepalive=45)
    run.of("order", until=lambda: sandbox.elapsed > 100)
    line = lines(caplog, "keepalive_too_long")[0]
    assert "keepalive=45 is too long" in field(line, "text")
    assert "Set keepalive=10" in field(line, "text")


def test_no_lease_is_extended_beyond_the_12_hour_limit_of_sqs() -> None:  # SPEC I4, C6
    """The message was received 12 hours minus 10 seconds ago. The threads are real."""
    extended = threading.Event()

    @consumer(keepalive=0.01)
    def handler(message: Message) -> None:
        assert extended.wait(60)

    with Wire(queues={"orders": Queue(visibility_timeout=43_200)}) as wire:
        wire.fails[CHANGE_VISIBILITY] = lambda _: extended.set()  # type: ignore[func-returns-value]
        old = record("{}", "m1", received_at=RECEIVED_AT - 43_190)
        assert failed(handler(event(old), Context(900))) == []
    assert wire.visibilities() == {"handle-m1": 9}


@pytest.mark.parametrize("keepalive", [0, -1, True, float("nan"), float("inf"), "10"])
def test_invalid_intervals_are_refused(keepalive: Any) -> None:  # SPEC C5, I4
    with pytest.raises(ConfigurationError, match="keepalive must be a number of seconds above 0"):
        consumer(keepalive=keepalive)
