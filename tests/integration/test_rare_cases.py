"""Rules that no other test covers: each one was once missing in the code while all other tests passed."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import Batch, Fixed, LeaseLost, Message, batch_consumer, consumer
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.observe.logs import Log, LogOptions
from tarry.run.verdicts import Verdicts
from tarry.settle.requests import VisibilityChange, extend_leases
from tarry.sqs.client import Lookups, Requests
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, RunningClock, Wire

CHANGE_VISIBILITY = "ChangeMessageVisibilityBatch"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as wire:
        yield wire


@dataclass
class NumberedOrder:
    number: int


@pytest.mark.usefixtures("wire")
def test_a_message_before_one_that_cannot_be_dead_lettered_is_acknowledged() -> None:  # SPEC H1, H2
    """The second stays in its queue, because it has no dead-letter queue. Only the third is behind it."""

    @batch_consumer(model=NumberedOrder)
    def handler(batch: Batch[NumberedOrder]) -> None:
        assert [message.delivery_id for message in batch] == ["m1", "m4"]
        batch[1].retry(60)

    bodies = ({"number": 1}, "no order", {"number": 3}, {"number": 4})
    groups = zip(bodies, "aaab", strict=True)
    records = (record(body, f"m{at}", "orders.fifo", group=group) for at, (body, group) in enumerate(groups, 1))
    assert failed(handler(event(*records), Context())) == ["m2", "m3", "m4"]


def extend_one(wire: Wire, *, is_given_up: bool, ended: bool) -> Delivery:
    """Extend the lease on a message, which has ended or whose handle SQS refuses; return its delivery."""
    log = Log("handler", LogOptions())
    invocation = Invocation(wire.world, Context(), lambda _: 5, log)
    [delivered] = batch_of(1)["Records"]
    delivery = Delivery(delivered, "m0", invocation)
    if ended:
        delivery.visible_at = invocation.now() - 1
    else:
        wire.refuses[CHANGE_VISIBILITY] = lambda *_: ("ReceiptHandleIsInvalid", "")
    delivery.is_given_up = is_given_up
    lookups = Lookups(Requests(invocation), log)
    extend_leases([VisibilityChange(delivery, 60)], lookups, log, 1, "it is only reported as failed")
    return delivery


@pytest.mark.parametrize("is_given_up", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_message_that_is_being_settled_does_not_lose_its_lease(
    is_given_up: bool, ended: bool, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    delivery = extend_one(wire, is_given_up=is_given_up, ended=ended)
    assert delivery.is_lost is not is_given_up
    lines = [line for line in caplog.records if line.__dict__.get("event") == "lease_lost"]
    assert len(lines) == (0 if is_given_up else 1)


def test_a_message_acknowledged_after_it_lost_its_lease_is_not_deleted_early(wire: Wire) -> None:  # SPEC G3, E6
    """On a standard queue, an old receipt handle changes the newer delivery, which may be running."""
    wire.refuses[CHANGE_VISIBILITY] = lambda *_: ("ReceiptHandleIsInvalid", "")

    @consumer(ack="eager")
    def handler(message: Message) -> None:
        with pytest.raises(LeaseLost):
            message.extend(60)

    assert failed(handler(batch_of(10), Context())) == []
    assert wire.sent("DeleteMessageBatch") == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_redelivered_messages_are_released_only_for_those_with_more_deliveries(concurrency: int, wire: Wire) -> None:
    """SPEC I2, G4. There is time for one more message: the one with the most deliveries."""
    ran: list[str] = []

    @consumer(concurrency=concurrency)
    def handler(message: Message) -> None:
        ran.append(message.delivery_id)
        if message.receive_count == 1:
            wire.clock.sleep(14)

    records = (record("{}", f"m{count}", receives=count) for count in (1, 2, 3, 9))
    assert failed(handler(event(*records), Context(30))) == ["m2", "m3"]
    assert ran == ["m1", "m9"]


def test_a_verdict_in_progress_in_a_thread_of_a_batch_handler_is_completed_after_the_handler_returns() -> (
    None
):  # SPEC A6, E6
    """Otherwise, a hundred dead letters would be sent while their originals are reported as failed and not deleted."""
    wire = Wire({"orders": Queue(dead_letter="orders-dlq")}, clock=RunningClock())
    wire.fails["SendMessageBatch"] = lambda _: time.sleep(0.5)
    begun = threading.Event()

    @batch_consumer(fatal=ValueError)
    def handler(batch: Batch) -> None:
        def work() -> None:
            for message in batch:
                message.fail(ValueError("no"))
                if message.delivery_id == "m90":
                    begun.set()

        threading.Thread(target=work).start()
        begun.wait(60)

    with wire:
        assert failed(handler(batch_of(105), Context())) == []


def test_several_threads_may_give_the_first_verdicts_of_a_batch_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A6, C11
    """Both threads find that the decisions of the batch do not exist yet."""
    original = Verdicts.__init__
    both = threading.Barrier(2)

    def wait_for_the_other(*arguments: Any, **more: Any) -> None:
        both.wait(10)
        original(*arguments, **more)

    monkeypatch.setattr(Verdicts, "__init__", wait_for_the_other)

    @batch_consumer
    def handler(batch: Batch) -> None:
        threads = [threading.Thread(target=message.retry, args=(60,)) for message in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(failed(handler(batch_of(2), Context()))) == 2
    [request] = wire.sent(CHANGE_VISIBILITY)
    assert len(request.entries) == 2


@pytest.mark.parametrize(
    ("module", "step", "settings"),
    [
        ("tarry.settle.eager_acks.Acks", "close", {"ack": "eager"}),
        ("tarry.run.outcomes.Outcomes", "stop", {}),
        ("tarry.observe.reports.Observer", "call", {"on_outcome": lambda message, outcome: None}),
        ("tarry.message.invocation.Invocation", "clear", {}),
    ],
)
def test_a_fault_of_tarry_after_the_settlement_fails_no_message_that_is_settled(
    module: str, step: str, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A2, A3
    def fails(*_: Any) -> None:
        raise MemoryError

    @consumer(backoff=Fixed(60), **settings)
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise ValueError

    monkeypatch.setattr(f"{module}.{step}", fails)
    with Wire(queues={"orders": Queue()}):
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    [line] = lines(caplog, "runtime_failed")
    assert field(line, "error") == "MemoryError"
