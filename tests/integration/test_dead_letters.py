"""Dead letters: the target queue, the failure record, the size limit, and messages that cannot be dead-lettered."""

import base64
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tarry import (
    Consumer,
    DeadLetter,
    Failure,
    FailureStep,
    Fixed,
    LogOptions,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    consumer,
)
from tarry import failed as dead_letters
from tarry.failed.dead_letters import as_json
from tarry.support.values import PAGES
from tarry.testing import Sandbox
from tarry.tools.cli.failed.rendering import details
from tests.loglines import Caplog, everything, field, lines
from tests.records import event, failed, record
from tests.settled import fails, orders, redelivered, settle, targets
from tests.wire import Queue, Wire, arn, client_error, size_of, url

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
    return consumer(fatal=CardWasDeclined, on_failure=[RetryInPlace(), DeadLetter(**dead_letter)])(handler)


def invoke(wire: Wire, *records: dict[str, Any], handler: Consumer[Any] | None = None) -> list[str]:
    return settle(handler or consumer_of(), event(*(records or (record(),))), wire)[0]


def limited_to(size: int) -> Wire:
    wire = orders()
    wire.queues["orders-dlq"] = Queue(maximum_message_size=size)
    return wire


def string(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": data_type}


def strings(count: int) -> dict[str, Any]:
    return {f"a{index}": string(str(index)) for index in range(count)}


def line_of(caplog: Caplog, event: str | None = None, message_id: str = "m1") -> logging.LogRecord:
    """Return the only line at ERROR, or the only one of an event; it names the message."""
    [line] = lines(caplog, event, 0 if event else logging.ERROR)
    assert field(line, "message_id") == message_id
    return line


# the target queue

GRAVEYARD = ["graveyard", url("graveyard"), arn("graveyard")]
ELSEWHERE = "https://sqs.us-east-1.amazonaws.com/999999999999/orders"


@pytest.mark.parametrize(
    ("step", "environment", "target"),
    [
        (None, None, url("orders-dlq")),
        *((None, name, url("graveyard")) for name in GRAVEYARD),
        *((name, None, url("graveyard")) for name in GRAVEYARD),
        (ELSEWHERE, None, ELSEWHERE),  # another account
        ("arn:aws:sqs:us-east-1:999999999999:orders", None, ELSEWHERE),
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


def test_source_and_target_are_looked_up_once_and_again_after_15_minutes_or_30_seconds_after_a_failure() -> None:
    """SPEC A6, F1. A look-up that an invocation has no time for is made by the next."""
    wire, many = orders(), [record(index, f"m{index}") for index in range(25)]
    with wire:
        assert settle(consumer_of(), wire=wire, remaining=0.1)[0] == ["m1"]
        assert wire.requests == []
    for seconds, look_ups in ((0, 1), (899, 1), (1, 2)):
        wire.clock.now += seconds
        assert invoke(wire, *many) == []
        assert [(request.queue, {*request.parameters["AttributeNames"]}) for request in wire.requests[:2]] == [
            ("orders", {"RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize"}),
            ("orders-dlq", {"MaximumMessageSize"}),
        ]
        assert [request.queue for request in wire.sent("GetQueueAttributes")] == ["orders", "orders-dlq"] * look_ups
    wire = orders()
    wire.fails["GetQueueAttributes"] = client_error("ServiceUnavailable", status=503)
    for seconds, reported in ((0, ["m1"]), (29, ["m1"]), (1, [])):
        wire.clock.now += seconds
        assert invoke(wire) == reported
        wire.fails.clear()


def test_a_max_receive_count_below_max_attempts_is_logged_once_per_cold_start_and_queue(caplog: Caplog) -> None:
    low, equal = Queue("orders-dlq", max_receive_count=3), Queue("orders-dlq", max_receive_count=5)  # SPEC C8
    wire = Wire(queues={"orders": low, "ledger.fifo": low, "mail": equal})
    handler = consumer(on_failure={"logs": [DeadLetter()], "default": [RetryInPlace(), DeadLetter()]})(decline)
    for _ in range(2):
        wire.clock.now += 1000
        records = (record(1, f"{queue}{index}", queue) for queue in ("orders", "mail", "logs") for index in range(3))
        invoke(wire, *records, record(1, "l", "ledger.fifo", group="g"), handler=handler)
    of_orders, of_ledger = (field(line, "text") for line in lines(caplog, "max_receive_count_low", logging.WARNING))
    assert of_orders == (
        "maxReceiveCount of orders is 3, below max_attempts 5. tarry dead-letters a message that fails at its delivery "
        "3, since SQS would then move it without a failure record. Set maxReceiveCount to 15 (2 * max_attempts + 5); "
        f"see {PAGES}/guides/retries.md."
    )
    assert "ledger.fifo is 3" in of_ledger
    assert "to BatchSize * 5 + 5;" in of_ledger
    assert [request.queue for request in wire.sent("GetQueueAttributes")].count("orders") == 2


# the entry that is sent


@pytest.mark.parametrize("group", [None, "tenant-1"])
def test_on_a_standard_queue_a_dead_letter_keeps_attributes_trace_header_and_group_and_has_a_delay_of_zero(
    group: str | None,
) -> None:  # SPEC E6, F2, H3, L4
    given = {
        "tenant": string("acme"),
        "amount": string("12.50", "Number.money"),
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
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
            "png": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": header}},
        **({"MessageGroupId": group} if group else {}),
    }


def fifo_record(message_id: str = "m1", group: str | None = "g1", **more: Any) -> dict[str, Any]:
    return record(message_id, message_id, queue="orders.fifo", group=group, **more)


def test_on_fifo_a_repeated_dead_letter_has_the_same_deduplication_id_and_no_other_one() -> None:
    """SPEC E6, E7, F2, H3, K3. It has no delay, and keeps its group or gets one."""
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
    others = {
        redriven,
        deduplication_id(fifo_record("m2", group=None)),
        deduplication_id(fifo_record(), queue="graveyard.fifo"),
    }
    assert len({first, *others}) == 4
    assert [each.get("DelaySeconds") for each in wire.sent_entries()] == [None] * 5
    groups = [each["MessageGroupId"] for each in wire.sent_entries()]
    assert groups.pop(3)
    assert groups == ["g1"] * 4


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
    handle: Any, names: list[str], kept: set[str], caplog: Caplog
) -> None:  # SPEC E6, F2, F3
    wire = orders()
    assert invoke(wire, record(attributes=dict.fromkeys(names, string("x"))), handler=consumer_of(handle)) == []
    assert {*wire.sent_entries()[0]["MessageAttributes"]} == {*kept, "Tarry"}
    line = line_of(caplog, "attributes_left_out")
    assert line.levelno == logging.WARNING
    assert ", ".join(name for name in names if name not in kept) in line.getMessage()


def test_left_out_attributes_are_logged_once_for_both_copies_of_a_message(caplog: Caplog) -> None:  # SPEC F3
    """SQS refuses the one that would wait."""
    wire = orders()
    wire.refuses["SendMessageBatch"] = lambda request, _: ("AccessDenied", "no") if request.queue == "orders" else None
    defers = consumer_of(lambda message: message.defer(60))
    invoke(wire, record(receives=15, attributes={"AWS.Trace": string("x")}), handler=defers)
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders", "orders-dlq"]
    assert len(lines(caplog, "attributes_left_out")) == 1


# the failure record


def failure_of(handler: Any, **settings: Any) -> dict[str, Any]:
    [envelope] = settle(consumer(**settings)(handler))[1].envelopes()
    failure: dict[str, Any] = envelope["failure"]
    return failure


def test_the_tarry_attribute_contains_the_message_the_origin_and_the_failure() -> None:  # SPEC F2
    wire = orders(elapsed=100)
    invoke(wire, record({"id": 7}, "m1", receives=1))
    [envelope] = wire.envelopes()
    failure, history = envelope.pop("failure"), envelope.pop("history")
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


VERDICT = "the customer is gone"


class DeclinedWithReason(Reject):
    reason = "the card was declined"


def raises(error: BaseException, cause: BaseException | None = None) -> Any:
    def charge() -> None:
        raise cause or ValueError

    def handler(message: Message) -> None:
        try:
            charge()
        except Exception as caught:  # noqa: BLE001 the cause, if there is one
            raise error from (cause and caught)

    return handler


@pytest.mark.parametrize(
    ("error", "cause", "type", "said"),
    [
        (Reject(VERDICT), LookupError("no customer 7"), "LookupError", VERDICT),
        (DeclinedWithReason(), LookupError("no customer 7"), "LookupError", "the card was declined"),
        (RuntimeError("out"), Reject(VERDICT), "RuntimeError", VERDICT),
        (Reject(VERDICT), None, "tarry.Reject", None),
        (Reject(), LookupError("no customer 7"), "LookupError", None),
        (Retry(30), LookupError("no customer 7"), "LookupError", None),
        (Reject("x" * 1_100_000), LookupError("no customer 7"), "LookupError", "x" * 1_000),
    ],
    ids=["a reject from an error", "a subclass", "an error from a reject", "no error", "no text", "a retry", "huge"],
)
def test_the_failure_record_of_a_verdict_beside_an_error_contains_both(
    error: Any, cause: Any, type: str, said: str | None
) -> None:  # SPEC B3, F2, F3
    failure = failure_of(raises(error, cause), max_attempts=1)
    assert (failure["type"], failure.get("said"), "said" in failure) == (type, said, said is not None)
    if type == "LookupError":
        assert (failure["message"], "in charge" in failure["traceback"]) == ("no customer 7", True)


def test_errors_at_the_same_place_have_the_same_fingerprint_also_without_traceback_and_context() -> None:
    @consumer(fatal=(CardWasDeclined, KeyError))  # SPEC E3, F2
    def handler(message: Message) -> None:
        if message.json() == "there":
            raise CardWasDeclined(f"order {message.id}")
        raise CardWasDeclined(f"order {message.id}")

    wire = orders()
    invoke(wire, *(record(f'"{at}"', at) for at in ("here", "here too", "there")), handler=handler)
    with wire:
        for options in ({}, {"include_traceback": False}):
            assert failed(consumer_of(**options)(event(record()), None)) == []
    first, second, third, whole, short = (envelope["failure"] for envelope in wire.envelopes())
    assert first["fingerprint"] == second["fingerprint"] != third["fingerprint"]
    assert {"function", "request_id"}.isdisjoint(whole)
    assert "in decline" in whole.pop("traceback")
    assert whole == short


def test_a_redriven_message_starts_at_its_first_attempt_and_its_next_dead_letter_has_the_total() -> None:  # SPEC F2, K3
    wire, attempts = orders(elapsed=500), list[int]()
    invoke(wire, record("{}", receives=5), handler=consumer_of(fails))
    wire.clock.now += 3600
    redriven = redelivered(wire, queue="orders")
    redriven["attributes"]["SentTimestamp"] = str(int(wire.clock.now * 1000))

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


EXTRA = {"queue": "orders", "lines": [1, 2.5, None]}


def test_said_and_extra_are_in_the_dead_letter_and_its_handler_reads_them_when_it_is_retried(
    sandbox: Sandbox, caplog: Caplog
) -> None:
    """SPEC E5, F2, F6, K3, M2. Failure steps, the log, filters and the command see them."""
    seen: list[Any] = []
    rejects = raises(Reject(VERDICT), LookupError("no customer 7"))

    def step(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.said)
        return next_step(failure)

    @consumer(on_failure=[step, DeadLetter(enrich=lambda failure: {**EXTRA, "queue": failure.message.queue})])
    def handler(message: Message) -> None:
        if message.failure is None:
            rejects(message)
        else:
            seen.append((message.failure.extra, message.failure.said))

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", {})
    sandbox.run()
    [dead_letter] = sandbox.messages("orders-dlq")
    assert (dead_letter.failure.extra, dead_letter.failure.said) == (EXTRA, VERDICT)
    [line] = lines(caplog, "dead_lettered")
    assert (field(line, "said"), field(line, "error")) == (VERDICT, "LookupError: no customer 7")
    for where, count in {
        "extra.queue = orders": 1, "extra.queue = other": 0, "extra.lines[0] = 1": 1, "said ~ customer is": 1,
        f"said = '{VERDICT}'": 0, f'said = "{VERDICT}"': 1,
    }.items():  # fmt: skip
        with dead_letters.opened("orders-dlq") as inspection:
            selection = dead_letters.select(where=[where])
            assert (where, len(dead_letters.show(inspection, selection).dead_letters)) == (where, count)
    with dead_letters.opened("orders-dlq") as inspection:
        [found] = dead_letters.show(inspection, dead_letters.select(everything=True)).dead_letters
    console = Console(width=200)
    with console.capture() as capture:
        console.print(details(found))
    assert all(text in capture.get() for text in ("verdict", VERDICT, '{"queue": "orders", "lines": [1, 2.5, null]}'))
    shown = as_json(found)["failure"]
    assert (shown["said"], shown["extra"]) == (VERDICT, EXTRA)
    with dead_letters.opened("orders-dlq") as inspection:
        routes = dead_letters.Routes(inspection.queue)
        list(dead_letters.retry(inspection, dead_letters.select(everything=True), routes))
    sandbox.run()
    assert seen == [VERDICT, (EXTRA, VERDICT)]


# the size limit; tests/unit/test_copies.py has messages and errors of any size


def unknown_limit(limit: int) -> Wire:
    """A wire where the dead-letter queue allows ``limit`` bytes, which tarry has no permission to read."""
    too_large = (
        "InvalidParameterValue",
        f"One or more parameters are invalid. Message must be shorter than {limit} bytes.",
    )
    wire, denied = orders(), client_error("AccessDenied")
    wire.fails["GetQueueAttributes"] = lambda request: denied if request.queue == "orders-dlq" else None
    wire.refuses["SendMessageBatch"] = lambda _, each: too_large if size_of(each) > limit else None
    return wire


def test_an_unknown_size_limit_is_assumed_to_be_1_mib_and_a_body_beyond_it_waits(
    caplog: Caplog,
) -> None:  # SPEC F1, F4, F5
    wire = unknown_limit(MIB)
    assert invoke(wire, record("x" * 500_000)) == []
    assert len(wire.sent_entries()) == 1
    wire = unknown_limit(50)
    assert invoke(wire, record("x" * 90)) == ["m1"]
    assert (wire.sent("DeleteMessageBatch"), wire.visibilities()) == ([], {"handle-m1": 900})
    assert "must be shorter than 50 bytes" in field(line_of(caplog, "unhandled"), "not_sent")


# redact


def secretive(message: Message) -> None:
    raise CardWasDeclined("card 4111-1111")


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda envelope: value


def test_the_failure_record_is_redacted_before_it_is_sent_or_logged(caplog: Caplog) -> None:
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
        *map(returning, (None, 7, *({"failure": {"message": odd}} for odd in (NotSerializable(), float("nan"))))),
    ],
    ids=["raises", "returns None", "returns a number", "returns a value that is not JSON", "returns NaN"],
)
def test_a_failing_redact_lets_no_secret_into_the_queue_or_the_log(redact: Any, caplog: Caplog) -> None:
    """SPEC F3. `LogOptions.redact`, which redacts the other lines, fails as well the second time."""
    caplog.set_level(logging.DEBUG, "tarry")

    def refuse(fields: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"no {fields}")

    wire = orders()
    assert invoke(wire, handler=consumer_of(secretive, redact=redact)) == []
    [envelope] = wire.envelopes()
    assert (envelope["id"], envelope["failure"]["reason"]) == ("m1", "fatal")
    assert "4111-1111" not in json.dumps(envelope) + line_of(caplog, "redact_failed").getMessage()
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

NOT_A_QUEUE = ("arn:aws:sns:us-east-1:123456789012:topic", "arn:aws:sqs:orders")


@pytest.mark.parametrize(
    ("wire", "handler", "delay", "shown"),
    [
        (orders(), consumer_of(), 900, "ServiceUnavailable"),
        (orders(), consumer(fatal=CardWasDeclined, backoff=Fixed(7200))(decline), 7200, "ServiceUnavailable"),
        (orders(dead_letter=None), consumer_of(), 900, "dead-letter queue: add a RedrivePolicy"),
        *(
            (orders(), consumer_of(queue=own), 900, "orders is the queue it is in")
            for own in ("orders", arn("orders"), "https://any.host.example/123456789012/orders")
        ),
        *((orders(), consumer_of(queue=odd), 900, odd) for odd in NOT_A_QUEUE),
    ],
    ids=["a failed send", "of another policy", "none", "by name", "by ARN", "by URL", "a topic", "no ARN"],
)
def test_a_message_that_cannot_be_sent_waits_in_its_queue_for_the_longest_delay_of_the_policy_and_an_error_is_logged(
    wire: Wire, handler: Consumer[Any], delay: int, shown: str, caplog: Caplog
) -> None:  # SPEC E4, F4, F5, F7
    wire.fails["SendMessageBatch"] = client_error("ServiceUnavailable", status=503)
    assert invoke(wire, handler=handler) == ["m1"]
    assert wire.visibilities() == {"handle-m1": delay}
    assert wire.acts == ["SendMessageBatch"] * (shown == "ServiceUnavailable") + ["ChangeMessageVisibilityBatch"]
    assert shown in line_of(caplog).getMessage()


@pytest.mark.parametrize("next_queue", ["orders", "graveyard"])
def test_a_consumer_of_a_dead_letter_queue_dead_letters_to_any_queue_but_the_one_it_came_from(
    next_queue: str, caplog: Caplog
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
        assert "orders" in line_of(caplog).getMessage()
