"""FIFO: leases that may end soon are renewed before a handler runs."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, Fixed, Message, batch_consumer, consumer
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


def test_the_lease_of_a_message_received_long_before_its_invocation_is_renewed_before_it_runs() -> None:  # SPEC H4
    requests: list[int] = []
    with ledger() as wire:
        invoke(wire, entry("a1", "a", age=11), entry("b1", "b"), handle=lambda _: requests.append(len(wire.requests)))
    assert requests == [1, 1]
    [renewal] = wire.sent(CHANGE_VISIBILITY)
    assert [each["ReceiptHandle"] for each in renewal.entries] == ["handle-a1", "handle-b1"]


def test_a_lease_is_renewed_for_the_remaining_time_and_a_margin() -> None:  # SPEC H4, I2
    wire = ledger()
    invoke(wire, entry("a1", "a", age=11), remaining=20.5)
    assert wire.visibilities() == {"handle-a1": math.ceil(20.5 + 1)}


@pytest.mark.parametrize("seconds", [0, 5, 10])
def test_recently_received_fresh_messages_are_not_renewed(seconds: float) -> None:  # SPEC H4, G2
    wire = ledger()
    assert invoke(wire, entry("a1", "a", age=seconds), entry("b1", "b")) == (["a1", "b1"], [])
    assert wire.requests == []


def test_a_redelivered_message_whose_receive_time_is_unknown_is_renewed() -> None:  # SPEC H4
    wire = ledger()
    invoke(wire, entry("a1", "a", receives=2))
    assert wire.acts == [CHANGE_VISIBILITY]


def test_a_message_without_a_receive_time_is_renewed() -> None:  # SPEC H4
    wire, odd = ledger(), entry("a1", "a")
    del odd["attributes"]["ApproximateFirstReceiveTimestamp"]
    invoke(wire, odd)
    assert wire.operations == [CHANGE_VISIBILITY]


def test_ten_leases_are_renewed_in_one_request() -> None:  # SPEC H4
    wire = ledger()
    invoke(wire, *(entry(f"m{index}", "a", age=60) for index in range(10)))
    assert [len(request.entries) for request in wire.sent(CHANGE_VISIBILITY)] == [10]


def test_leases_of_standard_queues_are_not_renewed() -> None:  # SPEC H4, G2
    wire = ledger()
    invoke(wire, entry("m1", "a", age=60, queue="orders"))
    assert wire.requests == []


def test_a_group_with_a_refused_receipt_handle_does_not_run_and_is_only_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = refuse("a2")
    ran, reported = invoke(
        wire, entry("a1", "a", age=11), entry("b1", "b"), entry("a2", "a"), entry("a3", "a"), entry("b2", "b")
    )
    assert ran == ["b1", "b2"]
    assert reported == ["a1", "a2", "a3"]
    assert len(wire.requests) == 1  # no settlement requests
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("lease_lost", "a2")


def test_a_batch_handler_does_not_get_a_group_with_a_refused_receipt_handle() -> None:  # SPEC H4
    received: list[str] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        received.extend(message.id for message in batch)

    with ledger() as wire:
        wire.refuses[CHANGE_VISIBILITY] = refuse("a1")
        the_event = event(entry("a1", "a", age=11), entry("b1", "b"), entry("a2", "a"))
        assert failed(handler(the_event, Context())) == ["a1", "a2"]
    assert received == ["b1"]


def test_no_message_runs_if_all_groups_have_refused_receipt_handles() -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = refuse("a1")
    assert invoke(wire, entry("a1", "a", receives=3)) == ([], ["a1"])


@pytest.mark.parametrize(
    "error",
    [client_error("AccessDenied", status=403), client_error("ServiceUnavailable", status=503), OSError("no route")],
)
def test_a_batch_runs_although_its_leases_cannot_be_renewed(error: Exception) -> None:  # SPEC H4, A8
    wire = ledger()
    wire.fails[CHANGE_VISIBILITY] = error
    assert invoke(wire, entry("a1", "a", age=11), entry("a2", "a")) == (["a1", "a2"], [])


def test_a_renewal_refused_for_another_reason_does_not_count_as_a_lost_lease() -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[CHANGE_VISIBILITY] = lambda _, __: ("InternalError", "try again")
    assert invoke(wire, entry("a1", "a", age=11)) == (["a1"], [])


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
    ("age", "ends_in"),
    [
        (30, 30),  # received 30 s before the invocation
        (59, 1),
        (60, 60),  # a batching window: Lambda keeps the messages invisible for longer than the queue's timeout
        (300, 60),
        (-5, 60),  # the clocks of SQS and the function differ
    ],
)
def test_a_lease_begins_at_the_receive_unless_it_would_have_ended_before_the_invocation(
    age: float, ends_in: float
) -> None:  # SPEC E6
    invocation = Invocation(ledger().world, Context(30), lambda _: None, consumer(print).log)
    delivery = invocation.delivery("a1", entry("a1", "a", age=age))
    assert lease_end(delivery, 60) == invocation.started_at + ends_in
    assert lease_end(delivery, None) is None
    delivery.visible_at = 7.0
    assert lease_end(delivery, 60) == 7.0


def test_the_lease_of_a_redelivered_message_is_counted_from_the_invocation() -> None:  # SPEC E6
    invocation = Invocation(ledger().world, Context(30), lambda _: None, consumer(print).log)
    assert lease_end(invocation.delivery("a1", entry("a1", "a", receives=2, age=30)), 60) == invocation.started_at + 60
