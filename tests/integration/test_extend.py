"""`message.extend`: a handler that needs more time."""

from datetime import timedelta
from typing import Any

import pytest

from tarry import Fixed, LeaseLost, Message, consumer
from tarry.testing import Sandbox
from tests.loglines import field
from tests.records import event, record
from tests.settled import orders, settle
from tests.wire import client_error

CHANGE = "ChangeMessageVisibilityBatch"


def extending(*seconds: Any) -> Any:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        for each in seconds:
            message.extend(each)

    return handler


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [
        ((300,), [300]),
        ((60.5,), [61]),
        ((timedelta(minutes=2),), [120]),
        ((43_200,), [43_199]),
        ((500, 10), [500, 500]),
    ],
)
def test_extend_sets_the_visibility_timeout_counted_from_now_and_never_shortens_a_lease(
    seconds: tuple[Any, ...], asked: list[int]
) -> None:  # SPEC I6
    reported, wire = settle(extending(*seconds), wire=orders(visibility_timeout=60), remaining=900)
    assert reported == []
    assert [request.entries[0]["VisibilityTimeout"] for request in wire.sent(CHANGE)] == asked
    assert len(wire.sent("GetQueueAttributes")) == 1


def test_without_the_visibility_timeout_extend_asks_for_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I6: the queue's visibility timeout is at least as long as the function's timeout."""
    wire = orders()
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied", "no")
    settle(extending(5), wire=wire, remaining=20)
    assert wire.visibilities() == {"handle-m1": 20}
    assert [field(line, "event") for line in caplog.records] == ["missing_permission"]


def test_on_fifo_extend_includes_the_later_messages_of_the_group() -> None:  # SPEC I6, H1
    records = [record("{}", name, "orders.fifo", group=name[0]) for name in ("a1", "b1", "a2", "a3")]
    handler = consumer(lambda message: message.extend(300) if message.id == "a1" else None)
    reported, wire = settle(handler, event(*records), orders(visibility_timeout=60), remaining=900)
    assert (reported, wire.visibilities()) == ([], {"handle-a1": 300, "handle-a2": 300, "handle-a3": 300})


# in virtual time


@pytest.mark.parametrize(
    ("queue", "bodies", "visibility_timeout", "steps"),
    [
        pytest.param("orders", "a", 60, (10, -5, 30), id="a short extension"),
        pytest.param("orders.fifo", "a", 60, (10, -5, 30), id="a short extension on FIFO"),
        pytest.param("orders.fifo", "abc", 60, (10, -5), id="the messages behind it keep their own leases"),
        pytest.param("orders", "a", 300, (50, -60) * 4, id="beyond the visibility timeout"),
    ],
)
def test_a_message_that_is_extended_runs_once(
    queue: str, bodies: str, visibility_timeout: int, steps: tuple[int, ...], sandbox: Sandbox
) -> None:
    """SPEC I6, H1. The handler sleeps for the seconds above 0 and extends by those below."""
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.body)
        for seconds in steps:
            sandbox.sleep(seconds) if seconds > 0 else message.extend(-seconds)

    dead_letter = "dead.fifo" if queue.endswith(".fifo") else "dead"
    sandbox.queue(queue, dead_letter=dead_letter, visibility_timeout=visibility_timeout)
    sandbox.connect(handler, queue, timeout=visibility_timeout - 10)
    for body in bodies:
        sandbox.send(queue, body, group_id="a")
    sandbox.run()
    assert runs == [*bodies]


def test_extend_async_lets_other_handlers_run_meanwhile(sandbox: Sandbox) -> None:  # SPEC I6
    ended: dict[str, float] = {}

    @consumer(concurrency=2)
    async def handler(message: Message) -> None:
        if message.body == "first":
            await message.extend_async(100)
        ended[message.body] = sandbox.elapsed

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("late", operation=CHANGE, seconds=3)
    for body in ("first", "second"):
        sandbox.send("orders", body)
    sandbox.run()
    assert ended["second"] < ended["first"]


# errors


@pytest.mark.parametrize("seconds", [0, -1, 43_201, float("nan"), "soon", True, None], ids=repr)
def test_extend_raises_an_error_for_invalid_seconds(seconds: Any) -> None:  # SPEC I6, B6
    raised: list[str] = []

    def handler(message: Message) -> None:
        with pytest.raises(ValueError, match="seconds") as error:
            message.extend(seconds)
        raised.append(str(error.value))

    _, wire = settle(consumer(handler))
    assert (len(raised), wire.requests) == (1, [])


def test_a_message_whose_lease_is_lost_cannot_be_extended_and_is_only_reported() -> None:
    """SPEC E6, G5, I6. Its receipt handle is refused, its time is over, it has no handle, or its handler has ended."""
    texts: list[str] = []
    kept: list[Message] = []
    wire = orders(visibility_timeout=60)

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        kept.append(message)
        try:
            for _ in range(2):
                message.extend(60)
                wire.clock.now += 61
        except LeaseLost as error:
            texts.append(str(error))
            raise

    assert settle(handler, wire=wire, remaining=900)[0] == ["m1"]
    assert "its lease has ended" in texts[-1]
    assert wire.acts == [CHANGE]
    wire.refuses[CHANGE] = lambda *_: ("ReceiptHandleIsInvalid", "expired")
    assert settle(handler, wire=wire, remaining=900)[0] == ["m1"]
    assert "ReceiptHandleIsInvalid" in texts[-1]
    assert wire.acts == [CHANGE] * 2
    sample = record()
    del sample["receiptHandle"]
    assert settle(handler, event(sample), wire, remaining=900)[0] == ["m1"]
    assert "no receipt handle" in texts[-1]
    with wire, pytest.raises(LeaseLost, match="its handler has ended"):
        kept[0].extend(60)
    assert wire.acts == [CHANGE] * 2


def test_any_other_error_of_sqs_is_raised_in_the_handler() -> None:  # SPEC I6
    texts: list[str] = []

    def handler(message: Message) -> None:
        try:
            message.extend(60)
        except Exception as error:  # noqa: BLE001 botocore creates its class
            texts.append(f"{type(error).__name__}: {error}")

    wire = orders()
    wire.fails[CHANGE] = client_error("AccessDenied", "no")
    assert settle(consumer(handler), wire=wire, remaining=900)[0] == []
    assert "AccessDenied" in texts[0]
