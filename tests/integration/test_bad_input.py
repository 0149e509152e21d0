"""Input that SQS never sends: tarry logs a line, and loses no message."""

import copy
import json
import logging
from functools import reduce
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarry import Fixed, InvalidEvent, Message, Reject, consumer
from tests.handlers import behave, behave_async, plain
from tests.loglines import Caplog, field, lines
from tests.records import event, record
from tests.settled import fails, orders, reasons, settle, targets
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import client_error

# garbage in a field

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
GARBAGE = [
    None, True, -7, 1.5, float("inf"), 10**30, "9" * 20, "9" * 5_000, "99999999999999999", "-99999999999999999", "",
    "Tarry", ["x"], {"x": {}},
]  # fmt: skip
DISPENSABLE = """
attributes attributes.ApproximateReceiveCount attributes.SentTimestamp attributes.ApproximateFirstReceiveTimestamp
attributes.MessageGroupId attributes.AWSTraceHeader messageAttributes.Tarry.stringValue md5OfBody eventSource awsRegion
""".split()
"""The fields of a record that a dead letter can do without."""
FIELDS = (
    """
messageId receiptHandle body messageAttributes messageAttributes.Tarry messageAttributes.tenant eventSourceARN
messageAttributes.tenant.stringValue messageAttributes.tenant.dataType messageAttributes.raw.binaryValue
""".split()
    + DISPENSABLE
)
KINDS, BEHAVIORS = ("retry", "ok", "dead"), (behave, behave_async)


def an_envelope(body: str = "{}", **more: Any) -> dict[str, Any]:
    """The `Tarry` attribute as tarry writes it to a dead letter."""
    history = [{"attempt": 5, "at": "2026-01-01T00:10:00.000Z", "error": "ValueError: boom"}]
    return {**envelope_of(body, "the-first-id", history=history), **more}


def spoiled(name: str, path: str, garbage: Any) -> dict[str, Any]:
    attributes = {
        "tenant": {"stringValue": "acme", "dataType": "String"},
        "raw": {"binaryValue": "AAECAw==", "dataType": "Binary"},
        "Tarry": {"stringValue": json.dumps(an_envelope()), "dataType": "String"},
    }
    odd = record("{}", name, receives=2, attributes=attributes, system={"AWSTraceHeader": "Root=1-5759e988"})
    inner, *outer = reversed(path.split("."))
    place: Any = odd
    for step in reversed(outer):
        place = place[step]
    place[inner] = copy.deepcopy(garbage)
    return odd


def loses_no_message(path: str, garbage: list[Any], behave: Any) -> None:
    """Run a batch with three messages for each garbage, whose handler fails, succeeds or rejects them."""
    odd = [spoiled(f"{kind}-{number}", path, each) for number, each in enumerate(garbage) for kind in KINDS]
    batch = event(record("{}", "retry-a"), *odd[:1], record("{}", "ok-a"), record("{}", "dead-a"), *odd[1:])
    try:
        reported, wire = settle(consumer(backoff=Fixed(60))(behave), batch)
    except InvalidEvent:
        assert path == "messageId"
        return
    assert wire.visibilities()["handle-retry-a"] == 60
    assert "retry-a" in reported
    assert not {"ok-a", "dead-a"} & {*reported}
    if path != "messageId":  # otherwise the generated id decides how the handler behaves
        dead = {f"dead-{number}" for number in range(len(garbage))}
        left = {"dead-a", *dead, *(each.replace("dead", "retry") for each in dead)} - {*reported}
        assert len([entry for _, entry in wire.accepted if "MessageBody" in entry]) == len(left)
        assert dead <= left or path not in DISPENSABLE


@pytest.mark.parametrize("path", FIELDS)
def test_garbage_in_a_field_loses_no_message_and_affects_no_other(path: str) -> None:  # SPEC A2, A3, F3
    for garbage in [[each] for each in GARBAGE] if path == "messageId" else [GARBAGE]:
        loses_no_message(path, garbage, behave)


@settings(max_examples=40)
@given(path=st.sampled_from(FIELDS), garbage=st.lists(JSON, min_size=1, max_size=3), behave=st.sampled_from(BEHAVIORS))
def test_any_json_in_any_field_loses_no_message_and_affects_no_other(path: str, garbage: Any, behave: Any) -> None:
    loses_no_message(path, garbage, behave)  # SPEC A2, A3, F3


# bodies

BODIES = [
    "",
    " ",
    "\x00",
    "\ud800",
    "\ufffe\uffff",
    "😀" * 10,
    "\x1b[31mred",
    "%s %d {} {0}",
    '{"a": NaN}',
    "\u202e\u200b",
    "x" * 1_000_000,
]


def of_all_bodies(test: Any) -> Any:
    return reduce(lambda test, body: example(body=body, text=body[:200])(test), BODIES, test)


@settings(max_examples=50)
@given(body=st.text(st.characters(), max_size=200), text=st.text(st.characters(), max_size=200))
@of_all_bodies
def test_any_body_and_any_error_message_reach_the_dead_letter_queue_unchanged(body: str, text: str) -> None:
    """SPEC F2, F3."""
    seen: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.body)
        raise Reject("no") from ValueError(text)

    reported, wire = settle(handler, event(record(body)))
    assert (reported, seen, wire.sent_entries()[0]["MessageBody"]) == ([], [body], body)
    assert wire.envelopes()[0]["failure"].get("message", "") == text


@pytest.mark.parametrize(
    "body", ["", "{", "{'a': 1}", "\x00", "[" * 100_000, "nul", "\ud800"], ids=lambda body: ascii(body)[:20]
)
def test_a_body_that_is_not_json_is_dead_lettered_byte_for_byte_and_never_retried(body: str) -> None:  # SPEC D4
    @consumer(retry_on=ValueError)
    def handler(message: Message) -> None:
        with pytest.raises(ValueError, match="m1") as caught:
            message.json()
        assert len(str(caught.value)) < 300
        message.json()

    reported, wire = settle(handler, event(record(body)))
    assert (reported, wire.sent_entries()[0]["MessageBody"]) == ([], body)
    failure = wire.envelopes()[0]["failure"]
    assert (failure["reason"], failure["type"]) == ("undecodable", "tarry.Undecodable")


def test_a_json_error_of_the_handlers_own_is_an_ordinary_failure() -> None:  # SPEC D4
    reported, wire = settle(consumer(backoff=Fixed(60))(lambda _: json.loads("the answer of some service")))
    assert (reported, wire.visibilities()) == (["m1"], {"handle-m1": 60})


@pytest.mark.parametrize("body", [{"id": 1}, 7, None, ["x"]], ids=repr)
def test_a_message_whose_body_is_not_text_is_not_copied_and_stays_in_its_queue(body: Any) -> None:  # SPEC F2, A2
    """As in a sample event written by hand. A copy would lack the content."""
    reported, wire = settle(plain(), event({**record("{}", "dead-1"), "body": body}))
    assert (reported, wire.sent_entries()) == (["dead-1"], [])


# a `Tarry` attribute that is damaged, forged, or copied from another message; unit/test_envelope.py has all ranges

DAMAGED = {
    "another version": {"v": 2},
    "another body": {"sum": "0123456789abcdef", "carried": 4},
    "due as NaN": {"due": float("nan")},
}
FOREIGN = {
    "truncated": json.dumps(an_envelope())[:80],
    "not JSON": "certainly not",
    "a list": "[1, 2]",
    "a number": "7",
    "another object": '{"id": "x"}',
    "nested without end": "[" * 100_000,
    "one space": " ",
}
UNREADABLE = {name: json.dumps(an_envelope(**fields)) for name, fields in DAMAGED.items()} | FOREIGN


def with_tarry(value: str, **more: Any) -> dict[str, Any]:
    return record("{}", "m9", attributes={"Tarry": {"stringValue": value, "dataType": "String"}}, **more)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_tarry_attribute_is_logged_and_kept_if_it_is_not_tarrys(name: str, caplog: Caplog) -> None:
    # SPEC C2, F2, F3, K1, K3
    seen: list[Any] = []

    @consumer(fatal=ValueError)
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt, message.failure, [*message.attributes]))
        raise ValueError("again")

    reported, wire = settle(handler, event(with_tarry(UNREADABLE[name], receives=2)))
    assert (reported, seen) == ([], [("m9", 2, None, ["Tarry"] if name in FOREIGN else [])])
    [line] = lines(caplog, "record_unreadable", level=logging.WARNING)
    assert field(line, "delivery_id") == "m9"
    if name in FOREIGN:
        assert wire.sent_entries()[0]["MessageAttributes"]["Tarry"]["StringValue"] == UNREADABLE[name]
    else:
        [envelope] = wire.envelopes()
        assert (envelope["id"], envelope["failure"]["attempts"]) == ("m9", 2)


READABLE_BUT_ODD = {
    "a history with NaN": {"history": [{"attempt": float("nan")}]},
    "a history with invalid entries": {"history": ["x", 7, None, {"attempt": 1}]},
    "a very long history": {"history": [{"attempt": n, "error": "x" * 1_000} for n in range(500)]},
    "sent in the year 1": {"sent": "0001-01-01T00:00:00+23:59"},
    "sent without a zone": {"sent": "0001-01-01T00:00:00"},
    "sent never": {"sent": "never"},
    "a failure without anything": {"failure": {}},
    "no failure": {"failure": None},
    "a million attempts": {"failure": {"attempts": 1_000_000}},
    "a very long id": {"id": "x" * 5_000},
    "an id with odd characters": {"id": "\ud800\x00"},
    "an origin that is not an ARN": {"origin": "somewhere"},
    "a first failure that is not a time": {"failure": {"first_failed_at": "x" * 10_000}},
}


@pytest.mark.parametrize("fields", READABLE_BUT_ODD.values(), ids=READABLE_BUT_ODD)
def test_after_an_odd_tarry_attribute_a_dead_letter_has_a_readable_failure(fields: Any) -> None:  # SPEC F2, F3, K3
    seen: list[Any] = []
    reported, wire = settle(consumer(fatal=ValueError)(fails), event(with_tarry(json.dumps(an_envelope(**fields)))))
    assert (reported, reasons(wire)) == ([], ["fatal"])
    written = json.dumps(wire.envelopes()[0])
    settle(consumer(lambda message: seen.append(message.failure)), event(with_tarry(written)))
    assert [failure.reason for failure in seen] == ["fatal"]


# a queue that does not exist; test_failing_sqs.py tests missing permissions and throttling for each request


@pytest.mark.parametrize("code", ["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"])
def test_a_message_whose_dead_letter_queue_does_not_exist_waits_and_the_error_names_it(
    code: str, caplog: Caplog
) -> None:  # SPEC F4, F5
    error = client_error(code, "The specified queue does not exist.")
    wire = orders()
    wire.fails["GetQueueAttributes"] = lambda request: error if request.queue == "orders-dlq" else None
    wire.fails["SendMessageBatch"] = error
    reported, _ = settle(plain(), event(record("{}", "dead-1")), wire)
    assert (reported, targets(wire), wire.visibilities()) == (["dead-1"], ["orders-dlq"], {"handle-dead-1": 900})
    [line] = lines(caplog, level=logging.ERROR)
    assert "does not exist" in line.getMessage()
    assert "orders-dlq" in line.getMessage()
