"""One call of the Lambda function: its context, its start, its deadline. Made fresh at each call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tarry.support.forks import generation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from tarry.delivery import Delivery
    from tarry.message import Message
    from tarry.telemetry.diagnosis import Diagnoses
    from tarry.verdict import BatchVerdict
    from tarry.world import Event, World

    class Acks(Protocol):
        """Deletes acknowledged messages while the batch runs (`tarry.sqs.acks`)."""

        together: int

        def add(self, delivery: Delivery, /) -> None: ...

        def delete_now(self, deliveries: Iterable[Delivery], /) -> bool: ...

        def close(self) -> None: ...

    class PayloadReader(Protocol):
        """Makes payloads (`tarry.payload.reader`)."""

        def read(self, message: Message[Any], /) -> Any: ...

    class Extending(Protocol):
        """Extends the lease on a message (`Message.extend`)."""

        def extend(self, delivery: Any, seconds: Any) -> None: ...

        async def extend_async(self, delivery: Any, seconds: Any) -> None: ...

    class Told(Protocol):
        """The log, as far as messages and failure steps tell it something."""

        def ignored(self, delivery: Any, verdict: str, why: str, /) -> None: ...


NO_RECORDS: Mapping[str, dict[str, Any]] = {}


class Invocation:
    """What all messages of a batch share. Nothing of it is seen by the next invocation."""

    # Defaults of the class, and no __slots__: most invocations never set any of these.
    extending: Extending
    """Extends leases for handlers. Set by the consumer; a value has no access to SQS."""
    batch: BatchVerdict | None = None
    """The verdict on the batch as a whole; None for a handler of one message."""
    on_verdict: Callable[[Delivery], None] | None = None
    """Called for each verdict that a batch handler gives on a message; None for a handler of one message."""
    acks: Acks | None = None
    """Deletes what is acknowledged while the batch still runs; None where that waits for the answer."""
    must_end_process: str | None = None
    """Why the process must not take another invocation: something runs in it that cannot be ended."""
    keepalive_idle: Event | None = None
    """Set while no extension of ``keepalive`` is under way: one that arrives late would undo a shorter wait."""
    _diagnoses: Diagnoses | None = None

    def __init__(
        self,
        world: World,
        context: Any,
        max_attempts_of: Callable[[str], int | None],
        log: Told,
        payload_reader: PayloadReader | None = None,
        are_plain: bool = False,
    ) -> None:
        self.world = world
        self.records: Mapping[str, dict[str, Any]] = NO_RECORDS
        """The records of the batch by their delivery ids, in its order."""
        self.are_plain = are_plain
        """Whether these are all fresh, without message attributes, and from a standard queue; False if unknown."""
        self.ended = False
        """Set when the answer goes out: from then on no request does."""
        self.log = log
        self.deliveries: dict[str, Delivery] = {}
        """By delivery id: of each message that did not simply succeed, and of a few more."""
        self.context = context
        self.max_attempts_of = max_attempts_of
        """The policy's limit for what comes from a queue; None where nothing is retried in place."""
        self.payload_reader = payload_reader
        """Makes the payloads; None for a consumer without a model."""
        self.began_in = generation()
        """The process in which it began, as `forks.generation` counts; a forked child does not belong to it."""
        self.started_at = world.clock.time()
        """In epoch seconds."""
        self._began_at = world.clock.monotonic()
        self.began_with = _seconds_left(context)
        """Seconds until the deadline, when it began."""
        self.deadline = self._began_at + self.began_with

    def delivery(
        self, delivery_id: str, record: dict[str, Any] | None = None, message: Message[Any] | None = None
    ) -> Delivery:
        """Return the delivery with an id; it is made at the first use, of ``record`` or the batch's."""
        found = self.deliveries.get(delivery_id)
        if found is None:
            from tarry.delivery import Delivery

            made = Delivery(self.records[delivery_id] if record is None else record, delivery_id, self)
            found = self.deliveries.setdefault(delivery_id, made)  # another thread may have made it meanwhile
        if message is not None:
            found.message = message
        return found

    def let_go(self) -> None:
        """Let go of the batch: deliveries know their invocation and message, and such cycles would keep them all."""
        for delivery in tuple(self.deliveries.values()):
            delivery.__dict__.pop("message", None)
        self.deliveries.clear()

    @property
    def lost_groups(self) -> set[tuple[str, str | None]]:
        """The FIFO groups of messages whose leases are lost (`tarry.visibility.leases`)."""
        groups: set[tuple[str, str | None]] = self.__dict__.setdefault("_lost_groups", set())
        return groups

    @property
    def diagnoses(self) -> Diagnoses:
        """The diagnoses of its errors: an error that fails many messages is diagnosed once."""
        if self._diagnoses is None:
            from tarry.telemetry.diagnosis import Diagnoses

            self._diagnoses = Diagnoses()
        return self._diagnoses

    def time_left(self) -> float:
        """Seconds until Lambda kills the process; infinite without a context that knows."""
        return self.deadline - self.world.clock.monotonic()

    def elapsed(self) -> float:
        """Seconds since the invocation began, whatever is done to the wall clock meanwhile."""
        return self.world.clock.monotonic() - self._began_at

    def now(self) -> float:
        """The time in epoch seconds, as far from the invocation's start as time has really passed."""
        return self.started_at + self.elapsed()

    @property
    def function_name(self) -> str | None:
        return getattr(self.context, "function_name", None)

    @property
    def request_id(self) -> str | None:
        return getattr(self.context, "aws_request_id", None)


def _seconds_left(context: Any) -> float:
    try:
        milliseconds = context.get_remaining_time_in_millis()
    except Exception:  # noqa: BLE001 any odd context: a test's None, an object without it, one that raises
        return math.inf
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else math.inf
