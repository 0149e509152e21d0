"""Dead letters: the target queue, the failure record, the size limit, and messages that cannot be dead-lettered."""

import base64
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tarry import Consumer, DeadLetter, FailureStep, Fixed, LogOptions, Message, Reject, Retry, RetryInPlace, consumer
from tarry.record.attribute import body_sum
from tests.loglines import everything, field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Wire, arn, client_error, url

MIB = 1_048_576
OVERRIDE = "TARRY_DEAD_LETTER_QUEUE_URL"


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)


def world_of(**queues: Queue) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq"), **queues})


class CardWasDeclined(Exception):
    pass


def decline(message: Message) -> None:
    raise CardWasDeclined("card declined")


def consumer_of(handler: Callable[[Message], None] = decline, **dead_letter: Any) -> Consumer[Any]:
    """Make a consumer for which `CardWasDeclined` is fatal."""
    return consumer(fatal=CardWasDeclined, on_failure=[RetryInPlace(), DeadLetter(**dead_letter)])(handler)


def invoke(wire: Wire, *records: dict[str, Any], handler: Consumer[Any] | None = None) -> list[str]:
    """Invoke the consumer with these records; return the ids that it reports as failed."""
    with wire:
        return failed((handler or consumer_of())(event(*(records or (record(),))), Context()))


def string(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": data_type}


def redriven(entry: dict[str, Any], message_id: str = "m9", **more: Any) -> dict[str, Any]:
    """The record of a dead letter that was moved back to its queue, under the new id that SQS gives it."""
    attributes = {
        name: string(value["StringValue"], value["DataType"]) for name, value in entry["MessageAttributes"].items()
    }
    return record(entry["MessageBody"], message_id, attributes=attributes, **more)


def size_of(entry: dict[str, Any]) -> int:
    """The bytes of a message as SQS counts them."""
    return len(entry["MessageBody"].encode()) + sum(
        len(name.encode())
        + len(attribute["DataType"])
        + len(attribute.get("BinaryValue") or attribute["StringValue"].encode())
        for name, attribute in entry.get("MessageAttributes", {}).items()
    )


def targets(wire: Wire) -> list[str]:
    return [request.queue for request in wire.sent("SendMessageBatch")]


# the target queue


def test_the_dead_letter_queue_is_the_one_in_the_redrive_policy() -> None:  # SPEC F1
    wire = world_of()
    assert invoke(wire) == []
    assert targets(wire) == ["orders-dlq"]
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == url("orders-dlq")


NAMES = pytest.mark.parametrize("name", ["graveyard", url("graveyard"), arn("graveyard")], ids=["name", "url", "arn"])


@NAMES
def test_the_environment_overrides_the_redrive_policy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC F1
    monkeypatch.setenv(OVERRIDE, name)
    wire = world_of()
    assert invoke(wire) == []
    assert targets(wire) == ["graveyard"]


@NAMES
def test_the_step_overrides_the_redrive_policy(name: str) -> None:  # SPEC F1
    wire = world_of()
    assert invoke(wire, handler=consumer_of(queue=name)) == []
    assert targets(wire) == ["graveyard"]
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == url("graveyard")


def test_an_override_works_if_the_source_has_no_redrive_policy() -> None:  # SPEC F1
    wire = world_of(orders=Queue(dead_letter=None))
    assert invoke(wire, handler=consumer_of(queue="graveyard")) == []
    assert targets(wire) == ["graveyard"]


def test_an_override_works_without_permission_to_read_the_source() -> None:  # SPEC F1, A8
    wire = world_of()
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied")
    assert invoke(wire, handler=consumer_of(queue="graveyard")) == []
    assert targets(wire) == ["graveyard"]


def test_the_queue_of_another_account_is_reached_by_its_url() -> None:  # SPEC F1
    wire = world_of()
    elsewhere = "https://sqs.us-east-1.amazonaws.com/999999999999/graveyard"
    assert invoke(wire, handler=consumer_of(queue=elsewhere)) == []
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == elsewhere


def test_source_and_target_are_looked_up_once_for_a_whole_batch() -> None:  # SPEC F1
    wire = world_of()
    assert invoke(wire, *(record(index, f"m{index}") for index in range(25))) == []
    asked = {request.queue: request.parameters["AttributeNames"] for request in wire.sent("GetQueueAttributes")}
    assert [request.queue for request in wire.sent("GetQueueAttributes")] == ["orders", "orders-dlq"]
    of_source = {"RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize"}
    assert set(asked["orders"]) == of_source
    assert asked["orders-dlq"] == ["MaximumMessageSize"]


@pytest.mark.parametrize(("seconds", "look_ups"), [(899, 2), (901, 4)], ids=["within 15 min", "after 15 min"])
def test_queue_attributes_are_cached_for_15_minutes(seconds: float, look_ups: int) -> None:  # SPEC F1
    wire = world_of()
    invoke(wire)
    wire.clock.now += seconds
    invoke(wire)
    assert len(wire.sent("GetQueueAttributes")) == look_ups


@pytest.mark.parametrize(("seconds", "dead_lettered"), [(29, False), (31, True)], ids=["within 30 s", "after 30 s"])
def test_a_failed_look_up_is_cached_for_30_seconds(seconds: float, dead_lettered: bool) -> None:  # SPEC F1
    wire = world_of()
    wire.fails["GetQueueAttributes"] = client_error("ServiceUnavailable", status=503)
    assert invoke(wire) == ["m1"]
    del wire.fails["GetQueueAttributes"]
    wire.clock.now += seconds
    assert invoke(wire) == ([] if dead_lettered else ["m1"])


def test_a_look_up_that_an_invocation_has_no_time_for_is_made_by_the_next() -> None:  # SPEC A6, F1
    wire = world_of()
    with wire:
        assert failed(consumer_of()(event(record()), Context(remaining=0.1))) == ["m1"]
        assert wire.requests == []
        assert failed(consumer_of()(event(record()), Context(remaining=30))) == []


def test_a_max_receive_count_below_max_attempts_is_logged_once_per_cold_start_and_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC C8
    low, equal = (
        Queue(dead_letter="orders-dlq", max_receive_count=3),
        Queue(dead_letter="orders-dlq", max_receive_count=5),
    )
    wire = Wire(queues={"orders": low, "ledger.fifo": low, "mail": equal})
    handler = consumer(on_failure={"logs": [DeadLetter()], "default": [RetryInPlace(), DeadLetter()]})(decline)
    for _ in range(2):
        wire.clock.now += 1000
        records = (record(1, f"{queue}{index}", queue) for queue in ("orders", "mail", "logs") for index in range(3))
        invoke(wire, *records, record(1, "l", "ledger.fifo", group="g"), handler=handler)
    of_orders, of_ledger = lines(caplog, "max_receive_count_low", logging.WARNING)
    assert field(of_orders, "text") == (
        "maxReceiveCount of orders is 3, below max_attempts 5. tarry dead-letters a message that fails at its delivery "
        "3, since SQS would then move it without a failure record. Set maxReceiveCount to 15 (2 * max_attempts + 5); "
        "see docs/guides/retries.md."
    )
    assert "ledger.fifo is 3" in field(of_ledger, "text")
    assert "to BatchSize * 5 + 5;" in field(of_ledger, "text")
    assert [request.queue for request in wire.sent("GetQueueAttributes")].count("orders") == 2


# the entry that is sent


def test_a_dead_letter_keeps_the_body_unchanged() -> None:  # SPEC F2
    body = ' {"name":  "Zoë \\u00e9 😀"}\n\t'
    wire = world_of()
    invoke(wire, record(body))
    assert wire.sent_entries()[0]["MessageBody"] == body


def test_a_dead_letter_keeps_user_attributes_with_types_labels_and_bytes() -> None:  # SPEC F2, E6
    given = {
        "tenant": string("acme"),
        "amount": string("12.50", "Number.money"),
        "count": string("3", "Number"),
        "raw": {"binaryValue": base64.b64encode(b"\x00\xff\x10").decode(), "dataType": "Binary"},
        "png": {"binaryValue": base64.b64encode(b"\x89PNG").decode(), "dataType": "Binary.png"},
    }
    wire = world_of()
    invoke(wire, record(attributes=given))
    sent = {name: value for name, value in wire.sent_entries()[0]["MessageAttributes"].items() if name != "Tarry"}
    assert sent == {
        "tenant": {"DataType": "String", "StringValue": "acme"},
        "amount": {"DataType": "Number.money", "StringValue": "12.50"},
        "count": {"DataType": "Number", "StringValue": "3"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
        "png": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
    }


def test_a_dead_letter_keeps_the_trace_header() -> None:  # SPEC E6, L4
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    wire = world_of()
    invoke(wire, record(system={"AWSTraceHeader": header}))
    system = wire.sent_entries()[0]["MessageSystemAttributes"]
    assert system == {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}


def test_on_a_standard_queue_a_dead_letter_has_an_explicit_delay_of_zero() -> None:  # SPEC F2
    wire = world_of()
    invoke(wire)
    [dead_letter] = wire.sent_entries()
    assert dead_letter["DelaySeconds"] == 0
    assert "MessageGroupId" not in dead_letter
    assert "MessageDeduplicationId" not in dead_letter


def test_on_a_standard_queue_a_dead_letter_keeps_the_group_id() -> None:  # SPEC E6, H3
    wire = world_of()
    invoke(wire, record(group="tenant-1"))
    assert wire.sent_entries()[0]["MessageGroupId"] == "tenant-1"


def fifo_world() -> Wire:
    return Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")})


def fifo_record(message_id: str = "m1", group: str | None = "g1", **more: Any) -> dict[str, Any]:
    return record(message_id, message_id, queue="orders.fifo", group=group, **more)


def test_on_fifo_a_dead_letter_keeps_the_group_id_and_has_no_delay() -> None:  # SPEC F2, E6, E7
    wire = fifo_world()
    assert invoke(wire, fifo_record()) == []
    [dead_letter] = wire.sent_entries()
    assert dead_letter["MessageGroupId"] == "g1"
    assert "DelaySeconds" not in dead_letter


def test_on_fifo_a_message_without_a_group_is_dead_lettered_too() -> None:  # SPEC H3, F2
    wire = fifo_world()
    assert invoke(wire, fifo_record(group=None)) == []
    assert wire.sent_entries()[0]["MessageGroupId"]


def deduplication_id(wire: Wire) -> str:
    return str(wire.sent_entries()[-1]["MessageDeduplicationId"])


def test_a_repeated_dead_letter_has_the_same_deduplication_id() -> None:  # SPEC E7
    wire = fifo_world()
    invoke(wire, fifo_record(receives=1))
    first = deduplication_id(wire)
    invoke(wire, fifo_record(receives=2))
    assert deduplication_id(wire) == first
    assert re.fullmatch(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", first)


def test_another_message_or_another_target_queue_has_another_deduplication_id() -> None:  # SPEC E7
    wire = fifo_world()
    invoke(wire, fifo_record("m1"))
    first = deduplication_id(wire)
    invoke(wire, fifo_record("m2"))
    assert deduplication_id(wire) != first
    invoke(wire, fifo_record("m1"), handler=consumer_of(queue="graveyard.fifo"))
    assert deduplication_id(wire) != first


def test_a_redriven_message_that_is_dead_lettered_again_has_another_deduplication_id() -> None:  # SPEC E7, K3
    wire = fifo_world()
    invoke(wire, fifo_record("m1"))
    first, [dead_letter] = deduplication_id(wire), wire.sent_entries()
    invoke(wire, redriven(dead_letter, "m9", queue="orders.fifo", group="g1"))
    assert wire.envelopes()[-1]["id"] == "m1"
    assert deduplication_id(wire) != first


# the failure record


def test_the_tarry_attribute_contains_the_message_the_origin_and_the_failure() -> None:  # SPEC F2
    wire = world_of()
    wire.clock.now += 100
    invoke(wire, record({"id": 7}, "m1", receives=1))
    [envelope] = wire.envelopes()
    failure = envelope.pop("failure")
    history = envelope.pop("history")
    assert len(envelope.pop("sum")) == 16
    assert envelope == {"v": 1, "id": "m1", "origin": arn("orders"), "sent": "2027-01-15T08:00:00.000Z"}
    traceback, fingerprint = failure.pop("traceback"), failure.pop("fingerprint")
    assert failure == {
        "reason": "fatal",
        "attempts": 1,
        "type": f"{__name__}.CardWasDeclined",
        "message": "card declined",
        "first_failed_at": "2027-01-15T08:01:40.000Z",
        "failed_at": "2027-01-15T08:01:40.000Z",
        "function": "orders-function",
        "request_id": "request-1",
    }
    assert "in decline" in traceback
    assert "card declined" not in traceback.replace('raise CardWasDeclined("card declined")', "")
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint)
    assert history == [
        {"attempt": 1, "at": "2027-01-15T08:01:40.000Z", "error": f"{__name__}.CardWasDeclined: card declined"}
    ]


def test_the_tarry_attribute_is_an_ascii_string() -> None:  # SPEC F2
    @consumer(fatal=CardWasDeclined)
    def handler(message: Message) -> None:
        raise CardWasDeclined("ünïcode \x00 \ud800 😀")

    wire = world_of()
    assert invoke(wire, handler=handler) == []
    attribute = wire.sent_entries()[0]["MessageAttributes"]["Tarry"]
    assert attribute["DataType"] == "String"
    assert re.fullmatch(r"[ -~]+", attribute["StringValue"])
    assert wire.envelopes()[0]["failure"]["message"] == "ünïcode \x00 \ud800 😀"


def test_a_dead_letter_carries_no_attempts_and_no_step_counters() -> None:  # SPEC F2
    wire = world_of()
    invoke(wire)
    invoke(wire, redriven(wire.sent_entries()[0]))
    for envelope in wire.envelopes():
        assert envelope.get("carried", 0) == 0
        assert not envelope.get("steps")


def give_reject(message: Message) -> None:
    message.reject("no such customer")


def raise_reject(message: Message) -> None:
    raise Reject("no such customer")


def decode(message: Message) -> None:
    message.json()


def fail(message: Message) -> None:
    raise ValueError("boom")


def retry(message: Message) -> None:
    message.retry()


@pytest.mark.parametrize(
    ("handler", "receives", "reason", "error_type"),
    [
        (decline, 1, "fatal", f"{__name__}.CardWasDeclined"),
        (give_reject, 1, "rejected", "tarry.Reject"),
        (raise_reject, 1, "rejected", "tarry.Reject"),
        (decode, 1, "undecodable", "tarry.Undecodable"),
        (fail, 5, "exhausted", "ValueError"),
        (retry, 5, "exhausted", None),
    ],
    ids=["fatal", "reject verdict", "raised reject", "undecodable", "error", "retry verdict"],
)
def test_the_failure_record_contains_the_reason_and_the_error_type(
    handler: Callable[[Message], None], receives: int, reason: str, error_type: str | None
) -> None:  # SPEC F2, E1
    wire = world_of()
    assert invoke(wire, record("{", receives=receives), handler=consumer_of(handler)) == []
    failure = wire.envelopes()[0]["failure"]
    assert failure["reason"] == reason
    assert failure.get("type") == error_type
    assert failure["attempts"] == receives


def test_a_message_is_exhausted_at_the_last_delivery_of_its_queue() -> None:  # SPEC C8, F1
    wire = world_of(orders=Queue(dead_letter="orders-dlq", max_receive_count=3))
    assert invoke(wire, record(receives=3), handler=consumer_of(fail)) == []
    assert wire.envelopes()[0]["failure"]["reason"] == "exhausted"
    assert wire.envelopes()[0]["failure"]["attempts"] == 3


@pytest.mark.parametrize("signal", [Reject("no"), Retry(30)], ids=["reject", "retry"])
def test_the_failure_record_of_a_signal_with_a_cause_describes_the_cause(signal: Exception) -> None:  # SPEC F2
    def refuse(message: Message) -> None:
        try:
            charge()
        except CardWasDeclined as error:
            raise signal from error

    def charge() -> None:
        raise CardWasDeclined("card declined")

    wire = world_of()
    assert invoke(wire, record(receives=5), handler=consumer(refuse)) == []
    failure = wire.envelopes()[0]["failure"]
    assert failure["type"] == f"{__name__}.CardWasDeclined"
    assert failure["message"] == "card declined"
    assert "in charge" in failure["traceback"]


def test_errors_at_the_same_place_have_the_same_fingerprint() -> None:  # SPEC F2
    @consumer(fatal=(CardWasDeclined, KeyError))
    def handler(message: Message) -> None:
        if message.json()["at"] == "there":
            raise CardWasDeclined(f"order {message.id}")
        raise CardWasDeclined(f"order {message.id}")

    wire = world_of()
    invoke(
        wire, *(record({"at": at}, f"m{index}") for index, at in enumerate(["here", "here", "there"])), handler=handler
    )
    first, second, third = (envelope["failure"]["fingerprint"] for envelope in wire.envelopes())
    assert first == second
    assert third != first


def test_without_include_traceback_the_failure_record_has_no_traceback() -> None:  # SPEC E3
    wire = world_of()
    invoke(wire, handler=consumer_of(include_traceback=False))
    assert "traceback" not in wire.envelopes()[0]["failure"]
    assert wire.envelopes()[0]["failure"]["fingerprint"]


def test_the_failure_record_of_a_later_attempt_has_the_times_of_the_first_and_the_last_failure() -> None:  # SPEC F2
    wire = world_of()
    wire.clock.now += 500
    invoke(wire, record(receives=5), handler=consumer_of(fail))
    failure = wire.envelopes()[0]["failure"]
    assert failure["first_failed_at"] < failure["failed_at"]
    assert failure["failed_at"] == "2027-01-15T08:08:20.000Z"


def test_a_redriven_message_starts_at_its_first_attempt_and_its_next_dead_letter_has_the_total() -> None:  # SPEC F2, K3
    wire = world_of()
    invoke(wire, record(receives=5), handler=consumer_of(fail))
    attempts: list[int] = []

    def fail_again(message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("again")

    wire.clock.now += 3600
    invoke(
        wire,
        redriven(wire.sent_entries()[0], receives=1, received_at=RECEIVED_AT + 3600),
        handler=consumer_of(fail_again),
    )
    assert attempts == [1]
    invoke(
        wire,
        redriven(wire.sent_entries()[0], receives=5, received_at=RECEIVED_AT + 3600),
        handler=consumer_of(fail_again),
    )
    envelope = wire.envelopes()[-1]
    assert envelope["id"] == "m1"
    assert envelope["failure"]["attempts"] == 10
    assert envelope["failure"]["first_failed_at"] == wire.envelopes()[0]["failure"]["first_failed_at"]
    assert envelope["sent"] == wire.envelopes()[0]["sent"]
    assert [entry["error"] for entry in envelope["history"]] == ["ValueError: boom", "ValueError: again"]


def test_attempts_in_carried_and_in_the_failure_record_are_counted_once() -> None:  # SPEC F2, C2
    """A copy has its attempts both in ``carried`` and in its failure record."""
    wire = world_of()
    invoke(wire)
    envelope = wire.envelopes()[0]
    envelope["carried"] = 3
    envelope["failure"]["attempts"] = 3
    copy = record("{}", "m5", attributes={"Tarry": string(json.dumps(envelope))}, receives=2)
    invoke(wire, copy, handler=consumer_of(fail))
    assert wire.envelopes()[-1]["failure"]["attempts"] == 5
    assert wire.envelopes()[-1]["failure"]["reason"] == "exhausted"


def test_the_history_keeps_the_first_failure_and_the_last_nine() -> None:  # SPEC E6, F2
    wire = world_of(orders=Queue(dead_letter="orders-dlq", visibility_timeout=3_600))
    next_record = record()
    for number in range(1, 15):
        wire.clock.now += 60

        def handler(message: Message, number: int = number) -> None:
            raise CardWasDeclined(f"failure {number}")

        invoke(wire, next_record, handler=consumer_of(handler))
        next_record = redriven(wire.sent_entries()[-1], f"m{number}")
    history = [entry["error"].rpartition(": ")[2] for entry in wire.envelopes()[-1]["history"]]
    assert history == ["failure 1", *(f"failure {number}" for number in range(6, 15))]


def test_without_a_context_the_failure_record_lacks_function_and_request_id() -> None:  # SPEC F2
    wire = world_of()
    with wire:
        assert failed(consumer_of()(event(record()), None)) == []
    failure = wire.envelopes()[0]["failure"]
    assert "function" not in failure
    assert "request_id" not in failure


# the size limit


def long_winded(message: Message) -> None:
    raise CardWasDeclined("x" * 50_000 + "é" * 50_000)


@pytest.mark.parametrize("maximum", [1024, 2048, 4096, 262_144, MIB])
def test_a_dead_letter_is_never_larger_than_its_queue_allows(maximum: int) -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=maximum)})
    assert invoke(wire, record("x" * (maximum // 2)), handler=consumer_of(long_winded)) == []
    [dead_letter] = wire.sent_entries()
    assert size_of(dead_letter) <= maximum
    assert wire.envelopes()[0]["id"] == "m1"


@pytest.mark.parametrize("room", [300, 1_000, 5_000, 60_000])
def test_a_dead_letter_with_a_body_near_1_mib_keeps_as_much_of_the_failure_record_as_fits(room: int) -> None:  # SPEC F3
    wire = world_of()
    assert invoke(wire, record("é" * ((MIB - room) // 2)), handler=consumer_of(long_winded)) == []
    [dead_letter] = wire.sent_entries()
    assert size_of(dead_letter) <= MIB
    assert wire.envelopes()[0]["failure"]["reason"] == "fatal"


def test_a_dead_letter_with_a_body_of_exactly_1_mib_has_no_failure_record_and_the_record_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    wire = world_of()
    assert invoke(wire, record("x" * MIB)) == []
    assert "MessageAttributes" not in wire.sent_entries()[0]
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["message"] == "card declined"


def test_a_trimmed_failure_record_keeps_the_innermost_frames() -> None:  # SPEC F3
    def innermost_function(depth: int = 40) -> None:
        if depth:
            innermost_function(depth - 1) if depth % 2 else the_other(depth - 1)
        raise CardWasDeclined("x" * 200_000)

    def the_other(depth: int) -> None:
        innermost_function(depth)

    wire = world_of()
    invoke(wire, record("x" * (MIB - 4_000)), handler=consumer_of(lambda message: innermost_function()))
    failure = wire.envelopes()[0]["failure"]
    assert 'raise CardWasDeclined("x" * 200_000)' in failure["traceback"]
    assert failure["message"].startswith("xxxx")


def test_a_trimmed_failure_record_is_logged_once_up_to_64_kib(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=4096)})
    invoke(wire, handler=consumer_of(long_winded))
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["message"].startswith("x" * 50_000)
    assert 60_000 < len(json.dumps(field(line, "record"), separators=(",", ":"))) <= 65_536
    assert len(wire.envelopes()[0]["failure"]["message"]) < 4096


def test_a_failure_record_that_fits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    invoke(world_of())
    assert [line for line in lines(caplog) if field(line, "record")] == []


def test_the_failure_record_of_a_message_with_ten_user_attributes_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    ten = {f"a{index}": string(str(index)) for index in range(10)}
    wire = world_of()
    assert invoke(wire, record(attributes=ten)) == []
    assert set(wire.sent_entries()[0]["MessageAttributes"]) == set(ten)
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["type"] == f"{__name__}.CardWasDeclined"


def test_the_failure_record_fits_beside_nine_user_attributes() -> None:  # SPEC F3
    nine = {f"a{index}": string(str(index)) for index in range(9)}
    wire = world_of()
    invoke(wire, record(attributes=nine))
    assert set(wire.sent_entries()[0]["MessageAttributes"]) == {*nine, "Tarry"}


def test_a_users_own_tarry_attribute_is_kept_and_the_failure_record_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    wire = world_of()
    assert invoke(wire, record(attributes={"Tarry": string("not so fast")})) == []
    assert wire.sent_entries()[0]["MessageAttributes"] == {
        "Tarry": {"DataType": "String", "StringValue": "not so fast"}
    }
    assert [field(line, "message_id") for line in lines(caplog) if field(line, "record")] == ["m1"]


def test_the_tarry_attribute_of_a_redriven_message_does_not_count_as_a_user_attribute() -> None:  # SPEC F3
    nine = {f"a{index}": string(str(index)) for index in range(9)}
    wire = world_of()
    invoke(wire, record(attributes=nine))
    invoke(wire, redriven(wire.sent_entries()[0]))
    assert set(wire.sent_entries()[-1]["MessageAttributes"]) == {*nine, "Tarry"}
    assert wire.envelopes()[-1]["failure"]["attempts"] == 2


def test_a_message_with_a_body_too_large_for_the_dead_letter_queue_waits_in_its_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3, F5
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=1024)})
    assert invoke(wire, record("x" * 1025, "big"), record("y", "small")) == ["big"]
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["y"]
    assert wire.visibilities() == {"handle-big": 900}
    [line] = lines(caplog, level=logging.ERROR, event="unhandled")
    assert field(line, "message_id") == "big"
    assert "1024" in line.getMessage()


# an unknown limit


def too_large(limit: int) -> Callable[[Any, dict[str, Any]], tuple[str, str] | None]:
    text = f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    return lambda _, entry: ("InvalidParameterValue", text) if size_of(entry) > limit else None


def unknown_limit(limit: int) -> Wire:
    """A wire where the dead-letter queue allows ``limit`` bytes, which tarry has no permission to read."""
    wire = world_of()
    wire.fails["GetQueueAttributes"] = lambda request: (
        client_error("AccessDenied") if request.queue == "orders-dlq" else None
    )
    wire.refuses["SendMessageBatch"] = too_large(limit)
    return wire


def test_an_unknown_size_limit_is_assumed_to_be_1_mib() -> None:  # SPEC F1
    wire = unknown_limit(MIB)
    assert invoke(wire, record("x" * 500_000)) == []
    assert len(wire.sent_entries()) == 1


@pytest.mark.parametrize("whole_call", [False, True], ids=["entry refused", "call refused"])
@pytest.mark.parametrize(
    ("limit", "kept"), [(1_000, "smallest record"), (100, "no record")], ids=["some room", "hardly any room"]
)
def test_a_dead_letter_refused_for_its_size_is_sent_with_the_smallest_failure_record_or_none(
    limit: int, kept: str, whole_call: bool
) -> None:  # SPEC F1, F3
    wire = unknown_limit(limit)
    if whole_call:
        refuse = wire.refuses.pop("SendMessageBatch")

        def refused(request: Any) -> Exception | None:
            refusals = [refuse(request, entry) for entry in request.entries]
            return next((client_error(*refusal) for refusal in refusals if refusal), None)

        wire.fails["SendMessageBatch"] = refused
    assert invoke(wire, record("x" * 90), handler=consumer_of(long_winded)) == []
    sent = wire.accepted[0][1]
    assert sent["MessageBody"] == "x" * 90
    if kept == "no record":
        assert "MessageAttributes" not in sent
    else:
        smallest = json.loads(sent["MessageAttributes"]["Tarry"]["StringValue"])
        assert smallest["id"] == "m1"
        assert smallest["failure"]["reason"] == "fatal"


def test_a_dead_letter_refused_for_its_size_does_not_affect_others_of_the_request() -> None:  # SPEC G1, F3
    wire = unknown_limit(3_000)
    assert invoke(wire, record("x" * 2_900, "big"), record("y", "small")) == []
    bodies = [entry["MessageBody"] for request, entry in wire.accepted if request.operation == "SendMessageBatch"]
    assert sorted(bodies) == ["x" * 2_900, "y"]


@pytest.mark.parametrize("limit", [1_000, 100], ids=["smallest record sent", "no record sent"])
def test_a_failure_record_trimmed_after_a_refusal_is_logged_once_up_to_64_kib(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F3
    wire = unknown_limit(limit)
    assert invoke(wire, record("x" * 90), handler=consumer_of(long_winded)) == []
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "record")["failure"]["message"].startswith("x" * 50_000)


def test_a_message_with_a_body_beyond_an_unknown_limit_waits_in_its_queue() -> None:  # SPEC F4, F5
    wire = unknown_limit(50)
    assert invoke(wire, record("x" * 90)) == ["m1"]
    assert wire.sent("DeleteMessageBatch") == []
    assert wire.visibilities() == {"handle-m1": 900}


# redact


def mask_message(envelope: dict[str, Any]) -> dict[str, Any]:
    envelope["failure"]["message"] = "***"
    envelope.pop("history")
    return envelope


def secretive(message: Message) -> None:
    raise CardWasDeclined("card 4111-1111")


def test_the_failure_record_is_redacted_before_it_is_sent() -> None:  # SPEC F3
    wire = world_of()
    invoke(wire, handler=consumer_of(secretive, redact=mask_message, include_traceback=False))
    assert wire.envelopes()[0]["failure"]["message"] == "***"
    assert "4111-1111" not in json.dumps(wire.envelopes())


def test_the_failure_record_is_redacted_before_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    ten = {f"a{index}": string(str(index)) for index in range(10)}
    invoke(
        world_of(),
        record(attributes=ten),
        handler=consumer_of(secretive, redact=mask_message, include_traceback=False),
    )
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert "4111-1111" not in str(field(line, "record"))
    assert "4111-1111" not in line.getMessage()


def test_redact_cannot_change_the_version_the_id_or_the_origin() -> None:  # SPEC F3, K3
    wire = world_of()
    invoke(wire, handler=consumer_of(redact=lambda envelope: {"id": "another", "v": 9}))
    envelope = wire.envelopes()[0]
    assert (envelope["v"], envelope["id"], envelope["origin"]) == (1, "m1", arn("orders"))
    assert "failure" not in envelope


def explode(envelope: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError(f"cannot redact {envelope['failure']['message']}")


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    def redact(envelope: dict[str, Any]) -> Any:
        return value

    return redact


class NotSerializable:
    """A value that JSON cannot represent."""


ODD_REDACTIONS = pytest.mark.parametrize(
    "redact",
    [
        explode,
        returning(None),
        returning(7),
        returning({"failure": {"message": NotSerializable()}}),
        returning({"failure": {"message": float("nan")}}),
    ],
    ids=["raises", "returns None", "returns a number", "returns a value that is not JSON", "returns NaN"],
)


@ODD_REDACTIONS
def test_a_failing_redact_sends_no_secret_to_the_queue(redact: Any) -> None:  # SPEC F3
    wire = world_of()
    assert invoke(wire, handler=consumer_of(secretive, redact=redact)) == []
    envelope = wire.envelopes()[0]
    assert envelope["id"] == "m1"
    assert envelope["failure"]["reason"] == "fatal"
    assert "4111-1111" not in json.dumps(envelope)


@ODD_REDACTIONS
def test_a_failing_redact_writes_no_secret_to_the_log(redact: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    """`LogOptions.redact`, which redacts the other lines, fails as well."""
    caplog.set_level(logging.DEBUG, "tarry")
    ten = {f"a{index}": string(str(index)) for index in range(10)}

    def refuse(fields: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"no {fields}")

    steps: list[FailureStep] = [RetryInPlace(), DeadLetter(redact=redact)]
    handler = consumer(fatal=CardWasDeclined, on_failure=steps, log=LogOptions(redact=refuse))(secretive)
    assert invoke(world_of(), record(attributes=ten), handler=handler) == []
    assert lines(caplog)
    assert "4111-1111" not in everything(caplog)


@ODD_REDACTIONS
def test_a_failing_redact_is_logged(redact: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    invoke(world_of(), handler=consumer_of(secretive, redact=redact))
    [line] = lines(caplog, "redact_failed")
    assert field(line, "message_id") == "m1"
    assert "4111-1111" not in line.getMessage()


def test_a_redact_that_returns_an_invalid_failure_does_not_prevent_dead_lettering() -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=1024)})
    odd = returning({"failure": "the reason is a secret" * 100})
    assert invoke(wire, handler=consumer_of(secretive, redact=odd)) == []
    assert wire.envelopes()[0]["id"] == "m1"


def test_a_redacted_tarry_attribute_can_be_read_after_a_redrive() -> None:  # SPEC F3, K3
    seen: list[str] = []

    def note(message: Message) -> None:
        seen.append(message.id)

    wire = world_of()
    invoke(wire, handler=consumer_of(secretive, redact=returning({"failure": "a secret"})))
    invoke(wire, redriven(wire.sent_entries()[0]), handler=consumer_of(note))
    assert seen == ["m1"]


# messages that cannot be dead-lettered


def test_a_message_whose_send_fails_waits_in_its_queue(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F4, E4
    wire = world_of()
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    assert invoke(wire) == ["m1"]
    assert wire.sent("DeleteMessageBatch") == []
    assert wire.visibilities() == {"handle-m1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "ServiceUnavailable" in line.getMessage()
    assert field(line, "message_id") == "m1"


def test_a_message_that_cannot_be_dead_lettered_waits_for_the_longest_delay_of_the_policy() -> None:  # SPEC E4
    wire = world_of()
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    invoke(wire, handler=consumer(fatal=CardWasDeclined, backoff=Fixed(7200))(decline))
    assert wire.visibilities() == {"handle-m1": 7200}


def test_without_a_dead_letter_queue_the_message_waits_and_an_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F5
    wire = world_of(orders=Queue(dead_letter=None))
    assert invoke(wire) == ["m1"]
    assert wire.sent_entries() == []
    assert wire.visibilities() == {"handle-m1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "dead-letter queue" in line.getMessage()
    assert "RedrivePolicy" in line.getMessage()
    assert field(line, "message_id") == "m1"


@pytest.mark.parametrize(
    "target", ["orders", arn("orders"), "https://any.host.example/123456789012/orders"], ids=["name", "arn", "url"]
)
def test_a_message_is_not_dead_lettered_to_its_own_queue(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F7
    wire = world_of()
    assert invoke(wire, handler=consumer_of(queue=target)) == ["m1"]
    assert wire.sent_entries() == []
    assert wire.visibilities() == {"handle-m1": 900}
    assert lines(caplog, level=logging.ERROR)


def test_a_message_is_not_dead_lettered_to_the_queue_it_was_dead_lettered_from(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F7
    wire = world_of(**{"orders-dlq": Queue(dead_letter="orders")})
    invoke(wire)
    redriven_record = redriven(wire.sent_entries()[0], "m9", queue="orders-dlq")
    caplog.clear()
    assert invoke(wire, redriven_record) == ["m9"]
    assert targets(wire) == ["orders-dlq"]
    assert wire.visibilities() == {"handle-m9": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "orders" in line.getMessage()


def test_queues_of_the_same_name_in_two_accounts_are_different_queues() -> None:  # SPEC F7
    wire = world_of()
    elsewhere = "arn:aws:sqs:us-east-1:999999999999:orders"
    assert invoke(wire, handler=consumer_of(queue=elsewhere)) == []
    assert len(wire.sent_entries()) == 1


def test_a_consumer_of_a_dead_letter_queue_may_dead_letter_to_another_queue() -> None:  # SPEC F7
    wire = world_of(**{"orders-dlq": Queue(dead_letter="graveyard")})
    invoke(wire)
    assert invoke(wire, redriven(wire.sent_entries()[0], "m9", queue="orders-dlq")) == []
    assert targets(wire) == ["orders-dlq", "graveyard"]
    assert wire.envelopes()[-1]["origin"] == arn("orders-dlq")
    assert wire.envelopes()[-1]["id"] == "m1"


@pytest.mark.parametrize("override", ["arn:aws:sns:us-east-1:123456789012:topic", "arn:aws:sqs:orders"])
def test_an_override_that_is_not_a_queue_is_named_in_the_log(
    override: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F5
    wire = world_of()
    assert invoke(wire, handler=consumer_of(queue=override)) == ["m1"]
    assert wire.sent_entries() == []
    [line] = lines(caplog, level=logging.ERROR)
    assert override in line.getMessage()


def test_times_in_the_failure_record_are_utc() -> None:  # SPEC F2
    wire = world_of()
    invoke(wire)
    at = wire.envelopes()[0]["failure"]["failed_at"]
    assert at.endswith("Z")
    assert datetime.fromisoformat(at) == datetime.fromtimestamp(wire.clock.now, UTC)


def test_a_deferred_copy_may_be_dead_lettered_to_the_origin_of_its_failure_record() -> None:
    """A deferred copy keeps its failure record but is not a dead letter."""
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "m0", "origin": arn("orders-dlq"), "carried": 0, "hops": 1}
    envelope["failure"] = {"reason": "error", "attempts": 1, "type": "ValueError"}  # SPEC F7
    wire = world_of()
    assert invoke(wire, record(attributes={"Tarry": string(json.dumps(envelope))})) == []
    assert targets(wire) == ["orders-dlq"]


# attributes with reserved names


def test_attributes_with_reserved_names_are_left_out_of_the_copy_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E6, F2
    attributes = {name: string("x") for name in ["AWS.Trace", "amazon.source", "tenant", "AWSome", "my.AWS.name"]}
    wire = world_of()
    assert invoke(wire, record(attributes=attributes)) == []
    assert set(wire.sent_entries()[0]["MessageAttributes"]) == {"tenant", "AWSome", "my.AWS.name", "Tarry"}
    [line] = lines(caplog, "attributes_left_out")
    assert line.levelno == logging.WARNING
    assert "AWS.Trace, amazon.source" in line.getMessage()


def test_attributes_with_reserved_names_leave_room_for_the_tarry_attribute() -> None:  # SPEC F3
    attributes = {f"AWS.{number}": string("x") for number in range(10)}
    wire = world_of()
    assert invoke(wire, record(attributes=attributes)) == []
    assert set(wire.sent_entries()[0]["MessageAttributes"]) == {"Tarry"}


def test_a_deferred_copy_is_sent_without_attributes_with_reserved_names(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E6
    wire = world_of()
    handler = consumer(lambda message: message.defer(60))
    assert invoke(wire, record(attributes={"AWS.Trace": string("x")}), handler=handler) == []
    assert set(wire.sent_entries()[0]["MessageAttributes"]) == {"Tarry"}
    assert len(lines(caplog, "attributes_left_out")) == 1
