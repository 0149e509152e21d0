"""Dead letters and copies of arbitrary messages and errors fit the limits of SQS, with as much of the record as fits.

Hypothesis makes messages and errors, and a consumer settles them. Its requests are compared with those of the same
consumer without a size limit.
"""

import base64
import json
import linecache
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tarry import Consumer, Message, SendAgain, consumer
from tarry.message.failure_record import fit
from tarry.record.attribute import body_sum
from tests.loglines import field
from tests.records import Context, event, failed, record
from tests.wire import Queue, TestClock, Wire, arn

MIB = 1_048_576
SMALLEST_LIMIT = 1_024  # the smallest MaximumMessageSize of SQS
ENDLESS = 1_000_000_000  # a limit that no queue has
ATTRIBUTE_BYTES = len("Tarry") + len("String")
ENOUGH_BYTES = 2_048
"""With this much space left, a dead letter shows where the handler failed."""

profile = settings(max_examples=80, derandomize=True, suppress_health_check=list(HealthCheck))


# errors


class HandlerError(Exception):
    pass


LongNamed = type("HandlerError" + "X" * 250, (HandlerError,), {})


def innermost(error: Exception) -> None:
    raise error


def step(depth: int, error: Exception) -> None:
    if depth:
        other_step(depth - 1, error)
    innermost(error)


def other_step(depth: int, error: Exception) -> None:
    if depth:
        step(depth - 1, error)
    innermost(error)


def in_a_wide_line(width: int) -> Callable[[int, Exception], None]:
    """Return a function like `innermost` with a long source line, as in generated code."""
    path = f"/var/task/wide_{width}.py"
    source = f"def innermost(_, error): raise error  # {'é' * width}\n"
    linecache.cache[path] = (len(source), None, [source], path)
    names: dict[str, Any] = {"__name__": "wide"}
    exec(compile(source, path, "exec"), names)
    wide: Callable[[int, Exception], None] = names["innermost"]
    return wide


class HandlerFailure(NamedTuple):
    """The exception that a handler raises."""

    text: str
    kind: type[Exception] = HandlerError
    depth: int = 0
    wide: int = 0
    cause: str | None = None
    explicit: bool = True

    def happen(self) -> None:
        """Raise the exception."""
        fail = in_a_wide_line(self.wide) if self.wide else step
        error = self.kind(self.text)
        if self.cause is None:
            return fail(self.depth, error)
        try:
            step(1, HandlerError(self.cause))
        except HandlerError as cause:
            if self.explicit:
                error.__cause__ = cause
            fail(self.depth, error)


characters = st.characters(codec=None)  # including NUL and lone surrogates
texts = st.text(characters, max_size=400) | st.builds(
    lambda unit, length: (unit * length)[:length],
    st.sampled_from(["x", "\x00", "\ud800", "\ud83d\ude00", "😀", "é", '"', "\\", "line\n", "  File "]),
    st.sampled_from([100, 3_000, 40_000, 200_000]),
)
failures = st.builds(
    HandlerFailure,
    text=texts,
    kind=st.sampled_from([HandlerError, HandlerError, LongNamed]),
    depth=st.sampled_from([0, 1, 40]),
    wide=st.sampled_from([0, 0, 0, 200, 3_000]),
    cause=st.none() | texts,
    explicit=st.booleans(),
)


# messages


def string(value: str, label: str = "") -> dict[str, Any]:
    return {"dataType": f"String{label}", "stringValue": value}


def number(value: int, label: str = "") -> dict[str, Any]:
    return {"dataType": f"Number{label}", "stringValue": str(value)}


def binary(value: bytes, label: str = "") -> dict[str, Any]:
    return {"dataType": f"Binary{label}", "binaryValue": base64.b64encode(value).decode()}


labels = st.sampled_from(["", "", ".int", ".png", ".é"])
allowed = st.characters(codec="utf-8", exclude_characters="\x00\ufffe\uffff", min_codepoint=32)
values = st.one_of(
    st.builds(string, st.text(allowed, min_size=1, max_size=30), labels),
    st.builds(number, st.integers(), labels),
    st.builds(binary, st.binary(min_size=1, max_size=30), labels),
)
names = st.from_regex(r"[A-Za-z0-9_-]{1,12}(\.[a-z]{1,3})?", fullmatch=True).filter(
    lambda name: not name.lower().startswith(("aws.", "amazon.", "tarry"))
)
own_attributes = st.dictionaries(names, values, max_size=3) | st.dictionaries(names, values, min_size=8, max_size=10)


def earlier_envelope(carried: int, failures: int, text: str) -> dict[str, Any]:
    """Return the `Tarry` attribute of a copy or of a redriven dead letter, without its sum."""
    at = "2027-01-15T07:00:00.000Z"
    entries = [{"attempt": attempt, "at": at, "error": text[:300]} for attempt in range(1, failures + 1)]
    failure = {"reason": "error", "attempts": carried + 2, "first_failed_at": at, "failed_at": at, "message": text}
    counters = {"carried": carried, "hops": 3, "steps": {"slow": 1, "another step": 7}} if carried else {}
    return {"v": 1, "id": "the-first-id", "origin": arn("orders"), "sent": at, **counters, "failure": failure,
            "history": entries}  # fmt: skip


earlier_envelopes = st.builds(earlier_envelope, st.sampled_from([0, 3]), st.integers(0, 10), texts)


class Case(NamedTuple):
    """A message, and the size limit of its target queue."""

    failure: HandlerFailure
    room: int = 10_000
    """The bytes left beside the body and the user's attributes. The length of the body follows from it."""
    limit: int = MIB
    unit: str = "x"
    attributes: Mapping[str, Any] = {}
    tarry: str | None = None
    """A user attribute that is named ``Tarry``."""
    earlier: dict[str, Any] | None = None

    @property
    def own(self) -> dict[str, Any]:
        return dict(self.attributes) | ({} if self.tarry is None else {"Tarry": string(self.tarry)})

    @property
    def body(self) -> str:
        length = max(1, self.limit - self.room - sum(bytes_of(name, value) for name, value in self.own.items()))
        whole, rest = divmod(length, len(self.unit.encode()))
        return self.unit * whole + "x" * rest

    @property
    def free(self) -> int:
        """The bytes left for the `Tarry` attribute, without its name and type."""
        own = sum(bytes_of(name, value) for name, value in self.own.items())
        return self.limit - len(self.body.encode()) - own - ATTRIBUTE_BYTES

    @property
    def has_place(self) -> bool:
        return len(self.own) < 10 and self.tarry is None

    def record(self, received_at: float, *, stripped: bool = False) -> dict[str, Any]:
        """Return the SQS record; if stripped, without the user's attributes."""
        attributes = {} if stripped else self.own
        if self.earlier is not None:
            envelope = {**self.earlier, "sum": body_sum(self.body)}
            attributes["Tarry"] = string(json.dumps(envelope))
        return record(self.body, "m1", attributes=attributes, received_at=received_at)


def bytes_of(name: str, value: Mapping[str, Any]) -> int:
    """Return the bytes of an attribute as SQS counts them: name, type, and value."""
    data = base64.b64decode(value["binaryValue"]) if "binaryValue" in value else value["stringValue"].encode()
    return len(name.encode()) + len(value["dataType"].encode()) + len(data)


rooms = st.one_of(
    st.integers(ENOUGH_BYTES, 8_000),
    st.sampled_from([ENOUGH_BYTES + ATTRIBUTE_BYTES, 30_000, 300_000]),
    st.integers(900, ENOUGH_BYTES),
    st.integers(250, 900),
    st.integers(-300, 250),
)
messages = st.builds(
    Case,
    failure=failures,
    room=rooms,
    limit=st.sampled_from([4_096, 4_097, 10_000, 262_144, MIB, SMALLEST_LIMIT]) | st.integers(SMALLEST_LIMIT, MIB),
    unit=st.sampled_from(["x", "é", "😀", "\n", '"']),
    attributes=own_attributes,
    tarry=st.none(),
    earlier=st.none(),
).flatmap(
    lambda case: st.one_of(
        st.just(case),
        st.just(case),
        st.builds(lambda earlier: case._replace(earlier=earlier), earlier_envelopes),
        st.builds(lambda text: case._replace(tarry=text, attributes=dict([*case.attributes.items()][:9])),
                  st.sampled_from(["mine", '{"v": 1}', "[]"])),
    )
)  # fmt: skip


# sending


class Settled(NamedTuple):
    """The result of handling a message."""

    sent: list[dict[str, Any]]
    reported: list[str]
    waits: dict[str, int]
    log: list[logging.LogRecord]

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The `Tarry` attribute that was sent with the message."""
        attribute = self.sent[0].get("MessageAttributes", {}).get("Tarry")
        text = attribute and attribute["StringValue"]
        return json.loads(text) if text and '"sum"' in text else None

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The `Tarry` attributes in the log lines, as they would have been sent."""
        records = [field(line, "record") for line in self.log]
        return [json.loads(json.dumps(each)) for each in records if each is not None]


class LogRecords(logging.Handler):
    """A log handler that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def log() -> Iterator[list[logging.LogRecord]]:
    handler, logger = LogRecords(), logging.getLogger("tarry")
    logger.addHandler(handler)
    logger.propagate = False  # pytest would keep the lines of all examples
    try:
        yield handler.records
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


CLOCK = TestClock()
LIMITED, LIMITLESS = Wire(clock=CLOCK), Wire(clock=CLOCK)  # a client for each is enough for all examples


def settle(wire: Wire, handler: Consumer[Any], case: Case, limit: int, *, stripped: bool = False) -> Settled:
    """Return the result of the consumer for the message."""
    target = Queue(maximum_message_size=limit)
    wire.queues = {"orders": Queue(dead_letter="orders-dlq", maximum_message_size=limit), "orders-dlq": target}
    wire.requests.clear()
    wire.accepted.clear()
    with wire, log() as logged:
        response = handler(event(case.record(CLOCK.now, stripped=stripped)), Context())
    return Settled(wire.sent_entries(), failed(response), wire.visibilities(), logged)


def limited_and_whole(handler: Consumer[Any], case: Case) -> tuple[Settled, dict[str, Any]]:
    """Return the result of the message, and its whole `Tarry` attribute as sent without a limit."""
    CLOCK.now += 1_000  # the cached attributes of the queues expire
    unbound = settle(LIMITLESS, handler, case, ENDLESS, stripped=True)
    assert unbound.envelope is not None
    assert unbound.logged == []
    return settle(LIMITED, handler, case, case.limit), unbound.envelope


def as_logged(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the `Tarry` attribute as a log line shows it."""
    shown: dict[str, Any] = json.loads(fit(whole, 65_536) or "")
    return shown


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
    for name, value in case.own.items():
        text = {"StringValue": value["stringValue"]} if "stringValue" in value else {}
        data = {"BinaryValue": base64.b64decode(value["binaryValue"])} if "binaryValue" in value else {}
        assert attributes[name] == {"DataType": value["dataType"], **text, **data}


def check_envelope(envelope: dict[str, Any], whole: dict[str, Any], free: int) -> None:
    """Check that the `Tarry` attribute is the whole one, trimmed only as necessary."""
    assert len(compact(envelope)) <= free
    assert set(envelope) <= TOP_KEYS
    assert set(envelope["failure"]) <= FAILURE_KEYS
    assert essentials_of(envelope) == essentials_of(whole)
    assert envelope.get("history", whole["history"]) == whole["history"]
    assert set(envelope["failure"]) <= set(whole["failure"])
    for name, value in envelope["failure"].items():
        if value != whole["failure"][name]:
            check_cut(name, escaped(value), escaped(whole["failure"][name]))
    if free >= len(compact(whole)):
        assert envelope == whole


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


def check_innermost(envelope: dict[str, Any], failure: HandlerFailure) -> None:
    """Check that the failure record shows where the handler failed and how the error text begins."""
    failure_record = envelope["failure"]
    assert "in innermost" in failure_record["traceback"]
    if failure.text:
        assert escaped(failure.text).startswith(escaped(failure_record["message"]).removesuffix("...")[:5])
    assert {"type", "fingerprint", "first_failed_at", "function"} <= set(failure_record)


# dead letters


@profile
@given(messages)
@example(Case(HandlerFailure("x" * 200_000, kind=LongNamed, depth=40), room=ENOUGH_BYTES + ATTRIBUTE_BYTES))
@example(Case(HandlerFailure("no", wide=3_000), room=ENOUGH_BYTES + ATTRIBUTE_BYTES))
def test_a_dead_letter_fits_with_as_much_of_its_failure_record_as_possible(case: Case) -> None:  # SPEC F3, F5
    def handler(message: Message) -> None:
        case.failure.happen()

    settled, whole = limited_and_whole(consumer(fatal=HandlerError)(handler), case)
    if case.free + ATTRIBUTE_BYTES < 0:
        assert (settled.sent, settled.reported, settled.waits) == ([], ["m1"], {"handle-m1": 900})
        assert [line.levelno for line in settled.log if field(line, "event") == "unhandled"] == [logging.ERROR]
        return
    [entry] = settled.sent
    check_sent(entry, case)
    assert settled.reported == []
    fits = case.has_place and case.free >= len(compact(essentials_of(whole)))
    assert (settled.envelope is not None) is fits
    if settled.envelope is not None:
        check_envelope(settled.envelope, whole, case.free)
        if case.free >= ENOUGH_BYTES:
            check_innermost(settled.envelope, case.failure)
    assert list(map(without_trimmed_end, settled.logged)) == (
        [] if settled.envelope == whole else [without_trimmed_end(as_logged(whole))]
    )


def without_trimmed_end(logged: dict[str, Any]) -> dict[str, Any]:
    """Return the logged attribute without the end of a trimmed message, where a read may join two surrogates."""
    failure = dict(logged["failure"])
    if str(failure.get("message", "")).endswith("..."):
        failure["message"] = failure["message"][:20]
    return {**logged, "failure": failure}


# copies


@profile
@given(messages, st.sampled_from([None, 0, 60, 3_600]))
@example(Case(HandlerFailure("\ud83d\ude00" * 20_000), room=2_048), None)
def test_a_copy_fits_with_its_counters_or_is_not_sent(case: Case, delay: int | None) -> None:  # SPEC E6
    def handler(message: Message) -> None:
        case.failure.happen()

    settled, whole = limited_and_whole(consumer(on_failure=[SendAgain("slow", times=9, delay=delay)])(handler), case)
    if not case.has_place or case.free < len(compact(essentials_of(whole))):
        assert (settled.sent, settled.reported, settled.waits) == ([], ["m1"], {"handle-m1": 900})
        return
    [entry] = settled.sent
    check_sent(entry, case)
    assert settled.envelope is not None
    check_envelope(settled.envelope, whole, case.free)
    if case.free >= ENOUGH_BYTES:
        check_innermost(settled.envelope, case.failure)
    assert list(map(without_trimmed_end, settled.logged)) == (
        [] if settled.envelope == whole else [without_trimmed_end(as_logged(whole))]
    )
    earlier = case.earlier or {"id": "m1"}
    steps = earlier.get("steps", {})
    assert settled.envelope["id"] == earlier["id"]
    assert settled.envelope["carried"] == earlier.get("carried", 0) + 1
    assert settled.envelope["hops"] == earlier.get("hops", 0) + 1
    assert settled.envelope["steps"] == steps | {"slow": steps.get("slow", 0) + 1}
    assert settled.envelope.get("due") == (CLOCK.now + delay if delay == 3_600 else None)
