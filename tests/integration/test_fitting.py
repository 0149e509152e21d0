"""Whatever a message brings along and dies of: it is sent as SQS takes it, with as much of its record as has room.

Hypothesis makes messages and errors; a consumer puts them away; what it asks of SQS is checked, as botocore would send
it, against what the same consumer sends where there is room for everything.
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
from tarry.envelope.attribute import body_sum
from tarry.envelope.fitting import fit
from tests.loglines import field
from tests.records import Context, event, failed, record
from tests.wire import Queue, TestClock, Wire, arn

MIB = 1_048_576
SMALLEST_LIMIT = 1_024  # SQS's range of MaximumMessageSize
ENDLESS = 1_000_000_000  # what no queue has: room for everything
ATTRIBUTE_BYTES = len("Tarry") + len("String")
ENOUGH_BYTES = 2_048
"""Where so much is free beside a message, its letter tells where it failed."""

profile = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


# errors


class Declined(Exception):
    pass


LongNamed = type("Declined" + "X" * 250, (Declined,), {})


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
    """The like of `innermost`, its source line so many characters long, as in code that was generated."""
    path = f"/var/task/wide_{width}.py"
    source = f"def innermost(_, error): raise error  # {'é' * width}\n"
    linecache.cache[path] = (len(source), None, [source], path)
    names: dict[str, Any] = {"__name__": "wide"}
    exec(compile(source, path, "exec"), names)
    wide: Callable[[int, Exception], None] = names["innermost"]
    return wide


class Trouble(NamedTuple):
    """What a handler dies of."""

    text: str
    kind: type[Exception] = Declined
    depth: int = 0
    wide: int = 0
    cause: str | None = None
    explicit: bool = True

    def happen(self) -> None:
        """Raises it."""
        fail = in_a_wide_line(self.wide) if self.wide else step
        error = self.kind(self.text)
        if self.cause is None:
            return fail(self.depth, error)
        try:
            step(1, Declined(self.cause))
        except Declined as cause:
            if self.explicit:
                error.__cause__ = cause
            fail(self.depth, error)


characters = st.characters(codec=None)  # any at all: NUL and lone surrogates too
texts = st.text(characters, max_size=400) | st.builds(
    lambda unit, length: (unit * length)[:length],
    st.sampled_from(["x", "\x00", "\ud800", "\ud83d\ude00", "😀", "é", '"', "\\", "line\n", "  File "]),
    st.sampled_from([100, 3_000, 40_000, 200_000]),
)
troubles = st.builds(
    Trouble,
    text=texts,
    kind=st.sampled_from([Declined, Declined, LongNamed]),
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


def earlier_record(carried: int, failures: int, text: str) -> dict[str, Any]:
    """The record of a copy, or of a letter that was redriven: without its sum."""
    at = "2027-01-15T07:00:00.000Z"
    entries = [{"attempt": attempt, "at": at, "error": text[:300]} for attempt in range(1, failures + 1)]
    failure = {"reason": "error", "attempts": carried + 2, "first_failed_at": at, "failed_at": at, "message": text}
    counters = {"carried": carried, "hops": 3, "steps": {"slow": 1, "another step": 7}} if carried else {}
    return {"v": 1, "id": "the-first-id", "origin": arn("orders"), "sent": at, **counters, "failure": failure,
            "history": entries}  # fmt: skip


earlier_records = st.builds(earlier_record, st.sampled_from([0, 3]), st.integers(0, 10), texts)


class Given(NamedTuple):
    """A message, and how much its target queue takes."""

    trouble: Trouble
    room: int = 10_000
    """What is left of the limit beside the body and the user's attributes; the body is as long as that demands."""
    limit: int = MIB
    unit: str = "x"
    attributes: Mapping[str, Any] = {}
    tarry: str | None = None
    """An attribute of the user's own by the name of ours."""
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
        """What is left for a record, with its name and type."""
        own = sum(bytes_of(name, value) for name, value in self.own.items())
        return self.limit - len(self.body.encode()) - own - ATTRIBUTE_BYTES

    @property
    def has_place(self) -> bool:
        return len(self.own) < 10 and self.tarry is None

    def record(self, received_at: float, *, stripped: bool = False) -> dict[str, Any]:
        """As the event has it; stripped of what takes a record's place."""
        attributes = {} if stripped else self.own
        if self.earlier is not None:
            told = {**self.earlier, "sum": body_sum(self.body)}
            attributes["Tarry"] = string(json.dumps(told))
        return record(self.body, "m1", attributes=attributes, received_at=received_at)


def bytes_of(name: str, value: Mapping[str, Any]) -> int:
    """What SQS counts of an attribute: name, type and value."""
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
    Given,
    trouble=troubles,
    room=rooms,
    limit=st.sampled_from([4_096, 4_097, 10_000, 262_144, MIB, SMALLEST_LIMIT]) | st.integers(SMALLEST_LIMIT, MIB),
    unit=st.sampled_from(["x", "é", "😀", "\n", '"']),
    attributes=own_attributes,
    tarry=st.none(),
    earlier=st.none(),
).flatmap(
    lambda given_: st.one_of(
        st.just(given_),
        st.just(given_),
        st.builds(lambda earlier: given_._replace(earlier=earlier), earlier_records),
        st.builds(lambda text: given_._replace(tarry=text, attributes=dict([*given_.attributes.items()][:9])),
                  st.sampled_from(["mine", '{"v": 1}', "[]"])),
    )
)  # fmt: skip


# sending


class Put(NamedTuple):
    """What came of a message."""

    sent: list[dict[str, Any]]
    reported: list[str]
    waits: dict[str, int]
    log: list[logging.LogRecord]

    @property
    def told(self) -> dict[str, Any] | None:
        """The record that was sent with it."""
        attribute = self.sent[0].get("MessageAttributes", {}).get("Tarry")
        text = attribute and attribute["StringValue"]
        return json.loads(text) if text and '"sum"' in text else None

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The records that the log holds, as they would have been sent."""
        records = [field(line, "record") for line in self.log]
        return [json.loads(json.dumps(each)) for each in records if each is not None]


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def log() -> Iterator[list[logging.LogRecord]]:
    handler, logger = Log(), logging.getLogger("tarry")
    logger.addHandler(handler)
    logger.propagate = False  # pytest would keep the lines of all examples
    try:
        yield handler.records
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


CLOCK = TestClock()
LIMITED, LIMITLESS = Wire(clock=CLOCK), Wire(clock=CLOCK)  # a client for each is enough for all examples


def put(wire: Wire, handler: Consumer[Any], given_: Given, limit: int, *, stripped: bool = False) -> Put:
    """What the consumer does with the message."""
    target = Queue(maximum_message_size=limit)
    wire.queues = {"orders": Queue(dead_letter="orders-dlq", maximum_message_size=limit), "orders-dlq": target}
    wire.requests.clear()
    wire.accepted.clear()
    with wire, log() as logged:
        response = handler(event(given_.record(CLOCK.now, stripped=stripped)), Context())
    return Put(wire.letters(), failed(response), wire.visibilities(), logged)


def both(handler: Consumer[Any], given_: Given) -> tuple[Put, dict[str, Any]]:
    """What becomes of the message, and its record as it is where there is room for everything."""
    CLOCK.now += 1_000  # what was looked up of the queues is forgotten
    unbound = put(LIMITLESS, handler, given_, ENDLESS, stripped=True)
    assert unbound.told is not None
    assert unbound.logged == []
    return put(LIMITED, handler, given_, given_.limit), unbound.told


def as_logged(whole: dict[str, Any]) -> dict[str, Any]:
    """The record as a log line shows it."""
    shown: dict[str, Any] = json.loads(fit(whole, 65_536) or "")
    return shown


# what must hold


NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TOP_KEYS = {"v", "sum", "id", "origin", "sent", "carried", "due", "hops", "steps", "failure", "history"}
FAILURE_KEYS = {
    "reason", "attempts", "type", "message", "traceback", "fingerprint", "first_failed_at", "failed_at", "function",
    "request_id",
}  # fmt: skip


def essentials_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """What is never left out of a record."""
    kept = {name: whole["failure"][name] for name in ("reason", "attempts", "failed_at")}
    return {name: value for name, value in whole.items() if name not in ("failure", "history")} | {"failure": kept}


def compact(told: Mapping[str, Any]) -> str:
    return json.dumps(told, separators=(",", ":"))


def check_sent(entry: Mapping[str, Any], given_: Given) -> None:
    """SQS takes it, and it is the message that was received."""
    attributes = entry.get("MessageAttributes", {})
    size = len(entry["MessageBody"].encode())
    for name, value in attributes.items():
        data = value.get("BinaryValue") or value["StringValue"].encode()
        assert data
        size += len(name.encode()) + len(value["DataType"].encode()) + len(data)
        assert not NOT_ALLOWED.search(value.get("StringValue", ""))
    assert size <= given_.limit
    assert len(attributes) <= 10
    assert entry["MessageBody"] == given_.body
    for name, value in given_.own.items():
        text = {"StringValue": value["stringValue"]} if "stringValue" in value else {}
        data = {"BinaryValue": base64.b64decode(value["binaryValue"])} if "binaryValue" in value else {}
        assert attributes[name] == {"DataType": value["dataType"], **text, **data}


def check_told(told: dict[str, Any], whole: dict[str, Any], free: int) -> None:
    """The record is the whole one, but for what had to be cut."""
    assert len(compact(told)) <= free
    assert set(told) <= TOP_KEYS
    assert set(told["failure"]) <= FAILURE_KEYS
    assert essentials_of(told) == essentials_of(whole)
    assert told.get("history", whole["history"]) == whole["history"]
    assert set(told["failure"]) <= set(whole["failure"])
    for name, value in told["failure"].items():
        if value != whole["failure"][name]:
            check_cut(name, escaped(value), escaped(whole["failure"][name]))
    if free >= len(compact(whole)):
        assert told == whole


def escaped(text: str) -> str:
    """As JSON has it: there the halves of a surrogate pair are two characters, as they are to whom cuts them."""
    return json.dumps(text)[1:-1]


def check_cut(name: str, kept: str, whole: str) -> None:
    if name == "message":
        assert whole.startswith(kept.removesuffix("..."))
        assert len(kept) > 3
        return
    assert name == "traceback"
    frame = r"  File \""
    if kept.startswith(frame):  # the beginning of the last frame, which is too long itself
        assert ", in innermost" in kept
        assert whole[whole.rindex(rf"\n{frame}") + 2 :].startswith(kept.removesuffix("..."))
        return
    assert kept.startswith(r"...\n")
    assert whole.endswith(kept.removeprefix(r"...\n"))
    assert kept.removeprefix(r"...\n").startswith(frame), "frames are whole"


def check_innermost(told: dict[str, Any], trouble: Trouble) -> None:
    """It says where it failed, and how its text begins."""
    failure = told["failure"]
    assert "in innermost" in failure["traceback"]
    if trouble.text:
        assert escaped(trouble.text).startswith(escaped(failure["message"]).removesuffix("...")[:5])
    assert {"type", "fingerprint", "first_failed_at", "function"} <= set(failure)


# dead letters


@profile
@given(messages)
@example(Given(Trouble("x" * 200_000, kind=LongNamed, depth=40), room=ENOUGH_BYTES + ATTRIBUTE_BYTES))
@example(Given(Trouble("no", wide=3_000), room=ENOUGH_BYTES + ATTRIBUTE_BYTES))
def test_a_dead_letter_fits_with_as_much_of_its_record_as_has_room(given_: Given) -> None:  # SPEC F3, F5
    def handler(message: Message) -> None:
        given_.trouble.happen()

    done, whole = both(consumer(fatal=Declined)(handler), given_)
    if given_.free + ATTRIBUTE_BYTES < 0:
        assert (done.sent, done.reported, done.waits) == ([], ["m1"], {"handle-m1": 900})
        assert [line.levelno for line in done.log if field(line, "event") == "unhandled"] == [logging.ERROR]
        return
    [entry] = done.sent
    check_sent(entry, given_)
    assert done.reported == []
    fits = given_.has_place and given_.free >= len(compact(essentials_of(whole)))
    assert (done.told is not None) is fits
    if done.told is not None:
        check_told(done.told, whole, given_.free)
        if given_.free >= ENOUGH_BYTES:
            check_innermost(done.told, given_.trouble)
    assert list(map(ends, done.logged)) == ([] if done.told == whole else [ends(as_logged(whole))])


def ends(logged: dict[str, Any]) -> dict[str, Any]:
    """The record without the end of a message that was cut: two surrogates are one character once they were read."""
    failure = dict(logged["failure"])
    if str(failure.get("message", "")).endswith("..."):
        failure["message"] = failure["message"][:20]
    return {**logged, "failure": failure}


# copies


@profile
@given(messages, st.sampled_from([None, 0, 60, 3_600]))
@example(Given(Trouble("\ud83d\ude00" * 20_000), room=2_048), None)
def test_a_copy_fits_with_all_it_lives_on_or_is_not_sent(given_: Given, delay: int | None) -> None:  # SPEC E6
    def handler(message: Message) -> None:
        given_.trouble.happen()

    done, whole = both(consumer(on_failure=[SendAgain("slow", times=9, delay=delay)])(handler), given_)
    if not given_.has_place or given_.free < len(compact(essentials_of(whole))):
        assert (done.sent, done.reported, done.waits) == ([], ["m1"], {"handle-m1": 900})
        return
    [entry] = done.sent
    check_sent(entry, given_)
    assert done.told is not None
    check_told(done.told, whole, given_.free)
    if given_.free >= ENOUGH_BYTES:
        check_innermost(done.told, given_.trouble)
    assert list(map(ends, done.logged)) == ([] if done.told == whole else [ends(as_logged(whole))])
    earlier = given_.earlier or {"id": "m1"}
    steps = earlier.get("steps", {})
    assert done.told["id"] == earlier["id"]
    assert done.told["carried"] == earlier.get("carried", 0) + 1
    assert done.told["hops"] == earlier.get("hops", 0) + 1
    assert done.told["steps"] == steps | {"slow": steps.get("slow", 0) + 1}
    assert done.told.get("due") == (CLOCK.now + delay if delay == 3_600 else None)
