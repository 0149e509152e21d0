"""One call of the Lambda function: its context, start, deadline and messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tarry.support.causes import drop_tracebacks, is_a
from tarry.support.forks import generation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping
    from typing import Protocol

    from tarry.message.delivery import Delivery
    from tarry.message.diagnosis import Diagnoses
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.message.verdicts import BatchVerdict
    from tarry.record.attempt_store import AttemptStore
    from tarry.world import Event, World

    # The uses that messages make of other modules, as protocols: otherwise all of these would know each other.

    class EarlyDeletes(Protocol):
        """Deletes acknowledged messages while the batch runs (`tarry.settle.eager_acks`)."""

        together: int

        def add(self, delivery: Delivery, /) -> None: ...

        def delete_now(self, deliveries: Iterable[Delivery], /) -> bool: ...

        def close(self) -> None: ...

    class ReadsPayloads(Protocol):
        """Makes payloads (`tarry.message.payloads`)."""

        def read(self, message: Message[Any], /) -> Any: ...

    class SeesOutcomes(Protocol):
        """Closes the spans of messages (`tarry.observe.opentelemetry`)."""

        def decided(self, delivery_id: str, outcome: Outcome, failure: Any, /) -> None: ...

        def close(self) -> None: ...

    class LogsVerdicts(Protocol):
        """Logs verdicts that come too late (`tarry.observe.logs`)."""

        def ignored(self, delivery: Any, verdict: str, why: str, /) -> None: ...

    class LogsProblems(Protocol):
        """Logs problems of messages (`tarry.observe.logs`)."""

        def problem(self, event: str, text: str, delivery: Any = None, /, *, level: int = ...) -> None: ...

    class NotesOutcomes(Protocol):
        """Notes what became of the messages (`tarry.observe.outcomes`)."""

        requests: list[str]

        def transition(
            self,
            delivery_id: str,
            outcome: Outcome,
            delay: int | None,
            reason: str | None,
            failure: Any,
            fields: dict[str, Any],
        ) -> None: ...

        def timed(self, function: Callable[[Any], Any], is_async: bool, /) -> Callable[[Any], Any]: ...

    class CountsAttempts(Protocol):
        """Reads and writes the attempt store (`tarry.settle.attempts`)."""

        def close_started(self, pending: Any, /) -> None: ...

        def finish(self, pending: Any, /) -> None: ...

    class Extending(Protocol):
        """Extends the lease on a message (`Message.extend`)."""

        def extend(self, delivery: Any, seconds: Any) -> None: ...

        async def extend_async(self, delivery: Any, seconds: Any) -> None: ...


LONGEST_SECONDS = 1e6
"""A longer remaining time counts as no deadline; Lambda allows 90 minutes at most (PLATFORM 15d)."""
NO_RECORDS: Mapping[str, dict[str, Any]] = {}

Group = tuple[str, str | None]
"""The ARN of a FIFO queue and the group id. Messages without a group id form one group."""


class Invocation:
    """The state that the messages of a batch share. The next invocation starts with a new object."""

    # Defaults of the class, and no __slots__: most invocations never set any of these.
    extending: Extending
    """Extends leases for handlers. The consumer sets it, so that planning imports no module that makes requests."""
    batch: BatchVerdict | None = None
    """The verdict on the batch as a whole; None for a handler of one message."""
    on_verdict: Callable[[Delivery], None] | None = None
    """Called for each verdict that a batch handler gives on a message; None for a handler of one message."""
    acks: EarlyDeletes | None = None
    """Deletes acknowledged messages while the batch still runs; None if Lambda deletes them after the response."""
    spans: SeesOutcomes | None = None
    """The spans of the handler's runs; None without OpenTelemetry."""
    must_end_process: str | None = None
    """Why the process must not take another invocation: a handler in it cannot be stopped. None if it may."""
    keepalive_idle: Event | None = None
    """Set while ``keepalive`` extends no lease: a late extension would undo a shorter delay."""
    observer: NotesOutcomes | None = None
    """Notes what became of the messages; None without metrics and ``on_outcome``."""
    logger_keys = False
    """Whether lines that a handler logs with Powertools' `Logger` have the keys of its message."""
    observes = False
    """Whether there is something to do when all messages are settled."""
    attempt_store: AttemptStore | None = None
    """The store that counts attempts; None for a consumer without ``attempts=``."""
    attempt_store_fails = False
    """Whether a request to the store has failed in this invocation: receive counts serve instead."""
    tracking: CountsAttempts | None = None
    """The uses of the store (`tarry.settle.attempts`); None until the first one."""
    lost_groups: Collection[Group] = ()
    """The FIFO groups of messages whose leases are lost (`tarry.settle.visibility`)."""
    _behind: Container[str] | None = None
    _diagnoses: Diagnoses | None = None

    def __init__(
        self,
        world: World,
        context: Any,
        max_attempts_of: Callable[[str], int | None],
        log: LogsVerdicts,
        payload_reader: ReadsPayloads | None = None,
        are_plain: bool = False,
    ) -> None:
        self.world = world
        self.records: Mapping[str, dict[str, Any]] = NO_RECORDS
        """The records of the batch by delivery id, in its order."""
        self.are_plain = are_plain
        """Whether all records are fresh and without message attributes; False if unknown."""
        self.ended = False
        """Whether the response is made: from then on, no request is sent."""
        self.log = log
        self.deliveries: dict[str, Delivery] = {}
        """The deliveries by delivery id: of all messages that did not simply succeed, and of some others."""
        self.context = context
        self.max_attempts_of = max_attempts_of
        """Returns the policy's ``max_attempts`` for a queue; None if no failure step retries in place."""
        self.payload_reader = payload_reader
        """The reader of payloads; None for a consumer without a model."""
        self.began_in = generation()
        """The process in which the invocation began, as `forks.generation` counts; a forked child has another one."""
        self.started_at = world.clock.time()
        """When the invocation began, in epoch seconds."""
        self._began_at = world.clock.monotonic()
        self.began_with = _seconds_left(context)
        """The seconds until the deadline when the invocation began."""
        self.deadline = self._began_at + self.began_with

    def delivery(
        self, delivery_id: str, record: dict[str, Any] | None = None, message: Message[Any] | None = None
    ) -> Delivery:
        """Return the delivery with an id; at the first use it is made, from ``record`` or the record of the batch."""
        found = self.deliveries.get(delivery_id)
        if found is None:
            from tarry.message.delivery import Delivery

            made = Delivery(self.records[delivery_id] if record is None else record, delivery_id, self)
            found = self.deliveries.setdefault(delivery_id, made)  # another thread may have made it in the meantime
        if message is not None:
            found.message = message
        return found

    def known_delivery(self, delivery_id: str, record: dict[str, Any]) -> Delivery:
        """Return the delivery with an id, or a new one that is not kept: most messages need none."""
        found = self.deliveries.get(delivery_id)
        if found is None:
            from tarry.message.delivery import Delivery

            return Delivery(record, delivery_id, self)
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
    """Return the ids of the messages that are behind another message of their FIFO group.

    ``items``: the ids and records of a batch, in its order.
    """
    seen: set[Group] = set()
    behind: set[str] = set()
    for message_id, record in items:
        if (group := group_of(record)) in seen:
            behind.add(message_id)
        elif group is not None:
            seen.add(group)
    return behind
