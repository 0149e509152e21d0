"""Sends that fail: the original stays until its copy is confirmed, and FIFO deduplicates a repeated copy.

Each transfer is made twice: first it fails in some way, then the message is redelivered and SQS works.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from tarry import Consumer, DeadLetter, Fixed, Message, SendAgain, consumer
from tarry import Queue as Sender
from tarry.testing import Sandbox
from tests.loglines import field
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, client_error, url

ENDPOINT = "https://sqs.us-east-1.amazonaws.com/"

# transfers


def fails(message: Message) -> None:
    if message.id == "m1":
        raise ValueError("out of order")


class Transfer(NamedTuple):
    """A way to send the message m1 to another queue or back to its own."""

    source: str
    target: str
    handler: Consumer[Any]
    waits: int = 900
    """The delay in seconds of the message if its copy could not be sent."""


def by_step(source: str, target: str, step: Any) -> Transfer:
    return Transfer(source, target, consumer(on_failure=[step])(fails))


def by_handler(source: str, target: str, forward: Callable[[Sender, Message, dict[str, Any]], object]) -> Transfer:
    """Make a transfer whose handler sends the message itself and then succeeds."""
    queue = Sender(url(target))

    @consumer(backoff=Fixed(900))
    def handler(message: Message) -> None:
        if message.id == "m1":
            fifo = {"group_id": message.group_id, "deduplication_id": message.id} if queue.is_fifo else {}
            forward(queue, message, fifo)

    return Transfer(source, target, handler)


def send(queue: Sender, message: Message, fifo: dict[str, Any]) -> None:
    queue.send(message.body, **fifo)


def send_batch(queue: Sender, message: Message, fifo: dict[str, Any]) -> None:
    queue.send_batch([queue.entry(message.body, **fifo)])


def defers(message: Message) -> None:
    if message.id == "m1":
        message.defer(60)


BY_STEP = {
    "deferred": Transfer("orders", "orders", consumer(defers), waits=60),
    "again": by_step("orders", "orders", SendAgain("slow", times=9)),
    "to another queue": by_step("orders", "slow", SendAgain("slow", times=9, queue="slow")),
    "again on FIFO": by_step("orders.fifo", "orders.fifo", SendAgain("slow", times=9, breaks_order=True)),
    "to another FIFO queue": by_step("orders.fifo", "slow.fifo", SendAgain("slow", times=9, queue="slow.fifo")),
    "to its dead-letter queue": by_step("orders", "orders-dlq", DeadLetter()),
    "to its FIFO dead-letter queue": by_step("orders.fifo", "orders-dlq.fifo", DeadLetter()),
    "to a named dead-letter queue": by_step("orders", "graves", DeadLetter(queue="graves")),
    "to a named FIFO dead-letter queue": by_step("orders.fifo", "graves.fifo", DeadLetter(queue="graves.fifo")),
}
BY_HANDLER = {
    "send": by_handler("orders", "bills", send),
    "send to FIFO": by_handler("orders.fifo", "bills.fifo", send),
    "send_batch": by_handler("orders", "bills", send_batch),
    "send_batch to FIFO": by_handler("orders.fifo", "bills.fifo", send_batch),
}
TRANSFERS = BY_STEP | BY_HANDLER

# faults


def error(exception: Exception) -> Callable[[Wire], None]:
    """Make sends raise the exception; SQS does not apply them."""

    def inject(wire: Wire) -> None:
        wire.fails |= dict.fromkeys(("SendMessage", "SendMessageBatch"), exception)

    return inject


def applied(spoil: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Wire], None]:
    """Make SQS apply sends but damage their receipts."""
    return lambda wire: setattr(wire, "receipts", lambda _, receipt: spoil(receipt))


def refused(wire: Wire) -> None:
    wire.refuses["SendMessageBatch"] = lambda *_: ("InternalError", "later")


def raising(exception: BaseException) -> Callable[[dict[str, Any]], None]:
    def spoil(_: dict[str, Any]) -> None:
        raise exception

    return spoil


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda receipt: {each: value for each, value in receipt.items() if each != name}


class ProcessCrash(BaseException):
    """The end of the process."""


FAULTS: dict[str, Callable[[Wire], None]] = {
    "an error": error(client_error("ServiceUnavailable", "try later", status=503)),
    "a throttle": error(client_error("RequestThrottled", "too many requests")),
    "denied": error(client_error("AccessDenied", "not you", status=403)),
    "no such queue": error(client_error("AWS.SimpleQueueService.NonExistentQueue", "gone")),
    "no connection": error(EndpointConnectionError(endpoint_url=ENDPOINT)),
    "a lost request": error(ReadTimeoutError(endpoint_url=ENDPOINT)),
    "a refused entry": refused,
    "a lost answer": applied(raising(ReadTimeoutError(endpoint_url=ENDPOINT))),
    "a broken answer": applied(raising(ConnectionResetError("closed"))),
    "a wrong MD5": applied(lambda receipt: {**receipt, "MD5OfMessageBody": "0" * 32}),
    "no MD5": applied(without("MD5OfMessageBody")),
    "no message id": applied(without("MessageId")),
    "no receipt": applied(lambda _: None),
    "a crash before": error(ProcessCrash()),  # type: ignore[arg-type]
    "a crash right after": applied(raising(ProcessCrash())),
}
LEAVES_A_COPY = frozenset(
    {"a lost answer", "a broken answer", "a wrong MD5", "no MD5", "no message id", "no receipt", "a crash right after"}
)
UNKNOWN = LEAVES_A_COPY | {"an error", "no connection", "a lost request"}
"""Faults after which SQS may have a copy. On FIFO, it deduplicates a repeated one for five minutes."""
HAS_NO_ENTRIES = [("send", "a refused entry"), ("send to FIFO", "a refused entry")]

MATRIX = pytest.mark.parametrize(
    ("way", "fault"), [(way, fault) for way in TRANSFERS for fault in FAULTS if (way, fault) not in HAS_NO_ENTRIES]
)


def wire_of(transfer: Transfer) -> Wire:
    suffix = ".fifo" if transfer.source.endswith(".fifo") else ""
    return Wire(queues={transfer.source: Queue(dead_letter=f"orders-dlq{suffix}")})


def deliver(wire: Wire, transfer: Transfer, receives: int) -> list[str]:
    """Deliver m1 and a message of another group; return the ids that are reported as failed."""
    first = record("m1's body", "m1", transfer.source, receives=receives, group="a")
    second = record("m2's body", "m2", transfer.source, group="b")
    with wire:
        return failed(transfer.handler(event(first, second), Context()))


def copies(wire: Wire, transfer: Transfer) -> list[dict[str, Any]]:
    """Return the entries in the target queue, without those that SQS deduplicates."""
    sent = [entry for request, entry in wire.accepted if "MessageBody" in entry and request.queue == transfer.target]
    if not transfer.target.endswith(".fifo"):
        return sent
    return list({entry["MessageDeduplicationId"]: entry for entry in reversed(sent)}.values())


def deleted(wire: Wire) -> set[str]:
    """Return the receipt handles of the deleted messages."""
    return {entry["ReceiptHandle"] for request, entry in wire.accepted if request.operation == "DeleteMessageBatch"}


@MATRIX
def test_a_message_stays_until_its_copy_is_confirmed_and_is_not_duplicated_on_fifo(
    way: str, fault: str
) -> None:  # SPEC E6, E7, F4, J1, J6, A2
    transfer = TRANSFERS[way]
    wire = wire_of(transfer)
    working = dict(wire.fails), dict(wire.refuses), wire.receipts

    FAULTS[fault](wire)
    reported = deliver(wire, transfer, receives=1)
    assert "m1" in reported
    assert deleted(wire) == set()
    assert len(copies(wire, transfer)) == (fault in LEAVES_A_COPY)
    if not fault.startswith("a crash"):
        assert reported == ["m1"], "a failing send affects no other message"
        is_repeated_soon = way in BY_STEP and transfer.target.endswith(".fifo") and fault in UNKNOWN
        assert wire.visibilities() == {"handle-m1": 240 if is_repeated_soon else transfer.waits}

    wire.fails, wire.refuses, wire.receipts = working
    assert deliver(wire, transfer, receives=2) == []
    of_tarry = deleted(wire) - {"handle-m2"}  # acknowledged and deleted before m1, a redelivered message, started
    assert of_tarry == ({"handle-m1"} if way in BY_STEP else set()), "Lambda deletes a message that is not reported"
    sent = copies(wire, transfer)
    is_doubled = fault in LEAVES_A_COPY and not transfer.target.endswith(".fifo")
    assert len(sent) == (2 if is_doubled else 1)
    assert {entry["MessageBody"] for entry in sent} == {"m1's body"}
    if way in BY_STEP:
        assert {envelope["id"] for envelope in wire.envelopes()} == {"m1"}, "the stable id identifies a duplicate"


# a request that botocore repeats


def log_of_repeated_send(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, queue: str, *faults: str
) -> list[logging.LogRecord]:
    """Dead-letter a message while the tries of its send meet ``faults``; return the lines of ``unhandled``."""

    @consumer(fatal=ValueError, backoff=Fixed(900))
    def handler(_: Message) -> None:
        raise ValueError("out of order")

    suffix = ".fifo" if queue.endswith(".fifo") else ""
    sandbox.queue(queue, dead_letter=f"dead{suffix}")
    sandbox.connect(handler, queue)
    for fault in faults:
        sandbox.faults.add(fault, operation="SendMessageBatch")
    sandbox.send(queue, "body", group_id="a" if suffix else None)
    sandbox.run()
    return [line for line in caplog.records if field(line, "event") == "unhandled"]


@pytest.mark.parametrize("last", ["denied", "throttle", "unavailable", "partial_failure"])
def test_on_fifo_a_send_that_may_be_applied_is_repeated_while_sqs_drops_the_repetition(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, last: str
) -> None:  # SPEC C8, E7
    [line] = log_of_repeated_send(sandbox, caplog, "orders.fifo", "lost_answer", last)
    assert str(field(line, "not_sent")).endswith("(it may be there all the same)")
    assert len(sandbox.messages("dead.fifo")) == 1


def test_a_send_that_sqs_only_throttled_was_not_applied(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C8
    [line] = log_of_repeated_send(sandbox, caplog, "orders", "throttle", "throttle")
    assert "may be there" not in str(field(line, "not_sent"))


def test_at_the_last_delivery_the_dead_letter_is_sent_though_the_copy_may_be_there(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C8
    @consumer(on_failure=[SendAgain("slow", queue="slow"), DeadLetter()])
    def handler(_: Message) -> None:
        raise ValueError("out of order")

    sandbox.queue("orders", dead_letter="dead", max_receive_count=1)
    sandbox.queue("slow")
    sandbox.connect(handler, "orders")
    sandbox.faults.add("lost_answer", operation="SendMessageBatch", queue="slow")
    sandbox.faults.add("denied", operation="SendMessageBatch", queue="slow")
    sandbox.send("orders", "body")
    sandbox.run()
    assert [len(sandbox.messages(queue)) for queue in ("slow", "dead")] == [1, 1]
    [line] = [line for line in caplog.records if field(line, "event") == "dead_lettered"]
    assert str(field(line, "not_sent")).endswith("(it may be there all the same)")
