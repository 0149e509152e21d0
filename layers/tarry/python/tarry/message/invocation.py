"""One call of the Lambda function: its context, start, deadline, and the messages of its event."""

from __future__ import annotations

import math
from operator import itemgetter

from tarry.errors import InvalidEvent
from tarry.message.message import Message, delivery_of
from tarry.support.guards import drop_tracebacks, generation, is_a
from tarry.support.values import WARNING, receive_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping
    from typing import Any, Protocol, TypeAlias

    from tarry.message.delivery import Delivery
    from tarry.message.diagnosis import Diagnoses
    from tarry.message.outcomes import BatchVerdict, Outcome
    from tarry.record.attempt_store import AttemptStore
    from tarry.world import Event, World

    # The uses that messages make of other modules, as protocols: otherwise all of these would know each other.

    class EarlyDeletes(Protocol):  # tarry.settle.eager_acks
        together: int

        def add(self, delivery: Delivery, /) -> None: ...
        def delete_now(self, deliveries: Iterable[Delivery], /) -> bool: ...
        def close(self) -> None: ...

    class SeesOutcomes(Protocol):  # tarry.observe.opentelemetry
        def decided(self, delivery_id: str, outcome: Outcome, failure: Any, /) -> None: ...
        def close(self) -> None: ...

    class Logs(Protocol):  # tarry.observe.logs
        def ignored(self, delivery: Any, verdict: str, why: str, /) -> None: ...
        def problem(self, event: str, text: str, delivery: Any = None, /, *, level: int = ...) -> None: ...

    class CountsAttempts(Protocol):  # tarry.settle.attempts
        def close_started(self, pending: Any, /) -> None: ...
        def finish(self, pending: Any, /) -> None: ...


Records: TypeAlias = "dict[str, dict[str, Any]]"  # the records of a batch by their message ids, in its order

_source_of, _user_attributes_of = itemgetter("eventSourceARN"), itemgetter("messageAttributes")
_attributes_of, _count_of = itemgetter("attributes"), itemgetter("ApproximateReceiveCount")


def records_of(event: object) -> tuple[Records, bool, bool]:
    """Return the event's records, each message once, whether all of them are plain, and whether any is from FIFO.

    Plain messages are fresh and without message attributes: most batches have no others, and skip further checks. If a
    message is in the batch twice, the later receive is returned.

    Raises:
        InvalidEvent: The messages cannot be known.
    """
    if type(event) is not dict:
        event = getattr(event, "raw_event", event)  # Powertools' SQSEvent holds the dict
    if not isinstance(event, dict):
        raise InvalidEvent(f"an SQS event is a dict with Records, got {type(event).__name__}: {event!r:.100}")
    if "Records" not in event:
        raise InvalidEvent(f"an SQS event has Records, got a dict with the keys {sorted(map(str, event))!r:.200}")
    listed = event["Records"]
    if not isinstance(listed, list):
        raise InvalidEvent(f"Records of an SQS event is a list, got {type(listed).__name__}: {listed!r:.100}")
    if (read := _read(listed)) is not None:
        return read
    records = _one_by_one(listed)
    return records, False, any_fifo(records)


def _read(listed: list[Any]) -> tuple[Records, bool, bool] | None:
    """Read the records in one pass, without a call for each message; return None if a record is irregular."""
    records: Records = {}
    are_plain, is_fifo, source = True, False, ""
    try:
        for record in listed:
            if type(record) is not dict or type(message_id := record["messageId"]) is not str:
                return None
            records[message_id] = record
            if record["messageAttributes"] or record["attributes"]["ApproximateReceiveCount"] != "1":
                are_plain = False
            if record["eventSourceARN"] != source:
                source = record["eventSourceARN"]
                is_fifo = is_fifo or source.endswith(".fifo")
    except (AttributeError, KeyError, TypeError):
        return None
    return None if len(records) != len(listed) or "" in records else (records, are_plain, is_fifo)


def _one_by_one(listed: list[Any]) -> Records:
    """Read records one by one if a message is in the batch twice, or a record is invalid."""
    records: Records = {}
    for index, record in enumerate(listed):
        if not isinstance(record, dict):
            raise InvalidEvent(f"record {index} is not an SQS record but {type(record).__name__}: {record!r:.100}")
        message_id = record.get("messageId")
        if not message_id or not isinstance(message_id, str):
            raise InvalidEvent(f"record {index} has no messageId (got {message_id!r:.100}): it is not an SQS record")
        if message_id not in records or receives(record) > receives(records[message_id]):
            records[message_id] = record
    return records


def any_fifo(records: Records) -> bool:
    try:
        sources = set(map(_source_of, records.values()))
    except (KeyError, TypeError):  # an incomplete record
        sources = {str(record.get("eventSourceARN")) for record in records.values()}
    return any(str(source).endswith(".fifo") for source in sources)


def are_fresh(records: Records) -> bool:
    """Return whether none of the records is redelivered or incomplete."""
    try:
        return set(map(_count_of, map(_attributes_of, records.values()))) == {"1"}
    except (KeyError, TypeError):
        return False


def receives(record: dict[str, Any]) -> int:
    attributes = record.get("attributes")
    return receive_count(attributes.get("ApproximateReceiveCount") if isinstance(attributes, dict) else None)


def message_of(record: dict[str, Any], delivery_id: str, invocation: Invocation, log: Logs) -> Message[Any]:
    """Return the message of a record, with its `Tarry` attribute read."""
    message: Message[Any] = Message(record, delivery_id, invocation)
    if record.get("messageAttributes"):
        read_attributes(message, record, log)
    return message


def read_attributes(message: Message[Any], record: dict[str, Any], log: Logs) -> bool:
    """Read the `Tarry` attribute of a message; return whether it has a readable one."""
    from tarry.record.attribute import ATTRIBUTE, UnreadableRecord, is_ours, read_envelope

    attributes = record["messageAttributes"]
    if not isinstance(attributes, dict) or ATTRIBUTE not in attributes:
        return False
    attribute, delivery = attributes[ATTRIBUTE], delivery_of(message)
    try:
        delivery.envelope = read_envelope(attribute, delivery.body, delivery.invocation.world.clock.time())
    except UnreadableRecord as error:
        cause = "it is damaged or belongs to another message" if is_ours(attribute) else "tarry did not write it"
        text = f"The Tarry attribute is ignored, because {cause}: {error}."
        log.problem("record_unreadable", text, delivery, level=WARNING)
        return False
    return True


LONGEST_SECONDS = 1e6  # a longer remaining time counts as no deadline; Lambda allows 90 minutes at most (PLATFORM 15d)

Group = tuple[str, str | None]  # a FIFO queue's ARN, and the group id: messages without one form one group


class Invocation:
    """The state that the messages of a batch share. The next invocation starts with a new object."""

    # Defaults of the class, and no __slots__: most invocations never set any of these.
    extending: Callable[[], Any]
    """Returns `tarry.settle.extending`. The consumer sets it: planning imports no module that makes requests."""
    batch: BatchVerdict | None = None  # the verdict on the batch as a whole; None for a handler of one message
    on_verdict: Callable[[Delivery], None] | None = None  # called for each verdict of a batch handler on a message
    acks: EarlyDeletes | None = None  # deletes acknowledged messages while the batch runs, with ``ack="eager"``
    spans: SeesOutcomes | None = None  # the spans of the handler's runs; None without OpenTelemetry
    ended = False  # whether the response is made: from then on, no request is sent
    must_end_process: str | None = None  # why it must not take another invocation: a handler cannot be stopped
    keepalive_idle: Event | None = None  # set while ``keepalive`` extends nothing: that would undo shorter delays
    observer: Any = None  # notes what became of the messages (`tarry.observe.reports`), for metrics and ``on_outcome``
    logger_keys = False  # whether lines that a handler logs with Powertools' `Logger` have the keys of its message
    observes = False  # whether there is something to do when all messages are settled
    attempt_store: AttemptStore | None = None  # counts attempts; None for a consumer without ``attempts=``
    attempt_store_fails = False  # whether a request to it has failed in this invocation: receive counts serve instead
    tracking: CountsAttempts | None = None  # the uses of the store (`tarry.settle.attempts`); None until the first one
    lost_groups: Collection[Group] = ()  # the FIFO groups of messages whose leases are lost (`tarry.settle.requests`)
    _behind: Container[str] | None = None
    _diagnoses: Diagnoses | None = None

    def __init__(
        self,
        world: World,
        context: Any,
        max_attempts_of: Callable[[str], int | None],
        log: Logs,
        payload_reader: Any = None,
        are_plain: bool = False,
    ) -> None:
        self.world = world
        self.records: Mapping[str, dict[str, Any]] = {}
        self.are_plain = are_plain  # whether all records are fresh and without message attributes; False if unknown
        self.log = log
        self.deliveries: dict[str, Delivery] = {}  # by delivery id: messages that did not simply succeed, and others
        self.context = context
        self.max_attempts_of = max_attempts_of  # for a queue; None if no failure step retries in place
        self.payload_reader = payload_reader  # the `PayloadReader`; None for a consumer without a model
        self.began_in = generation()
        self.started_at = world.clock.time()
        self._began_at = world.clock.monotonic()
        self.began_with = _seconds_left(context)  # the seconds until the deadline when the invocation began
        self.deadline = self._began_at + self.began_with

    def delivery(
        self,
        delivery_id: str,
        record: dict[str, Any] | None = None,
        message: Message[Any] | None = None,
        *,
        keep: bool = True,
    ) -> Delivery:
        """Return the delivery with an id; at the first use it is made, from ``record`` or the record of the batch."""
        found = self.deliveries.get(delivery_id)
        if found is None:
            from tarry.message.delivery import Delivery

            found = Delivery(self.records[delivery_id] if record is None else record, delivery_id, self)
            if keep:  # another thread may have made it in the meantime
                found = self.deliveries.setdefault(delivery_id, found)
        if message is not None:
            found.message = message
        return found

    def clear(self) -> None:
        """Free the batch: deliveries refer to their invocation and message, in reference cycles."""
        if self.spans is not None:
            self.spans.close()
        for delivery in tuple(self.deliveries.values()):
            delivery.__dict__.pop("message", None)
            if is_a(verdict := delivery.verdict, BaseException):  # its frames hold the message
                drop_tracebacks(verdict)
        self._diagnoses = None  # it may hold the frames of the last error
        self.deliveries.clear()

    @property
    def behind(self) -> Container[str]:
        """The delivery ids of the messages that are behind another message of their FIFO group in this batch."""
        if self._behind is None:
            self._behind = ids_behind(self.records.items())
        return self._behind

    @property
    def diagnoses(self) -> Diagnoses:
        """The diagnoses of errors: an error that fails many messages is diagnosed once."""
        if self._diagnoses is None:
            from tarry.message.diagnosis import Diagnoses

            self._diagnoses = Diagnoses()
        return self._diagnoses

    def time_left(self) -> float:
        """Return the seconds until Lambda kills the process; infinite if the context does not tell."""
        return self.deadline - self.world.clock.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the invocation began, also if the wall clock is changed."""
        return self.world.clock.monotonic() - self._began_at

    def now(self) -> float:
        """Return the time in epoch seconds, as the start of the invocation plus `elapsed`."""
        return self.started_at + self.elapsed()

    @property
    def function_name(self) -> str | None:
        return getattr(self.context, "function_name", None)

    @property
    def request_id(self) -> str | None:
        return getattr(self.context, "aws_request_id", None)


def _seconds_left(context: Any) -> float:
    try:
        seconds: Any = context.get_remaining_time_in_millis() / 1000
    except Exception:  # noqa: BLE001 a test may pass None, or a context without a working method
        return math.inf
    # "for ever", as a context of a test says with sys.maxsize or NaN, is more than the clocks and timers can count
    return seconds if type(seconds) is float and seconds < LONGEST_SECONDS else math.inf


def group_of(record: dict[str, Any]) -> Group | None:
    """Return the FIFO group of a record; None on a standard queue, where a group id implies no order."""
    source = record.get("eventSourceARN")
    if not isinstance(source, str) or not source.endswith(".fifo"):
        return None
    attributes = record.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, dict) else None
    return source, group if isinstance(group, str) else None


def ids_behind(items: Iterable[tuple[str, dict[str, Any]]]) -> set[str]:
    """Return the ids of the messages of a batch that are behind another message of their FIFO group."""
    seen: set[Group] = set()
    behind: set[str] = set()
    for message_id, record in items:
        if (group := group_of(record)) in seen:
            behind.add(message_id)
        elif group is not None:
            seen.add(group)
    return behind
