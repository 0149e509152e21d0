"""`message.extend`: a handler that needs more time."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tarry import Fixed, LeaseLost, Message, consumer
from tarry.testing import Sandbox
from tests.loglines import field
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, client_error


def orders(**more: Any) -> Wire:
    queues = {name: Queue(dead_letter="dead", visibility_timeout=60) for name in ("orders", "orders.fifo")}
    return Wire(queues=queues, **more)


def extending(seconds: Any, then: Callable[[Message], None] = lambda _: None) -> Any:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        message.extend(seconds)
        then(message)

    return handler


@pytest.mark.parametrize(("seconds", "asked"), [(300, 300), (60.5, 61), (timedelta(minutes=2), 120), (43_200, 43_199)])
def test_extend_sets_the_visibility_timeout_counted_from_now(seconds: Any, asked: int) -> None:  # SPEC I6
    with orders() as wire:
        assert failed(extending(seconds)(event(record()), Context(900))) == []
    assert wire.visibilities() == {"handle-m1": asked}


def test_extend_never_shortens_a_lease() -> None:  # SPEC I6
    @consumer
    def handler(message: Message) -> None:
        message.extend(500)
        message.extend(10)

    with orders() as wire:
        handler(event(record()), Context(900))
    changes = wire.sent("ChangeMessageVisibilityBatch")
    assert [request.entries[0]["VisibilityTimeout"] for request in changes] == [500, 500]
    assert len(wire.sent("GetQueueAttributes")) == 1


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_short_extension_does_not_bring_the_message_back_early(sandbox: Sandbox, queue: str) -> None:  # SPEC I6
    runs: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(sandbox.elapsed)
        sandbox.sleep(10)
        message.extend(5)
        sandbox.sleep(30)

    sandbox.queue(queue, dead_letter="dead.fifo" if queue.endswith(".fifo") else "dead", visibility_timeout=60)
    sandbox.connect(handler, queue, timeout=50)
    sandbox.send(queue, "{}", group_id="a")
    sandbox.run()
    assert len(runs) == 1


def test_the_messages_of_the_group_keep_their_own_leases(sandbox: Sandbox) -> None:  # SPEC I6, H1
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.body)
        sandbox.sleep(10)
        message.extend(5)

    sandbox.queue("orders.fifo", dead_letter="dead.fifo", visibility_timeout=60)
    sandbox.connect(handler, "orders.fifo", timeout=50)
    for body in "abc":
        sandbox.send("orders.fifo", body, group_id="a")
    sandbox.run()
    assert runs == ["a", "b", "c"]


def test_without_the_visibility_timeout_extend_asks_for_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I6: the queue's visibility timeout is at least as long as the function's timeout."""
    with orders(fails={"GetQueueAttributes": client_error("AccessDenied", "no")}) as wire:
        extending(5)(event(record()), Context(20))
    assert wire.visibilities() == {"handle-m1": 20}
    assert [field(line, "event") for line in caplog.records] == ["missing_permission"]


def test_on_fifo_extend_includes_the_later_messages_of_the_group() -> None:  # SPEC I6, H1
    records = [record("{}", name, "orders.fifo", group=name[0]) for name in ("a1", "b1", "a2", "a3")]

    @consumer
    def handler(message: Message) -> None:
        if message.id == "a1":
            message.extend(300)

    with orders() as wire:
        assert failed(handler(event(*records), Context(900))) == []
    assert wire.visibilities() == {"handle-a1": 300, "handle-a2": 300, "handle-a3": 300}


def test_a_handler_that_extends_its_lease_runs_once_beyond_the_visibility_timeout(sandbox: Sandbox) -> None:  # SPEC I6
    runs: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(sandbox.elapsed)
        for _ in range(4):
            sandbox.sleep(50)
            message.extend(60)

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=300)
    sandbox.connect(handler, "orders", timeout=300)
    sandbox.send("orders", "{}")
    sandbox.run()
    assert len(runs) == 1


def test_extend_async_lets_other_handlers_run_meanwhile(sandbox: Sandbox) -> None:  # SPEC I6
    ended: dict[str, float] = {}

    @consumer(concurrency=2)
    async def handler(message: Message) -> None:
        if message.body == "first":
            await message.extend_async(100)
        ended[message.body] = sandbox.elapsed

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("late", operation="ChangeMessageVisibilityBatch", seconds=3)
    for body in ("first", "second"):
        sandbox.send("orders", body)
    sandbox.run()
    assert ended["second"] < ended["first"]


@pytest.mark.parametrize("seconds", [0, -1, 43_201, float("nan"), "soon", True, None], ids=repr)
def test_extend_raises_an_error_for_invalid_seconds(seconds: Any) -> None:  # SPEC I6, B6
    raised: list[str] = []

    def handler(message: Message) -> None:
        with pytest.raises(ValueError, match="seconds") as error:
            message.extend(seconds)
        raised.append(str(error.value))

    with orders() as wire:
        consumer(handler)(event(record()), Context(900))
    assert len(raised) == 1
    assert wire.requests == []


def lease_lost_text(handler: Any, batch: Any, wire: Wire) -> str:
    """Run the batch; return the text of the `LeaseLost` that `extend` raised in the handler."""
    texts: list[str] = []

    def handle(message: Message) -> None:
        try:
            handler(message)
        except LeaseLost as error:
            texts.append(str(error))
            raise

    with wire:
        consumer(backoff=Fixed(60))(handle)(batch, Context(900))
    return texts[0]


def test_a_message_whose_receipt_handle_is_refused_has_lost_its_lease_and_is_only_reported() -> None:  # SPEC I6, E6
    wire = orders(refuses={"ChangeMessageVisibilityBatch": lambda *_: ("ReceiptHandleIsInvalid", "expired")})
    assert "ReceiptHandleIsInvalid" in lease_lost_text(lambda message: message.extend(60), event(record()), wire)
    assert wire.operations == ["GetQueueAttributes", "ChangeMessageVisibilityBatch"]


def test_a_lease_that_has_ended_is_lost_without_a_request() -> None:  # SPEC I6, E6
    wire = orders()

    def handler(message: Message) -> None:
        message.extend(60)
        wire.clock.now += 61
        message.extend(60)

    assert "its lease has ended" in lease_lost_text(handler, event(record()), wire)
    assert wire.operations.count("ChangeMessageVisibilityBatch") == 1


def test_a_message_without_a_receipt_handle_cannot_be_extended() -> None:  # SPEC I6, G5
    sample = record()
    del sample["receiptHandle"]
    wire = orders()
    assert "no receipt handle" in lease_lost_text(lambda message: message.extend(60), event(sample), wire)


def test_any_other_error_of_sqs_is_raised_in_the_handler() -> None:  # SPEC I6
    wire = orders(fails={"ChangeMessageVisibilityBatch": client_error("AccessDenied", "no")})
    texts: list[str] = []

    def handler(message: Message) -> None:
        try:
            message.extend(60)
        except Exception as error:  # noqa: BLE001 botocore creates its class
            texts.append(f"{type(error).__name__}: {error}")

    with wire:
        assert failed(consumer(handler)(event(record()), Context(900))) == []
    assert "AccessDenied" in texts[0]


def test_a_message_of_an_ended_invocation_cannot_be_extended() -> None:  # SPEC I6
    kept: list[Message] = []
    with orders() as wire:
        consumer(kept.append)(event(record()), Context(900))
        with pytest.raises(LeaseLost, match="its handler has ended"):
            kept[0].extend(60)
    assert wire.requests == []
