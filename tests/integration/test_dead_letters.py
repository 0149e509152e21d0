"""Dead letters: the target queue, the failure record, the size limit, and messages that cannot be dead-lettered."""

import base64
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Consumer, DeadLetter, FailureStep, Fixed, LogOptions, Message, Reject, Retry, RetryInPlace, consumer
from tarry.record.attribute import body_sum
from tests.loglines import everything, field, lines
from tests.records import event, failed, record
from tests.settled import fails, orders, redelivered, settle, targets
from tests.wire import Queue, Wire, arn, client_error, url

MIB = 1_048_576
OVERRIDE = "TARRY_DEAD_LETTER_QUEUE_URL"


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)


class CardWasDeclined(Exception):
    pass


def decline(message: Message) -> None:
    raise CardWasDeclined("card declined")


def consumer_of(handler: Callable[[Message], None] = decline, **dead_letter: Any) -> Consumer[Any]:
    """Make a consumer for which `CardWasDeclined` is fatal."""
    return consumer(fatal=CardWasDeclined, on_failure=[RetryInPlace(), DeadLetter(**dead_letter)])(handler)


def invoke(wire: Wire, *records: dict[str, Any], handler: Consumer[Any] | None = None) -> list[str]:
    """Invoke the consumer with these records; return the ids that it reports as failed."""
    return settle(handler or consumer_of(), event(*(records or (record(),))), wire)[0]


def limited_to(size: int) -> Wire:
    """Return a wire whose dead-letter queue accepts messages up to this size."""
    wire = orders()
    wire.queues["orders-dlq"] = Queue(maximum_message_size=size)
    return wire


def string(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": data_type}


def strings(count: int) -> dict[str, Any]:
    return {f"a{index}": string(str(index)) for index in range(count)}


def logged_records(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the failure records in the log, which are those of the message m1."""
    found = [line for line in lines(caplog) if field(line, "record")]
    assert {field(line, "message_id") for line in found} <= {"m1"}
    return [field(line, "record") for line in found]


# the target queue

GRAVEYARD = ["graveyard", url("graveyard"), arn("graveyard")]
ELSEWHERE = "https://sqs.us-east-1.amazonaws.com/999999999999/orders"


@pytest.mark.parametrize(
    ("step", "environment", "target"),
    [
        pytest.param(None, None, url("orders-dlq"), id="redrive policy"),
        *(pytest.param(None, name, url("graveyard"), id=f"environment: {name}") for name in GRAVEYARD),
        *(pytest.param(name, None, url("graveyard"), id=f"step: {name}") for name in GRAVEYARD),
        pytest.param(ELSEWHERE, None, ELSEWHERE, id="another account, by URL"),
        pytest.param("arn:aws:sqs:us-east-1:999999999999:orders", None, ELSEWHERE, id="another account, by ARN"),
    ],
)
def test_the_dead_letter_queue_is_that_of_the_redrive_policy_unless_an_override_names_another(
    step: str | None, environment: str | None, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A8, F1, F7. An override needs no redrive policy, and no permission to read it."""
    if environment is not None:
        monkeypatch.setenv(OVERRIDE, environment)
    denied = orders()
    denied.fails["GetQueueAttributes"] = client_error("AccessDenied")
    for wire in [orders(), orders(dead_letter=None), denied][: 3 if step or environment else 1]:
        assert invoke(wire, handler=consumer_of(queue=step)) == []
        assert [request.parameters["QueueUrl"] for request in wire.sent("SendMessageBatch")] == [target]


def test_source_and_target_are_looked_up_once_for_a_whole_batch() -> None:  # SPEC F1
    wire = orders()
    assert invoke(wire, *(record(index, f"m{index}") for index in range(25))) == []
    asked = {request.queue: {*request.parameters["AttributeNames"]} for request in wire.sent("GetQueueAttributes")}
    assert [request.queue for request in wire.sent("GetQueueAttributes")] == ["orders", "orders-dlq"]
    assert asked["orders"] == {"RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize"}
    assert asked["orders-dlq"] == {"MaximumMessageSize"}


def test_queue_attributes_are_cached_for_15_minutes_and_a_failed_look_up_for_30_seconds() -> None:  # SPEC F1
    wire = orders()
    for seconds, look_ups in ((0, 2), (899, 2), (2, 4)):
        wire.clock.now += seconds
        assert invoke(wire) == []
        assert len(wire.sent("GetQueueAttributes")) == look_ups
    wire = orders()
    wire.fails["GetQueueAttributes"] = client_error("ServiceUnavailable", status=503)
    for seconds, reported in ((0, ["m1"]), (29, ["m1"]), (2, [])):
        wire.clock.now += seconds
        assert invoke(wire) == reported
        wire.fails.clear()


def test_a_look_up_that_an_invocation_has_no_time_for_is_made_by_the_next() -> None:  # SPEC A6, F1
    wire = orders()
    with wire:
        for remaining, reported in ((0.1, ["m1"]), (30, [])):
            assert wire.requests == []
            assert settle(consumer_of(), wire=wire, remaining=remaining)[0] == reported


def test_a_max_receive_count_below_max_attempts_is_logged_once_per_cold_start_and_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC C8
    low, equal = Queue("orders-dlq", max_receive_count=3), Queue("orders-dlq", max_receive_count=5)
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


@pytest.mark.parametrize("group", [None, "tenant-1"])
def test_on_a_standard_queue_a_dead_letter_keeps_attributes_trace_header_and_group_and_has_a_delay_of_zero(
    group: str | None,
) -> None:  # SPEC E6, F2, H3, L4
    given = {
        "tenant": string("acme"),
        "amount": string("12.50", "Number.money"),
        "count": string("3", "Number"),
        "raw": {"binaryValue": base64.b64encode(b"\x00\xff\x10").decode(), "dataType": "Binary"},
        "png": {"binaryValue": base64.b64encode(b"\x89PNG").decode(), "dataType": "Binary.png"},
    }
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    wire = orders()
    invoke(wire, record("{}", attributes=given, group=group, system={"AWSTraceHeader": header}))
    [entry] = wire.sent_entries()
    assert entry["MessageAttributes"].pop("Tarry")["DataType"] == "String"
    assert entry == {
        "Id": entry["Id"],
        "MessageBody": "{}",
        "DelaySeconds": 0,
        "MessageAttributes": {
            "tenant": {"DataType": "String", "StringValue": "acme"},
            "amount": {"DataType": "Number.money", "StringValue": "12.50"},
            "count": {"DataType": "Number", "StringValue": "3"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
            "png": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": header}},
        **({"MessageGroupId": group} if group else {}),
    }


def fifo_record(message_id: str = "m1", group: str | None = "g1", **more: Any) -> dict[str, Any]:
    return record(message_id, message_id, queue="orders.fifo", group=group, **more)


def test_on_fifo_a_dead_letter_keeps_its_group_or_gets_one_and_has_no_delay() -> None:  # SPEC E6, E7, F2, H3
    wire = orders()
    assert invoke(wire, fifo_record("m1"), fifo_record("m2", group=None)) == []
    first, second = wire.sent_entries()
    assert (first["MessageGroupId"], "DelaySeconds" in first) == ("g1", False)
    assert second["MessageGroupId"]


def test_on_fifo_a_repeated_dead_letter_has_the_same_deduplication_id_and_no_other_one() -> None:  # SPEC E7, K3
    wire = orders()

    def deduplication_id(one: dict[str, Any], **dead_letter: Any) -> str:
        invoke(wire, one, handler=consumer_of(**dead_letter))
        return str(wire.sent_entries()[-1]["MessageDeduplicationId"])

    first = deduplication_id(fifo_record())
    assert re.fullmatch(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", first)
    again = redelivered(wire, "m9", queue="orders.fifo", group="g1")
    assert deduplication_id(fifo_record(receives=2)) == first
    redriven = deduplication_id(again)
    assert wire.envelopes()[-1]["id"] == "m1"
    others = {redriven, deduplication_id(fifo_record("m2")), deduplication_id(fifo_record(), queue="graveyard.fifo")}
    assert len({first, *others}) == 4


# the failure record


def test_the_tarry_attribute_contains_the_message_the_origin_and_the_failure() -> None:  # SPEC F2
    wire = orders(elapsed=100)
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


@pytest.mark.parametrize("signal", [Reject("no"), Retry(30)], ids=["reject", "retry"])
def test_the_failure_record_of_a_signal_with_a_cause_describes_the_cause(signal: Exception) -> None:  # SPEC F2
    def refuse(message: Message) -> None:
        try:
            charge()
        except CardWasDeclined as error:
            raise signal from error

    def charge() -> None:
        raise CardWasDeclined("card declined")

    wire = orders()
    assert invoke(wire, record(receives=5), handler=consumer(refuse)) == []
    failure = wire.envelopes()[0]["failure"]
    assert (failure["type"], failure["message"]) == (f"{__name__}.CardWasDeclined", "card declined")
    assert "in charge" in failure["traceback"]


def test_errors_at_the_same_place_have_the_same_fingerprint() -> None:  # SPEC F2
    @consumer(fatal=(CardWasDeclined, KeyError))
    def handler(message: Message) -> None:
        if message.json() == "there":
            raise CardWasDeclined(f"order {message.id}")
        raise CardWasDeclined(f"order {message.id}")

    wire = orders()
    invoke(wire, *(record(f'"{at}"', at) for at in ("here", "here too", "there")), handler=handler)
    first, second, third = (envelope["failure"]["fingerprint"] for envelope in wire.envelopes())
    assert first == second != third


def test_a_failure_record_without_a_traceback_and_a_context_has_its_fingerprint() -> None:  # SPEC E3, F2
    wire = orders()
    with wire:
        assert failed(consumer_of(include_traceback=False)(event(record()), None)) == []
    failure = wire.envelopes()[0]["failure"]
    assert {"traceback", "function", "request_id"}.isdisjoint(failure)
    assert failure["fingerprint"]
    with wire:
        assert failed(consumer_of()(event(record()), None)) == []
    assert "in decline" in wire.envelopes()[1]["failure"]["traceback"]


def test_a_redriven_message_starts_at_its_first_attempt_and_its_next_dead_letter_has_the_total() -> None:  # SPEC F2, K3
    wire, attempts = orders(elapsed=500), list[int]()
    invoke(wire, record("{}", receives=5), handler=consumer_of(fails))
    wire.clock.now += 3600
    redriven = redelivered(wire, queue="orders")

    def fail_again(message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("again")

    invoke(wire, redriven, handler=consumer_of(fail_again))
    redriven["attributes"]["ApproximateReceiveCount"] = "5"
    invoke(wire, redriven, handler=consumer_of(fail_again))
    assert attempts == [1, 5]
    first, second = wire.envelopes()
    assert first["failure"]["first_failed_at"] < first["failure"]["failed_at"] == "2027-01-15T08:08:20.000Z"
    assert (second["id"], second["failure"]["attempts"], second["sent"]) == ("m1", 10, first["sent"])
    assert second["failure"]["first_failed_at"] == first["failure"]["first_failed_at"]
    assert [entry["error"] for entry in second["history"]] == ["ValueError: no", "ValueError: again"]
    assert all({"carried", "steps"}.isdisjoint(envelope) for envelope in wire.envelopes())


def test_attempts_in_carried_and_in_the_failure_record_are_counted_once() -> None:  # SPEC F2, C2
    """A copy has its attempts both in ``carried`` and in its failure record."""
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "m1", "carried": 3, "failure": {"reason": "error", "attempts": 3}}
    copy = record("{}", "m5", attributes={"Tarry": string(json.dumps(envelope))}, receives=2)
    wire = orders()
    invoke(wire, copy, handler=consumer_of(fails))
    failure = wire.envelopes()[-1]["failure"]
    assert (failure["attempts"], failure["reason"]) == (5, "exhausted")


# the size limit; test_size_limits.py has messages and errors of any size


def long_winded(message: Message) -> None:
    raise CardWasDeclined("x" * 50_000 + "é" * 50_000)


@pytest.mark.parametrize(
    ("body", "attributes"),
    [("{}", strings(10)), ("{}", {"Tarry": string("not so fast")}), ("x" * MIB, {})],
    ids=["ten user attributes", "a user's own Tarry attribute", "a body of exactly 1 MiB"],
)
def test_a_failure_record_without_room_is_logged(
    body: str, attributes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F3
    wire = orders()
    assert invoke(wire, record(body, attributes=attributes)) == []
    sent = wire.sent_entries()[0].get("MessageAttributes", {})
    assert {name: value["StringValue"] for name, value in sent.items()} == {
        name: value["stringValue"] for name, value in attributes.items()
    }
    [logged] = logged_records(caplog)
    assert logged["failure"]["type"] == f"{__name__}.CardWasDeclined"
    assert logged["failure"]["message"] == "card declined"


def test_a_failure_record_fits_beside_nine_user_attributes_again_after_a_redrive(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3
    wire = orders()
    invoke(wire, record(attributes=strings(9)))
    invoke(wire, redelivered(wire, queue="orders"))
    assert [{*entry["MessageAttributes"]} for entry in wire.sent_entries()] == [{*strings(9), "Tarry"}] * 2
    assert wire.envelopes()[-1]["failure"]["attempts"] == 2
    assert logged_records(caplog) == []


def test_a_message_with_a_body_too_large_for_the_dead_letter_queue_waits_in_its_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F3, F5
    wire = limited_to(1024)
    assert invoke(wire, record("x" * 1025, "big"), record("y", "small")) == ["big"]
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["y"]
    assert wire.visibilities() == {"handle-big": 900}
    [line] = lines(caplog, level=logging.ERROR, event="unhandled")
    assert field(line, "message_id") == "big"
    assert "1024" in line.getMessage()


def unknown_limit(limit: int, *, whole_call: bool = False) -> Wire:
    """A wire where the dead-letter queue allows ``limit`` bytes, which tarry has no permission to read."""
    text = f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."

    def is_too_large(entry: dict[str, Any]) -> bool:
        attributes = entry.get("MessageAttributes", {}).items()
        sizes = (len(name) + len(each["DataType"]) + len(each["StringValue"]) for name, each in attributes)
        return len(entry["MessageBody"]) + sum(sizes) > limit

    wire = orders()
    wire.fails["GetQueueAttributes"] = lambda request: (
        client_error("AccessDenied") if request.queue == "orders-dlq" else None
    )
    if whole_call:
        wire.fails["SendMessageBatch"] = lambda request: (
            client_error("InvalidParameterValue", text) if any(map(is_too_large, request.entries)) else None
        )
    else:
        wire.refuses["SendMessageBatch"] = lambda _, entry: (
            ("InvalidParameterValue", text) if is_too_large(entry) else None
        )
    return wire


def test_an_unknown_size_limit_is_assumed_to_be_1_mib() -> None:  # SPEC F1
    wire = unknown_limit(MIB)
    assert invoke(wire, record("x" * 500_000)) == []
    assert len(wire.sent_entries()) == 1


@pytest.mark.parametrize("whole_call", [False, True], ids=["entry refused", "call refused"])
@pytest.mark.parametrize("limit", [1_000, 100], ids=["some room", "hardly any room"])
def test_a_dead_letter_refused_for_its_size_is_sent_with_the_smallest_failure_record_or_none(
    limit: int, whole_call: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F1, F3
    wire = unknown_limit(limit, whole_call=whole_call)
    assert invoke(wire, record("x" * 90), handler=consumer_of(long_winded)) == []
    sent = wire.accepted[0][1]
    assert sent["MessageBody"] == "x" * 90
    if limit == 100:
        assert "MessageAttributes" not in sent
    else:
        smallest = json.loads(sent["MessageAttributes"]["Tarry"]["StringValue"])
        assert (smallest["id"], smallest["failure"]["reason"]) == ("m1", "fatal")
    [logged] = logged_records(caplog)
    assert logged["failure"]["message"].startswith("x" * 50_000)


def test_a_trimmed_failure_record_is_logged_once_up_to_64_kib(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    wire = limited_to(4096)
    invoke(wire, handler=consumer_of(long_winded))
    [logged] = logged_records(caplog)
    assert logged["failure"]["message"].startswith("x" * 50_000)
    assert 60_000 < len(json.dumps(logged, separators=(",", ":"))) <= 65_536
    assert len(wire.envelopes()[0]["failure"]["message"]) < 4096


def test_a_dead_letter_refused_for_its_size_does_not_affect_others_of_the_request() -> None:  # SPEC G1, F3
    wire = unknown_limit(3_000)
    assert invoke(wire, record("x" * 2_900, "big"), record("y", "small")) == []
    bodies = [entry["MessageBody"] for request, entry in wire.accepted if request.operation == "SendMessageBatch"]
    assert sorted(bodies) == ["x" * 2_900, "y"]


def test_a_message_with_a_body_beyond_an_unknown_limit_waits_in_its_queue() -> None:  # SPEC F4, F5
    wire = unknown_limit(50)
    assert invoke(wire, record("x" * 90)) == ["m1"]
    assert wire.sent("DeleteMessageBatch") == []
    assert wire.visibilities() == {"handle-m1": 900}


# redact


def secretive(message: Message) -> None:
    raise CardWasDeclined("card 4111-1111")


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda envelope: value


def test_the_failure_record_is_redacted_before_it_is_sent_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC F3. A redact function cannot change the version, the id or the origin (K3)."""

    def mask(envelope: dict[str, Any]) -> dict[str, Any]:
        return {"id": "another", "v": 9, "failure": {**envelope["failure"], "message": "***"}}

    wire, handler = orders(), consumer_of(secretive, redact=mask, include_traceback=False)
    invoke(wire, handler=handler)
    [envelope] = wire.envelopes()
    assert (envelope["v"], envelope["id"], envelope["origin"]) == (1, "m1", arn("orders"))
    assert (envelope["failure"]["message"], "history" in envelope) == ("***", False)
    assert "4111-1111" not in json.dumps(envelope)
    caplog.clear()
    invoke(wire, record(attributes=strings(10)), handler=handler)
    [line] = [line for line in lines(caplog) if field(line, "record")]
    assert "4111-1111" not in f"{field(line, 'record')} {line.getMessage()}"


class NotSerializable:
    """A value that JSON cannot represent."""


def explode(envelope: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError(f"cannot redact {envelope['failure']['message']}")


@pytest.mark.parametrize(
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
def test_a_failing_redact_lets_no_secret_into_the_queue_or_the_log(
    redact: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC F3. `LogOptions.redact`, which redacts the other lines, fails as well the second time."""
    caplog.set_level(logging.DEBUG, "tarry")

    def refuse(fields: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"no {fields}")

    wire = orders()
    assert invoke(wire, handler=consumer_of(secretive, redact=redact)) == []
    [envelope] = wire.envelopes()
    assert (envelope["id"], envelope["failure"]["reason"]) == ("m1", "fatal")
    assert "4111-1111" not in json.dumps(envelope)
    [line] = lines(caplog, "redact_failed")
    assert field(line, "message_id") == "m1"
    assert "4111-1111" not in line.getMessage()
    caplog.clear()
    steps: list[FailureStep] = [RetryInPlace(), DeadLetter(redact=redact)]
    handler = consumer(fatal=CardWasDeclined, on_failure=steps, log=LogOptions(redact=refuse))(secretive)
    assert invoke(wire, record(attributes=strings(10)), handler=handler) == []
    assert lines(caplog)
    assert "4111-1111" not in everything(caplog)


@pytest.mark.parametrize(("text", "maximum"), [("a secret", MIB), ("the reason is a secret" * 100, 1024)])
def test_a_dead_letter_whose_redact_returns_an_invalid_failure_can_be_read_after_a_redrive(
    text: str, maximum: int
) -> None:  # SPEC F3, K3
    seen: list[str] = []
    wire = limited_to(maximum)
    assert invoke(wire, handler=consumer_of(secretive, redact=returning({"failure": text}))) == []
    assert wire.envelopes()[0]["id"] == "m1"
    invoke(wire, redelivered(wire, queue="orders"), handler=consumer(lambda message: seen.append(message.id)))
    assert seen == ["m1"]


# messages that cannot be dead-lettered


def test_a_message_whose_send_fails_waits_in_its_queue_for_the_longest_delay_of_the_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F4, E4
    wire = orders()
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    for settings, seconds in (({}, 900), ({"backoff": Fixed(7200)}, 7200)):
        assert invoke(wire, handler=consumer(fatal=CardWasDeclined, **settings)(decline)) == ["m1"]
        assert wire.visibilities() == {"handle-m1": seconds}
    assert wire.sent("DeleteMessageBatch") == []
    line, _ = lines(caplog, level=logging.ERROR)
    assert "ServiceUnavailable" in line.getMessage()
    assert field(line, "message_id") == "m1"


def test_without_a_dead_letter_queue_the_message_waits_and_an_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC F5
    wire = orders(dead_letter=None)
    assert invoke(wire) == ["m1"]
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 900})
    [line] = lines(caplog, level=logging.ERROR)
    assert "dead-letter queue" in line.getMessage()
    assert "RedrivePolicy" in line.getMessage()
    assert field(line, "message_id") == "m1"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("orders", "orders is the queue it is in"),
        (arn("orders"), "orders is the queue it is in"),
        ("https://any.host.example/123456789012/orders", "orders is the queue it is in"),
        ("arn:aws:sns:us-east-1:123456789012:topic", "arn:aws:sns:us-east-1:123456789012:topic"),
        ("arn:aws:sqs:orders", "arn:aws:sqs:orders"),
    ],
)
def test_a_message_is_not_dead_lettered_to_its_own_queue_or_to_what_is_not_a_queue(
    target: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F5, F7
    wire = orders()
    assert invoke(wire, handler=consumer_of(queue=target)) == ["m1"]
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 900})
    [line] = lines(caplog, level=logging.ERROR)
    assert shown in line.getMessage()


@pytest.mark.parametrize("next_queue", ["orders", "graveyard"])
def test_a_consumer_of_a_dead_letter_queue_dead_letters_to_any_queue_but_the_one_it_came_from(
    next_queue: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F7
    wire = orders()
    wire.queues["orders-dlq"] = Queue(dead_letter=next_queue)
    invoke(wire)
    again = redelivered(wire, "m9")
    caplog.clear()
    if next_queue == "graveyard":
        assert (invoke(wire, again), targets(wire)) == ([], ["orders-dlq", "graveyard"])
        assert (wire.envelopes()[-1]["origin"], wire.envelopes()[-1]["id"]) == (arn("orders-dlq"), "m1")
    else:
        assert (invoke(wire, again), targets(wire)) == (["m9"], ["orders-dlq"])
        assert wire.visibilities() == {"handle-m9": 900}
        [line] = lines(caplog, level=logging.ERROR)
        assert "orders" in line.getMessage()


def test_a_deferred_copy_may_be_dead_lettered_to_the_origin_of_its_failure_record() -> None:
    """A deferred copy keeps its failure record but is not a dead letter."""
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "m0", "origin": arn("orders-dlq"), "carried": 0, "hops": 1}
    envelope["failure"] = {"reason": "error", "attempts": 1, "type": "ValueError"}  # SPEC F7
    wire = orders()
    assert invoke(wire, record(attributes={"Tarry": string(json.dumps(envelope))})) == []
    assert targets(wire) == ["orders-dlq"]


# attributes with reserved names


@pytest.mark.parametrize("handle", [decline, lambda message: message.defer(60)], ids=["dead letter", "deferred copy"])
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["AWS.Trace", "amazon.source", "tenant", "AWSome", "my.AWS.name"], {"tenant", "AWSome", "my.AWS.name"}),
        ([f"AWS.{number}" for number in range(10)], set()),
    ],
    ids=["some", "ten"],
)
def test_attributes_with_reserved_names_are_left_out_and_logged_once_and_leave_room_for_the_tarry_attribute(
    handle: Any, names: list[str], kept: set[str], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E6, F2, F3
    wire = orders()
    batch = record(attributes={name: string("x") for name in names})
    assert invoke(wire, batch, handler=consumer_of(handle)) == []
    assert {*wire.sent_entries()[0]["MessageAttributes"]} == {*kept, "Tarry"}
    [line] = lines(caplog, "attributes_left_out")
    assert line.levelno == logging.WARNING
    assert ", ".join(name for name in names if name not in kept) in line.getMessage()
