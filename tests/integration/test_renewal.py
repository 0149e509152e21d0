"""FIFO: leases that may end soon are renewed before a handler runs."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Fixed, Message, batch_consumer, consumer
from tarry.message.invocation import Invocation
from tarry.settle.requests import lease_end
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Refusal, Request, Wire, client_error

CHANGE_VISIBILITY = "ChangeMessageVisibilityBatch"
QUEUE = "ledger.fifo"
EXPIRED = (
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
)
NOT_OF_SQS = "ReceiptHandleIsInvalid", 'The input receipt handle "handle-a1" is not a valid receipt handle.'


def ledger() -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead.fifo") for name in (QUEUE, "orders")})


def entry(message_id: str, group: str, receives: int = 1, age: float = 0, queue: str = QUEUE) -> dict[str, Any]:
    """Return a record that was received ``age`` seconds before the invocation."""
    return record("{}", message_id, queue, receives=receives, group=group, received_at=RECEIVED_AT - age)


def invoke(
    wire: Wire, *entries: dict[str, Any], handle: Callable[[Message], None] = lambda _: None, remaining: float = 30
) -> tuple[list[str], list[str]]:
    """Return the ids of the messages that ran, and those reported as failed."""
    ran: list[str] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        handle(message)

    with wire:
        return ran, failed(handler(event(*entries), Context(remaining)))


def refuse(*message_ids: str) -> Callable[[Request, dict[str, Any]], Refusal | None]:
    handles = {f"handle-{message_id}" for message_id in message_ids}
    return lambda _, entry: EXPIRED if entry["ReceiptHandle"] in handles else None


def test_the_leases_of_a_batch_that_was_received_long_before_its_invocation_are_renewed_before_it_runs() -> None:
    requests: list[int] = []  # SPEC H4, I2
    batch = [entry("a1", "a", age=11), *(entry(f"m{index}", "b") for index in range(9))]
    with ledger() as wire:
        invoke(wire, *batch, handle=lambda _: requests.append(len(wire.requests)), remaining=20.5)
    assert requests == [1] * 10
    [renewal] = wire.sent(CHANGE_VISIBILITY)
    assert [each["ReceiptHandle"] for each in renewal.entries] == [each["receiptHandle"] for each in batch]
    assert {*wire.visibilities().values()} == {math.ceil(20.5 + 1)}  # the remaining time and a margin


WITHOUT_A_TIME = entry("a1", "a")
del WITHOUT_A_TIME["attributes"]["ApproximateFirstReceiveTimestamp"]


@pytest.mark.parametrize(
    ("odd", "renewed"),
    [
        *(pytest.param(entry("a1", "a", age=age), False, id=f"received {age} s ago") for age in (0, 5, 10)),
        pytest.param(entry("a1", "a", receives=2), True, id="redelivered: its receive time is unknown"),
        pytest.param(WITHOUT_A_TIME, True, id="without a receive time"),
        pytest.param(entry("a1", "a", age=60, queue="orders"), False, id="of a standard queue"),
    ],
)
def test_only_leases_that_may_end_soon_are_renewed(odd: dict[str, Any], renewed: bool) -> None:  # SPEC H4, G2
    wire = ledger()
    assert invoke(wire, odd) == (["a1"], [])
    assert wire.acts == ([CHANGE_VISIBILITY] if renewed else [])


def test_a_group_with_a_refused_receipt_handle_does_not_run_and_is_only_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = refuse("a2")
    batch = [entry("a1", "a", age=11), *(entry(name, name[0]) for name in ("b1", "a2", "a3", "b2"))]
    assert invoke(wire, *batch) == (["b1", "b2"], ["a1", "a2", "a3"])
    assert len(wire.requests) == 1  # no settlement requests
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("lease_lost", "a2")

    received: list[str] = []
    handler = batch_consumer(lambda batch: received.extend(message.id for message in batch))
    with ledger() as wire:
        wire.refuses[CHANGE_VISIBILITY] = refuse("a2")
        assert failed(handler(event(*batch), Context())) == ["a1", "a2", "a3"]
    assert received == ["b1", "b2"]


def test_no_message_runs_if_all_groups_have_refused_receipt_handles() -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = refuse("a1")
    assert invoke(wire, entry("a1", "a", receives=3)) == ([], ["a1"])


@pytest.mark.parametrize(
    "error",
    [
        client_error("AccessDenied", status=403),
        client_error("ServiceUnavailable", status=503),
        OSError("no route"),
        None,
    ],
)
def test_a_batch_runs_although_its_leases_cannot_be_renewed(error: Exception | None) -> None:  # SPEC H4, A8
    """Only a refused handle counts as a lost lease."""
    wire = ledger()
    wire.fails[CHANGE_VISIBILITY] = error
    wire.refuses[CHANGE_VISIBILITY] = lambda _, __: ("InternalError", "try again")
    assert invoke(wire, entry("a1", "a", age=11), entry("a2", "a")) == (["a1", "a2"], [])


def test_without_a_deadline_leases_are_not_renewed() -> None:  # SPEC H4
    """A handler called without a context has no remaining time to renew them for."""
    with ledger() as wire:
        consumer(lambda _: None)(event(entry("a1", "a", receives=2)), None)
    assert wire.requests == []


def test_a_message_without_a_receipt_handle_runs() -> None:  # SPEC H4, G5
    """SQS was not asked, so it has not refused the handle."""
    wire, odd = ledger(), entry("a1", "a", age=11)
    del odd["receiptHandle"]
    assert invoke(wire, odd) == (["a1"], [])


def test_leases_are_renewed_within_the_limit_of_sqs() -> None:  # SPEC H4, C6
    wire = ledger()
    invoke(wire, entry("a1", "a", age=100), remaining=43_190)
    assert wire.visibilities() == {"handle-a1": 43_200 - 100 - 1}


@pytest.mark.parametrize(("environment", "runs"), [({}, True), ({"AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001"}, False)])
def test_a_receipt_handle_that_is_not_of_sqs_stops_its_group_on_lambda_only(
    environment: dict[str, str], runs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC G5, H4
    """A unit test calls a consumer with made-up handles; on Lambda, such a handle means that the lease is lost."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = lambda *_: NOT_OF_SQS
    ran, reported = invoke(wire, entry("a1", "a", age=20), entry("a2", "a", age=20))
    assert (ran, reported) == ((["a1", "a2"], []) if runs else ([], ["a1", "a2"]))
    assert len(lines(caplog, "lease_lost")) == 2


# the end of a lease


@pytest.mark.parametrize(
    ("receives", "age", "ends_in"),
    [
        (1, 30, 30),  # received 30 s before the invocation
        (1, 59, 1),
        (1, 60, 60),  # a batching window: Lambda keeps the messages invisible for longer than the queue's timeout
        (1, 300, 60),
        (1, -5, 60),  # the clocks of SQS and the function differ
        (2, 30, 60),  # redelivered: when it was received is unknown
    ],
)
def test_a_lease_begins_at_the_receive_unless_it_would_have_ended_before_the_invocation(
    receives: int, age: float, ends_in: float
) -> None:  # SPEC E6
    invocation = Invocation(ledger().world, Context(30), lambda _: None, consumer(print).log)
    delivery = invocation.delivery("a1", entry("a1", "a", receives, age))
    assert lease_end(delivery, 60) == invocation.started_at + ends_in
    assert lease_end(delivery, None) is None
    delivery.visible_at = 7.0
    assert lease_end(delivery, 60) == 7.0
