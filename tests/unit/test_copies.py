"""Dead letters and copies of arbitrary messages fit the limits of SQS, with as much of the record as fits.

A consumer settles messages that Hypothesis makes. Its requests are compared with those of the same consumer without a
size limit; test_envelope.py shows that the record is cut well.
"""

import base64
import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tarry import Consumer, Message, SendAgain, consumer
from tarry.message.failure_record import fit
from tarry.record.attribute import dump
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, event, record
from tests.settled import orders, settle, tarry_attribute
from tests.wire import Queue, arn, size_of

MIB = 1_048_576
SMALLEST_LIMIT = 1_024  # the smallest MaximumMessageSize of SQS
ENDLESS = 1_000_000_000  # a limit that no queue has
ATTRIBUTE_BYTES = len("Tarry") + len("String")


class HandlerError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    """An error, and a message with a body that leaves a certain room in its target queue."""

    text: str
    room: int = 10_000
    """The bytes left beside the body and the user's attributes. The length of the body follows from it."""
    limit: int = MIB
    unit: str = "x"
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The attributes of the user; one may be named ``Tarry``."""
    earlier: Mapping[str, Any] | None = None

    @cached_property
    def body(self) -> str:
        length = max(1, self.limit - self.room - sum(bytes_of(name, value) for name, value in self.attributes.items()))
        whole, rest = divmod(length, len(self.unit.encode()))
        return self.unit * whole + "x" * rest

    @cached_property
    def free(self) -> int:
        """The bytes left for the `Tarry` attribute, without its name and type."""
        own = sum(bytes_of(name, value) for name, value in self.attributes.items())
        return self.limit - len(self.body.encode()) - own - ATTRIBUTE_BYTES

    def handle(self, message: Message) -> None:
        raise HandlerError(self.text)


def text_attribute(value: object, kind: str = "String") -> dict[str, Any]:
    return {"dataType": kind, "stringValue": str(value)}


def bytes_of(name: str, value: Mapping[str, Any]) -> int:
    data = base64.b64decode(value["binaryValue"]) if "binaryValue" in value else value["stringValue"].encode()
    return len(name.encode()) + len(value["dataType"].encode()) + len(data)


def earlier_envelope(carried: int, failures: int, text: str) -> dict[str, Any]:
    """Return the `Tarry` attribute of a copy or of a redriven dead letter, without its sum."""
    at = "2027-01-15T07:00:00.000Z"
    entries = [{"attempt": attempt, "at": at, "error": text[:300]} for attempt in range(1, failures + 1)]
    failure = {"reason": "error", "attempts": carried + 2, "first_failed_at": at, "failed_at": at, "message": text}
    counters = {"carried": carried, "hops": 3, "steps": {"slow": 1, "another step": 7}} if carried else {}
    return {"v": 1, "id": "the-first-id", "origin": arn("orders"), "sent": at, **counters, "failure": failure,
            "history": entries}  # fmt: skip


texts = st.text(st.characters(codec="utf-8"), max_size=400) | st.builds(
    lambda unit, length: (unit * length)[:length],
    st.sampled_from(["x", "\x00", "\ud800", "😀", "é", '"', "\\", "line\n", "  File "]),
    st.sampled_from([100, 3_000, 40_000]),
)
TEN = {f"a{number}": text_attribute(number) for number in range(10)}
NINE = {name: value for name, value in TEN.items() if name != "a0"}
OF_EACH_KIND = {
    "text": text_attribute("é😀", "String.é"),
    "number": text_attribute(-7, "Number.int"),
    "binary": {"dataType": "Binary.png", "binaryValue": base64.b64encode(b"\xff\x00").decode()},
}
LIKE_OURS = [{**NINE, "Tarry": text_attribute(text)} for text in ("mine", '{"v": 1}', "[]")]
cases = st.builds(
    Case,
    text=texts,
    room=st.integers(-300, 2_048) | st.integers(2_048, 8_000) | st.sampled_from([30_000, 300_000]),
    limit=st.sampled_from([4_096, 4_097, 10_000, 65_536, SMALLEST_LIMIT]) | st.integers(SMALLEST_LIMIT, 65_536),
    unit=st.sampled_from(["x", "é", "😀", "\n", '"']),
    attributes=st.sampled_from([{}, OF_EACH_KIND, OF_EACH_KIND, NINE, TEN, *LIKE_OURS]),
    earlier=st.none() | st.builds(earlier_envelope, st.sampled_from([0, 3]), st.integers(0, 10), texts),
).map(lambda case: dataclasses.replace(case, earlier=None) if "Tarry" in case.attributes else case)


Settled = tuple[list[dict[str, Any]], list[str], dict[str, int]]
"""The entries that were sent, the ids that are reported, and the visibilities."""


def settle_case(handler: Consumer[Any], case: Case, limit: int, attributes: Mapping[str, Any]) -> Settled:
    """Settle the message with these attributes of the user in queues with this limit."""
    if case.earlier is not None:
        attributes = {**attributes, **tarry_attribute(case.body, **case.earlier)}
    wire = orders(maximum_message_size=limit)
    wire.queues["orders-dlq"] = Queue(maximum_message_size=limit)
    reported, _ = settle(handler, event(record(case.body, attributes=dict(attributes))), wire)
    return wire.sent_entries(), reported, wire.visibilities()


def record_in(entry: dict[str, Any]) -> str | None:
    """Return the `Tarry` attribute that tarry sent with the message."""
    text: str = entry.get("MessageAttributes", {}).get("Tarry", {}).get("StringValue", "")
    return text if '"sum"' in text else None


NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_sent(entry: dict[str, Any], case: Case) -> None:
    """Check that SQS accepts the entry and that it equals the received message."""
    attributes = entry.get("MessageAttributes", {})
    for value in attributes.values():
        assert value.get("BinaryValue") or value["StringValue"]
        assert not NOT_ALLOWED.search(value.get("StringValue", ""))
    assert size_of(entry) <= case.limit
    assert len(attributes) <= 10
    assert entry["MessageBody"] == case.body
    for name, value in case.attributes.items():
        text = {"StringValue": value["stringValue"]} if "stringValue" in value else {}
        binary = {"BinaryValue": base64.b64decode(value["binaryValue"])} if "binaryValue" in value else {}
        assert attributes[name] == {"DataType": value["dataType"], **text, **binary}


REDRIVEN = earlier_envelope(0, 10, "no")


@settings(max_examples=50, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases, st.sampled_from(["dead letter", "dead letter", None, 0, 60, 3_600]))
@example(Case("no", room=2_048 + ATTRIBUTE_BYTES), "dead letter")
@example(Case("no", room=0, unit="😀"), "dead letter")
@example(Case("no", attributes=TEN), "dead letter")
@example(Case("no", attributes={"Tarry": text_attribute("not so fast")}), "dead letter")
@example(Case("no", attributes=NINE, earlier=REDRIVEN), "dead letter")
@example(Case("x" * 100_000, room=4_096), "dead letter")  # its record is logged up to 64 KiB
@example(Case("no", room=-1, limit=1_024), "dead letter")
@example(Case("no", attributes=TEN), 3_600)
def test_a_dead_letter_or_copy_fits_with_as_much_of_its_failure_record_as_possible(
    caplog: Caplog, case: Case, kind: Any
) -> None:
    """SPEC E6, F3, F5. A copy is not sent without its counters; a dead letter is sent without a record."""
    is_copy = kind != "dead letter"
    step = {"on_failure": [SendAgain("slow", times=9, delay=kind)]} if is_copy else {"fatal": HandlerError}
    handler = consumer(**step)(case.handle)
    [unlimited], _, _ = settle_case(handler, case, ENDLESS, {})
    written = record_in(unlimited)
    whole = json.loads(written or "")
    caplog.clear()
    sent, *waits = settle_case(handler, case, case.limit, case.attributes)
    has_place = len(case.attributes) < 10 and "Tarry" not in case.attributes
    text = fit(whole, case.free) if has_place else None
    if text is None if is_copy else case.free + ATTRIBUTE_BYTES < 0:
        assert (sent, waits) == ([], [["m1"], {"handle-m1": 900}])
        assert is_copy or [line.levelno for line in lines(caplog, "unhandled")] == [logging.ERROR]
        return
    [entry] = sent
    check_sent(entry, case)
    assert (waits, record_in(entry)) == ([[], {}], text)
    logged = [dump(each) for line in lines(caplog) if (each := field(line, "record")) is not None]
    assert logged == ([] if text == written else [fit(whole, 65_536)])
    if is_copy:
        earlier = case.earlier or {"id": "m1"}
        steps = earlier.get("steps", {})
        assert whole["id"] == earlier["id"]
        assert whole["carried"] == earlier.get("carried", 0) + 1
        assert whole["hops"] == earlier.get("hops", 0) + 1
        assert whole["steps"] == steps | {"slow": steps.get("slow", 0) + 1}
        assert whole.get("due") == (RECEIVED_AT + kind if kind == 3_600 else None)
