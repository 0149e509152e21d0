"""`keepalive=`: leases are extended while handlers run."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Fixed, Message, Reject, batch_consumer, consumer
from tarry.message.message import delivery_of
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tarry.world import current
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Request, Wire

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
        keepalive: float | None = 10,
        visibility: int = 30,
        queue: str = "orders",
        handler: Any = None,
        **settings: Any,
    ) -> None:
        self.sandbox, self.queue = sandbox, queue
        self.ran: list[str] = []

        def note_and_handle(message: Message) -> None:
            self.ran.append(message.body)
            handle(message)

        settings = {"keepalive": keepalive, "backoff": Fixed(100), **settings}
        inner = consumer(**settings)(note_and_handle) if handler is None else handler
        sandbox.queue(queue, visibility_timeout=900, dead_letter="dead.fifo" if queue.endswith(".fifo") else "dead")

        def function(the_event: Any, context: Any) -> Any:
            for each in the_event["Records"]:
                self.change_visibility(each["receiptHandle"], visibility)
            return inner(the_event, context)

        sandbox.connect(function, queue, timeout=900)
        attributes = {"VisibilityTimeout": str(visibility)}
        sandbox.sqs.call("SetQueueAttributes", {"QueueUrl": sandbox.sqs.url(queue), "Attributes": attributes})

    def change_visibility(self, handle: str | None, seconds: int = 0) -> None:
        """Change the visibility timeout of a message without tarry."""
        parameters = {
            "QueueUrl": self.sandbox.sqs.url(self.queue),
            "ReceiptHandle": handle,
            "VisibilityTimeout": seconds,
        }
        self.sandbox.sqs.call("ChangeMessageVisibility", parameters)

    def delete(self, handle: str | None) -> None:
        """Delete a message, as another consumer would."""
        parameters = {"QueueUrl": self.sandbox.sqs.url(self.queue), "ReceiptHandle": handle}
        self.sandbox.sqs.call("DeleteMessage", parameters)

    def send(self, *bodies: str, group: str | None = None) -> "KeepaliveRun":
        for body in bodies:
            self.sandbox.send(self.queue, body, group_id=group)
        return self

    def run(self) -> "KeepaliveRun":
        self.sandbox.run(check=False)
        return self

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


def test_a_handler_may_take_longer_than_its_queues_visibility_timeout(sandbox: Sandbox) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(200)).send("order").run()
    assert run.ran == ["order"]


def test_without_keepalive_the_message_is_delivered_again_while_its_handler_runs(sandbox: Sandbox) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(200), keepalive=None).send("order").run()
    assert len(run.ran) > 1


def test_at_each_interval_leases_are_extended_to_three_intervals(sandbox: Sandbox) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(45)).send("order").run()
    assert run.extended == [(10, 30), (20, 30), (30, 30), (40, 30)]


def test_keepalive_never_shortens_a_lease(sandbox: Sandbox) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(25), visibility=300).send("order").run()
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
    run = KeepaliveRun(sandbox, handle).send("order").run()
    assert [seconds for _, seconds in run.extended] == changes


def test_keepalive_extends_a_lease_that_would_end_while_its_handler_waits_for_an_extension(
    sandbox: Sandbox,
) -> None:  # SPEC I4, I6
    sandbox.faults.add("late", operation=CHANGE_VISIBILITY, seconds=4)
    run = KeepaliveRun(sandbox, lambda message: message.extend(5), keepalive=1, visibility=3)
    assert run.send("order").run().ran == ["order"]


def test_a_lease_of_unknown_length_is_assumed_to_last_as_long_as_the_functions_timeout(
    sandbox: Sandbox,
) -> None:  # SPEC I4
    """Three intervals would be 3 seconds, less than the visibility timeout of any queue of this function."""
    sandbox.faults.add("denied", operation="GetQueueAttributes", times=None)
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(2.5), keepalive=1, visibility=900).send("order").run()
    assert [round(when + seconds) for when, seconds in run.extended] == [900, 900]


def test_the_leases_of_waiting_messages_are_extended_too_ten_in_a_request(sandbox: Sandbox) -> None:  # SPEC I4
    bodies = [f"order-{number}" for number in range(10)]
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(20)).send(*bodies).run()
    assert sorted(run.ran) == sorted(bodies)
    assert run.extended.count((10, 30)) == 10
    assert [round(each.at - sandbox.now + sandbox.elapsed) for each in run.requests()].count(10) == 1


def test_a_lease_is_not_extended_after_its_message_has_ended(sandbox: Sandbox) -> None:  # SPEC I4
    """With two messages of 15 seconds, only the second is extended at 20 seconds, and the first is deleted."""
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(15)).send("first", "second").run()
    assert [when for when, _ in run.extended] == [10, 10, 20]
    assert len(run.requests("DeleteMessageBatch")) == 1


def test_a_finished_message_is_not_redelivered_before_the_response(sandbox: Sandbox) -> None:  # SPEC I4
    """Lambda deletes it only after the response, long after its lease would have ended."""

    def handle(message: Message) -> None:
        sandbox.sleep(1 if message.body == "first" else 200)

    run = KeepaliveRun(sandbox, handle).send("first", "second").run()
    assert run.ran == ["first", "second"]


def test_a_failed_message_is_redelivered_after_its_delay_while_its_batch_still_runs(
    sandbox: Sandbox,
) -> None:  # SPEC C11, I4
    """The first message fails at once; the second takes as long as the delay of the first."""
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(sandbox.elapsed)
        if message.body == "first" and message.receive_count == 1:
            raise ValueError
        sandbox.sleep(100)

    run = KeepaliveRun(sandbox, handle).send("first", "second").run()
    assert run.ran == ["first", "second", "first"]
    assert times[2] - times[0] == pytest.approx(100, abs=2)


def test_a_clean_batch_shorter_than_the_interval_makes_no_request(sandbox: Sandbox) -> None:  # SPEC G2
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(9)).send("order").run()
    assert run.requests() == run.requests("GetQueueAttributes") == []


def test_an_extension_in_progress_does_not_override_the_delay_of_a_failed_message(sandbox: Sandbox) -> None:  # SPEC I4
    """An extension is in progress when the handler fails. The message waits for the delay of its policy."""
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(sandbox.elapsed)
        if message.receive_count == 1:
            sandbox.sleep(10.001)
            raise ValueError

    KeepaliveRun(sandbox, handle).send("order").run()
    assert times[1] - times[0] >= 110


@pytest.mark.parametrize("kind", ["async", "batch", "threads"])
def test_keepalive_works_for_all_kinds_of_handlers(kind: str, sandbox: Sandbox) -> None:  # SPEC I4
    ran: list[str] = []

    @consumer(keepalive=10)
    async def in_a_task(message: Message) -> None:
        ran.append(message.body)
        await current().clock.asleep(100)

    @batch_consumer(keepalive=10)
    def of_the_batch(batch: Batch) -> None:
        ran.extend(message.body for message in batch)
        sandbox.sleep(100)

    @consumer(keepalive=10, concurrency=2)
    def in_a_thread(message: Message) -> None:
        ran.append(message.body)
        sandbox.sleep(100)

    handler = {"async": in_a_task, "batch": of_the_batch, "threads": in_a_thread}[kind]
    KeepaliveRun(sandbox, handler=handler).send("a", "b").run()
    assert sorted(ran) == ["a", "b"]


# a lease that is lost


def test_a_lease_is_lost_when_sqs_refuses_the_handle(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    def handle(message: Message) -> None:
        run.delete(delivery_of(message).receipt_handle)
        sandbox.sleep(25)

    run = KeepaliveRun(sandbox, handle)
    run.send("order").run()
    assert [field(line, "event") for line in lines(caplog, level=30)] == ["lease_lost"]
    assert len(run.extended) == 0


def test_a_message_with_a_lost_lease_is_acknowledged_if_its_handler_succeeds(sandbox: Sandbox) -> None:  # SPEC I4
    answers: list[list[str]] = []

    def handle(message: Message) -> None:
        run.delete(delivery_of(message).receipt_handle)
        sandbox.sleep(15)

    run = KeepaliveRun(sandbox, handler=recording(answers, handle))
    run.send("order").run()
    assert answers == [[]]


@pytest.mark.parametrize("error", [ValueError(), Reject()])
def test_a_message_with_a_lost_lease_is_only_reported_if_its_handler_fails(
    error: Exception, sandbox: Sandbox
) -> None:  # SPEC I4
    answers: list[list[str]] = []

    def handle(message: Message) -> None:
        run.delete(delivery_of(message).receipt_handle)
        sandbox.sleep(15)
        raise error

    run = KeepaliveRun(sandbox, handler=recording(answers, handle))
    run.send("order").run()
    assert len(answers[0]) == 1
    assert len(run.requests()) == 1  # the refused extension
    assert run.requests("SendMessageBatch") == []


def recording(answers: list[list[str]], handle: Callable[[Message], Any]) -> Any:
    inner = consumer(keepalive=10, backoff=Fixed(100))(handle)

    def handler(the_event: Any, context: Any) -> Any:
        answer = inner(the_event, context)
        answers.append(failed(answer))
        return answer

    return handler


def test_a_lease_is_lost_when_its_extensions_fail_until_its_end(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    """The lease is extended at 10 seconds, until 40; then all extensions fail."""
    ended: list[float] = []

    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(11)
            sandbox.faults.add("unavailable", operation=CHANGE_VISIBILITY, times=None)
            sandbox.sleep(24)
            assert not lines(caplog, "lease_lost")
            sandbox.sleep(20)
            sandbox.faults.clear()
            ended.append(sandbox.elapsed)
            raise ValueError

    KeepaliveRun(sandbox, handle).send("order").run()
    [line] = lines(caplog, "lease_lost")
    assert "The lease has ended: another consumer may have the message" in field(line, "text")
    assert ended


def test_a_lease_survives_an_extension_that_fails_once(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    sandbox.faults.add("unavailable", operation=CHANGE_VISIBILITY, times=2)  # both tries of boto3
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(100)).send("order").run()
    assert run.ran == ["order"]
    assert lines(caplog, "lease_lost") == []


def test_on_fifo_a_message_that_loses_its_lease_while_it_waits_does_not_run(sandbox: Sandbox) -> None:  # SPEC I4, H4
    answers: list[list[str]] = []
    handles: list[str] = []
    ran: list[str] = []

    def handle(message: Message) -> None:
        ran.append(message.body)
        if message.body == "first":
            run.delete(handles[1])
            sandbox.sleep(15)

    inner = recording(answers, handle)

    def handler(the_event: Any, context: Any) -> Any:
        handles.extend(each["receiptHandle"] for each in the_event["Records"])
        return inner(the_event, context)

    run = KeepaliveRun(sandbox, queue="ledger.fifo", handler=handler)
    run.send("first", "second", "third", group="a").run()
    assert ran == ["first", "third"]
    assert len(answers[0]) == 2


def test_a_message_dead_lettered_during_the_batch_does_not_count_as_a_lost_lease(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    """On FIFO, it is sent and deleted before its group continues, so SQS refuses its receipt handle afterwards."""

    def handle(message: Message) -> None:
        if message.body == "first":
            raise Reject
        sandbox.sleep(25)

    run = KeepaliveRun(sandbox, handle, queue="ledger.fifo").send("first", "second", group="a").run()
    assert run.ran == ["first", "second"]
    assert lines(caplog, "lease_lost") == []


def test_a_message_deleted_eagerly_does_not_count_as_a_lost_lease(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    def handle(message: Message) -> None:
        message.ack()
        sandbox.sleep(25)

    KeepaliveRun(sandbox, handle, ack="eager").send("order").run()
    assert lines(caplog, level=30) == []


# costs and limits


def test_an_extension_that_hangs_delays_the_response_by_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC I4, G6
    ended: list[float] = []

    def handle(message: Message) -> None:
        sandbox.sleep(10.5)
        ended.append(sandbox.elapsed)

    sandbox.faults.add("hang", operation=CHANGE_VISIBILITY, times=None)
    run = KeepaliveRun(sandbox, handle).send("order")
    sandbox.run(lambda: any(each.what == "answered" for each in sandbox.history.events), check=False)
    assert sandbox.elapsed - ended[0] <= 2.5
    assert run.ran == ["order"]


def test_an_interval_above_the_visibility_timeout_is_logged_with_a_remedy(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(300), keepalive=45).send("order")
    sandbox.advance(100)
    assert run.ran[0] == "order"
    line = lines(caplog, "keepalive_too_long")[0]
    assert "keepalive=45 is too long" in field(line, "text")
    assert "Set keepalive=10" in field(line, "text")


def test_no_lease_is_extended_beyond_the_12_hour_limit_of_sqs() -> None:  # SPEC I4, C6
    """The message was received 12 hours minus 10 seconds ago. The threads are real."""
    extended = threading.Event()

    def note(_: Request) -> None:
        extended.set()

    @consumer(keepalive=0.01)
    def handler(message: Message) -> None:
        assert extended.wait(60)

    with Wire(fails={CHANGE_VISIBILITY: note}, queues={"orders": Queue(visibility_timeout=43_200)}) as wire:
        old = record("{}", "m1", received_at=RECEIVED_AT - 43_190)
        assert failed(handler(event(old), Context(900))) == []
    assert wire.visibilities() == {"handle-m1": 9}


@pytest.mark.parametrize("keepalive", [0, -1, True, float("nan"), float("inf"), "10"])
def test_invalid_intervals_are_refused(keepalive: Any) -> None:  # SPEC C5, I4
    with pytest.raises(ConfigurationError, match="keepalive must be a number of seconds above 0"):
        consumer(keepalive=keepalive)
