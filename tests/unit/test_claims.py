"""The claims on messages: how long their records count, and what they may take of an invocation's time (SPEC K4)."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyItemAlreadyExistsError
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from tarry import Message, Outcome, consumer
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.message.message import delivery_of
from tarry.run.deadline import Deadline
from tarry.run.idempotency import Claims, MessageClaim
from tarry.run.idempotency_layer import Idempotency
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, record
from tests.settled import orders
from tests.tables import SlowTable
from tests.wire import Wire


@pytest.fixture(autouse=True)
def wire() -> Iterator[Wire]:
    with orders(max_receive_count=3) as sqs:
        yield sqs


class Claimed:
    """The claims of one invocation, on a clock that only requests to the table advance."""

    def __init__(
        self, wire: Wire, seconds: float = 30, *, wanted: float = 1, timeout: float | None = None, **config: Any
    ) -> None:
        self.clock, self.table = wire.clock, SlowTable()
        self.at(0)
        if config:
            self.table.configure(IdempotencyConfig(**config))
        self.invocation = Invocation(wire.world, Context(seconds), lambda _: None, log := consumer(print).log)
        self.deadline = Deadline(self.invocation.deadline, seconds, wanted, timeout)
        self.claims = Claims(Idempotency(self.table), self.invocation, log, self.deadline)
        self._made = 0
        self.is_async = False

    def message(self, body: Any = "{}", receives: int = 1) -> Message[Any]:
        self._made += 1
        message_id = f"m{self._made}"
        return Message(record(body, message_id, receives=receives), message_id, self.invocation)

    def claim(self, count: int = 1, *, takes: float = 0, **message: Any) -> Delivery:
        """Claim messages, with requests that take some seconds each; return the delivery of the last one."""
        self.table.seconds = takes
        for _ in range(count):
            last = self.message(**message)
            is_held = asyncio.run(self.claims.claim_async(last)) if self.is_async else self.claims.claim(last)
        delivery = delivery_of(last)
        assert is_held is (delivery.claim is not None and delivery.claim.is_held)
        return delivery

    def claim_of(self, **message: Any) -> MessageClaim:
        claim: Any = self.claim(**message).claim
        return claim  # type: ignore[no-any-return]

    def at(self, seconds: float) -> None:
        """Move the clock to this time of the invocation."""
        self.clock.now = RECEIVED_AT + seconds

    @property
    def item(self) -> DataRecord:
        """The only record."""
        [item] = self.table.items.values()
        return item


# how long a record counts


@pytest.mark.parametrize(
    ("seconds", "config", "until", "expires_after"),
    [
        (30, {}, 30, 14 * 86_400),
        (30, {"expires_after_seconds": 1}, 30, 30),
        (10**7, {"expires_after_seconds": 1}, 900, 900),  # the context does not tell the function's deadline
    ],
)
def test_a_record_in_progress_counts_until_the_functions_deadline_and_expires_at_a_partly_random_time_after_it(
    seconds: float,
    config: dict[str, Any],
    until: float,
    expires_after: float,
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the random part of up to 18 hours, a delivery recognizes its record."""
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * count)
    claimed = Claimed(wire, seconds, **config)
    assert claimed.claim_of().is_certain
    assert claimed.item.in_progress_expiry_timestamp == (RECEIVED_AT + until) * 1000
    assert claimed.item.expiry_timestamp == RECEIVED_AT + expires_after + 65_535


def test_a_completed_record_expires_some_time_after_the_end_of_its_run(wire: Wire) -> None:
    claimed = Claimed(wire, expires_after_seconds=3_600)
    claim = claimed.claim_of()
    claimed.at(10)
    claim.end(Outcome.discard())
    assert (claimed.item.status, claimed.item.expiry_timestamp) == ("COMPLETED", RECEIVED_AT + 3_610)


@pytest.mark.parametrize(
    ("until", "seconds"), [(None, 60), (20.5, 21), (20, 20), (1.001, 2), (1, 1), (0.4, 1), (-5, 1)]
)
def test_a_message_waits_until_the_record_of_another_delivery_counts_no_more(
    until: float | None, seconds: int, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = Claimed(wire)
    key = claimed.claims._idempotency.key_of(delivery_of(claimed.message()))
    milliseconds = None if until is None else int((RECEIVED_AT + until) * 1000)
    claimed.table.items[key] = DataRecord(key, "INPROGRESS", in_progress_expiry_timestamp=milliseconds)
    monkeypatch.setattr(SlowTable, "_is_over", lambda *_: False)
    claimed._made = 0
    claim = claimed.claim_of()
    assert (claim.is_held, claim.seconds_elsewhere) == (False, seconds)
    claim.end(Outcome.ack())
    assert claimed.table.requests == {"put": 1}  # there is no record to end


def test_a_message_waits_for_a_second_if_the_record_that_refused_its_claim_is_gone_when_it_is_read(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise IdempotencyItemAlreadyExistsError

    monkeypatch.setattr(SlowTable, "_put_record", refuse)
    claim = Claimed(wire).claim_of()
    assert (claim.is_held, claim.seconds_elsewhere) == (False, 1)


@pytest.mark.parametrize(
    ("receives", "left", "seconds"),
    [
        *((1, 900, 5), (2, 900, 10), (4, 900, 40), (9, 900, 900), (1, 3.2, 4), (1, 0, 1)),
        *((11, 9_000, 5_120), (12, 9_000, 5_120)),
    ],
)
def test_a_message_waits_for_another_one_with_its_key_the_longer_the_more_often_it_was_delivered(
    receives: int, left: float, seconds: int, wire: Wire
) -> None:
    claimed = Claimed(wire, 9_000, event_key_jmespath="id", expires_after_seconds=86_400)
    claimed.claim(body={"id": 1})
    claimed.at(9_000 - left)
    claim = claimed.claim_of(body={"id": 1}, receives=receives)
    assert (claim.is_held, claim.seconds_elsewhere) == (False, seconds)
    assert claimed.table.requests == {"put": 1}


# the time of requests


def test_the_time_to_end_claims_is_kept_as_requests_have_been_taking(wire: Wire) -> None:
    """The latest request counts for a quarter; one whose answer was given up does not."""
    claimed = Claimed(wire, 200)
    ends = [claimed.claim(takes=seconds) and claimed.deadline.ending for seconds in (1, 2, 5, 5.25)]
    assert ends == [2, 2.5, 4.375, 4.375]
    claimed = Claimed(wire, 200)
    ends = [claimed.claim(count, takes=1) and claimed.deadline.ending for count in (10, 1, 9, 1)]
    assert ends == [2, 4, 4, 6]  # ten are ended at once
    for delivery in list(claimed.invocation.deliveries.values())[:11]:
        assert delivery.claim is not None
        delivery.claim.end(Outcome.release())
    assert claimed.deadline.ending == 2


@pytest.mark.parametrize(
    ("invocation", "begins", "takes", "owed", "kept"),
    [
        ({"seconds": 9, "wanted": 3}, 0, 1, 0, 1.5),  # half of the invocation, less the margin
        ({}, 15, 4, 0, 5),  # half of the time left
        ({}, 15, 4, 2, 4),
        ({}, 27, 4, 0, 0),
    ],
)
def test_the_ends_of_claims_leave_handlers_half_of_the_time(
    invocation: dict[str, float], begins: float, takes: float, owed: float, kept: float, wire: Wire
) -> None:
    claimed = Claimed(wire, **invocation)
    claimed.at(begins)
    claimed.deadline.owed = owed
    claimed.claim(takes=takes)
    assert claimed.deadline.ending == kept


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("count", "last"), [(1, 56), (9, 56), (10, 54)])
def test_no_message_is_claimed_without_the_time_for_the_request_the_handler_and_the_ends_of_all_claims(
    count: int, last: float, is_async: bool, wire: Wire
) -> None:
    for at, asked in ((last, count + 1), (last + 0.25, count)):
        claimed = Claimed(wire, 60)
        claimed.is_async = is_async
        claimed.claim(count, takes=1)
        claimed.at(at)
        claimed.claim(takes=1)
        assert claimed.table.requests["put"] == asked


@pytest.mark.parametrize(("longest", "is_held"), [(7, True), (7.25, False)])
def test_a_message_that_was_claimed_does_not_run_if_there_is_no_time_for_its_handler_any_more(
    longest: float, is_held: bool, wire: Wire
) -> None:
    def seconds(*_: str) -> float:
        claimed.deadline.took(longest)  # another handler ends meanwhile
        return 1

    claimed = Claimed(wire, 60)
    claimed.claim(takes=1)
    claimed.at(49)
    claimed.table.seconds = seconds
    late = claimed.message()
    assert claimed.claims.claim(late) is is_held
    claim: Any = delivery_of(late).claim
    claim.end(Outcome.release())
    assert claimed.table.requests["delete"] == 1  # its record is removed


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("begins", "is_held"), [(54.75, True), (55, False)])
def test_the_first_message_runs_if_its_claim_ends_before_messages_must(
    begins: float, is_held: bool, is_async: bool, wire: Wire
) -> None:
    claimed = Claimed(wire, 60)
    claimed.is_async = is_async
    claimed.at(begins)
    assert claimed.claim_of(takes=4).is_held is is_held


@pytest.mark.parametrize(
    ("receives", "limit", "is_known", "is_held", "requests"),
    [
        *((3, 3, False, True, 1), (2, 3, False, False, 1), (2, 2, False, True, 1), (1, 1, False, False, 0)),
        *((1, 1, True, True, 1), (1, 2, True, False, 1), (3, 3, True, True, 1)),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_without_time_a_message_runs_at_its_last_delivery_only_as_far_as_the_queue_is_known_or_it_was_redelivered(
    receives: int,
    limit: int,
    is_known: bool,
    is_held: bool,
    requests: int,
    is_async: bool,
    wire: Wire,
    caplog: Caplog,
) -> None:
    """The others are released, which is logged once; a message that is not claimed leaves no key behind."""
    wire.queues["orders"].max_receive_count = limit
    claimed = Claimed(wire, event_key_jmespath="id", expires_after_seconds=86_400)
    claimed.is_async = is_async
    claimed.claim(takes=1.5, body={"id": 0})
    if is_known:
        claimed.claims._is_last_delivery(delivery_of(claimed.message(receives=2)))
    claimed.at(28.5)
    claims = [claimed.claim_of(body={"id": 1}, receives=receives) for _ in range(1 if is_held else 2)]
    assert {(claim.is_held, claim.seconds_elsewhere) for claim in claims} == {(is_held, None)}
    assert wire.operations == ["GetQueueAttributes"] * requests
    assert claimed.table.requests == {"put": 1}
    texts = [field(line, "text") for line in lines(caplog)]
    if is_held:
        assert texts == [
            "The idempotency store could not be asked (no time was left), so the handler runs without a record: if the "
            "message is delivered twice, it may run twice."
        ]
    else:
        [text] = texts
        assert "A request to the idempotency store takes 1.5 seconds. Set a smaller BatchSize" in text


# the time of batch handlers


@pytest.mark.parametrize(
    ("timeout", "last", "messages", "kept"),
    [
        (None, None, 10, 15),  # half of the time left
        (20, None, 10, 20),
        (28, None, 10, 26),  # nine tenths, less the margin
        (60, None, 10, 15),  # a timeout that is cut does not count
        *((None, 4, messages, kept) for messages, kept in ((5, 5), (10, 5), (20, 10), (100, 15))),  # a quarter more
        *((8, 4, messages, kept) for messages, kept in ((10, 8), (20, 10))),
        (None, 0.4, 10, 0.5),
        (None, 40, 10, 26),  # it was interrupted, and needs twice as long
    ],
)
def test_a_batch_handler_has_half_of_the_time_its_timeout_or_as_long_as_it_took_last(
    timeout: float | None, last: float | None, messages: int, kept: float, wire: Wire
) -> None:
    claimed = Claimed(wire, timeout=timeout)
    if last is not None:
        claimed.claims.ran(last, 10)
    claimed.claims.begin_batch(in_order=False)
    assert claimed.claims._batch_seconds is not None
    assert claimed.claims._batch_seconds(messages) == kept


@pytest.mark.parametrize(("after", "factor"), [(28.75, 1.25), (29, 2)])
def test_a_batch_handler_that_was_interrupted_at_the_deadline_needs_twice_as_long(
    after: float, factor: float, wire: Wire
) -> None:
    claimed = Claimed(wire)
    claimed.at(after)
    claimed.claims.ran(4, 10)
    claimed.at(0)
    claimed.claims.begin_batch(in_order=True)
    assert claimed.claims._batch_seconds is not None
    assert claimed.claims._batch_seconds(10) == 4 * factor


def claim_in_batch(claimed: Claimed, takes: float, count: int = 1) -> None:
    """Claim messages one by one, as in a FIFO batch."""
    claimed.table.seconds = takes
    for _ in range(count):
        assert claimed.claims.claim_all([claimed.message()]) == [None]


def test_the_ends_of_the_claims_of_a_batch_leave_its_handler_its_time(wire: Wire) -> None:
    claimed = Claimed(wire, 40)
    claimed.claims.ran(6, 2)  # 3.75 s a message, with a quarter more
    claimed.claims.begin_batch(in_order=True)
    kept = []
    for takes in (2, 2, 12):  # the last answer is given up, and takes time all the same
        claim_in_batch(claimed, takes)
        kept.append(claimed.deadline.ending)
    assert kept == [4, 8, 39 - 16 - 11.25]  # two requests each; the last time, what the claims leave the handler


@pytest.mark.parametrize("owed", [0, 1])
def test_no_message_of_a_batch_is_claimed_without_the_time_of_its_handler(owed: float, wire: Wire) -> None:
    last = 60 - 1 - 1 - 3 * 2 - 11.25 - owed  # the margin, the request, the ends of all, and the handler
    for at, asked in ((last, 3), (last + 0.25, 2)):
        claimed = Claimed(wire, 60)
        claimed.claims.ran(6, 2)
        claimed.claims.begin_batch(in_order=True)
        claim_in_batch(claimed, 1, 2)
        claimed.at(at)
        claimed.deadline.owed = owed
        claim_in_batch(claimed, 0)
        assert claimed.table.requests["put"] == asked


def test_the_first_message_of_a_batch_is_claimed_although_time_is_short(wire: Wire) -> None:
    claimed = Claimed(wire)
    claimed.at(29)
    claimed.claims.begin_batch(in_order=True)
    claim_in_batch(claimed, 0.5, 2)
    first, second = claimed.invocation.deliveries.values()
    assert [each.claim and each.claim.is_held for each in (first, second)] == [True, False]
    assert claimed.table.requests == {"put": 1}


# the ends of claims


@pytest.mark.parametrize(("after", "ends"), [(29, 1), (29.25, 0)])
def test_a_claim_is_ended_while_a_quarter_of_the_margin_is_left(after: float, ends: int, wire: Wire) -> None:
    claimed = Claimed(wire)
    claim = claimed.claim_of()
    claimed.at(after)
    claim.end(Outcome.ack())
    assert (claimed.table.requests["update"], claimed.table.requests["put"]) == (ends, 1)


@pytest.mark.parametrize(
    ("back_at", "until"), [(None, 30), (10, 9.999), (30, 29.999), (30.001, 30), (30.5, 30), (-1, -1.001)]
)
def test_the_record_of_an_abandoned_run_counts_until_just_before_the_message_runs_again(
    back_at: float | None, until: float, wire: Wire
) -> None:
    claimed = Claimed(wire)
    claim = claimed.claim_of()
    claim.is_abandoned = True
    claim.back_at = None if back_at is None else RECEIVED_AT + back_at
    claim.end(Outcome.retry(0))
    assert claimed.item.in_progress_expiry_timestamp == round((RECEIVED_AT + until) * 1000)
    assert claimed.table.requests["put"] == (1 if until == 30 else 2)
