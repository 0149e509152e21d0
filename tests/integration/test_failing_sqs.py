"""Each request fails in each possible way: no message is lost, and others are not affected."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from tarry import Consumer, DeadLetter, Fixed, Message, SendAgain, consumer
from tarry.testing import Sandbox
from tests.handlers import behave, plain
from tests.loglines import Caplog, field, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Request, Wire, client_error

Predicate = Callable[[Request], bool]
Fate = str | tuple[str, int]

DONE, DEAD, REPORTED = "done", "dead-lettered", "reported as failed"
OPERATIONS = (
    "GetQueueAttributes", "SendMessage", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch",
)  # fmt: skip


def waits(seconds: int) -> Fate:
    return "waits", seconds


# the requests


def looks_up(queue: str) -> Predicate:
    return lambda request: request.operation == "GetQueueAttributes" and request.queue.partition(".")[0] == queue


def is_send(request: Request) -> bool:
    return request.operation.startswith("SendMessage")


def changes_visibility_to(seconds: int) -> Predicate:
    return lambda request: (
        request.operation == "ChangeMessageVisibilityBatch"
        and all(entry["VisibilityTimeout"] == seconds for entry in request.entries)
    )


REQUESTS: dict[str, Predicate] = {
    "look-up of the source": looks_up("orders"),
    "look-up of the target": looks_up("orders-dlq"),
    "send": is_send,
    "delete": lambda request: request.operation == "DeleteMessageBatch",
    "retries": changes_visibility_to(60),
    "releases": changes_visibility_to(0),
}
HANDLE_TEST = changes_visibility_to(180)

# the faults, each with a text that the log must show

ENDPOINT = "https://sqs.us-east-1.amazonaws.com/"
ERRORS: dict[str, tuple[Exception, str]] = {
    "error": (client_error("ServiceUnavailable", "try later", status=503), "ServiceUnavailable"),
    "throttle": (client_error("RequestThrottled", "too many requests"), "RequestThrottled"),
    "denied": (client_error("AccessDenied", "not you", status=403), "lacks sqs:"),
    "no such queue": (client_error("AWS.SimpleQueueService.NonExistentQueue", "gone"), "NonExistentQueue"),
    "whole call refused": (client_error("InvalidParameterValue", "something is wrong"), "InvalidParameterValue"),
    "lost request": (ReadTimeoutError(endpoint_url=ENDPOINT), "Read timeout"),
    "no connection": (EndpointConnectionError(endpoint_url=ENDPOINT), "Could not connect"),
    "connect timeout": (ConnectTimeoutError(endpoint_url=ENDPOINT), "Connect timeout"),
    "a bug": (KeyError("QueueUrl"), "QueueUrl"),
}
"""Errors of requests that SQS does not apply."""
REFUSAL = ("InternalError", "the entry failed")


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda receipt: {each: value for each, value in receipt.items() if each != name}


def raising(error: Exception) -> Callable[[dict[str, Any]], None]:
    def spoil(_: dict[str, Any]) -> None:
        raise error

    return spoil


RECEIPTS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | None], str]] = {
    "lost answer": (raising(ReadTimeoutError(endpoint_url=ENDPOINT)), "Read timeout"),
    "broken answer": (raising(ConnectionResetError("closed")), "closed"),
    "wrong MD5": (lambda receipt: {**receipt, "MD5OfMessageBody": "0" * 32}, "MD5"),
    "no MD5": (without("MD5OfMessageBody"), "MD5"),
    "empty message id": (lambda receipt: {**receipt, "MessageId": ""}, "message id"),
    "no message id": (without("MessageId"), "message id"),
    "no receipt": (lambda _: None, "message id"),
}
"""Damages to the receipts of sends that SQS applies."""
PERHAPS_APPLIED = {*RECEIPTS, "error", "lost request", "no connection", "connect timeout", "a bug"}
"""Faults after which SQS may have the copy. On FIFO, it is repeated while SQS deduplicates it (SPEC E7)."""


def inject_error(wire: Wire, where: Predicate, error: Exception) -> None:
    wire.fails |= dict.fromkeys(OPERATIONS, lambda request: error if where(request) else None)


def inject(wire: Wire, where: Predicate, fault: str) -> str:
    """Make the requests that ``where`` matches fail; return the text that the log must show."""
    if fault in ERRORS:
        error, shown = ERRORS[fault]
        inject_error(wire, where, error)
        return shown
    if fault == "entry failed":
        wire.refuses |= dict.fromkeys(OPERATIONS, lambda request, _: REFUSAL if where(request) else None)
        return "InternalError"
    spoil, shown = RECEIPTS[fault]
    wire.receipts = lambda _, receipt: spoil(receipt)
    return shown


# the batch

STANDARD_BATCH = event(*(record("{}", name) for name in ("ok-1", "retry-1", "dead-1", "ok-2", "exit-1", "ok-3")))
STANDARD_FATES: dict[str, Fate] = {
    "ok-1": DONE, "retry-1": waits(60), "dead-1": DEAD, "ok-2": DONE, "exit-1": waits(60), "ok-3": waits(0),
}  # fmt: skip
FIFO_GROUPS = {"dead-1": "a", "retry-1": "b", "ok-a": "a", "ok-b": "b", "ok-c": "c", "dead-2": "d"}
FIFO_BATCH = event(*(record("{}", name, "orders.fifo", group=group) for name, group in FIFO_GROUPS.items()))
FIFO_FATES: dict[str, Fate] = {
    "dead-1": DEAD, "retry-1": waits(60), "ok-a": DONE, "ok-b": waits(0), "ok-c": DONE, "dead-2": DEAD,
}  # fmt: skip


def standard_wire() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")})


def fifo_wire() -> Wire:
    return Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")})


def handles(wire: Wire, operation: str) -> dict[str, Any]:
    """Return the entries of an operation that SQS carried out, by receipt handle."""
    return {entry["ReceiptHandle"]: entry for request, entry in wire.accepted if request.operation == operation}


def fates(wire: Wire, batch: dict[str, Any], handler: Consumer[Any], remaining: float = 30) -> dict[str, Fate]:
    """Run a batch; return the fate of each message, from the answers of SQS and the response of the function."""
    with wire:
        reported = failed(handler(batch, Context(remaining)))
    assert len(reported) == len(set(reported))
    changed, deleted = handles(wire, "ChangeMessageVisibilityBatch"), handles(wire, "DeleteMessageBatch")
    sent = {envelope["id"] for envelope in wire.envelopes()}
    found: dict[str, Fate] = {}
    for each in batch["Records"]:
        name, handle = each["messageId"], each["receiptHandle"]
        if name in reported:
            assert handle not in deleted, f"{name} was deleted but reported as failed"
            found[name] = waits(changed[handle]["VisibilityTimeout"]) if handle in changed else REPORTED
        else:
            found[name] = DEAD if name in sent else DONE
    return found


def expected(name: str, fault: str, fates: dict[str, Fate], *, fifo: bool) -> dict[str, Fate]:
    """Return the fates when this request fails."""
    match name:
        case "look-up of the source" | "send":  # the target is unknown, or the send is not confirmed
            stuck = 240 if fifo and name == "send" and fault in PERHAPS_APPLIED else 900
            gone = {each: waits(stuck) for each, fate in fates.items() if fate == DEAD}
            behind = {"ok-a": waits(0)} if fifo else {}
            return fates | gone | behind
        case "retries":
            return {each: REPORTED if fate == waits(60) else fate for each, fate in fates.items()}
        case "releases":
            return {each: REPORTED if fate == waits(0) else fate for each, fate in fates.items()}
        case _:  # the limit is guessed; Lambda deletes messages that are not reported
            return fates


FAULTS = [(name, fault) for name in REQUESTS for fault in ERRORS]
FAULTS += [(name, "entry failed") for name in ("send", "delete", "retries", "releases")]
FAULTS += [("send", fault) for fault in RECEIPTS]
MATRIX = pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault}" for name, fault in FAULTS])


@MATRIX
def test_a_failing_request_loses_no_message_affects_no_other_and_is_logged(
    name: str, fault: str, caplog: Caplog
) -> None:  # SPEC A2, F4, G1, L2
    """The line has at least the level WARNING, because Lambda does not show lower levels by default."""
    wire = standard_wire()
    shown = inject(wire, REQUESTS[name], fault)
    assert fates(wire, STANDARD_BATCH, plain()) == expected(name, fault, STANDARD_FATES, fifo=False)
    texts = [line.getMessage() for line in lines(caplog, level=logging.WARNING)]
    assert any(shown in text for text in texts), texts


@MATRIX
def test_on_fifo_a_failing_request_loses_no_message_and_stops_no_other_group(name: str, fault: str) -> None:
    # SPEC A2, F4, G1, H1
    wire = fifo_wire()
    inject(wire, REQUESTS[name], fault)
    assert fates(wire, FIFO_BATCH, plain()) == expected(name, fault, FIFO_FATES, fifo=True)


@pytest.mark.parametrize("fault", [*ERRORS, "entry failed"])
def test_if_all_requests_fail_every_message_that_did_not_succeed_is_reported(fault: str) -> None:  # SPEC A2, G1
    for wire, batch, wanted in (
        (standard_wire(), STANDARD_BATCH, STANDARD_FATES),
        (fifo_wire(), FIFO_BATCH, FIFO_FATES | {"ok-a": REPORTED}),
    ):
        inject(wire, lambda _: True, fault)
        found = fates(wire, batch, plain())
        assert found == {name: DONE if fate == DONE else REPORTED for name, fate in wanted.items()}


# one entry of several


@pytest.mark.parametrize(
    ("operation", "changed"),
    [
        ("SendMessageBatch", {"dead-2": waits(900)}),
        ("DeleteMessageBatch", {}),
        ("ChangeMessageVisibilityBatch", {"retry-2": REPORTED}),
    ],
)
def test_one_refused_entry_changes_only_its_own_message(operation: str, changed: dict[str, Fate]) -> None:
    """SPEC C6, G1, F4. Also if SQS refuses the whole request for it: then each entry is sent alone."""
    batch = event(*(record(index, f"{kind}-{index}") for index in range(5) for kind in ("dead", "retry")))
    all_well: dict[str, Fate] = dict.fromkeys((f"dead-{index}" for index in range(5)), DEAD)
    all_well |= dict.fromkeys((f"retry-{index}" for index in range(5)), waits(60))
    wire = standard_wire()
    wire.refuses[operation] = lambda _, entry: REFUSAL if entry["Id"] == "2" else None
    assert fates(wire, batch, plain()) == all_well | changed

    def is_odd(entry: dict[str, Any]) -> bool:
        return entry.get("MessageBody") == "2" or entry.get("ReceiptHandle") == "handle-retry-2"

    whole = standard_wire()
    whole.fails[operation] = lambda request: (
        client_error("InvalidParameterValue", "one of them is odd") if any(map(is_odd, request.entries)) else None
    )
    assert fates(whole, batch, plain()) == all_well | changed


@pytest.mark.parametrize("code", ["RequestThrottled", "AccessDenied", "AWS.SimpleQueueService.NonExistentQueue"])
def test_an_error_that_does_not_concern_an_entry_is_not_repeated_entry_by_entry(code: str) -> None:  # SPEC G1
    wire = standard_wire()
    wire.fails["ChangeMessageVisibilityBatch"] = client_error(code)
    fates(wire, event(*(record("{}", f"retry-{index}") for index in range(10))), plain())
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


def test_a_failing_request_of_ten_entries_does_not_affect_other_requests() -> None:  # SPEC G1
    wire = standard_wire()
    wire.fails["ChangeMessageVisibilityBatch"] = lambda request: (
        client_error("InternalError", status=500) if request.entries[0]["ReceiptHandle"] == "handle-retry-10" else None
    )
    found = fates(wire, event(*(record("{}", f"retry-{index}") for index in range(30))), plain())
    assert found == {f"retry-{index}": REPORTED if 10 <= index < 20 else waits(60) for index in range(30)}


# the test of the receipt handle before a send long after the receive


def after_half_of_the_visibility_timeout(wire: Wire) -> dict[str, Fate]:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        wire.clock.now += 100 if message.id == "dead-1" else 0
        behave(message)

    batch = event(*(record("{}", name, "orders.fifo", group=name) for name in ("dead-1", "ok-1", "retry-1")))
    return fates(wire, batch, handler, 900)


@pytest.mark.parametrize("fault", list(ERRORS))
def test_a_failed_test_of_the_receipt_handle_does_not_prevent_the_send(fault: str) -> None:  # SPEC E6, A8
    """Only a refused handle means that the message was delivered to another consumer; a throttle does not."""
    wire = fifo_wire()
    inject(wire, HANDLE_TEST, fault)
    assert after_half_of_the_visibility_timeout(wire) == {"ok-1": DONE, "dead-1": DEAD, "retry-1": waits(60)}


@pytest.mark.parametrize(("seconds", "is_tested"), [(89.9, False), (90, True)])
def test_on_fifo_a_receipt_handle_is_tested_from_half_of_the_visibility_timeout_on(
    seconds: float, is_tested: bool
) -> None:  # SPEC E6
    wire = fifo_wire()

    @consumer
    def handler(message: Message) -> None:
        wire.clock.now += seconds
        message.reject("no")

    batch = event(record("{}", "dead-1", "orders.fifo", group="a"))
    assert fates(wire, batch, handler, 900) == {"dead-1": DEAD}
    assert any(HANDLE_TEST(request) for request in wire.requests) == is_tested


@pytest.mark.parametrize(
    "code", ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "the whole request"]
)
def test_a_message_whose_receipt_handle_is_refused_is_not_sent_but_reported(code: str, caplog: Caplog) -> None:
    # SPEC E6
    wire = fifo_wire()
    text = "Value handle-dead-1 for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    if code == "the whole request":
        inject_error(wire, HANDLE_TEST, client_error("ReceiptHandleIsInvalid", "The receipt handle is invalid."))
    else:
        wire.refuses["ChangeMessageVisibilityBatch"] = lambda request, _: (code, text) if HANDLE_TEST(request) else None
    found = after_half_of_the_visibility_timeout(wire)
    assert found == {"ok-1": DONE, "dead-1": REPORTED, "retry-1": waits(60)}
    assert wire.sent("SendMessageBatch") == []
    assert any(field(line, "message_id") == "dead-1" for line in lines(caplog, level=logging.WARNING))


# invalid answers


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"RedrivePolicy": "", "VisibilityTimeout": "soon"},
        {"RedrivePolicy": "{}"},
        {"RedrivePolicy": '{"maxReceiveCount": "x", "deadLetterTargetArn": "nowhere"}'},
        {"RedrivePolicy": "not json"},
        {"RedrivePolicy": "null"},
        {"RedrivePolicy": '{"deadLetterTargetArn": ["x"]}'},
    ],
    ids=str,
)
def test_invalid_attributes_of_a_queue_are_ignored(answer: dict[str, str]) -> None:  # SPEC A2, F5
    """An emulator or a proxy may return them."""
    wire = standard_wire()
    wire.queues["orders"] = SimpleNamespace(attributes=lambda names: answer)  # type: ignore[assignment]
    assert fates(wire, STANDARD_BATCH, plain()) == STANDARD_FATES | {"dead-1": waits(900)}


def test_a_failed_look_up_is_logged_once_per_invocation(caplog: Caplog) -> None:  # SPEC C8, L2
    wire = standard_wire()
    wire.fails["GetQueueAttributes"] = client_error("RequestThrottled")
    fates(wire, event(*(record("{}", f"retry-{index}") for index in range(3))), plain())
    [line] = lines(caplog, "look_up_failed")
    assert "orders" in line.getMessage()
    assert "RequestThrottled" in line.getMessage()


# transfers: the original stays until its copy is confirmed, and FIFO deduplicates a repeated copy


class Transfer(NamedTuple):
    """A way to send the message m1 to another queue or back to its own."""

    source: str
    target: str
    handler: Consumer[Any]
    waits: int = 900
    """The delay in seconds of the message if its copy could not be sent."""


def by_step(source: str, target: str, step: Any) -> Transfer:
    def fails(message: Message) -> None:
        if message.id == "m1":
            raise ValueError("out of order")

    return Transfer(source, target, consumer(on_failure=[step])(fails))


def defers(message: Message) -> None:
    if message.id == "m1":
        message.defer(60)


TRANSFERS = {
    "deferred": Transfer("orders", "orders", consumer(defers), waits=60),
    "again": by_step("orders", "orders", SendAgain("slow", times=9)),
    "to another queue": by_step("orders", "slow", SendAgain("slow", times=9, queue="slow")),
    "again on FIFO": by_step("orders.fifo", "orders.fifo", SendAgain("slow", times=9, breaks_order=True)),
    "to another FIFO queue": by_step("orders.fifo", "slow.fifo", SendAgain("slow", times=9, queue="slow.fifo")),
    "to its dead-letter queue": by_step("orders", "orders-dlq", DeadLetter()),
    "to a named FIFO dead-letter queue": by_step("orders.fifo", "graves.fifo", DeadLetter(queue="graves.fifo")),
}
OF_SENDS = ["entry failed", "lost answer", "wrong MD5", "no message id", "no receipt"]
OF_SENDS += [fault for fault in ERRORS if fault not in ("whole call refused", "connect timeout", "a bug")]


def deliver(wire: Wire, transfer: Transfer, receives: int) -> list[str]:
    """Deliver m1 and a message of another group; return the ids that are reported as failed."""
    first = record("m1's body", "m1", transfer.source, receives=receives, group="a")
    with wire:
        batch = event(first, record("m2's body", "m2", transfer.source, group="b"))
        return failed(transfer.handler(batch, Context()))


def copies(wire: Wire, transfer: Transfer) -> list[dict[str, Any]]:
    """Return the entries in the target queue, without those that SQS deduplicates."""
    sent = [entry for request, entry in wire.accepted if "MessageBody" in entry and request.queue == transfer.target]
    if not transfer.target.endswith(".fifo"):
        return sent
    return list({entry["MessageDeduplicationId"]: entry for entry in reversed(sent)}.values())


@pytest.mark.parametrize("fault", OF_SENDS)
@pytest.mark.parametrize("way", TRANSFERS)
def test_a_message_stays_until_its_copy_is_confirmed_and_is_not_duplicated_on_fifo(way: str, fault: str) -> None:
    # SPEC E6, E7, F4, A2
    transfer = TRANSFERS[way]
    suffix = ".fifo" if transfer.source.endswith(".fifo") else ""
    wire = Wire(queues={transfer.source: Queue(dead_letter=f"orders-dlq{suffix}")})
    working = wire.receipts

    inject(wire, is_send, fault)
    assert deliver(wire, transfer, receives=1) == ["m1"], "a failing send affects no other message"
    assert handles(wire, "DeleteMessageBatch") == {}
    assert len(copies(wire, transfer)) == (fault in RECEIPTS)
    is_repeated_soon = suffix and fault in PERHAPS_APPLIED
    assert wire.visibilities() == {"handle-m1": 240 if is_repeated_soon else transfer.waits}

    wire.fails, wire.refuses, wire.receipts = {}, {}, working
    assert deliver(wire, transfer, receives=2) == []
    # m2 was acknowledged and deleted before m1, a redelivered message, started
    assert handles(wire, "DeleteMessageBatch").keys() == {"handle-m1", "handle-m2"}
    sent = copies(wire, transfer)
    assert len(sent) == (2 if fault in RECEIPTS and not suffix else 1)
    assert {entry["MessageBody"] for entry in sent} == {"m1's body"}
    assert {envelope["id"] for envelope in wire.envelopes()} == {"m1"}, "the stable id identifies a duplicate"


# a request that botocore repeats


@pytest.mark.parametrize(
    ("queue", "faults", "may_be_there"),
    [
        ("orders.fifo", ("lost_answer", "denied"), True),
        ("orders.fifo", ("lost_answer", "throttle"), True),
        ("orders.fifo", ("lost_answer", "unavailable"), True),
        ("orders.fifo", ("lost_answer", "partial_failure"), True),
        ("orders", ("throttle", "throttle"), False),
    ],
)
def test_the_log_says_whether_a_dead_letter_that_failed_twice_may_have_been_sent(
    queue: str, faults: tuple[str, ...], may_be_there: bool, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC C8, E7
    """A send that may be applied is repeated while SQS drops the repetition; a throttled one was not applied."""

    @consumer(fatal=ValueError, backoff=Fixed(900))
    def handler(_: Message) -> None:
        raise ValueError("out of order")

    suffix = queue.removeprefix("orders")
    sandbox.queue(queue, dead_letter=f"dead{suffix}")
    sandbox.connect(handler, queue)
    for fault in faults:
        sandbox.faults.add(fault, operation="SendMessageBatch")
    sandbox.send(queue, "body", group_id="a" if suffix else None)
    sandbox.run()
    [line] = lines(caplog, "unhandled")
    assert str(field(line, "not_sent")).endswith("(it may be there all the same)") == may_be_there
    assert len(sandbox.messages(f"dead{suffix}")) == 1


def test_at_the_last_delivery_the_dead_letter_is_sent_though_the_copy_may_be_there(
    sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC C8
    @consumer(on_failure=[SendAgain("slow", queue="slow"), DeadLetter()])
    def handler(_: Message) -> None:
        raise ValueError("out of order")

    sandbox.queue("orders", dead_letter="dead", max_receive_count=1)
    sandbox.queue("slow")
    sandbox.connect(handler, "orders")
    for fault in ("lost_answer", "denied"):
        sandbox.faults.add(fault, operation="SendMessageBatch", queue="slow")
    sandbox.send("orders", "body")
    sandbox.run()
    assert [len(sandbox.messages(queue)) for queue in ("slow", "dead")] == [1, 1]
    [line] = lines(caplog, "dead_lettered")
    assert str(field(line, "not_sent")).endswith("(it may be there all the same)")
