"""Each request of a settlement fails in each possible way: no message is lost, and others are not affected."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from tarry import Consumer, Fixed, Message, Retry, consumer
from tests.handlers import behave, behave_async
from tests.loglines import field, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Request, Wire, client_error

Predicate = Callable[[Request], bool]
Fate = str | tuple[str, int]

DONE, DEAD, REPORTED = "done", "dead-lettered", "reported as failed"


def waits(seconds: int) -> Fate:
    return "waits", seconds


# the requests


def looks_up(queue: str) -> Predicate:
    return lambda request: request.operation == "GetQueueAttributes" and request.queue.partition(".")[0] == queue


def is_send(request: Request) -> bool:
    return request.operation == "SendMessageBatch"


def is_delete(request: Request) -> bool:
    return request.operation == "DeleteMessageBatch"


def changes_visibility_to(seconds: int) -> Predicate:
    def matches(request: Request) -> bool:
        if request.operation != "ChangeMessageVisibilityBatch":
            return False
        return all(entry["VisibilityTimeout"] == seconds for entry in request.entries)

    return matches


REQUESTS: dict[str, Predicate] = {
    "look-up of the source": looks_up("orders"),
    "look-up of the target": looks_up("orders-dlq"),
    "send": is_send,
    "delete": is_delete,
    "retries": changes_visibility_to(60),
    "releases": changes_visibility_to(0),
}
HANDLE_TEST = changes_visibility_to(180)

# the faults, each with a text that the log must show

ENDPOINT = "https://sqs.us-east-1.amazonaws.com/"
ERRORS: dict[str, tuple[Exception, str]] = {
    "error": (client_error("ServiceUnavailable", "try later", status=503), "ServiceUnavailable"),
    "throttle": (client_error("RequestThrottled", "too many requests"), "RequestThrottled"),
    "denied": (client_error("AccessDenied", "not you", status=403), "AccessDenied"),
    "no such queue": (client_error("AWS.SimpleQueueService.NonExistentQueue", "gone"), "NonExistentQueue"),
    "whole call refused": (client_error("InvalidParameterValue", "something is wrong"), "InvalidParameterValue"),
    "lost answer": (ReadTimeoutError(endpoint_url=ENDPOINT), "Read timeout"),
    "no connection": (EndpointConnectionError(endpoint_url=ENDPOINT), "Could not connect"),
    "connect timeout": (ConnectTimeoutError(endpoint_url=ENDPOINT), "Connect timeout"),
    "a bug": (KeyError("QueueUrl"), "QueueUrl"),
}
REFUSAL = ("InternalError", "the entry failed")

FAULTS = [(name, fault) for name in REQUESTS for fault in ERRORS]
FAULTS += [(name, "entry failed") for name in ("send", "delete", "retries", "releases")]
FAULTS += [("send", "wrong MD5"), ("send", "no message id"), ("send", "no receipt"), ("send", "no MD5")]
PERHAPS_APPLIED = frozenset(
    {"error", "lost answer", "no connection", "connect timeout", "a bug"}
    | {"wrong MD5", "no message id", "no receipt", "no MD5"}
)
"""Faults after which SQS may have the dead letter. On FIFO, it is repeated while SQS deduplicates it (SPEC E7)."""


def inject(wire: Wire, where: Predicate, fault: str) -> str:
    """Make the requests that ``where`` matches fail; return the text that the log must show."""
    if fault in ERRORS:
        error, shown = ERRORS[fault]
        for operation in (
            "GetQueueAttributes",
            "SendMessageBatch",
            "DeleteMessageBatch",
            "ChangeMessageVisibilityBatch",
        ):
            wire.fails[operation] = lambda request: error if where(request) else None
        return shown
    if fault == "entry failed":
        for operation in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
            wire.refuses[operation] = lambda request, _: REFUSAL if where(request) else None
        return "InternalError"
    spoil: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
        "wrong MD5": lambda receipt: {**receipt, "MD5OfMessageBody": "0" * 32},
        "no message id": lambda receipt: {**receipt, "MessageId": ""},
        "no MD5": lambda receipt: {name: value for name, value in receipt.items() if name != "MD5OfMessageBody"},
        "no receipt": lambda _: None,
    }
    wire.receipts = lambda _, receipt: spoil[fault](receipt)
    return "message id" if fault in ("no message id", "no receipt") else "MD5"


# the batch


HANDLERS = pytest.mark.parametrize(
    "handler",
    [consumer(backoff=Fixed(60))(behave), consumer(backoff=Fixed(60))(behave_async)],
    ids=["sync", "async"],
)

STANDARD_BATCH = event(*(record("{}", name) for name in ("ok-1", "retry-1", "dead-1", "ok-2", "exit-1", "ok-3")))
STANDARD_FATES: dict[str, Fate] = {
    "ok-1": DONE, "retry-1": waits(60), "dead-1": DEAD, "ok-2": DONE, "exit-1": waits(60), "ok-3": waits(0),
}  # fmt: skip

FIFO_BATCH = event(
    *(
        record("{}", name, queue="orders.fifo", group=group)
        for name, group in (
            ("dead-1", "a"), ("retry-1", "b"), ("ok-a", "a"), ("ok-b", "b"), ("ok-c", "c"), ("dead-2", "d"),
        )
    )
)  # fmt: skip
FIFO_FATES: dict[str, Fate] = {
    "dead-1": DEAD, "retry-1": waits(60), "ok-a": DONE, "ok-b": waits(0), "ok-c": DONE, "dead-2": DEAD,
}  # fmt: skip


def standard_wire() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")})


def fifo_wire() -> Wire:
    return Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")})


def fates(wire: Wire, response: Any, batch: dict[str, Any]) -> dict[str, Fate]:
    """Return the fate of each message, from the answers of SQS and the response of the function."""
    reported = failed(response)
    assert len(reported) == len(set(reported))
    visibilities = {
        entry["ReceiptHandle"]: entry["VisibilityTimeout"]
        for request, entry in wire.accepted
        if request.operation == "ChangeMessageVisibilityBatch"
    }
    deleted = {entry["ReceiptHandle"] for request, entry in wire.accepted if request.operation == "DeleteMessageBatch"}
    sent = {envelope["id"] for envelope in wire.envelopes()}
    found: dict[str, Fate] = {}
    for each in batch["Records"]:
        name, handle = each["messageId"], each["receiptHandle"]
        if name in reported:
            assert handle not in deleted, f"{name} was deleted but reported as failed"
            found[name] = waits(visibilities[handle]) if handle in visibilities else REPORTED
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


MATRIX = pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault}" for name, fault in FAULTS])


@HANDLERS
@MATRIX
def test_a_failing_request_loses_no_message_and_affects_no_other_message(
    name: str, fault: str, handler: Consumer[Any]
) -> None:  # SPEC A2, F4, G1
    wire = standard_wire()
    inject(wire, REQUESTS[name], fault)
    with wire:
        response = handler(STANDARD_BATCH, Context())
    assert fates(wire, response, STANDARD_BATCH) == expected(name, fault, STANDARD_FATES, fifo=False)


@MATRIX
def test_on_fifo_a_failing_request_loses_no_message_and_stops_no_other_group(
    name: str, fault: str
) -> None:  # SPEC A2, F4, G1, H1
    wire = fifo_wire()
    inject(wire, REQUESTS[name], fault)
    with wire:
        response = consumer(backoff=Fixed(60))(behave)(FIFO_BATCH, Context())
    assert fates(wire, response, FIFO_BATCH) == expected(name, fault, FIFO_FATES, fifo=True)


@MATRIX
def test_a_failing_request_is_logged(name: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:  # SPEC G1, L2
    """At WARNING or above, because Lambda does not show lower levels by default."""
    wire = standard_wire()
    shown = inject(wire, REQUESTS[name], fault)
    with wire:
        consumer(backoff=Fixed(60))(behave)(STANDARD_BATCH, Context())
    shown = "lacks sqs:" if fault == "denied" else shown
    texts = [line.getMessage() for line in lines(caplog, level=logging.WARNING)]
    assert any(shown in text for text in texts), texts


def test_without_a_fault_each_message_has_the_fate_that_the_handler_asked_for() -> None:
    with standard_wire() as wire:
        response = consumer(backoff=Fixed(60))(behave)(STANDARD_BATCH, Context())
    assert fates(wire, response, STANDARD_BATCH) == STANDARD_FATES
    with fifo_wire() as wire:
        response = consumer(backoff=Fixed(60))(behave)(FIFO_BATCH, Context())
    assert fates(wire, response, FIFO_BATCH) == FIFO_FATES


# one entry of several


@pytest.mark.parametrize("operation", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_one_refused_entry_changes_only_its_own_message(operation: str) -> None:  # SPEC G1, F4
    batch = event(*(record("{}", f"{kind}-{index}") for index in range(5) for kind in ("dead", "retry")))
    wire = standard_wire()
    wire.refuses[operation] = lambda _, entry: REFUSAL if entry["Id"] == "2" else None
    with wire:
        found = fates(wire, consumer(backoff=Fixed(60))(behave)(batch, Context()), batch)
    one: dict[str, dict[str, Fate]] = {
        "SendMessageBatch": {"dead-2": waits(900)},
        "DeleteMessageBatch": {},
        "ChangeMessageVisibilityBatch": {"retry-2": REPORTED},
    }
    by_id: dict[str, Fate] = dict.fromkeys((f"dead-{index}" for index in range(5)), DEAD)
    by_id |= dict.fromkeys((f"retry-{index}" for index in range(5)), waits(60))
    assert found == by_id | one[operation]


@pytest.mark.parametrize("operation", ["SendMessageBatch", "ChangeMessageVisibilityBatch"])
def test_a_settlement_request_refused_as_a_whole_is_repeated_entry_by_entry(operation: str) -> None:  # SPEC C6, G1
    kind = "dead" if operation == "SendMessageBatch" else "retry"
    batch = event(*(record(str(index), f"{kind}-{index}") for index in range(5)))

    def is_refused(entry: dict[str, Any]) -> bool:
        return entry.get("MessageBody") == "3" or entry.get("ReceiptHandle") == "handle-retry-3"

    def refuse(request: Request) -> Exception | None:
        has_refused_entry = any(is_refused(entry) for entry in request.entries)
        return client_error("InvalidParameterValue", "one of them is odd") if has_refused_entry else None

    wire = standard_wire()
    wire.fails[operation] = refuse
    with wire:
        found = fates(wire, consumer(backoff=Fixed(60))(behave)(batch, Context()), batch)
    others = DEAD if kind == "dead" else waits(60)
    refused = waits(900) if kind == "dead" else REPORTED
    assert found == {f"{kind}-{index}": refused if index == 3 else others for index in range(5)}


@pytest.mark.parametrize("code", ["RequestThrottled", "AccessDenied", "AWS.SimpleQueueService.NonExistentQueue"])
def test_an_error_that_does_not_concern_an_entry_is_not_repeated_entry_by_entry(code: str) -> None:  # SPEC G1
    batch = event(*(record("{}", f"retry-{index}") for index in range(10)))
    wire = standard_wire()
    wire.fails["ChangeMessageVisibilityBatch"] = client_error(code)
    with wire:
        consumer(backoff=Fixed(60))(behave)(batch, Context())
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


def test_a_failing_request_of_ten_entries_does_not_affect_other_requests() -> None:  # SPEC G1
    batch = event(*(record("{}", f"retry-{index}") for index in range(30)))
    wire = standard_wire()

    def fail(request: Request) -> Exception | None:
        is_second = request.entries[0]["ReceiptHandle"] == "handle-retry-10"
        return client_error("InternalError", status=500) if is_second else None

    wire.fails["ChangeMessageVisibilityBatch"] = fail
    with wire:
        found = fates(wire, consumer(backoff=Fixed(60))(behave)(batch, Context()), batch)
    assert found == {f"retry-{index}": REPORTED if 10 <= index < 20 else waits(60) for index in range(30)}


# the test of the receipt handle before a send long after the receive


def slow(wire: Wire) -> Consumer[Any]:
    """Return a consumer that takes more than half of the queue's visibility timeout."""

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        wire.clock.now += 100 if message.id == "dead-1" else 0
        behave(message)

    return handler


SLOW_BATCH = event(*(record("{}", name, "orders.fifo", group=name) for name in ("dead-1", "ok-1", "retry-1")))
SLOW_FATES: dict[str, Fate] = {"ok-1": DONE, "dead-1": DEAD, "retry-1": waits(60)}


@pytest.mark.parametrize("fault", list(ERRORS))
def test_a_failed_test_of_the_receipt_handle_does_not_prevent_the_send(fault: str) -> None:  # SPEC E6, A8
    """Only a refused handle means that the message was delivered to another consumer; a throttle does not."""
    wire = fifo_wire()
    inject(wire, HANDLE_TEST, fault)
    with wire:
        found = fates(wire, slow(wire)(SLOW_BATCH, Context(remaining=900)), SLOW_BATCH)
    assert found == SLOW_FATES


@pytest.mark.parametrize(("seconds", "is_tested"), [(89.9, False), (90, True)])
def test_on_fifo_a_receipt_handle_is_tested_from_half_of_the_visibility_timeout_on(
    seconds: float, is_tested: bool
) -> None:  # SPEC E6
    wire = fifo_wire()

    @consumer
    def handler(message: Message) -> None:
        wire.clock.now += seconds
        message.reject("no")

    with wire:
        assert failed(handler(event(record("{}", "dead-1", "orders.fifo", group="a")), Context(remaining=900))) == []
    assert any(HANDLE_TEST(request) for request in wire.requests) == is_tested


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"])
def test_a_message_whose_receipt_handle_is_refused_is_not_sent_but_reported(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E6
    wire = fifo_wire()
    text = "Value handle-dead-1 for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda request, _: (code, text) if HANDLE_TEST(request) else None
    with wire:
        found = fates(wire, slow(wire)(SLOW_BATCH, Context(remaining=900)), SLOW_BATCH)
    assert found == SLOW_FATES | {"dead-1": REPORTED}
    assert wire.sent("SendMessageBatch") == []
    assert any(field(line, "message_id") == "dead-1" for line in lines(caplog, level=logging.WARNING))


def test_a_message_is_not_sent_if_the_whole_request_is_refused_for_its_receipt_handle() -> None:  # SPEC E6
    wire = fifo_wire()
    wire.fails["ChangeMessageVisibilityBatch"] = lambda request: (
        client_error("ReceiptHandleIsInvalid", "The input receipt handle is invalid.") if HANDLE_TEST(request) else None
    )
    with wire:
        found = fates(wire, slow(wire)(SLOW_BATCH, Context(remaining=900)), SLOW_BATCH)
    assert found == SLOW_FATES | {"dead-1": REPORTED}


# all requests fail


@pytest.mark.parametrize("fault", [*ERRORS, "entry failed"])
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_if_all_requests_fail_every_message_that_did_not_succeed_is_reported(fault: str, fifo: bool) -> None:  # SPEC A2
    wire, batch = (fifo_wire(), FIFO_BATCH) if fifo else (standard_wire(), STANDARD_BATCH)
    inject(wire, lambda _: True, fault)
    with wire:
        response = consumer(backoff=Fixed(60))(behave)(batch, Context())
    succeeded = {"ok-1", "ok-2"} if not fifo else {"ok-c"}
    assert failed(response) == [each["messageId"] for each in batch["Records"] if each["messageId"] not in succeeded]


def test_a_retried_message_whose_visibility_cannot_be_changed_is_reported() -> None:  # SPEC A2, G1
    @consumer
    def handler(message: Message) -> None:
        raise Retry(300)

    wire = standard_wire()
    wire.fails["ChangeMessageVisibilityBatch"] = client_error("RequestThrottled")
    with wire:
        assert failed(handler(event(record()), Context())) == ["m1"]


# invalid answers


class OddQueue(Queue):
    """A queue for which GetQueueAttributes returns the given answer."""

    answer: dict[str, str]

    def attributes(self, names: list[str]) -> dict[str, str]:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"RedrivePolicy": "", "VisibilityTimeout": "soon"}, id="no numbers"),
        pytest.param({"RedrivePolicy": "{}"}, id="an empty policy"),
        pytest.param({"RedrivePolicy": '{"maxReceiveCount": "x", "deadLetterTargetArn": "nowhere"}'}, id="no ARN"),
        pytest.param({"RedrivePolicy": "not json"}, id="not JSON"),
        pytest.param({"RedrivePolicy": "null"}, id="null"),
        pytest.param({"RedrivePolicy": '{"deadLetterTargetArn": ["x"]}'}, id="a list"),
    ],
)
def test_invalid_attributes_of_a_queue_are_ignored(answer: dict[str, str]) -> None:  # SPEC A2, F5
    """An emulator or a proxy may return them."""
    wire = standard_wire()
    odd = wire.queues["orders"] = OddQueue()
    odd.answer = answer
    with wire:
        found = fates(wire, consumer(backoff=Fixed(60))(behave)(STANDARD_BATCH, Context()), STANDARD_BATCH)
    assert found == STANDARD_FATES | {"dead-1": waits(900)}


def test_a_failed_look_up_is_logged_once_per_invocation(caplog: pytest.LogCaptureFixture) -> None:  # SPEC C8, L2
    wire = standard_wire()
    wire.fails["GetQueueAttributes"] = client_error("RequestThrottled")
    retries = event(*(record("{}", f"retry-{index}") for index in range(3)))
    with wire:
        consumer(backoff=Fixed(60))(behave)(retries, Context())
    [line] = lines(caplog, "look_up_failed")
    assert "orders" in line.getMessage()
    assert "RequestThrottled" in line.getMessage()
