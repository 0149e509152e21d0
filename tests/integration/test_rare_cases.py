"""Rules of which no other test sees that they are kept: each was left out of the code once, and all tests passed."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import Batch, LeaseLost, Message, batch_consumer, consumer
from tarry.consumer import LazyExtending
from tarry.delivery import Delivery
from tarry.execution.verdicts import Verdicts
from tarry.invocation import Invocation
from tarry.sqs.client import Requests
from tarry.sqs.lookups import Lookups
from tarry.telemetry.logs import Log, LogOptions
from tarry.testing import Sandbox
from tarry.visibility.changes import VisibilityChange, extend_leases
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, RunningClock, Wire

HIDE = "ChangeMessageVisibilityBatch"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


@dataclass
class Order:
    number: int


@pytest.mark.usefixtures("wire")
def test_a_message_before_one_that_cannot_be_put_away_is_acknowledged() -> None:  # SPEC H1, H2
    """The second stays in the queue, for want of a dead-letter queue. The third is behind it, the first is not."""

    @batch_consumer(model=Order)
    def handler(batch: Batch[Order]) -> None:
        assert [message.delivery_id for message in batch] == ["m1", "m4"]
        batch[1].retry(60)

    bodies = ({"number": 1}, "no order", {"number": 3}, {"number": 4})
    groups = zip(bodies, "aaab", strict=True)
    records = (record(body, f"m{at}", "orders.fifo", group=group) for at, (body, group) in enumerate(groups, 1))
    assert failed(handler(event(*records), Context())) == ["m2", "m3", "m4"]


def test_a_short_invocation_answers_though_its_handler_ignores_its_cancellation(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I2, I3
    @consumer
    async def handler(message: Message) -> None:
        if message.receive_count == 1:
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders", timeout=1)
    sandbox.send("orders", "{}")
    sandbox.run()
    assert [line for line in caplog.records if line.__dict__.get("event") == "process_ends"]


def hold_one(wire: Wire, *, given_up: bool, ended: bool) -> Delivery:
    """Extend the lease on one message that may have ended, or whose handle SQS refuses."""
    log = Log("handler", LogOptions())
    invocation = Invocation(wire.world, Context(), lambda _: 5, log)
    invocation.extending = LazyExtending
    [given] = batch_of(1)["Records"]
    delivery = Delivery(given, "m0", invocation)
    if ended:
        delivery.visible_at = invocation.now() - 1
    else:
        wire.refuses[HIDE] = lambda *_: ("ReceiptHandleIsInvalid", "")
    delivery.is_given_up = given_up
    lookups = Lookups(Requests(invocation), log)
    extend_leases([VisibilityChange(delivery, 60)], lookups, log, 1, "it is only reported as failed")
    return delivery


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_message_that_is_being_settled_is_not_taken_for_lost(
    given_up: bool, ended: bool, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    delivery = hold_one(wire, given_up=given_up, ended=ended)
    assert delivery.is_lost is not given_up
    lines = [line for line in caplog.records if line.__dict__.get("event") == "lease_lost"]
    assert len(lines) == (0 if given_up else 1)


def test_what_is_acknowledged_after_its_lease_was_lost_is_not_deleted_early(wire: Wire) -> None:  # SPEC G3, E6
    """On a standard queue an old receipt handle acts on the newer delivery, which may be running."""
    wire.refuses[HIDE] = lambda *_: ("ReceiptHandleIsInvalid", "")

    @consumer(ack="eager")
    def handler(message: Message) -> None:
        with pytest.raises(LeaseLost):
            message.extend(60)

    assert failed(handler(batch_of(10), Context())) == []
    assert wire.sent("DeleteMessageBatch") == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_redelivered_messages_give_way_to_those_with_more_deliveries_alone(concurrency: int, wire: Wire) -> None:
    """SPEC I2, G4. There is time for one more: the one that SQS has delivered most often."""
    ran: list[str] = []

    @consumer(concurrency=concurrency)
    def handler(message: Message) -> None:
        ran.append(message.delivery_id)
        if message.receive_count == 1:
            wire.clock.sleep(14)

    records = (record("{}", f"m{count}", receives=count) for count in (1, 2, 3, 9))
    assert failed(handler(event(*records), Context(30))) == ["m2", "m3"]
    assert ran == ["m1", "m9"]


def test_a_batch_handler_is_not_over_before_the_verdict_that_a_thread_of_its_own_gives() -> None:  # SPEC A6, E6
    """A hundred dead letters were sent, and their originals reported as failed and never deleted."""
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


def test_the_first_verdicts_of_a_batch_may_come_from_several_threads_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A6, C11
    """Both threads find that the decisions of the batch are still to be made."""
    made = Verdicts.__init__
    both = threading.Barrier(2)

    def made_beside_another(*arguments: Any, **more: Any) -> None:
        both.wait(10)
        made(*arguments, **more)

    monkeypatch.setattr(Verdicts, "__init__", made_beside_another)

    @batch_consumer
    def handler(batch: Batch) -> None:
        threads = [threading.Thread(target=message.retry, args=(60,)) for message in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(failed(handler(batch_of(2), Context()))) == 2
    [hidden] = wire.sent(HIDE)
    assert len(hidden.entries) == 2
