"""Each request fails in each possible way: no message is lost, and others are not affected."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ReadTimeoutError

from tarry import Consumer, DeadLetter, Fixed, Message, SendAgain, consumer
from tarry.testing import Sandbox
from tests.handlers import behave, plain
from tests.loglines import Caplog, field, lines
from tests.records import Context, event, failed, record
from tests.settled import orders
from tests.wire import Request, Wire, client_error

Predicate = Callable[[Request], bool]
Fate = str | tuple[str, int]

DONE, DEAD, REPORTED = "done", "dead-lettered", "reported as failed"
CHANGE, SEND = "ChangeMessageVisibilityBatch", "SendMessageBatch"
OPERATIONS = ("GetQueueAttributes", "SendMessage", SEND, "DeleteMessageBatch", CHANGE)


def waits(seconds: int) -> Fate:
    return "waits", seconds


# the requests


def looks_up(queue: str) -> Predicate:
    return lambda request: request.operation == "GetQueueAttributes" and request.queue.partition(".")[0] == queue


def changes_visibility_to(seconds: int) -> Predicate:
    return lambda request: (
        request.operation == CHANGE and all(entry["VisibilityTimeout"] == seconds for entry in request.entries)
    )


REQUESTS: dict[str, Predicate] = {
    "look-up of the source": looks_up("orders"),
    "look-up of the target": looks_up("orders-dlq"),
    "send": lambda request: request.operation.startswith("SendMessage"),
    "delete": lambda request: request.operation == "DeleteMessageBatch",
    "retries": changes_visibility_to(60),
    "releases": changes_visibility_to(0),
}
HANDLE_TEST = changes_visibility_to(180)

# the faults, each with a text that the log must show

LOST = ReadTimeoutError(endpoint_url="https://sqs.us-east-1.amazonaws.com/")
ERRORS: dict[str, tuple[Exception, str]] = {
    "error": (client_error("ServiceUnavailable", "try later", status=503), "ServiceUnavailable"),
    "throttle": (client_error("RequestThrottled", "too many requests"), "RequestThrottled"),
    "denied": (client_error("AccessDenied", "not you", status=403), "lacks sqs:"),
    "no such queue": (client_error("AWS.SimpleQueueService.NonExistentQueue", "gone"), "NonExistentQueue"),
    "whole call refused": (client_error("InvalidParameterValue", "something is wrong"), "InvalidParameterValue"),
    "lost request": (LOST, "Read timeout"),
    "a bug": (KeyError("QueueUrl"), "QueueUrl"),
}
"""Errors of requests that SQS does not apply. For the meaning of others see tests/unit/test_refusals.py."""
REFUSAL = ("InternalError", "the entry failed")


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda receipt: {each: value for each, value in receipt.items() if each != name}


def raising(error: Exception) -> Callable[[dict[str, Any]], None]:
    def spoil(_: dict[str, Any]) -> None:
        raise error

    return spoil


RECEIPTS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | None], str]] = {
    "lost answer": (raising(LOST), "Read timeout"),
    "broken answer": (raising(ConnectionResetError("closed")), "closed"),
    "wrong MD5": (lambda receipt: {**receipt, "MD5OfMessageBody": "0" * 32}, "MD5"),
    "no MD5": (without("MD5OfMessageBody"), "MD5"),
    "empty message id": (lambda receipt: {**receipt, "MessageId": ""}, "message id"),
    "no message id": (without("MessageId"), "message id"),
    "no receipt": (lambda _: None, "message id"),
}
"""Damages to the receipts of sends that SQS applies."""
PERHAPS_APPLIED = {*RECEIPTS, "error", "lost request", "a bug"}
"""Faults after which SQS may have the copy. On FIFO, it is repeated while SQS deduplicates it (SPEC E7)."""


def inject(wire: Wire, where: Predicate, fault: str | Exception) -> str:
    """Make the requests that ``where`` matches fail; return the text that the log must show."""
    shown = "InternalError"
    if isinstance(fault, Exception) or fault in ERRORS:
        error, shown = (fault, "") if isinstance(fault, Exception) else ERRORS[fault]
        wire.fails |= dict.fromkeys(OPERATIONS, lambda request: error if where(request) else None)
    elif fault == "entry failed":
        wire.refuses |= dict.fromkeys(OPERATIONS, lambda request, _: REFUSAL if where(request) else None)
    else:
        spoil, shown = RECEIPTS[fault]
        wire.receipts = lambda _, receipt: spoil(receipt)
    return shown


# the batch

STANDARD_FATES: dict[str, Fate] = {
    "ok-1": DONE, "retry-1": waits(60), "dead-1": DEAD, "ok-2": DONE, "exit-1": waits(60), "ok-3": waits(0),
}  # fmt: skip
STANDARD_BATCH = event(*(record("{}", name) for name in STANDARD_FATES))
FIFO_GROUPS = {"dead-1": "a", "retry-1": "b", "ok-a": "a", "ok-b": "b", "ok-c": "c", "dead-2": "d"}
FIFO_BATCH = event(*(record("{}", name, "orders.fifo", group=group) for name, group in FIFO_GROUPS.items()))
FIFO_FATES: dict[str, Fate] = {
    "dead-1": DEAD, "retry-1": waits(60), "ok-a": DONE, "ok-b": waits(0), "ok-c": DONE, "dead-2": DEAD,
}  # fmt: skip


def handles(wire: Wire, operation: str) -> dict[str, Any]:
    """Return the entries of an operation that SQS carried out, by receipt handle."""
    return {entry["ReceiptHandle"]: entry for request, entry in wire.accepted if request.operation == operation}


def fates(wire: Wire, batch: dict[str, Any], handler: Consumer[Any] | None = None) -> dict[str, Fate]:
    """Run a batch; return the fate of each message, from the answers of SQS and the response of the function."""
    with wire:
        reported = failed((handler or plain())(batch, Context(900 if handler else 30)))
    assert len(reported) == len(set(reported))
    changed, deleted = handles(wire, CHANGE), handles(wire, "DeleteMessageBatch")
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


def expected(name: str, fault: str, fates: dict[str, Fate]) -> dict[str, Fate]:
    fifo = fates is FIFO_FATES
    match name:
        case "look-up of the source" | "send":  # the target is unknown, or the send is not confirmed
            stuck = 240 if fifo and name == "send" and fault in PERHAPS_APPLIED else 900
            gone = {each: waits(stuck) for each, fate in fates.items() if fate == DEAD}
            return fates | gone | ({"ok-a": waits(0)} if fifo else {})
        case "retries" | "releases":
            lost = waits(60 if name == "retries" else 0)
            return {each: REPORTED if fate == lost else fate for each, fate in fates.items()}
        case _:  # the limit is guessed; Lambda deletes messages that are not reported
            return fates


FAULTS = {name: [*ERRORS, *([] if name.startswith("look-up") else ["entry failed"])] for name in REQUESTS}
FAULTS["send"] += RECEIPTS
BATCHES = pytest.mark.parametrize(
    ("batch", "wanted"), [(STANDARD_BATCH, STANDARD_FATES), (FIFO_BATCH, FIFO_FATES)], ids=["standard", "fifo"]
)


@BATCHES
@pytest.mark.parametrize("name", REQUESTS)
def test_a_failing_request_loses_no_message_affects_no_other_or_other_group_and_is_logged(
    name: str, batch: Any, wanted: dict[str, Fate], caplog: Caplog
) -> None:  # SPEC A2, F4, G1, H1, L2
    """The line has at least the level WARNING, because Lambda does not show lower levels by default."""
    for fault in FAULTS[name]:
        caplog.clear()
        shown = inject(wire := orders(), REQUESTS[name], fault)
        assert fates(wire, batch) == expected(name, fault, wanted), fault
        texts = [line.getMessage() for line in lines(caplog, level=logging.WARNING)]
        assert any(shown in text for text in texts), (fault, texts)


@BATCHES
def test_if_all_requests_fail_every_message_that_did_not_succeed_is_reported(
    batch: Any, wanted: dict[str, Fate]
) -> None:  # SPEC A2, G1
    wanted = {name: DONE if fate == DONE and name != "ok-a" else REPORTED for name, fate in wanted.items()}
    for fault in [*ERRORS, "entry failed"]:
        inject(wire := orders(), lambda _: True, fault)
        assert fates(wire, batch) == wanted, fault


# one entry of several


TOO_LONG = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
OF_ONE_ENTRY = [client_error("InvalidParameterValue", text) for text in ("one of them is odd", TOO_LONG)]


@pytest.mark.parametrize(
    ("operation", "changed"),
    [(SEND, {"dead-2": waits(900)}), ("DeleteMessageBatch", {}), (CHANGE, {"retry-2": REPORTED})],
)
def test_one_refused_entry_changes_only_its_own_message(operation: str, changed: dict[str, Fate]) -> None:
    """SPEC C6, G1, F4. Also if SQS refuses the whole request for it: then each other entry is sent once, alone."""
    batch = event(*(record(index, f"{kind}-{index}") for index in range(5) for kind in ("dead", "retry")))
    wanted = {each["messageId"]: DEAD if "dead" in each["messageId"] else waits(60) for each in batch["Records"]}

    def is_odd(entry: dict[str, Any]) -> bool:
        return entry.get("MessageBody") == "2" or entry.get("ReceiptHandle") == "handle-retry-2"

    for error in (None, *OF_ONE_ENTRY, client_error("MalformedInput")):
        wire = orders()
        if error is None:
            wire.refuses[operation] = lambda _, entry: REFUSAL if entry["Id"] == "2" else None
        else:
            fails = lambda request, error=error: error if any(map(is_odd, request.entries)) else None  # noqa: E731
            wire.fails[operation] = fails
        assert fates(wire, batch) == wanted | changed, error
        alone = [str(request.entries[0]) for request in wire.sent(operation) if len(request.entries) == 1]
        others = [each for each in alone if "handle-retry-" in each and "handle-retry-2" not in each]
        assert len(others) == len({*others}) == (4 if error and operation == CHANGE else 0), error


@pytest.mark.parametrize("code", ["RequestThrottled", "AccessDenied", "AWS.SimpleQueueService.NonExistentQueue"])
def test_an_error_of_ten_entries_is_not_repeated_entry_by_entry_and_does_not_affect_other_requests(code: str) -> None:
    wire, error = orders(), client_error(code)  # SPEC G1
    wire.fails[CHANGE] = lambda request: error if "handle-retry-10" in str(request.entries[0]) else None
    found = fates(wire, event(*(record("{}", f"retry-{index}") for index in range(30))))
    assert found == {f"retry-{index}": REPORTED if 10 <= index < 20 else waits(60) for index in range(30)}
    assert len(wire.sent(CHANGE)) == 3


# the test of the receipt handle before a send long after the receive


def fates_after(wire: Wire, seconds: float) -> dict[str, Fate]:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        wire.clock.now += seconds if message.id == "dead-1" else 0
        behave(message)

    return fates(
        wire, event(*(record("{}", name, "orders.fifo", group=name) for name in ("dead-1", "ok-1", "retry-1"))), handler
    )


OK = {"ok-1": DONE, "dead-1": DEAD, "retry-1": waits(60)}


STALE = client_error("ReceiptHandleIsInvalid", "The receipt handle is invalid.")
REASON = "Value handle-dead-1 for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
CODES = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue")


@pytest.mark.parametrize(
    ("fault", "seconds", "is_tested", "fate"),
    [
        (None, 89.9, False, DEAD),
        (None, 90, True, DEAD),
        # only a refused handle means that the message was delivered to another consumer; a throttle does not
        *((fault, 100, True, DEAD) for fault in ERRORS),
        *(((code, REASON), 100, True, REPORTED) for code in CODES),
        (STALE, 100, True, REPORTED),
    ],
)
def test_on_fifo_a_receipt_handle_is_tested_from_half_of_the_visibility_timeout_on_and_without_it_nothing_is_sent(
    fault: Any, seconds: float, is_tested: bool, fate: str, caplog: Caplog
) -> None:  # SPEC A8, E6
    wire = orders()
    if isinstance(fault, tuple):
        wire.refuses[CHANGE] = lambda request, _: fault if HANDLE_TEST(request) else None
    elif fault is not None:
        inject(wire, HANDLE_TEST, fault)
    assert fates_after(wire, seconds) == OK | {"dead-1": fate}
    assert (any(map(HANDLE_TEST, wire.requests)), len(wire.sent(SEND))) == (is_tested, fate == DEAD)
    logged = [field(line, "message_id") for line in lines(caplog, level=logging.WARNING)]
    assert "dead-1" in logged
    assert [field(line, "message_id") for line in lines(caplog, "lease_lost")] == ["dead-1"] * (fate == REPORTED)


# invalid answers


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"RedrivePolicy": "", "VisibilityTimeout": "soon"},
        *({"RedrivePolicy": policy} for policy in ("{}", "not json", "null", '{"deadLetterTargetArn": ["x"]}')),
        {"RedrivePolicy": '{"maxReceiveCount": "x", "deadLetterTargetArn": "nowhere"}'},
    ],
    ids=str,
)
def test_invalid_attributes_of_a_queue_are_ignored(answer: dict[str, str]) -> None:  # SPEC A2, F5
    wire = orders()
    wire.queues["orders"] = SimpleNamespace(attributes=lambda names: answer)
    assert fates(wire, STANDARD_BATCH) == STANDARD_FATES | {"dead-1": waits(900)}


def test_a_failed_look_up_is_logged_once_per_invocation(caplog: Caplog) -> None:  # SPEC C8, L2
    wire = orders()
    wire.fails["GetQueueAttributes"] = client_error("RequestThrottled")
    fates(wire, event(*(record("{}", f"retry-{index}") for index in range(3))))
    [line] = lines(caplog, "look_up_failed")
    assert all(text in line.getMessage() for text in ("orders", "RequestThrottled"))


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


DEFERS = consumer(lambda message: message.defer(60) if message.id == "m1" else None)
TRANSFERS = {
    "deferred": Transfer("orders", "orders", DEFERS, waits=60),
    "again": by_step("orders", "orders", SendAgain("slow", times=9)),
    "to another queue": by_step("orders", "slow", SendAgain("slow", times=9, queue="slow")),
    "again on FIFO": by_step("orders.fifo", "orders.fifo", SendAgain("slow", times=9, breaks_order=True)),
    "to another FIFO queue": by_step("orders.fifo", "slow.fifo", SendAgain("slow", times=9, queue="slow.fifo")),
    "to its dead-letter queue": by_step("orders", "orders-dlq", DeadLetter()),
    "to a named FIFO dead-letter queue": by_step("orders.fifo", "graves.fifo", DeadLetter(queue="graves.fifo")),
}
OF_SENDS = ["entry failed", "lost answer", "wrong MD5", "no message id", "no receipt"]
OF_SENDS += ["error", "throttle", "denied", "no such queue", "lost request"]


def deliver(wire: Wire, transfer: Transfer, receives: int) -> list[str]:
    """Deliver m1 and a message of another group; return the ids that are reported as failed."""
    first = record("m1's body", "m1", transfer.source, receives=receives, group="a")
    with wire:
        return failed(transfer.handler(event(first, record("m2's body", "m2", transfer.source, group="b")), Context()))


def copies(wire: Wire, transfer: Transfer) -> list[dict[str, Any]]:
    """Return the entries in the target queue, without those that SQS deduplicates."""
    sent = [entry for request, entry in wire.accepted if "MessageBody" in entry and request.queue == transfer.target]
    if not transfer.target.endswith(".fifo"):
        return sent
    return list({entry["MessageDeduplicationId"]: entry for entry in reversed(sent)}.values())


@pytest.mark.parametrize("way", TRANSFERS)
def test_a_message_stays_until_its_copy_is_confirmed_and_is_not_duplicated_on_fifo(way: str) -> None:
    """SPEC E6, E7, F4, A2."""
    transfer = TRANSFERS[way]
    fifo = transfer.source.endswith(".fifo")
    for fault in OF_SENDS:
        wire = orders()
        working = wire.receipts
        inject(wire, REQUESTS["send"], fault)
        assert deliver(wire, transfer, receives=1) == ["m1"], f"{fault}: a failing send affects no other message"
        assert handles(wire, "DeleteMessageBatch") == {}, fault
        assert len(copies(wire, transfer)) == (fault in RECEIPTS), fault
        wait = 240 if fifo and fault in PERHAPS_APPLIED else transfer.waits
        assert wire.visibilities() == {"handle-m1": wait}, fault

        wire.fails, wire.refuses, wire.receipts = {}, {}, working
        assert deliver(wire, transfer, receives=2) == [], fault
        # m2 was acknowledged and deleted before m1, a redelivered message, started
        assert handles(wire, "DeleteMessageBatch").keys() == {"handle-m1", "handle-m2"}, fault
        sent = copies(wire, transfer)
        assert len(sent) == (2 if fault in RECEIPTS and not fifo else 1), fault
        assert {entry["MessageBody"] for entry in sent} == {"m1's body"}, fault
        assert {envelope["id"] for envelope in wire.envelopes()} == {"m1"}, f"{fault}: the stable id shows a duplicate"


# a request that botocore repeats


@pytest.mark.parametrize(
    ("queue", "target", "faults", "may_be_there"),
    [
        *(
            ("orders.fifo", "dead.fifo", ("lost_answer", fault), True)
            for fault in ("denied", "throttle", "unavailable")
        ),
        ("orders.fifo", "dead.fifo", ("lost_answer", "partial_failure"), True),
        ("orders", "dead", ("throttle", "throttle"), False),
        ("orders", "slow", ("lost_answer", "denied"), True),  # at the last delivery it is dead-lettered all the same
    ],
)
def test_the_log_says_whether_a_message_that_could_not_be_sent_may_have_been_sent(
    queue: str, target: str, faults: tuple[str, ...], may_be_there: bool, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC C8, E7
    """A send that may be applied is repeated while SQS drops the repetition; a throttled one was not applied."""
    again = [SendAgain("slow", queue="slow")] if target == "slow" else []

    @consumer(fatal=() if again else ValueError, backoff=Fixed(900), on_failure=[*again, DeadLetter()])
    def handler(_: Message) -> None:
        raise ValueError("out of order")

    suffix = queue.removeprefix("orders")
    sandbox.queue(queue, dead_letter=f"dead{suffix}", **({"max_receive_count": 1} if again else {}))
    sandbox.queue("slow")
    sandbox.connect(handler, queue)
    for fault in faults:
        sandbox.faults.add(fault, operation=SEND, queue=target)
    sandbox.send(queue, "body", group_id="a" if suffix else None)
    sandbox.run()
    [line] = lines(caplog, "dead_lettered" if again else "unhandled")
    assert str(field(line, "not_sent")).endswith("(it may be there all the same)") == may_be_there
    assert [len(sandbox.messages(each)) for each in (f"dead{suffix}", "slow")] == [1, len(again)]
