"""FIFO: leases that may be about to end are renewed before anything runs."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, Fixed, Message, batch_consumer, consumer
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Refusal, Request, Wire, client_error

HIDE = "ChangeMessageVisibilityBatch"
QUEUE = "ledger.fifo"


def ledger() -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead.fifo") for name in (QUEUE, "orders")})


def entry(message_id: str, group: str, receives: int = 1, age: float = 0, queue: str = QUEUE) -> dict[str, Any]:
    """A record that was received so many seconds before the invocation."""
    return record("{}", message_id, queue, receives=receives, group=group, received_at=RECEIVED_AT - age)


def invoke(
    wire: Wire, *entries: dict[str, Any], handle: Callable[[Message], None] = lambda _: None, remaining: float = 30
) -> tuple[list[str], list[str]]:
    """What ran, and what was reported as failed."""
    ran: list[str] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        handle(message)

    with wire:
        return ran, failed(handler(event(*entries), Context(remaining)))


def refuse(*message_ids: str) -> Callable[[Request, dict[str, Any]], Refusal | None]:
    handles = {f"handle-{message_id}" for message_id in message_ids}
    text = "The receipt handle has expired."
    return lambda _, entry: ("ReceiptHandleIsInvalid", text) if entry["ReceiptHandle"] in handles else None


def test_a_message_that_waited_long_before_its_invocation_has_its_lease_renewed_first() -> None:  # SPEC H4
    requests: list[int] = []
    with ledger() as wire:
        invoke(wire, entry("a1", "a", age=11), entry("b1", "b"), handle=lambda _: requests.append(len(wire.requests)))
    assert requests == [1, 1]
    [renewal] = wire.sent(HIDE)
    assert [each["ReceiptHandle"] for each in renewal.entries] == ["handle-a1", "handle-b1"]


def test_it_is_renewed_for_the_time_left_and_the_margin() -> None:  # SPEC H4, I2
    wire = ledger()
    invoke(wire, entry("a1", "a", age=11), remaining=20.5)
    assert wire.visibilities() == {"handle-a1": math.ceil(20.5 + 1)}


@pytest.mark.parametrize("seconds", [0, 5, 10])
def test_fresh_messages_that_came_at_once_cost_no_request(seconds: float) -> None:  # SPEC H4, G2
    wire = ledger()
    assert invoke(wire, entry("a1", "a", age=seconds), entry("b1", "b")) == (["a1", "b1"], [])
    assert wire.requests == []


def test_when_a_message_was_delivered_before_nobody_knows_when_it_was_received() -> None:  # SPEC H4
    wire = ledger()
    invoke(wire, entry("a1", "a", receives=2))
    assert wire.operations == [HIDE]


def test_a_record_that_does_not_say_when_it_was_received_is_renewed_too() -> None:  # SPEC H4
    wire, odd = ledger(), entry("a1", "a")
    del odd["attributes"]["ApproximateFirstReceiveTimestamp"]
    invoke(wire, odd)
    assert wire.operations == [HIDE]


def test_ten_are_renewed_by_one_request() -> None:  # SPEC H4
    wire = ledger()
    invoke(wire, *(entry(f"m{index}", "a", age=60) for index in range(10)))
    assert [len(request.entries) for request in wire.sent(HIDE)] == [10]


def test_standard_queues_have_no_order_to_keep() -> None:  # SPEC H4, G2
    wire = ledger()
    invoke(wire, entry("m1", "a", age=60, queue="orders"))
    assert wire.requests == []


def test_a_group_with_a_refused_handle_is_not_run_only_reported(caplog: pytest.LogCaptureFixture) -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[HIDE] = refuse("a2")
    ran, reported = invoke(
        wire, entry("a1", "a", age=11), entry("b1", "b"), entry("a2", "a"), entry("a3", "a"), entry("b2", "b")
    )
    assert ran == ["b1", "b2"]
    assert reported == ["a1", "a2", "a3"]
    assert len(wire.requests) == 1  # and nothing is done with them at SQS
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("lease_lost", "a2")


def test_a_batch_handler_does_not_see_such_a_group() -> None:  # SPEC H4
    given: list[str] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        given.extend(message.id for message in batch)

    with ledger() as wire:
        wire.refuses[HIDE] = refuse("a1")
        the_event = event(entry("a1", "a", age=11), entry("b1", "b"), entry("a2", "a"))
        assert failed(handler(the_event, Context())) == ["a1", "a2"]
    assert given == ["b1"]


def test_a_batch_of_which_nothing_may_run_runs_nothing() -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[HIDE] = refuse("a1")
    assert invoke(wire, entry("a1", "a", receives=3)) == ([], ["a1"])


@pytest.mark.parametrize(
    "error",
    [client_error("AccessDenied", status=403), client_error("ServiceUnavailable", status=503), OSError("no route")],
)
def test_where_leases_cannot_be_renewed_the_batch_runs_all_the_same(error: Exception) -> None:  # SPEC H4, A8
    wire = ledger()
    wire.fails[HIDE] = error
    assert invoke(wire, entry("a1", "a", age=11), entry("a2", "a")) == (["a1", "a2"], [])


def test_an_entry_that_is_refused_for_another_reason_is_no_lost_lease() -> None:  # SPEC H4
    wire = ledger()
    wire.refuses[HIDE] = lambda _, __: ("InternalError", "try again")
    assert invoke(wire, entry("a1", "a", age=11)) == (["a1"], [])


def test_without_a_deadline_nothing_is_renewed() -> None:  # SPEC H4
    """A handler called by hand, without a context: there is no time left to renew them for."""
    with ledger() as wire:
        consumer(lambda _: None)(event(entry("a1", "a", receives=2)), None)
    assert wire.requests == []


def test_a_record_without_a_handle_runs() -> None:  # SPEC H4, G5
    """SQS has not refused it: it was not asked."""
    wire, odd = ledger(), entry("a1", "a", age=11)
    del odd["receiptHandle"]
    assert invoke(wire, odd) == (["a1"], [])


def test_no_lease_is_renewed_for_longer_than_sqs_allows() -> None:  # SPEC H4, C6
    wire = ledger()
    invoke(wire, entry("a1", "a", age=100), remaining=43_190)
    assert wire.visibilities() == {"handle-a1": 43_200 - 100 - 1}
