"""Dead letters: which queue they go to, what the record says, how it fits, and what happens where there is no way."""

import base64
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tarry import Consumer, DeadLetter, FailureStep, Fixed, LogOptions, Message, Reject, Retry, RetryInPlace, consumer
from tarry.envelope.attribute import body_sum
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


class Declined(Exception):
    pass


def decline(message: Message) -> None:
    raise Declined("card declined")


def dies(handler: Callable[[Message], None] = decline, **dead_letter: Any) -> Consumer[Any]:
    """A consumer for which `Declined` is fatal."""
    return consumer(fatal=Declined, on_failure=[RetryInPlace(), DeadLetter(**dead_letter)])(handler)


def die(wire: Wire, *records: dict[str, Any], handler: Consumer[Any] | None = None) -> list[str]:
    with wire:
        return failed((handler or dies())(event(*(records or (record(),))), Context()))


def string(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": data_type}


def redriven(letter: dict[str, Any], message_id: str = "m9", **more: Any) -> dict[str, Any]:
    """The record of a letter that was moved back to its queue, under the new id that SQS gives it."""
    attributes = {
        name: string(value["StringValue"], value["DataType"]) for name, value in letter["MessageAttributes"].items()
    }
    return record(letter["MessageBody"], message_id, attributes=attributes, **more)


def size_of(letter: dict[str, Any]) -> int:
    """The bytes of a message as SQS counts them."""
    return len(letter["MessageBody"].encode()) + sum(
        len(name.encode())
        + len(attribute["DataType"])
        + len(attribute.get("BinaryValue") or attribute["StringValue"].encode())
        for name, attribute in letter.get("MessageAttributes", {}).items()
    )


def targets(wire: Wire) -> list[str]:
    return [request.queue for request in wire.sent("SendMessageBatch")]


# which queue


def test_the_dead_letter_queue_is_the_one_in_the_redrive_policy() -> None:  # SPEC F1
    wire = world_of()
    assert die(wire) == []
    assert targets(wire) == ["orders-dlq"]
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == url("orders-dlq")


NAMES = pytest.mark.parametrize("name", ["graveyard", url("graveyard"), arn("graveyard")], ids=["name", "url", "arn"])


@NAMES
def test_the_environment_overrides_the_redrive_policy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC F1
    monkeypatch.setenv(OVERRIDE, name)
    wire = world_of()
    assert die(wire) == []
    assert targets(wire) == ["graveyard"]


@NAMES
def test_the_step_overrides_the_redrive_policy(name: str) -> None:  # SPEC F1
    wire = world_of()
    assert die(wire, handler=dies(queue=name)) == []
    assert targets(wire) == ["graveyard"]
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == url("graveyard")


def test_an_override_works_where_the_source_has_no_redrive_policy() -> None:  # SPEC F1
    wire = world_of(orders=Queue(dead_letter=None))
    assert die(wire, handler=dies(queue="graveyard")) == []
    assert targets(wire) == ["graveyard"]


def test_an_override_works_where_the_source_may_not_be_read() -> None:  # SPEC F1, A8
    wire = world_of()
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied")
    assert die(wire, handler=dies(queue="graveyard")) == []
    assert targets(wire) == ["graveyard"]


def test_the_queue_of_another_account_is_reached_by_its_url() -> None:  # SPEC F1
    wire = world_of()
    elsewhere = "https://sqs.us-east-1.amazonaws.com/999999999999/graveyard"
    assert die(wire, handler=dies(queue=elsewhere)) == []
    assert wire.sent("SendMessageBatch")[0].parameters["QueueUrl"] == elsewhere


def test_source_and_target_are_looked_up_once_for_a_whole_batch() -> None:  # SPEC F1
    wire = world_of()
    assert die(wire, *(record(index, f"m{index}") for index in range(25))) == []
    asked = {request.queue: request.parameters["AttributeNames"] for request in wire.sent("GetQueueAttributes")}
    assert [request.queue for request in wire.sent("GetQueueAttributes")] == ["orders", "orders-dlq"]
    of_source = {"RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize"}
    assert set(asked["orders"]) == of_source
    assert asked["orders-dlq"] == ["MaximumMessageSize"]


@pytest.mark.parametrize(("seconds", "look_ups"), [(899, 2), (901, 4)], ids=["within 15 min", "after 15 min"])
def test_what_was_looked_up_is_kept_for_15_minutes(seconds: float, look_ups: int) -> None:  # SPEC F1
    wire = world_of()
    die(wire)
    wire.clock.now += seconds
    die(wire)
    assert len(wire.sent("GetQueueAttributes")) == look_ups


@pytest.mark.parametrize(("seconds", "dead_lettered"), [(29, False), (31, True)], ids=["within 30 s", "after 30 s"])
def test_a_failed_look_up_is_kept_for_30_seconds(seconds: float, dead_lettered: bool) -> None:  # SPEC F1
    wire = world_of()
    wire.fails["GetQueueAttributes"] = client_error("ServiceUnavailable", status=503)
    assert die(wire) == ["m1"]
    del wire.fails["GetQueueAttributes"]
    wire.clock.now += seconds
    assert die(wire) == ([] if dead_lettered else ["m1"])


def test_a_look_up_that_an_invocation_had_no_time_for_is_made_by_the_next() -> None:  # SPEC A6, F1
    wire = world_of()
    with wire:
        assert failed(dies()(event(record()), Context(remaining=0.1))) == ["m1"]
        assert wire.requests == []
        assert failed(dies()(event(record()), Context(remaining=30))) == []


# what is sent


def test_the_body_is_untouched() -> None:  # SPEC F2
    body = ' {"name":  "Zoë \\u00e9 😀"}\n\t'
    wire = world_of()
    die(wire, record(body))
    assert wire.letters()[0]["MessageBody"] == body


def test_user_attributes_are_kept_with_their_types_labels_and_bytes() -> None:  # SPEC F2, E6
    given = {
        "tenant": string("acme"),
        "amount": string("12.50", "Number.money"),
        "count": string("3", "Number"),
        "raw": {"binaryValue": base64.b64encode(b"\x00\xff\x10").decode(), "dataType": "Binary"},
        "png": {"binaryValue": base64.b64encode(b"\x89PNG").decode(), "dataType": "Binary.png"},
    }
    wire = world_of()
    die(wire, record(attributes=given))
    sent = {name: value for name, value in wire.letters()[0]["MessageAttributes"].items() if name != "Tarry"}
    assert sent == {
        "tenant": {"DataType": "String", "StringValue": "acme"},
        "amount": {"DataType": "Number.money", "StringValue": "12.50"},
        "count": {"DataType": "Number", "StringValue": "3"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
        "png": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
    }


def test_the_trace_header_is_kept() -> None:  # SPEC E6, L4
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    wire = world_of()
    die(wire, record(system={"AWSTraceHeader": header}))
    system = wire.letters()[0]["MessageSystemAttributes"]
    assert system == {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}


def test_on_a_standard_queue_the_delay_is_explicitly_none() -> None:  # SPEC F2
    wire = world_of()
    die(wire)
    [letter] = wire.letters()
    assert letter["DelaySeconds"] == 0
    assert "MessageGroupId" not in letter
    assert "MessageDeduplicationId" not in letter


def test_the_group_id_of_a_standard_queues_message_is_kept() -> None:  # SPEC E6, H3
    wire = world_of()
    die(wire, record(group="tenant-1"))
    assert wire.letters()[0]["MessageGroupId"] == "tenant-1"


def fifo_world() -> Wire:
    return Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")})


def fifo_record(message_id: str = "m1", group: str | None = "g1", **more: Any) -> dict[str, Any]:
    return record(message_id, message_id, queue="orders.fifo", group=group, **more)


def test_on_fifo_the_group_is_kept_and_no_delay_is_given() -> None:  # SPEC F2, E6, E7
    wire = fifo_world()
    assert die(wire, fifo_record()) == []
    [letter] = wire.letters()
    assert letter["MessageGroupId"] == "g1"
    assert "DelaySeconds" not in letter


def test_on_fifo_a_message_without_a_group_is_dead_lettered_all_the_same() -> None:  # SPEC H3, F2
    wire = fifo_world()
    assert die(wire, fifo_record(group=None)) == []
    assert wire.letters()[0]["MessageGroupId"]


def deduplication_id(wire: Wire) -> str:
    return str(wire.letters()[-1]["MessageDeduplicationId"])


def test_the_same_transfer_repeated_has_the_same_deduplication_id() -> None:  # SPEC E7
    wire = fifo_world()
    die(wire, fifo_record(receives=1))
    first = deduplication_id(wire)
    die(wire, fifo_record(receives=2))
    assert deduplication_id(wire) == first
    assert re.fullmatch(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", first)


def test_another_message_or_another_target_has_another_deduplication_id() -> None:  # SPEC E7
    wire = fifo_world()
    die(wire, fifo_record("m1"))
    first = deduplication_id(wire)
    die(wire, fifo_record("m2"))
    assert deduplication_id(wire) != first
    die(wire, fifo_record("m1"), handler=dies(queue="graveyard.fifo"))
    assert deduplication_id(wire) != first


def test_a_redriven_message_that_dies_again_is_not_swallowed_as_its_first_death() -> None:  # SPEC E7, K3
    wire = fifo_world()
    die(wire, fifo_record("m1"))
    first, [letter] = deduplication_id(wire), wire.letters()
    die(wire, redriven(letter, "m9", queue="orders.fifo", group="g1"))
    assert wire.records()[-1]["id"] == "m1"
    assert deduplication_id(wire) != first


# the record


def test_the_record_says_who_died_where_when_and_why() -> None:  # SPEC F2
    wire = world_of()
    wire.clock.now += 100
    die(wire, record({"id": 7}, "m1", receives=1))
    [told] = wire.records()
    failure = told.pop("failure")
    history = told.pop("history")
    assert len(told.pop("sum")) == 16
    assert told == {"v": 1, "id": "m1", "origin": arn("orders"), "sent": "2027-01-15T08:00:00.000Z"}
    traceback, fingerprint = failure.pop("traceback"), failure.pop("fingerprint")
    assert failure == {
        "reason": "fatal",
        "attempts": 1,
        "type": f"{__name__}.Declined",
        "message": "card declined",
        "first_failed_at": "2027-01-15T08:01:40.000Z",
        "failed_at": "2027-01-15T08:01:40.000Z",
        "function": "orders-function",
        "request_id": "request-1",
    }
    assert "in decline" in traceback
    assert "card declined" not in traceback.replace('raise Declined("card declined")', "")
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint)
    assert history == [{"attempt": 1, "at": "2027-01-15T08:01:40.000Z", "error": f"{__name__}.Declined: card declined"}]


def test_the_attribute_is_a_string_of_ascii() -> None:  # SPEC F2
    @consumer(fatal=Declined)
    def handler(message: Message) -> None:
        raise Declined("ünïcode \x00 \ud800 😀")

    wire = world_of()
    assert die(wire, handler=handler) == []
    attribute = wire.letters()[0]["MessageAttributes"]["Tarry"]
    assert attribute["DataType"] == "String"
    assert re.fullmatch(r"[ -~]+", attribute["StringValue"])
    assert wire.records()[0]["failure"]["message"] == "ünïcode \x00 \ud800 😀"


def test_carried_is_nothing_and_there_are_no_step_counters() -> None:  # SPEC F2
    wire = world_of()
    die(wire)
    die(wire, redriven(wire.letters()[0]))
    for told in wire.records():
        assert told.get("carried", 0) == 0
        assert not told.get("steps")


def say_reject(message: Message) -> None:
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
        (decline, 1, "fatal", f"{__name__}.Declined"),
        (say_reject, 1, "rejected", "tarry.Reject"),
        (raise_reject, 1, "rejected", "tarry.Reject"),
        (decode, 1, "undecodable", "tarry.Undecodable"),
        (fail, 5, "exhausted", "ValueError"),
        (retry, 5, "exhausted", None),
    ],
    ids=["fatal", "said reject", "raised reject", "undecodable", "error", "said retry"],
)
def test_the_record_names_the_reason(
    handler: Callable[[Message], None], receives: int, reason: str, error_type: str | None
) -> None:  # SPEC F2, E1
    wire = world_of()
    assert die(wire, record("{", receives=receives), handler=dies(handler)) == []
    failure = wire.records()[0]["failure"]
    assert failure["reason"] == reason
    assert failure.get("type") == error_type
    assert failure["attempts"] == receives


def test_the_last_delivery_of_the_queue_exhausts_before_the_policy_does() -> None:  # SPEC C8, F1
    wire = world_of(orders=Queue(dead_letter="orders-dlq", max_receive_count=3))
    assert die(wire, record(receives=3), handler=dies(fail)) == []
    assert wire.records()[0]["failure"]["reason"] == "exhausted"
    assert wire.records()[0]["failure"]["attempts"] == 3


@pytest.mark.parametrize("signal", [Reject("no"), Retry(30)], ids=["reject", "retry"])
def test_of_a_signal_with_a_cause_the_cause_is_told(signal: Exception) -> None:  # SPEC F2
    def refuse(message: Message) -> None:
        try:
            charge()
        except Declined as error:
            raise signal from error

    def charge() -> None:
        raise Declined("card declined")

    wire = world_of()
    assert die(wire, record(receives=5), handler=consumer(refuse)) == []
    failure = wire.records()[0]["failure"]
    assert failure["type"] == f"{__name__}.Declined"
    assert failure["message"] == "card declined"
    assert "in charge" in failure["traceback"]


def test_the_same_error_at_the_same_place_has_the_same_fingerprint() -> None:  # SPEC F2
    @consumer(fatal=(Declined, KeyError))
    def handler(message: Message) -> None:
        if message.json()["at"] == "there":
            raise Declined(f"order {message.id}")
        raise Declined(f"order {message.id}")

    wire = world_of()
    die(wire, *(record({"at": at}, f"m{index}") for index, at in enumerate(["here", "here", "there"])), handler=handler)
    first, second, third = (told["failure"]["fingerprint"] for told in wire.records())
    assert first == second
    assert third != first


def test_without_include_traceback_there_is_none() -> None:  # SPEC E3
    wire = world_of()
    die(wire, handler=dies(include_traceback=False))
    assert "traceback" not in wire.records()[0]["failure"]
    assert wire.records()[0]["failure"]["fingerprint"]


def test_first_and_last_failure_are_told_apart_on_a_later_attempt() -> None:  # SPEC F2
    wire = world_of()
    wire.clock.now += 500
    die(wire, record(receives=5), handler=dies(fail))
    failure = wire.records()[0]["failure"]
    assert failure["first_failed_at"] < failure["failed_at"]
    assert failure["failed_at"] == "2027-01-15T08:08:20.000Z"


def test_a_redriven_message_begins_anew_and_its_second_death_tells_the_total() -> None:  # SPEC F2, K3
    wire = world_of()
    die(wire, record(receives=5), handler=dies(fail))
    attempts: list[int] = []

    def look(message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("again")

    wire.clock.now += 3600
    die(wire, redriven(wire.letters()[0], receives=1, received_at=RECEIVED_AT + 3600), handler=dies(look))
    assert attempts == [1]
    die(wire, redriven(wire.letters()[0], receives=5, received_at=RECEIVED_AT + 3600), handler=dies(look))
    told = wire.records()[-1]
    assert told["id"] == "m1"
    assert told["failure"]["attempts"] == 10
    assert told["failure"]["first_failed_at"] == wire.records()[0]["failure"]["first_failed_at"]
    assert told["sent"] == wire.records()[0]["sent"]
    assert [entry["error"] for entry in told["history"]] == ["ValueError: boom", "ValueError: again"]


def test_attempts_of_copies_that_were_sent_again_are_counted_once() -> None:  # SPEC F2, C2
    """A copy carries its attempts, and its record tells the same ones as its failure's."""
    wire = world_of()
    die(wire)
    told = wire.records()[0]
    told["carried"] = 3
    told["failure"]["attempts"] = 3
    copy = record("{}", "m5", attributes={"Tarry": string(json.dumps(told))}, receives=2)
    die(wire, copy, handler=dies(fail))
    assert wire.records()[-1]["failure"]["attempts"] == 5
    assert wire.records()[-1]["failure"]["reason"] == "exhausted"


def test_the_history_keeps_the_first_and_the_last_nine() -> None:  # SPEC E6, F2
    wire = world_of(orders=Queue(dead_letter="orders-dlq", visibility_timeout=3_600))
    letter_record = record()
    for life in range(1, 15):
        wire.clock.now += 60

        def handler(message: Message, life: int = life) -> None:
            raise Declined(f"life {life}")

        die(wire, letter_record, handler=dies(handler))
        letter_record = redriven(wire.letters()[-1], f"m{life}")
    history = [entry["error"].rpartition(": ")[2] for entry in wire.records()[-1]["history"]]
    assert history == ["life 1", *(f"life {life}" for life in range(6, 15))]


def test_without_a_context_function_and_request_are_left_out() -> None:  # SPEC F2
    wire = world_of()
    with wire:
        assert failed(dies()(event(record()), None)) == []
    failure = wire.records()[0]["failure"]
    assert "function" not in failure
    assert "request_id" not in failure


# the room


def long_winded(message: Message) -> None:
    raise Declined("x" * 50_000 + "é" * 50_000)


@pytest.mark.parametrize("maximum", [1024, 2048, 4096, 262_144, MIB])
def test_the_letter_is_never_larger_than_its_queue_allows(maximum: int) -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=maximum)})
    assert die(wire, record("x" * (maximum // 2)), handler=dies(long_winded)) == []
    [letter] = wire.letters()
    assert size_of(letter) <= maximum
    assert wire.records()[0]["id"] == "m1"


@pytest.mark.parametrize("room", [300, 1_000, 5_000, 60_000])
def test_a_body_near_1_mib_keeps_as_much_of_the_record_as_has_room(room: int) -> None:  # SPEC F3
    wire = world_of()
    assert die(wire, record("é" * ((MIB - room) // 2)), handler=dies(long_winded)) == []
    [letter] = wire.letters()
    assert size_of(letter) <= MIB
    assert wire.records()[0]["failure"]["reason"] == "fatal"


def test_a_body_of_exactly_1_mib_goes_without_a_record_which_goes_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    wire = world_of()
    assert die(wire, record("x" * MIB)) == []
    assert "MessageAttributes" not in wire.letters()[0]
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["message"] == "card declined"


def test_the_innermost_frames_stay_when_the_message_is_huge() -> None:  # SPEC F3
    def innermost_function(depth: int = 40) -> None:
        if depth:
            innermost_function(depth - 1) if depth % 2 else the_other(depth - 1)
        raise Declined("x" * 200_000)

    def the_other(depth: int) -> None:
        innermost_function(depth)

    wire = world_of()
    die(wire, record("x" * (MIB - 4_000)), handler=dies(lambda message: innermost_function()))
    failure = wire.records()[0]["failure"]
    assert 'raise Declined("x" * 200_000)' in failure["traceback"]
    assert failure["message"].startswith("xxxx")


def test_what_is_cut_is_logged_once_up_to_64_kib(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=4096)})
    die(wire, handler=dies(long_winded))
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["message"].startswith("x" * 50_000)
    assert 60_000 < len(json.dumps(field(line, "record"), separators=(",", ":"))) <= 65_536
    assert len(wire.records()[0]["failure"]["message"]) < 4096


def test_what_is_not_cut_is_not_logged_as_a_record(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    die(world_of())
    assert [line for line in lines(caplog) if field(line, "record")] == []


def test_with_ten_user_attributes_the_record_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    ten = {f"a{index}": string(str(index)) for index in range(10)}
    wire = world_of()
    assert die(wire, record(attributes=ten)) == []
    assert set(wire.letters()[0]["MessageAttributes"]) == set(ten)
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "message_id") == "m1"
    assert field(line, "record")["failure"]["type"] == f"{__name__}.Declined"


def test_nine_user_attributes_leave_room_for_the_record() -> None:  # SPEC F3
    nine = {f"a{index}": string(str(index)) for index in range(9)}
    wire = world_of()
    die(wire, record(attributes=nine))
    assert set(wire.letters()[0]["MessageAttributes"]) == {*nine, "Tarry"}


def test_a_users_own_tarry_attribute_is_kept_and_the_record_goes_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    wire = world_of()
    assert die(wire, record(attributes={"Tarry": string("not so fast")})) == []
    assert wire.letters()[0]["MessageAttributes"] == {"Tarry": {"DataType": "String", "StringValue": "not so fast"}}
    assert [field(line, "message_id") for line in lines(caplog) if field(line, "record")] == ["m1"]


def test_a_redriven_message_of_nine_attributes_is_not_taken_to_have_ten() -> None:  # SPEC F3
    nine = {f"a{index}": string(str(index)) for index in range(9)}
    wire = world_of()
    die(wire, record(attributes=nine))
    die(wire, redriven(wire.letters()[0]))
    assert set(wire.letters()[-1]["MessageAttributes"]) == {*nine, "Tarry"}
    assert wire.records()[-1]["failure"]["attempts"] == 2


def test_a_body_that_the_target_cannot_hold_stays_and_waits(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3, F5
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=1024)})
    assert die(wire, record("x" * 1025, "big"), record("y", "small")) == ["big"]
    assert [letter["MessageBody"] for letter in wire.letters()] == ["y"]
    assert wire.visibilities() == {"handle-big": 900}
    [line] = lines(caplog, level=logging.ERROR, event="unhandled")
    assert field(line, "message_id") == "big"
    assert "1024" in line.getMessage()


# an unknown limit


def too_large(limit: int) -> Callable[[Any, dict[str, Any]], tuple[str, str] | None]:
    text = f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    return lambda _, entry: ("InvalidParameterValue", text) if size_of(entry) > limit else None


def unknown_limit(limit: int) -> Wire:
    """The target's limit may not be read; in truth it is ``limit``."""
    wire = world_of()
    wire.fails["GetQueueAttributes"] = lambda request: (
        client_error("AccessDenied") if request.queue == "orders-dlq" else None
    )
    wire.refuses["SendMessageBatch"] = too_large(limit)
    return wire


def test_where_the_limit_is_unknown_1_mib_is_assumed() -> None:  # SPEC F1
    wire = unknown_limit(MIB)
    assert die(wire, record("x" * 500_000)) == []
    assert len(wire.letters()) == 1


@pytest.mark.parametrize("whole_call", [False, True], ids=["entry refused", "call refused"])
@pytest.mark.parametrize(
    ("limit", "kept"), [(1_000, "smallest record"), (100, "no record")], ids=["some room", "hardly any room"]
)
def test_a_refusal_for_size_is_answered_with_the_smallest_record_then_none(
    limit: int, kept: str, whole_call: bool
) -> None:  # SPEC F1, F3
    wire = unknown_limit(limit)
    if whole_call:
        refuse = wire.refuses.pop("SendMessageBatch")

        def refused(request: Any) -> Exception | None:
            refusals = [refuse(request, entry) for entry in request.entries]
            return next((client_error(*refusal) for refusal in refusals if refusal), None)

        wire.fails["SendMessageBatch"] = refused
    assert die(wire, record("x" * 90), handler=dies(long_winded)) == []
    sent = wire.accepted[0][1]
    assert sent["MessageBody"] == "x" * 90
    if kept == "no record":
        assert "MessageAttributes" not in sent
    else:
        smallest = json.loads(sent["MessageAttributes"]["Tarry"]["StringValue"])
        assert smallest["id"] == "m1"
        assert smallest["failure"]["reason"] == "fatal"


def test_a_refusal_for_size_of_one_does_not_touch_its_neighbour() -> None:  # SPEC G1, F3
    wire = unknown_limit(3_000)
    assert die(wire, record("x" * 2_900, "big"), record("y", "small")) == []
    bodies = [entry["MessageBody"] for request, entry in wire.accepted if request.operation == "SendMessageBatch"]
    assert sorted(bodies) == ["x" * 2_900, "y"]


@pytest.mark.parametrize("limit", [1_000, 100], ids=["smallest record sent", "no record sent"])
def test_what_a_refusal_for_size_cuts_is_logged_once_up_to_64_kib(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F3
    wire = unknown_limit(limit)
    assert die(wire, record("x" * 90), handler=dies(long_winded)) == []
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert field(line, "record")["failure"]["message"].startswith("x" * 50_000)


def test_a_body_beyond_an_unknown_limit_stays_and_waits() -> None:  # SPEC F4, F5
    wire = unknown_limit(50)
    assert die(wire, record("x" * 90)) == ["m1"]
    assert wire.sent("DeleteMessageBatch") == []
    assert wire.visibilities() == {"handle-m1": 900}


# redact


def hide_message(told: dict[str, Any]) -> dict[str, Any]:
    told["failure"]["message"] = "***"
    told.pop("history")
    return told


def secretive(message: Message) -> None:
    raise Declined("card 4111-1111")


def test_redact_comes_before_the_record_leaves_for_the_queue() -> None:  # SPEC F3
    wire = world_of()
    die(wire, handler=dies(secretive, redact=hide_message, include_traceback=False))
    assert wire.records()[0]["failure"]["message"] == "***"
    assert "4111-1111" not in json.dumps(wire.records())


def test_redact_comes_before_the_record_leaves_for_the_log(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    ten = {f"a{index}": string(str(index)) for index in range(10)}
    die(
        world_of(),
        record(attributes=ten),
        handler=dies(secretive, redact=hide_message, include_traceback=False),
    )
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert "4111-1111" not in str(field(line, "record"))
    assert "4111-1111" not in line.getMessage()


def test_redact_may_not_change_whose_record_it_is() -> None:  # SPEC F3, K3
    wire = world_of()
    die(wire, handler=dies(redact=lambda told: {"id": "another", "v": 9}))
    told = wire.records()[0]
    assert (told["v"], told["id"], told["origin"]) == (1, "m1", arn("orders"))
    assert "failure" not in told


def explode(told: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError(f"cannot redact {told['failure']['message']}")


def spoil(what: Any) -> Callable[[dict[str, Any]], Any]:
    def redact(told: dict[str, Any]) -> Any:
        return what

    return redact


class _Whole:
    """Not JSON."""


ODD_REDACTIONS = pytest.mark.parametrize(
    "redact",
    [
        explode,
        spoil(None),
        spoil(7),
        spoil({"failure": {"message": _Whole()}}),
        spoil({"failure": {"message": float("nan")}}),
    ],
    ids=["raises", "returns None", "returns a number", "returns what is no JSON", "returns NaN"],
)


@ODD_REDACTIONS
def test_a_redact_that_fails_leaks_nothing_into_the_queue(redact: Any) -> None:  # SPEC F3
    wire = world_of()
    assert die(wire, handler=dies(secretive, redact=redact)) == []
    told = wire.records()[0]
    assert told["id"] == "m1"
    assert told["failure"]["reason"] == "fatal"
    assert "4111-1111" not in json.dumps(told)


@ODD_REDACTIONS
def test_a_redact_that_fails_leaks_nothing_into_the_log(
    redact: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F3
    """What other lines say of the error is for `LogOptions.redact`: here it fails too."""
    caplog.set_level(logging.DEBUG, "tarry")
    ten = {f"a{index}": string(str(index)) for index in range(10)}

    def refuse(fields: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"no {fields}")

    steps: list[FailureStep] = [RetryInPlace(), DeadLetter(redact=redact)]
    handler = consumer(fatal=Declined, on_failure=steps, log=LogOptions(redact=refuse))(secretive)
    assert die(world_of(), record(attributes=ten), handler=handler) == []
    assert lines(caplog)
    assert "4111-1111" not in everything(caplog)


@ODD_REDACTIONS
def test_a_redact_that_fails_is_told_in_the_log(redact: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    die(world_of(), handler=dies(secretive, redact=redact))
    [line] = lines(caplog, "redact_failed")
    assert field(line, "message_id") == "m1"
    assert "4111-1111" not in line.getMessage()


def test_a_redact_that_returns_an_odd_failure_does_not_keep_the_message_from_its_queue() -> None:  # SPEC F3
    wire = world_of(**{"orders-dlq": Queue(maximum_message_size=1024)})
    odd = spoil({"failure": "the reason is a secret" * 100})
    assert die(wire, handler=dies(secretive, redact=odd)) == []
    assert wire.records()[0]["id"] == "m1"


def test_a_redacted_record_can_be_read_when_the_message_comes_back() -> None:  # SPEC F3, K3
    seen: list[str] = []

    def look(message: Message) -> None:
        seen.append(message.id)

    wire = world_of()
    die(wire, handler=dies(secretive, redact=spoil({"failure": "a secret"})))
    die(wire, redriven(wire.letters()[0]), handler=dies(look))
    assert seen == ["m1"]


# no way


def test_a_send_that_fails_leaves_the_message_waiting(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F4, E4
    wire = world_of()
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    assert die(wire) == ["m1"]
    assert wire.sent("DeleteMessageBatch") == []
    assert wire.visibilities() == {"handle-m1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "ServiceUnavailable" in line.getMessage()
    assert field(line, "message_id") == "m1"


def test_what_cannot_be_put_away_waits_for_the_policys_longest_delay() -> None:  # SPEC E4
    wire = world_of()
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    die(wire, handler=consumer(fatal=Declined, backoff=Fixed(7200))(decline))
    assert wire.visibilities() == {"handle-m1": 7200}


def test_without_a_dead_letter_queue_the_message_stays_and_an_error_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F5
    wire = world_of(orders=Queue(dead_letter=None))
    assert die(wire) == ["m1"]
    assert wire.letters() == []
    assert wire.visibilities() == {"handle-m1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "dead-letter queue" in line.getMessage()
    assert "RedrivePolicy" in line.getMessage()
    assert field(line, "message_id") == "m1"


@pytest.mark.parametrize(
    "target", ["orders", arn("orders"), "https://any.host.example/123456789012/orders"], ids=["name", "arn", "url"]
)
def test_a_message_is_not_dead_lettered_to_the_queue_it_is_in(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F7
    wire = world_of()
    assert die(wire, handler=dies(queue=target)) == ["m1"]
    assert wire.letters() == []
    assert wire.visibilities() == {"handle-m1": 900}
    assert lines(caplog, level=logging.ERROR)


def test_a_message_is_not_dead_lettered_to_the_queue_it_was_dead_lettered_from(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F7
    wire = world_of(**{"orders-dlq": Queue(dead_letter="orders")})
    die(wire)
    letter = redriven(wire.letters()[0], "m9", queue="orders-dlq")
    caplog.clear()
    assert die(wire, letter) == ["m9"]
    assert targets(wire) == ["orders-dlq"]
    assert wire.visibilities() == {"handle-m9": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "orders" in line.getMessage()


def test_queues_of_the_same_name_in_two_accounts_are_two_queues() -> None:  # SPEC F7
    wire = world_of()
    elsewhere = "arn:aws:sqs:us-east-1:999999999999:orders"
    assert die(wire, handler=dies(queue=elsewhere)) == []
    assert len(wire.letters()) == 1


def test_a_consumer_of_the_dead_letter_queue_may_dead_letter_further() -> None:  # SPEC F7
    wire = world_of(**{"orders-dlq": Queue(dead_letter="graveyard")})
    die(wire)
    assert die(wire, redriven(wire.letters()[0], "m9", queue="orders-dlq")) == []
    assert targets(wire) == ["orders-dlq", "graveyard"]
    assert wire.records()[-1]["origin"] == arn("orders-dlq")
    assert wire.records()[-1]["id"] == "m1"


@pytest.mark.parametrize("override", ["arn:aws:sns:us-east-1:123456789012:topic", "arn:aws:sqs:orders"])
def test_an_override_that_is_no_queue_is_named_in_the_log(
    override: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F5
    wire = world_of()
    assert die(wire, handler=dies(queue=override)) == ["m1"]
    assert wire.letters() == []
    [line] = lines(caplog, level=logging.ERROR)
    assert override in line.getMessage()


def test_times_in_the_record_are_utc() -> None:  # SPEC F2
    wire = world_of()
    die(wire)
    at = wire.records()[0]["failure"]["failed_at"]
    assert at.endswith("Z")
    assert datetime.fromisoformat(at) == datetime.fromtimestamp(wire.clock.now, UTC)


def test_a_deferred_copy_of_what_failed_in_this_queue_may_be_dead_lettered_to_where_it_was_sent_from() -> None:
    """It keeps the record of its failure and counts no attempt, and is no dead letter for that."""
    told = {"v": 1, "sum": body_sum("{}"), "id": "m0", "origin": arn("orders-dlq"), "carried": 0, "hops": 1}
    told["failure"] = {"reason": "error", "attempts": 1, "type": "ValueError"}  # SPEC F7
    wire = world_of()
    assert die(wire, record(attributes={"Tarry": string(json.dumps(told))})) == []
    assert targets(wire) == ["orders-dlq"]


# attributes that no send may have


def test_attributes_with_names_of_aws_are_left_out_of_the_copy_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E6, F2
    attributes = {name: string("x") for name in ["AWS.Trace", "amazon.source", "tenant", "AWSome", "my.AWS.name"]}
    wire = world_of()
    assert die(wire, record(attributes=attributes)) == []
    assert set(wire.letters()[0]["MessageAttributes"]) == {"tenant", "AWSome", "my.AWS.name", "Tarry"}
    [line] = lines(caplog, "attributes_left_out")
    assert line.levelno == logging.WARNING
    assert "AWS.Trace, amazon.source" in line.getMessage()


def test_they_take_no_place_of_the_record() -> None:  # SPEC F3
    attributes = {f"AWS.{number}": string("x") for number in range(10)}
    wire = world_of()
    assert die(wire, record(attributes=attributes)) == []
    assert set(wire.letters()[0]["MessageAttributes"]) == {"Tarry"}


def test_a_copy_that_is_sent_again_goes_without_them_too(caplog: pytest.LogCaptureFixture) -> None:  # SPEC E6
    wire = world_of()
    handler = consumer(lambda message: message.defer(60))
    assert die(wire, record(attributes={"AWS.Trace": string("x")}), handler=handler) == []
    assert set(wire.letters()[0]["MessageAttributes"]) == {"Tarry"}
    assert len(lines(caplog, "attributes_left_out")) == 1
