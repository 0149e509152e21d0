"""The requests of a settlement: copies, and early deletes."""

import hashlib
from typing import Any

import pytest

from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.settle.copies import Copy
from tarry.settle.eager_acks import Acks
from tarry.settle.requests import send_copies
from tarry.sqs.refusals import OutOfTime
from tarry.support.values import QueueArn
from tarry.world import World
from tests.loglines import Caplog, field, lines
from tests.records import record
from tests.settlement import (
    DELETE,
    DENIED,
    IDS,
    NOW,
    SEND,
    EventByHand,
    ThreadsByHand,
    delivery_in,
    delivery_of_age,
    invocation_in,
    lookups_in,
    settlement_in,
)
from tests.wire import TestClock, Wire, arn, client_error


@pytest.mark.parametrize(
    ("delay", "until", "seconds"),
    [
        (None, None, None), (None, 60, None), (30, None, 30), (900, 600, 590), (900, 5_000, 900), (30, 5, 0),
        (30, 15.0005, 5), (30, 15.0015, 6),
    ],
)  # fmt: skip
def test_a_copy_that_is_sent_later_has_a_shorter_delay_at_most_that_of_sqs_and_none_on_fifo(
    delay: int | None, until: float | None, seconds: int | None
) -> None:  # SPEC C11
    copy = Copy(delivery_of_age(), "{}", QueueArn(arn("dead")), [{}], delay, until and NOW + until)
    assert copy.delay_seconds(NOW + 10) == seconds


HEADER = {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}


@pytest.mark.parametrize(
    ("queue", "fields", "delay", "entry"),
    [
        ("dead", {}, None, {}),
        ("dead", {"group": "g"}, 0, {"DelaySeconds": 0, "MessageGroupId": "g"}),
        ("dead", {"system": HEADER}, 5, {"DelaySeconds": 5, "MessageSystemAttributes": {
            "AWSTraceHeader": {"DataType": "String", "StringValue": HEADER["AWSTraceHeader"]}}}),
        ("dead.fifo", {"group": "g"}, 5, {"MessageGroupId": "g"}),
        ("dead.fifo", {}, None, {"MessageGroupId": "m1"}),
    ],
)  # fmt: skip
def test_a_copy_is_sent_with_the_group_and_trace_of_its_message_and_a_delay_unless_on_fifo(
    queue: str, fields: Any, delay: int | None, entry: dict[str, Any]
) -> None:  # SPEC E6, E7
    with Wire() as wire:
        lookups, target = lookups_in(wire), QueueArn(arn(queue))
        delivery = delivery_in(lookups, **fields)
        variants: list[Any] = [{"a": {"DataType": "String", "StringValue": "b"}}, {}]
        copies = [Copy(delivery, "[1]", target, variants, delay), Copy(delivery, "[2]", target, variants[1:], delay)]
        for copy, attributes in zip(copies, variants, strict=True):
            assert [
                (sent.copy, sent.error, sent.not_deleted, sent.may_be_twice) for sent in send_copies([copy], lookups)
            ] == [(copy, None, None, False)]
            [sent] = wire.sent("SendMessageBatch")[-1].entries
            deduplication = sent.pop("MessageDeduplicationId", None)
            own = {"Id": "0", "MessageBody": copy.body, **({"MessageAttributes": attributes} if attributes else {})}
            assert sent == {**own, **entry}
            assert deduplication == (hashlib.sha256(f"m1 {target}".encode()).hexdigest() if target.is_fifo else None)
    assert wire.operations == ["SendMessageBatch", "DeleteMessageBatch"] * 2


TOO_LARGE = ("InvalidParameterValue", "Message must be shorter than 2048 bytes.")


TOO_LONG = client_error("AWS.SimpleQueueService.BatchRequestTooLong", "too long")


@pytest.mark.parametrize(
    ("refusals", "fails", "sends", "error"),
    [
        *(([TOO_LARGE] * count, [], min(3, count + 1), None if count < 3 else TOO_LARGE[1]) for count in range(4)),
        ([], [TOO_LONG], 2, None),
        ([DENIED], [], 1, DENIED[1]),
        ([], [client_error("InvalidParameterValue", "odd")], 1, "odd"),
        ([], [client_error("AccessDenied", "not you")], 1, "not you"),
    ],
)
def test_a_copy_that_is_refused_as_too_large_is_sent_with_smaller_attributes(
    refusals: list[Any], fails: list[Exception], sends: int, error: str | None, caplog: Caplog
) -> None:  # SPEC F1, F3
    left, variants = refusals.copy(), [{name: {"DataType": "String", "StringValue": "b"}} for name in "abc"]
    for cut in (None, {"id": "m1", "failure": {"reason": "error"}}):
        caplog.clear()
        left[:], faults = refusals, fails.copy()
        with Wire() as wire:
            wire.refuses[SEND] = lambda *_: left.pop() if left else None
            wire.fails[SEND] = lambda _, faults=faults: faults.pop() if faults else None  # type: ignore[misc]
            lookups = lookups_in(wire)
            delivery = delivery_in(lookups)
            copy = Copy(delivery, "{}", QueueArn(arn("dead")), variants, 0, record=cut)
            [sent] = send_copies([copy], lookups)
        assert (str(sent.error)[-len(error) :] if error else sent.error) == error
        assert [entry["MessageAttributes"] for entry in wire.sent_entries()] == variants[:sends]
        assert [field(line, "record") for line in lines(caplog, "record_cut")] == ([cut] if cut and sends > 1 else [])
        assert delivery.is_done == (error is None)


@pytest.mark.parametrize("is_done", [True, False])
def test_if_a_request_is_cut_short_a_confirmed_copy_counts_as_sent_and_its_original_as_not_deleted(
    is_done: bool,
) -> None:  # SPEC E6, G6
    with Wire() as wire:
        lookups = lookups_in(wire)
        copy = Copy(delivery_in(lookups), "{}", QueueArn(arn("dead")), [{}], 0)
        copy.delivery.is_done = is_done
        wire.clock.sleep(30)
        [sent] = send_copies([copy], lookups)
    assert (type(sent.error), type(sent.not_deleted)) == (
        (type(None), OutOfTime) if is_done else (OutOfTime, type(None))
    )
    assert not sent.may_be_twice


@pytest.mark.parametrize("is_loaded", [True, False])
def test_sends_have_spans_where_opentelemetry_is_loaded(is_loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []  # SPEC L4
    monkeypatch.setattr("tarry.settle.requests.modules", {"opentelemetry.trace": None} if is_loaded else {})
    monkeypatch.setattr("tarry.settle.requests._traced", lambda chunk, *_: traced.append(chunk) or {"m1": None})
    with Wire() as wire:
        lookups = lookups_in(wire)
        copy = Copy(delivery_in(lookups), "{}", QueueArn(arn("dead")), [{}], 0)
        assert [sent.error for sent in send_copies([copy], lookups)] == [None]
    assert traced == [[copy]] * is_loaded


def ten(invocation: Invocation, first: int = 0) -> list[Delivery]:
    return [invocation.delivery(f"m{n}", record(message_id=f"m{n}")) for n in range(first, first + 10)]


def test_a_thread_deletes_ten_acknowledged_messages_or_fewer_after_a_second(caplog: Caplog) -> None:  # SPEC G3
    threads = ThreadsByHand(can_start=True)
    with Wire(clock=TestClock(NOW)) as wire:
        wire.world.threads = threads  # type: ignore[assignment]
        invocation = invocation_in(wire.world)
        acks, batch = Acks(invocation, invocation.log, waits=True), ten(invocation)
        lost, late = ten(invocation, 10)[:2]
        lost.is_lost = True
        for delivery in (*batch[:9], *batch[:9], lost):
            acks.add(delivery)
        assert (threads.waits, [seconds for seconds, _ in threads.started]) == ([], [0])

        def work(timeout: float | None) -> None:
            if timeout == 2:  # the tenth `add` waits for the thread
                threads.started[0][1]()
            if timeout is None and wire.requests:
                acks.close()

        threads.meanwhile = work
        acks.add(batch[9])
        acks.add(late)
    assert [entry["ReceiptHandle"][7:] for request in wire.requests for entry in request.entries] == [
        f"m{n}" for n in range(10)
    ]
    assert (lost.is_given_up, late.is_given_up, len(threads.started)) == (False, False, 1)
    assert threads.waits == [(2, False), (None, True), (1, True), (None, False), (1, True)]
    assert [event.is_set for event in threads.events] == [False, False, True]
    assert lines(caplog) == []


@pytest.mark.parametrize(("waits", "expected"), [(True, [(2, False)]), (False, [])])
def test_after_a_delete_was_awaited_in_vain_no_other_one_is(waits: bool, expected: Any) -> None:  # SPEC G6
    threads = ThreadsByHand(can_start=True)
    invocation = invocation_in(World(TestClock(NOW), threads=threads))  # type: ignore[arg-type]
    acks = Acks(invocation, invocation.log, waits=waits)
    for delivery in (*ten(invocation), *ten(invocation, 10)):
        acks.add(delivery)
    assert (threads.waits, len(threads.started)) == (expected, 1)


OF_ALL = "3 acknowledged messages were not deleted. Lambda deletes them after the response."
OF_ONE = "The message is acknowledged, but it was not deleted. Lambda deletes it after the response."


@pytest.mark.parametrize(
    ("error", "refused", "remaining", "texts", "goes_on"),
    [
        (None, "", 30, [], True),
        (None, "m1", 30, [OF_ONE], True),
        (None, "m0 m1 m2", 30, [OF_ONE] * 3, True),
        (client_error("RequestThrottled"), "", 30, [OF_ALL], True),
        (OSError("no"), "", 30, [OF_ALL], False),
        (OutOfTime("no time left"), "", 30, [], False),
        (client_error("AccessDenied"), "", 30, [], False),
        (None, "", 10, [], False),  # without a thread, there is no time to wait for the answer
    ],
    ids=str,
)
def test_no_more_messages_are_deleted_early_if_that_would_fail_or_cost_time(
    error: Any, refused: str, remaining: float, texts: list[str], goes_on: bool, caplog: Caplog
) -> None:  # SPEC G3, G6
    with Wire() as wire:
        wire.world.threads = ThreadsByHand()  # type: ignore[assignment]
        invocation = invocation_in(wire.world, remaining)
        acks = Acks(invocation, invocation.log, waits=False)
        wire.fails[DELETE] = lambda _: error
        handles = {f"handle-{name}" for name in refused.split()}
        wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["ReceiptHandle"] in handles else None
        acks._notify = [EventByHand(wire.world.threads)]  # type: ignore[arg-type, list-item]
        waiting = acks._notify[0]
        assert acks.delete_now(ten(invocation)[:3]) == goes_on
        assert waiting.is_set  # type: ignore[attr-defined]
        wire.fails.clear()
        handles.clear()
        acks.delete_now(ten(invocation, 10)[:2])
    assert [len(request.entries) for request in wire.requests] == ([3, 2] if goes_on else [3][: remaining == 30])
    assert [field(line, "text") for line in lines(caplog, "delete_failed")] == texts
    assert len(lines(caplog, "missing_permission")) == ("AccessDenied" in str(error))


def test_each_acknowledged_message_is_named_whose_delete_is_not_confirmed(caplog: Caplog) -> None:  # SPEC I3, L2
    with Wire() as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        batch = [invocation.delivery(name, record(message_id=name)) for name in IDS]
        wire.refuses[DELETE] = lambda _, entry: DENIED if entry["ReceiptHandle"] == "handle-m2" else None
        settlement.executor.delete(batch)
        wire.clock.sleep(30)
        settlement.executor.delete(batch[:1])
    found = [(field(line, "message_id"), line.levelname) for line in lines(caplog, "delete_failed")]
    assert found == [("m2", "WARNING"), ("m1", "WARNING")]
    assert len(lines(caplog, "missing_permission")) == 1
