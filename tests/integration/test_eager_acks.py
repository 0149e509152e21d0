"""`ack="eager"`: acknowledged messages are deleted while the batch still runs and stay done if the process dies."""

from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Consumer, Fixed, Message, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.tools.simulator.functions import current_call
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire, client_error

DELETE = "DeleteMessageBatch"


def orders(**more: Any) -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead") for name in ("orders", "orders.fifo")}, **more)


def deleted(wire: Wire) -> list[list[str]]:
    """Return the message ids of each delete request."""
    return [
        [entry["ReceiptHandle"].removeprefix("handle-") for entry in request.entries] for request in wire.sent(DELETE)
    ]


def eager(handle: Callable[[Message], Any] = lambda _: None, **settings: Any) -> Consumer[Any]:
    return consumer(ack="eager", backoff=Fixed(60), **settings)(handle)


def crash() -> None:
    """End the process of the simulated function immediately."""
    call = current_call()
    assert call is not None
    call.crash()


def test_acknowledged_messages_are_deleted_in_batches_of_ten_while_the_batch_runs() -> None:  # SPEC G3
    seen: list[int] = []
    with orders() as wire:
        answer = eager(lambda _: seen.append(len(wire.sent(DELETE))))(batch_of(25), Context())
    assert failed(answer) == []
    assert seen == [0] * 10 + [1] * 10 + [2] * 5
    assert deleted(wire) == [[f"m{index}" for index in range(10)], [f"m{index}" for index in range(10, 20)]]


def test_by_default_lambda_deletes_acknowledged_messages_after_the_response() -> None:  # SPEC G3
    with orders() as wire:
        consumer(lambda _: None)(batch_of(25), Context())
    assert wire.requests == []


@pytest.mark.parametrize("verdict", ["ack", "return", "discard"])
def test_acknowledged_returned_and_discarded_messages_are_deleted(verdict: str) -> None:  # SPEC G3
    def handle(message: Message) -> None:
        getattr(message, verdict, lambda: None)()

    with orders() as wire:
        eager(handle)(batch_of(10), Context())
    assert [len(request) for request in deleted(wire)] == [10]


def test_failed_and_retried_messages_are_not_deleted() -> None:  # SPEC A2, G3
    def handle(message: Message) -> None:
        if message.id == "m3":
            raise ValueError
        if message.id == "m4":
            message.retry(30)

    with orders() as wire:
        answer = eager(handle)(batch_of(12), Context())
    assert failed(answer) == ["m3", "m4"]
    [request] = deleted(wire)
    assert {"m3", "m4"}.isdisjoint(request)


def test_an_explicitly_acknowledged_message_is_deleted_before_its_handler_returns() -> None:  # SPEC G3
    seen: list[int] = []

    def handle(message: Message) -> None:
        message.ack()
        seen.append(len(wire.sent(DELETE)))

    with orders() as wire:
        eager(handle)(batch_of(10), Context())
    assert seen[-1] == 1


def test_on_fifo_an_acknowledged_message_is_deleted_after_its_handler_returns() -> None:  # SPEC G3
    seen: list[int] = []

    def handle(message: Message) -> None:
        message.ack()
        seen.append(len(wire.sent(DELETE)))

    with orders() as wire:
        eager(handle)(batch_of(10, "orders.fifo", group="a"), Context())
    assert seen[-1] == 0
    assert [len(request) for request in deleted(wire)] == [10]


def test_a_message_that_is_acknowledged_twice_is_deleted_once() -> None:  # SPEC G3
    def handle(message: Message) -> None:
        message.ack()
        message.ack()

    with orders() as wire:
        eager(handle)(batch_of(20), Context())
    assert deleted(wire) == [[f"m{index}" for index in range(10)], [f"m{index}" for index in range(10, 20)]]


def test_messages_acknowledged_in_a_batch_handler_are_deleted_while_it_runs() -> None:  # SPEC G3
    seen: list[int] = []

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        for message in batch:
            message.ack()
            seen.append(len(wire.sent(DELETE)))
        raise SystemExit

    with orders() as wire:
        assert failed(handler(batch_of(15), Context())) == []
    assert seen == [0] * 9 + [1] * 6


def test_an_eager_ack_all_is_final() -> None:  # SPEC G3, B4
    """The messages are deleted, so a later verdict is ignored."""

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch[0].retry(60)
        batch.ack_all()
        batch[1].reject()

    with orders() as wire:
        assert failed(handler(batch_of(12), Context())) == ["m0"]
    assert deleted(wire) == [[f"m{index}" for index in range(1, 11)]]
    assert wire.sent_entries() == []


def test_on_fifo_a_later_verdict_overrides_an_eager_ack_all() -> None:  # SPEC G3, B4
    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch.ack_all()
        batch[1].reject()

    with orders() as wire:
        assert failed(handler(batch_of(2, "orders.fifo", group="a"), Context())) == []
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["1"]


def test_an_async_handler_does_not_wait_for_the_deletes() -> None:  # SPEC G3
    """A thread sends the deletes, or Lambda deletes the messages; the event loop is not blocked."""

    async def handle(message: Message) -> None: ...

    with orders() as wire:
        assert failed(consumer(ack="eager")(handle)(batch_of(30), Context())) == []
    assert all(len(request) <= 10 for request in deleted(wire))


def test_a_message_that_cannot_be_deleted_is_left_to_lambda_and_not_reported_as_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G3
    with orders() as wire:
        wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "4" else None
        assert failed(eager()(batch_of(10), Context())) == []
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("delete_failed", "m4")


def test_no_more_deletes_are_sent_after_sqs_has_not_answered(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G3, G6
    with orders() as wire:
        wire.fails[DELETE] = OSError("no route")
        assert failed(eager()(batch_of(100), Context())) == []
    assert len(deleted(wire)) == 1
    [line] = lines(caplog)
    assert "10 acknowledged messages were not deleted" in field(line, "text")


def test_deletes_continue_after_a_throttled_one() -> None:  # SPEC G3
    with orders() as wire:
        wire.fails[DELETE] = client_error("ThrottlingException")
        assert failed(eager()(batch_of(30), Context())) == []
    assert len(deleted(wire)) == 3


def test_a_missing_delete_permission_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    with orders() as wire:
        wire.fails[DELETE] = client_error("AccessDenied", status=403)
        handler = eager()
        for _ in range(2):
            assert failed(handler(batch_of(30), Context())) == []
    assert [field(line, "event") for line in lines(caplog)] == ["missing_permission"]
    assert len(deleted(wire)) == 2


def test_messages_are_left_to_lambda_if_no_thread_can_be_started() -> None:  # SPEC A2, G3
    class ThreadsThatDoNotStart:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def start(self, _: Any) -> Any:
            raise RuntimeError("can't start new thread")

    with orders() as wire:
        real, current().threads = current().threads, ThreadsThatDoNotStart()
        assert failed(eager()(batch_of(30), Context())) == []
    assert wire.requests == []


@pytest.mark.parametrize("ack", ["Eager", "", None, True, 1])
def test_an_unknown_value_of_ack_is_refused(ack: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=f"on_return.*{ack!r}"):
        consumer(ack=ack)


# in virtual time


def test_after_a_second_fewer_than_ten_messages_are_deleted_too(sandbox: Sandbox) -> None:  # SPEC G3
    """Three messages succeed at once; the fourth crashes the process after five seconds; the fifth has not run."""
    ran: list[int] = []

    @consumer(ack="eager")
    def handler(message: Message) -> None:
        number = message.json()["number"]
        ran.append(number)
        sandbox.sleep(0.03)
        if number == 3 and message.receive_count == 1:
            sandbox.sleep(5)
            crash()

    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    for number in range(5):
        sandbox.send("orders", {"number": number})
    assert sandbox.run().settled
    assert sorted(ran) == [0, 1, 2, 3, 3, 4]


def test_no_more_deletes_are_sent_after_a_lone_one_was_denied(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC G3, A8
    """Each message is acknowledged alone, and deleted after a second."""

    @consumer(ack="eager")
    def handler(_: Message) -> None:
        sandbox.sleep(3)

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("denied", operation=DELETE, times=None)
    for number in range(3):
        sandbox.send("orders", {"number": number})
    report = sandbox.run()
    requests = [event.fields for event in report.events if event.what == "request"]
    assert len([each for each in requests if each["operation"] == DELETE and "request_id" in each]) == 1
    assert [field(line, "event") for line in lines(caplog)] == ["missing_permission"]


def test_a_delete_that_hangs_delays_the_batch_by_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC G3, G6
    ended: list[float] = []

    @consumer(ack="eager")
    def handler(message: Message) -> None:
        ended.append(sandbox.elapsed)

    sandbox.queue("orders")
    sandbox.faults.add("hang", operation=DELETE, times=None)
    for number in range(100):
        sandbox.send("orders", {"number": number})
    sandbox.connect(handler, "orders", batch_size=100, window=1)
    assert sandbox.run().settled
    assert len(ended) == 100
    assert ended[-1] - ended[0] <= 2
