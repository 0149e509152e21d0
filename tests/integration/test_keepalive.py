"""`keepalive=`: leases are extended while handlers run."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Fixed, Message, Reject, batch_consumer, consumer
from tarry.message import delivery_of
from tarry.simulator.history import HistoryEvent
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Request, Wire

HIDE = "ChangeMessageVisibilityBatch"


class Kept:
    """A queue that hides its messages for a short time, and a consumer whose handler may take longer.

    Lambda makes no mapping with a visibility timeout below the function's, so the lease is shortened as it begins.
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

        def run(message: Message) -> None:
            self.ran.append(message.body)
            handle(message)

        settings = {"keepalive": keepalive, "backoff": Fixed(100), **settings}
        kept = consumer(**settings)(run) if handler is None else handler
        sandbox.queue(queue, visibility_timeout=900, dead_letter="dead.fifo" if queue.endswith(".fifo") else "dead")

        def function(the_event: Any, context: Any) -> Any:
            for each in the_event["Records"]:
                self.show(each["receiptHandle"], visibility)
            return kept(the_event, context)

        sandbox.connect(function, queue, timeout=900)
        attributes = {"VisibilityTimeout": str(visibility)}
        sandbox.sqs.call("SetQueueAttributes", {"QueueUrl": sandbox.sqs.url(queue), "Attributes": attributes})

    def show(self, handle: str | None, seconds: int = 0) -> None:
        """Gives a message another visibility, past tarry."""
        parameters = {
            "QueueUrl": self.sandbox.sqs.url(self.queue),
            "ReceiptHandle": handle,
            "VisibilityTimeout": seconds,
        }
        self.sandbox.sqs.call("ChangeMessageVisibility", parameters)

    def take(self, handle: str | None) -> None:
        """Deletes a message, as somebody else who was done with it would."""
        parameters = {"QueueUrl": self.sandbox.sqs.url(self.queue), "ReceiptHandle": handle}
        self.sandbox.sqs.call("DeleteMessage", parameters)

    def send(self, *bodies: str, group: str | None = None) -> "Kept":
        for body in bodies:
            self.sandbox.send(self.queue, body, group_id=group)
        return self

    def run(self) -> "Kept":
        self.sandbox.run(check=False)
        return self

    def requests(self, operation: str = HIDE) -> list[HistoryEvent]:
        made = (each for each in self.sandbox.history.events if each.what == "request")
        return [each for each in made if each.fields["operation"] == operation]

    @property
    def extended(self) -> list[tuple[int, int]]:
        """The entries of visibility requests: when, in seconds since the sandbox was made, and to how many seconds."""
        began = self.sandbox.now - self.sandbox.elapsed
        changed = [each for each in self.sandbox.history.events if each.what == "visibility_changed"]
        own = [each for each in changed if each.fields.get("by") and each.at - began > 1]
        return [(round(each.at - began), each.fields["seconds"]) for each in own]


def test_a_handler_may_take_longer_than_its_queues_visibility_timeout(sandbox: Sandbox) -> None:  # SPEC I4
    kept = Kept(sandbox, lambda _: sandbox.sleep(200)).send("order").run()
    assert kept.ran == ["order"]


def test_without_it_the_message_is_delivered_again_while_it_runs(sandbox: Sandbox) -> None:  # SPEC I4
    kept = Kept(sandbox, lambda _: sandbox.sleep(200), keepalive=None).send("order").run()
    assert len(kept.ran) > 1


def test_every_so_many_seconds_leases_are_extended_to_three_times_as_many(sandbox: Sandbox) -> None:  # SPEC I4
    kept = Kept(sandbox, lambda _: sandbox.sleep(45)).send("order").run()
    assert kept.extended == [(10, 30), (20, 30), (30, 30), (40, 30)]


def test_no_lease_becomes_shorter_than_it_is_known_to_be(sandbox: Sandbox) -> None:  # SPEC I4
    kept = Kept(sandbox, lambda _: sandbox.sleep(25), visibility=300).send("order").run()
    assert [when for when, _ in kept.extended] == [10, 20]
    assert all(290 <= when + seconds <= 301 for when, seconds in kept.extended)


def test_a_lease_that_nobody_tells_of_is_taken_to_last_as_long_as_the_function_may(sandbox: Sandbox) -> None:  # SPEC I4
    """Three seconds, three times the interval, would be less than any queue of this function hides its messages."""
    sandbox.faults.add("denied", operation="GetQueueAttributes", times=None)
    kept = Kept(sandbox, lambda _: sandbox.sleep(2.5), keepalive=1, visibility=900).send("order").run()
    assert [round(when + seconds) for when, seconds in kept.extended] == [900, 900]


def test_what_waits_for_its_turn_is_kept_too_ten_in_a_request(sandbox: Sandbox) -> None:  # SPEC I4
    bodies = [f"order-{number}" for number in range(10)]
    kept = Kept(sandbox, lambda _: sandbox.sleep(20)).send(*bodies).run()
    assert sorted(kept.ran) == sorted(bodies)
    assert kept.extended.count((10, 30)) == 10
    assert [round(each.at - sandbox.now + sandbox.elapsed) for each in kept.requests()].count(10) == 1


def test_it_ends_with_the_message(sandbox: Sandbox) -> None:  # SPEC I4
    """Two messages of 15 seconds: at 20 only the second is extended, and the first deleted."""
    kept = Kept(sandbox, lambda _: sandbox.sleep(15)).send("first", "second").run()
    assert [when for when, _ in kept.extended] == [10, 10, 20]
    assert len(kept.requests("DeleteMessageBatch")) == 1


def test_what_is_done_does_not_come_back_before_the_answer(sandbox: Sandbox) -> None:  # SPEC I4
    """Lambda deletes it only then, and that is long after its lease has ended."""

    def handle(message: Message) -> None:
        sandbox.sleep(1 if message.body == "first" else 200)

    kept = Kept(sandbox, handle).send("first", "second").run()
    assert kept.ran == ["first", "second"]


def test_what_has_failed_comes_back_when_its_delay_is_over_and_is_not_kept_longer(
    sandbox: Sandbox,
) -> None:  # SPEC C11, I4
    """The first fails at once, and the second takes as long as the delay: the first comes back meanwhile."""
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(sandbox.elapsed)
        if message.body == "first" and message.receive_count == 1:
            raise ValueError
        sandbox.sleep(100)

    kept = Kept(sandbox, handle).send("first", "second").run()
    assert kept.ran == ["first", "second", "first"]
    assert times[2] - times[0] == pytest.approx(100, abs=2)


def test_a_clean_batch_that_is_done_before_the_first_extension_makes_no_request(sandbox: Sandbox) -> None:  # SPEC G2
    kept = Kept(sandbox, lambda _: sandbox.sleep(9)).send("order").run()
    assert kept.requests() == kept.requests("GetQueueAttributes") == []


def test_it_ends_before_the_answer_and_undoes_no_delay(sandbox: Sandbox) -> None:  # SPEC I4
    """An extension is under way when the handler fails: the message waits as its policy says all the same."""
    times: list[float] = []

    def handle(message: Message) -> None:
        times.append(sandbox.elapsed)
        if message.receive_count == 1:
            sandbox.sleep(10.001)
            raise ValueError

    Kept(sandbox, handle).send("order").run()
    assert times[1] - times[0] >= 110


@pytest.mark.parametrize("kind", ["async", "batch", "threads"])
def test_it_is_the_same_for_all_kinds_of_handlers(kind: str, sandbox: Sandbox) -> None:  # SPEC I4
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
    Kept(sandbox, handler=handler).send("a", "b").run()
    assert sorted(ran) == ["a", "b"]


# a lease that is lost


def test_a_lease_is_lost_when_sqs_refuses_the_handle(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    def handle(message: Message) -> None:
        kept.take(delivery_of(message).receipt_handle)
        sandbox.sleep(25)

    kept = Kept(sandbox, handle)
    kept.send("order").run()
    assert [field(line, "event") for line in lines(caplog, level=30)] == ["lease_lost"]
    assert len(kept.extended) == 0


def test_a_handler_that_succeeded_is_acknowledged_all_the_same(sandbox: Sandbox) -> None:  # SPEC I4
    answers: list[list[str]] = []

    def handle(message: Message) -> None:
        kept.take(delivery_of(message).receipt_handle)
        sandbox.sleep(15)

    kept = Kept(sandbox, handler=_noting(answers, handle))
    kept.send("order").run()
    assert answers == [[]]


@pytest.mark.parametrize("error", [ValueError(), Reject()])
def test_any_other_outcome_is_only_reported_as_failed(error: Exception, sandbox: Sandbox) -> None:  # SPEC I4
    answers: list[list[str]] = []

    def handle(message: Message) -> None:
        kept.take(delivery_of(message).receipt_handle)
        sandbox.sleep(15)
        raise error

    kept = Kept(sandbox, handler=_noting(answers, handle))
    kept.send("order").run()
    assert len(answers[0]) == 1
    assert len(kept.requests()) == 1  # the extension that was refused
    assert kept.requests("SendMessageBatch") == []


def _noting(answers: list[list[str]], handle: Callable[[Message], Any]) -> Any:
    kept = consumer(keepalive=10, backoff=Fixed(100))(handle)

    def handler(the_event: Any, context: Any) -> Any:
        answer = kept(the_event, context)
        answers.append(failed(answer))
        return answer

    return handler


def test_a_lease_is_lost_when_extensions_failed_until_its_end(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    """It is extended at 10, to 40; from then on nothing gets through."""
    ended: list[float] = []

    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(11)
            sandbox.faults.add("unavailable", operation=HIDE, times=None)
            sandbox.sleep(24)
            assert not lines(caplog, "lease_lost")
            sandbox.sleep(20)
            sandbox.faults.clear()
            ended.append(sandbox.elapsed)
            raise ValueError

    Kept(sandbox, handle).send("order").run()
    [line] = lines(caplog, "lease_lost")
    assert "The lease has ended: another consumer may have the message" in field(line, "text")
    assert ended


def test_an_extension_that_fails_once_loses_nothing(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    sandbox.faults.add("unavailable", operation=HIDE, times=2)  # both tries
    kept = Kept(sandbox, lambda _: sandbox.sleep(100)).send("order").run()
    assert kept.ran == ["order"]
    assert lines(caplog, "lease_lost") == []


def test_on_fifo_a_message_whose_lease_was_lost_while_it_waited_does_not_run(sandbox: Sandbox) -> None:  # SPEC I4, H4
    answers: list[list[str]] = []
    handles: list[str] = []
    ran: list[str] = []

    def handle(message: Message) -> None:
        ran.append(message.body)
        if message.body == "first":
            kept.take(handles[1])
            sandbox.sleep(15)

    inner = _noting(answers, handle)

    def handler(the_event: Any, context: Any) -> Any:
        handles.extend(each["receiptHandle"] for each in the_event["Records"])
        return inner(the_event, context)

    kept = Kept(sandbox, queue="ledger.fifo", handler=handler)
    kept.send("first", "second", "third", group="a").run()
    assert ran == ["first", "third"]
    assert len(answers[0]) == 2


def test_what_is_dead_lettered_meanwhile_is_no_lost_lease(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    """On FIFO it is sent and deleted before its group goes on, and its handle refused from then on."""

    def handle(message: Message) -> None:
        if message.body == "first":
            raise Reject
        sandbox.sleep(25)

    kept = Kept(sandbox, handle, queue="ledger.fifo").send("first", "second", group="a").run()
    assert kept.ran == ["first", "second"]
    assert lines(caplog, "lease_lost") == []


def test_what_was_deleted_eagerly_is_no_lost_lease(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    def handle(message: Message) -> None:
        message.ack()
        sandbox.sleep(25)

    Kept(sandbox, handle, ack="eager").send("order").run()
    assert lines(caplog, level=30) == []


# what it costs, and what it is given


def test_an_extension_that_hangs_holds_up_the_answer_for_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC I4, G6
    ended: list[float] = []

    def handle(message: Message) -> None:
        sandbox.sleep(10.5)
        ended.append(sandbox.elapsed)

    sandbox.faults.add("hang", operation=HIDE, times=None)
    kept = Kept(sandbox, handle).send("order")
    sandbox.run(lambda: any(each.what == "answered" for each in sandbox.history.events), check=False)
    assert sandbox.elapsed - ended[0] <= 2.5
    assert kept.ran == ["order"]


def test_an_interval_beyond_the_visibility_timeout_is_told_once_with_the_way_out(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    kept = Kept(sandbox, lambda _: sandbox.sleep(300), keepalive=45).send("order")
    sandbox.advance(100)
    assert kept.ran[0] == "order"
    line = lines(caplog, "keepalive_too_long")[0]
    assert "keepalive=45 is too long" in field(line, "text")
    assert "Set keepalive=10" in field(line, "text")


def test_no_lease_is_extended_beyond_the_twelve_hours_of_sqs() -> None:  # SPEC I4, C6
    """It was received 12 hours but 10 seconds ago. In real threads: the handler waits for the first extension."""
    extended = threading.Event()

    def note(_: Request) -> None:
        extended.set()

    @consumer(keepalive=0.01)
    def handler(message: Message) -> None:
        assert extended.wait(60)

    with Wire(fails={HIDE: note}, queues={"orders": Queue(visibility_timeout=43_200)}) as wire:
        old = record("{}", "m1", received_at=RECEIVED_AT - 43_190)
        assert failed(handler(event(old), Context(900))) == []
    assert wire.visibilities() == {"handle-m1": 9}


@pytest.mark.parametrize("keepalive", [0, -1, True, float("nan"), float("inf"), "10"])
def test_bad_intervals_are_refused(keepalive: Any) -> None:  # SPEC C5, I4
    with pytest.raises(ConfigurationError, match="keepalive must be a number of seconds above 0"):
        consumer(keepalive=keepalive)
