"""Dead letters and copies of arbitrary messages and errors fit the limits of SQS, with as much of the record as fits.

Hypothesis makes messages and errors, and a consumer settles them. Its requests are compared with those of the same
consumer without a size limit.
"""

import base64
import json
import linecache
import logging
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tarry import Consumer, Message, SendAgain, consumer
from tarry.message.failure_record import fit
from tarry.record.attribute import body_sum
from tests import loglines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Wire, arn

MIB = 1_048_576
SMALLEST_LIMIT = 1_024  # the smallest MaximumMessageSize of SQS
ENDLESS = 1_000_000_000  # a limit that no queue has
ATTRIBUTE_BYTES = len("Tarry") + len("String")
ENOUGH_BYTES = 2_048
"""With this much space left, a dead letter shows where the handler failed."""


# errors


class HandlerError(Exception):
    pass


LongNamed = type("HandlerError" + "X" * 250, (HandlerError,), {})


def innermost(error: Exception) -> None:
    raise error


def step(depth: int, error: Exception) -> None:
    other_step(depth - 1, error) if depth else innermost(error)


def other_step(depth: int, error: Exception) -> None:
    step(depth - 1, error) if depth else innermost(error)


def fail_in_a_wide_line(width: int, error: Exception) -> None:
    """Fail as `innermost` does, in a long source line, as in generated code."""
    path = f"/var/task/wide_{width}.py"
    source = f"def innermost(error): raise error  # {'é' * width}\n"
    linecache.cache[path] = (len(source), None, [source], path)
    names: dict[str, Any] = {"__name__": "wide"}
    exec(compile(source, path, "exec"), names)
    names["innermost"](error)


# messages


@dataclass(frozen=True)
class Case:
    """An error, and a message with a body that leaves a certain room in its target queue."""

    text: str
    """The text of the error that the handler raises."""
    kind: type[Exception] = HandlerError
    depth: int = 0
    wide: int = 0
    room: int = 10_000
    """The bytes left beside the body and the user's attributes. The length of the body follows from it."""
    limit: int = MIB
    unit: str = "x"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """The attributes of the user; one may be named ``Tarry``."""
    earlier: Mapping[str, Any] | None = None
    """The `Tarry` attribute that the message came with."""

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
        error = self.kind(self.text)
        if self.wide:
            fail_in_a_wide_line(self.wide, error)
        step(self.depth, error)


def text_attribute(value: object, kind: str = "String") -> dict[str, Any]:
    return {"dataType": kind, "stringValue": str(value)}


def bytes_of(name: str, value: Mapping[str, Any]) -> int:
    """Return the bytes of an attribute as SQS counts them: name, type, and value."""
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


texts = (
    st.text(st.characters(codec=None), max_size=400)
    | st.builds(  # including NUL and lone surrogates
        lambda unit, length: (unit * length)[:length],
        st.sampled_from(["x", "\x00", "\ud800", "\ud83d\ude00", "😀", "é", '"', "\\", "line\n", "  File "]),
        st.sampled_from([100, 3_000, 40_000, 200_000]),
    )
)
allowed = st.characters(codec="utf-8", exclude_characters="\x00\ufffe\uffff", min_codepoint=32)
values = (
    st.builds(text_attribute, st.text(allowed, min_size=1, max_size=30), st.sampled_from(["String", "String.é"]))
    | st.builds(text_attribute, st.integers(), st.sampled_from(["Number", "Number.int"]))
    | st.builds(
        lambda data: {"dataType": "Binary.png", "binaryValue": base64.b64encode(data).decode()},
        st.binary(min_size=1, max_size=30),
    )
)
own_attributes = st.integers(0, 10).flatmap(
    lambda count: st.tuples(*[values] * count).map(lambda all_of_them: {f"a{n}": v for n, v in enumerate(all_of_them)})
)
named_like_ours = st.builds(
    lambda own, text: {**dict([*own.items()][:9]), "Tarry": text_attribute(text)},
    own_attributes,
    st.sampled_from(["mine", '{"v": 1}', "[]"]),
)
cases = st.builds(
    Case,
    text=texts,
    kind=st.sampled_from([HandlerError, HandlerError, LongNamed]),
    depth=st.sampled_from([0, 1, 40]),
    wide=st.sampled_from([0, 0, 0, 200, 3_000]),
    room=st.one_of(
        st.integers(ENOUGH_BYTES, 8_000),
        st.sampled_from([ENOUGH_BYTES + ATTRIBUTE_BYTES, 30_000, 300_000]),
        st.integers(900, ENOUGH_BYTES),
        st.integers(250, 900),
        st.integers(-300, 250),
    ),
    limit=st.sampled_from([4_096, 4_097, 10_000, 262_144, MIB, SMALLEST_LIMIT]) | st.integers(SMALLEST_LIMIT, MIB),
    unit=st.sampled_from(["x", "é", "😀", "\n", '"']),
    attributes=own_attributes | own_attributes | named_like_ours,
    earlier=st.none() | st.builds(earlier_envelope, st.sampled_from([0, 3]), st.integers(0, 10), texts),
).map(lambda case: replace(case, earlier=None) if "Tarry" in case.attributes else case)


# sending


class Settled(NamedTuple):
    """The result of handling a message."""

    sent: list[dict[str, Any]]
    reported: list[str]
    waits: dict[str, int]
    unhandled: list[int]
    """The levels of the log lines that say so."""
    logged: list[dict[str, Any]]
    """The `Tarry` attributes in the log lines, as they would have been sent."""

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The `Tarry` attribute that was sent with the message."""
        attribute = self.sent[0].get("MessageAttributes", {}).get("Tarry")
        text = attribute and attribute["StringValue"]
        return json.loads(text) if text and '"sum"' in text else None


@contextmanager
def log() -> Any:
    logger, kept = logging.getLogger("tarry"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False  # pytest would keep the lines of all examples
    try:
        yield kept
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def settle(handler: Consumer[Any], case: Case, limit: int, attributes: Mapping[str, Any]) -> Settled:
    """Return the result of the consumer for the message with these attributes of the user."""
    if case.earlier is not None:
        envelope = {**case.earlier, "sum": body_sum(case.body)}
        attributes = {**attributes, "Tarry": text_attribute(json.dumps(envelope))}
    queues = {"orders": Queue(dead_letter="dlq", maximum_message_size=limit), "dlq": Queue(maximum_message_size=limit)}
    with Wire(queues=queues) as wire, log() as lines:
        reported = failed(handler(event(record(case.body, attributes=dict(attributes))), Context()))
    records = [json.loads(json.dumps(each)) for line in lines if (each := loglines.field(line, "record")) is not None]
    unhandled = [line.levelno for line in lines if loglines.field(line, "event") == "unhandled"]
    return Settled(wire.sent_entries(), reported, wire.visibilities(), unhandled, records)


# checks


NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TOP_KEYS = {"v", "sum", "id", "origin", "sent", "carried", "due", "hops", "steps", "failure", "history"}
FAILURE_KEYS = {
    "reason", "attempts", "type", "message", "traceback", "fingerprint", "first_failed_at", "failed_at", "function",
    "request_id",
}  # fmt: skip


def essentials_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are never left out of a `Tarry` attribute."""
    kept = {name: whole["failure"][name] for name in ("reason", "attempts", "failed_at")}
    return {name: value for name, value in whole.items() if name not in ("failure", "history")} | {"failure": kept}


def compact(envelope: Mapping[str, Any]) -> str:
    return json.dumps(envelope, separators=(",", ":"))


def check_sent(entry: Mapping[str, Any], case: Case) -> None:
    """Check that SQS accepts the entry and that it equals the received message."""
    attributes = entry.get("MessageAttributes", {})
    size = len(entry["MessageBody"].encode())
    for name, value in attributes.items():
        data = value.get("BinaryValue") or value["StringValue"].encode()
        assert data
        size += len(name.encode()) + len(value["DataType"].encode()) + len(data)
        assert not NOT_ALLOWED.search(value.get("StringValue", ""))
    assert size <= case.limit
    assert len(attributes) <= 10
    assert entry["MessageBody"] == case.body
    for name, value in case.attributes.items():
        text = {"StringValue": value["stringValue"]} if "stringValue" in value else {}
        binary = {"BinaryValue": base64.b64decode(value["binaryValue"])} if "binaryValue" in value else {}
        assert attributes[name] == {"DataType": value["dataType"], **text, **binary}


def check_envelope(envelope: dict[str, Any], whole: dict[str, Any], case: Case) -> None:
    """Check that the `Tarry` attribute is the whole one, trimmed only as necessary."""
    failure = envelope["failure"]
    assert len(compact(envelope)) <= case.free
    assert set(envelope) <= TOP_KEYS
    assert set(failure) <= FAILURE_KEYS & set(whole["failure"])
    assert essentials_of(envelope) == essentials_of(whole)
    assert envelope.get("history", whole["history"]) == whole["history"]
    for name, value in failure.items():
        if value != whole["failure"][name]:
            check_cut(name, escaped(value), escaped(whole["failure"][name]))
    if case.free >= len(compact(whole)):
        assert envelope == whole
    if case.free >= ENOUGH_BYTES:  # it shows where the handler failed and how the error text begins
        assert "in innermost" in failure["traceback"]
        if case.text:
            assert escaped(case.text).startswith(escaped(failure["message"]).removesuffix("...")[:5])
        assert {"type", "fingerprint", "first_failed_at", "function"} <= set(failure)


def escaped(text: str) -> str:
    """Return the text as JSON escapes it: a surrogate pair is two characters, which trimming may separate."""
    return json.dumps(text)[1:-1]


def check_cut(name: str, kept: str, whole: str) -> None:
    if name == "message":
        assert whole.startswith(kept.removesuffix("..."))
        assert len(kept) > 3
        return
    assert name == "traceback"
    frame = r"  File \""
    if kept.startswith(frame):  # the beginning of the last frame, which alone is too long
        assert ", in innermost" in kept
        assert whole[whole.rindex(rf"\n{frame}") + 2 :].startswith(kept.removesuffix("..."))
        return
    assert kept.startswith(r"...\n")
    assert whole.endswith(kept.removeprefix(r"...\n"))
    assert kept.removeprefix(r"...\n").startswith(frame), "frames are whole"


def without_trimmed_end(logged: dict[str, Any]) -> dict[str, Any]:
    """Return the logged attribute without the end of a trimmed message, where a read may join two surrogates."""
    failure = dict(logged["failure"])
    if str(failure.get("message", "")).endswith("..."):
        failure["message"] = failure["message"][:20]
    return {**logged, "failure": failure}


@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases, st.sampled_from(["dead letter", "dead letter", None, 0, 60, 3_600]))
@example(Case("x" * 200_000, kind=LongNamed, depth=40, room=ENOUGH_BYTES + ATTRIBUTE_BYTES), "dead letter")
@example(Case("no", wide=3_000, room=ENOUGH_BYTES + ATTRIBUTE_BYTES), "dead letter")
@example(Case("\ud83d\ude00" * 20_000, room=2_048), None)
def test_a_dead_letter_or_copy_fits_with_as_much_of_its_failure_record_as_possible(
    case: Case, kind: Any
) -> None:  # SPEC E6, F3, F5
    """A copy is not sent without its counters; a dead letter is sent without a record."""
    is_copy = kind != "dead letter"
    step = {"on_failure": [SendAgain("slow", times=9, delay=kind)]} if is_copy else {"fatal": HandlerError}
    handler = consumer(**step)(case.handle)
    whole = settle(handler, case, ENDLESS, {}).envelope
    assert whole is not None
    settled = settle(handler, case, case.limit, case.attributes)
    has_place = len(case.attributes) < 10 and "Tarry" not in case.attributes
    fits = has_place and case.free >= len(compact(essentials_of(whole)))
    if not fits if is_copy else case.free + ATTRIBUTE_BYTES < 0:
        assert (settled.sent, settled.reported, settled.waits) == ([], ["m1"], {"handle-m1": 900})
        assert is_copy or settled.unhandled == [logging.ERROR]
        return
    [entry] = settled.sent
    check_sent(entry, case)
    assert settled.reported == []
    envelope = settled.envelope
    assert (envelope is not None) is fits
    if envelope is not None:
        check_envelope(envelope, whole, case)
    shown = [] if envelope == whole else [without_trimmed_end(json.loads(fit(whole, 65_536) or ""))]
    assert list(map(without_trimmed_end, settled.logged)) == shown
    if is_copy and envelope is not None:
        earlier = case.earlier or {"id": "m1"}
        steps = earlier.get("steps", {})
        assert envelope["id"] == earlier["id"]
        assert envelope["carried"] == earlier.get("carried", 0) + 1
        assert envelope["hops"] == earlier.get("hops", 0) + 1
        assert envelope["steps"] == steps | {"slow": steps.get("slow", 0) + 1}
        assert envelope.get("due") == (RECEIVED_AT + kind if kind == 3_600 else None)
