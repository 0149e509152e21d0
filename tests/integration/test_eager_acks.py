"""`ack="eager"`: what is acknowledged is deleted while the batch still runs, and stays done if the process dies."""

from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Consumer, Fixed, Message, batch_consumer, consumer
from tarry.simulator.functions import current_call
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire, client_error

DELETE = "DeleteMessageBatch"


def orders(**more: Any) -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead") for name in ("orders", "orders.fifo")}, **more)


def deleted(wire: Wire) -> list[list[str]]:
    """The messages of each delete."""
    return [
        [entry["ReceiptHandle"].removeprefix("handle-") for entry in request.entries] for request in wire.sent(DELETE)
    ]


def eager(handle: Callable[[Message], Any] = lambda _: None, **settings: Any) -> Consumer[Any]:
    return consumer(ack="eager", backoff=Fixed(60), **settings)(handle)


def crash() -> None:
    """The process of the simulated function dies here and now."""
    call = current_call()
    assert call is not None
    call.crash()


def test_acknowledged_messages_are_deleted_in_tens_while_the_batch_runs() -> None:  # SPEC G3
    seen: list[int] = []
    with orders() as wire:
        answer = eager(lambda _: seen.append(len(wire.sent(DELETE))))(batch_of(25), Context())
    assert failed(answer) == []
    assert seen == [0] * 10 + [1] * 10 + [2] * 5
    assert deleted(wire) == [[f"m{index}" for index in range(10)], [f"m{index}" for index in range(10, 20)]]


def test_by_default_lambda_deletes_them_after_the_answer() -> None:  # SPEC G3
    with orders() as wire:
        consumer(lambda _: None)(batch_of(25), Context())
    assert wire.requests == []


@pytest.mark.parametrize("word", ["ack", "return", "discard"])
def test_all_ways_of_being_done_are_deleted(word: str) -> None:  # SPEC G3
    def handle(message: Message) -> None:
        getattr(message, word, lambda: None)()

    with orders() as wire:
        eager(handle)(batch_of(10), Context())
    assert [len(request) for request in deleted(wire)] == [10]


def test_what_is_not_done_is_not_deleted() -> None:  # SPEC A2, G3
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


def test_an_explicit_ack_is_deleted_before_the_handler_returns() -> None:  # SPEC G3
    seen: list[int] = []

    def handle(message: Message) -> None:
        message.ack()
        seen.append(len(wire.sent(DELETE)))

    with orders() as wire:
        eager(handle)(batch_of(10), Context())
    assert seen[-1] == 1


def test_on_fifo_the_delete_waits_for_the_handlers_return() -> None:  # SPEC G3
    seen: list[int] = []

    def handle(message: Message) -> None:
        message.ack()
        seen.append(len(wire.sent(DELETE)))

    with orders() as wire:
        eager(handle)(batch_of(10, "orders.fifo", group="a"), Context())
    assert seen[-1] == 0
    assert [len(request) for request in deleted(wire)] == [10]


def test_each_is_deleted_once() -> None:  # SPEC G3
    def handle(message: Message) -> None:
        message.ack()
        message.ack()

    with orders() as wire:
        eager(handle)(batch_of(20), Context())
    assert deleted(wire) == [[f"m{index}" for index in range(10)], [f"m{index}" for index in range(10, 20)]]


def test_an_ack_in_a_batch_handler_is_deleted_while_it_runs() -> None:  # SPEC G3
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


def test_ack_all_is_final_when_it_is_eager() -> None:  # SPEC G3, B4
    """They are deleted: a word that comes later has nothing to be said of."""

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch[0].retry(60)
        batch.ack_all()
        batch[1].reject()

    with orders() as wire:
        assert failed(handler(batch_of(12), Context())) == ["m0"]
    assert deleted(wire) == [[f"m{index}" for index in range(1, 11)]]
    assert wire.letters() == []


def test_ack_all_of_a_fifo_batch_leaves_other_words_to_be_said() -> None:  # SPEC G3, B4
    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch.ack_all()
        batch[1].reject()

    with orders() as wire:
        assert failed(handler(batch_of(2, "orders.fifo", group="a"), Context())) == []
    assert [letter["MessageBody"] for letter in wire.letters()] == ["1"]


def test_an_async_handler_does_not_wait_for_the_deletes() -> None:  # SPEC G3
    """They go out beside it, or Lambda deletes them: nothing else in the event loop is held up."""

    async def handle(message: Message) -> None: ...

    with orders() as wire:
        assert failed(consumer(ack="eager")(handle)(batch_of(30), Context())) == []
    assert all(len(request) <= 10 for request in deleted(wire))


def test_what_cannot_be_deleted_is_left_to_lambda_and_not_reported(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G3
    with orders() as wire:
        wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "4" else None
        assert failed(eager()(batch_of(10), Context())) == []
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("delete_failed", "m4")


def test_when_sqs_does_not_answer_it_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G3, G6
    with orders() as wire:
        wire.fails[DELETE] = OSError("no route")
        assert failed(eager()(batch_of(100), Context())) == []
    assert len(deleted(wire)) == 1
    [line] = lines(caplog)
    assert "10 acknowledged messages were not deleted" in field(line, "text")


def test_a_throttle_is_no_reason_to_stop_deleting() -> None:  # SPEC G3
    with orders() as wire:
        wire.fails[DELETE] = client_error("ThrottlingException")
        assert failed(eager()(batch_of(30), Context())) == []
    assert len(deleted(wire)) == 3


def test_a_missing_permission_is_said_once(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    with orders() as wire:
        wire.fails[DELETE] = client_error("AccessDenied", status=403)
        handler = eager()
        for _ in range(2):
            assert failed(handler(batch_of(30), Context())) == []
    assert [field(line, "event") for line in lines(caplog)] == ["missing_permission"]
    assert len(deleted(wire)) == 2


def test_it_does_without_threads() -> None:  # SPEC A2, G3
    class NoThreads:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def start(self, _: Any) -> Any:
            raise RuntimeError("can't start new thread")

    with orders() as wire:
        real, current().threads = current().threads, NoThreads()
        assert failed(eager()(batch_of(30), Context())) == []
    assert wire.requests == []


@pytest.mark.parametrize("ack", ["Eager", "", None, True, 1])
def test_another_word_is_refused(ack: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=f"on_return.*{ack!r}"):
        consumer(ack=ack)


# in virtual time


def test_after_a_second_fewer_than_ten_are_deleted_too(sandbox: Sandbox) -> None:  # SPEC G3
    """Three are done within a tenth of a second; the fourth takes long and kills the process; the fifth never ran."""
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


def test_a_delete_that_hangs_costs_the_batch_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC G3, G6
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
