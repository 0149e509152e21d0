"""The event source mapping: receives messages, invokes the function, deletes the messages not reported as failed.

It is a state machine of callbacks of a scheduler, in virtual or real time. It gathers one batch at a time, and runs as
many invocations at once as the scaling allows.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from tarry.failed.dead_letters import event_record
from tarry.failed.queue_names import region_of
from tarry.tools.simulator.batch_errors import batch_error
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import FAILURES_KEY, FunctionHost, InvocationResult, WholeBatchFailed, failed_ids
from tarry.tools.simulator.mapping_settings import Filters, MappingSettings, Scaling
from tarry.tools.simulator.scheduler import Scheduler, Timer

Message = dict[str, Any]

MAX_EVENT_BYTES = 6 * 1024 * 1024
MAX_PER_REQUEST = 10
PAUSE_SECONDS = 1.0
"""The pause after a request to SQS that failed."""
THROTTLE_PAUSE_SECONDS, MAX_THROTTLE_PAUSE_SECONDS = 1.0, 30.0
OTHER_BYTES = 4_096
"""More than a record has beside its body, message attributes and trace header."""
EVENT_OVERHEAD_BYTES = len('{"Records": []}')

_written = json.JSONEncoder(ensure_ascii=False).encode


def record_bytes(record: Mapping[str, Any]) -> int:
    """Return the size of a record in an event."""
    return len(_written(record).encode()) + len(", ")


def most_record_bytes(record: Mapping[str, Any]) -> int:
    """Return a size that a record does not exceed: that with the longest escapes, for one with a body only."""
    if record["messageAttributes"] or "AWSTraceHeader" in record["attributes"]:
        return record_bytes(record)
    return len("\\u0000") * len(record["body"]) + OTHER_BYTES


class QueuePort(Protocol):
    """A mapping's connection to its queue. It calls ``then`` later, on the scheduler's thread."""

    def receive(self, max_messages: int, then: Callable[[list[Message] | Exception], None]) -> None:
        """Receive up to ``max_messages`` messages (at most 10), with all their attributes."""

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        """Delete up to ten messages."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever the queue may have messages to receive. An idle mapping waits for this call.

        A port without notifications calls ``callback`` after each long poll that returned no messages.
        """


@dataclass(eq=False)
class GatheredBatch:
    """Messages that go to the function together."""

    until: float
    """When the first of them becomes visible again."""
    records: list[dict[str, Any]] = field(default_factory=list)
    most_bytes: int = EVENT_OVERHEAD_BYTES
    """The size of the event, or more."""
    throttles: int = 0

    def add(self, record: dict[str, Any]) -> bool:
        """Add a record if the event does not become too large; return whether it did not."""
        most = most_record_bytes(record)
        if self.records and self.most_bytes + most > MAX_EVENT_BYTES:  # else the size, which takes long, is not needed
            self.most_bytes, most = EVENT_OVERHEAD_BYTES + sum(map(record_bytes, self.records)), record_bytes(record)
            if self.most_bytes + most > MAX_EVENT_BYTES:
                return False
        self.records.append(record)
        self.most_bytes += most
        return True

    @property
    def ids(self) -> list[str]:
        return [record["messageId"] for record in self.records]

    @property
    def groups(self) -> set[str]:
        return {record["attributes"].get("MessageGroupId", "") for record in self.records}


class EventSourceMapping:
    """An event source mapping from a queue to a function. Call `start` to begin polling."""

    def __init__(
        self,
        scheduler: Scheduler,
        queue: QueuePort,
        function: FunctionHost,
        history: History,
        settings: MappingSettings,
    ) -> None:
        self.settings = settings
        self.mapping = mapping = settings.mapping
        self._scheduler = scheduler
        self._queue = queue
        self._function = function
        self._history = history
        self._filters = Filters(mapping.filters)
        self._region = region_of(mapping.queue_arn)
        self._name = mapping.queue
        self._scaling = Scaling(mapping.maximum_concurrency, is_fifo=mapping.is_fifo)
        self.state: Literal["Enabled", "Disabling", "Disabled", "Enabling", "Updating"] = "Enabled"
        self.maximum_concurrency = mapping.maximum_concurrency
        self.tags: dict[str, str] = {}
        self._is_enabled = True
        self._stopped = True
        self._limit: int | None = None
        self._receiving = False
        self._poll_again = False
        self._gathering: GatheredBatch | None = None
        self._window: Timer | None = None
        self._more_room: Timer | None = None
        self._ready: deque[GatheredBatch] = deque()
        self._running: list[GatheredBatch] = []
        queue.on_change(self._poll)

    def start(self) -> None:
        """Start polling."""
        self._stopped = False
        self._poll()

    def stop(self) -> None:
        """Stop polling. Messages of running invocations are still deleted when these end."""
        self._stopped = True

    def change(self, seconds: float, *, enabled: bool, maximum_concurrency: int | None) -> None:
        """Change the mapping as Lambda does, which takes ``seconds``. Messages received until then are invoked."""
        self.state = "Updating" if enabled == self._is_enabled else "Enabling" if enabled else "Disabling"
        self.maximum_concurrency = maximum_concurrency
        self._scheduler.after(seconds, partial(self._changed, enabled))

    def _changed(self, enabled: bool) -> None:
        now = self._scheduler.now
        if not self._is_enabled:
            self._scaling.enough(now, len(self._running))
        self._is_enabled, self.state = enabled, "Enabled" if enabled else "Disabled"
        self._scaling.change(self.maximum_concurrency, now)
        self._history.record("mapping_changed", queue=self._name, function=self.mapping.function, state=self.state)
        self._launch()
        self._poll()

    def limit_to(self, invocations: int | None) -> None:
        """Run at most so many invocations at once, and receive messages only for those; None for no such limit."""
        self._limit = invocations
        self._launch()
        self._poll()

    # receiving

    def _poll(self) -> None:
        """Receive messages if there is room for another batch."""
        if self._receiving:
            self._poll_again = True
        elif not self._stopped and self._is_enabled and self._has_room():
            self._receiving, self._poll_again = True, False
            gathered = len(self._gathering.records) if self._gathering else 0
            max_messages = min(MAX_PER_REQUEST, self.mapping.batch_size - gathered)
            self._queue.receive(max_messages, partial(self._received, self._scheduler.now))

    def _has_room(self) -> bool:
        now, taken = self._scheduler.now, len(self._running) + len(self._ready)
        if self._limit is not None and taken >= self._limit:
            return False
        if self._gathering or taken < self._scaling.limit(now):
            return True
        when = self._scaling.more_wanted(now)
        if when is not None and self._more_room is None:
            self._more_room = self._scheduler.at(when, self._on_more_room)
        return False

    def _on_more_room(self) -> None:
        self._more_room = None
        self._launch()
        self._poll()

    def _received(self, asked_at: float, messages: list[Message] | Exception) -> None:
        self._receiving = False
        if isinstance(messages, Exception):
            self._scheduler.after(PAUSE_SECONDS, self._poll)
        elif messages:
            self._gather(self._filter(messages, asked_at), asked_at)
            self._poll()
        elif self._poll_again:
            self._poll()
        else:
            self._scaling.enough(self._scheduler.now, len(self._running))

    def _filter(self, messages: list[Message], asked_at: float) -> list[Message]:
        """Return the messages that match the filters, and delete the others."""
        if not self._filters:
            return messages
        matching: list[Message] = []
        filtered: list[str] = []
        for message in messages:
            if self._filters.match(self._record_of(message)):
                matching.append(message)
            else:
                filtered.append(message["ReceiptHandle"])
                self._history.record("filtered", queue=self._name, delivery_id=message["MessageId"])
        self._delete(filtered, self._visible_at(asked_at))
        return matching

    def _record_of(self, message: Message) -> dict[str, Any]:
        return event_record(message, self.mapping.queue_arn, self._region)

    def _gather(self, messages: list[Message], asked_at: float) -> None:
        for record in map(self._record_of, messages):
            if self._gathering is not None and not self._gathering.add(record):
                self._complete_batch()
            if self._gathering is None:
                self._gathering = GatheredBatch(self._visible_at(asked_at))
                self._gathering.add(record)
        if self._gathering is None:
            return
        if not self.mapping.window_seconds or len(self._gathering.records) >= self.mapping.batch_size:
            self._complete_batch()
        elif self._window is None:
            self._window = self._scheduler.at(asked_at + self.mapping.window_seconds, self._complete_batch)

    def _complete_batch(self) -> None:
        """Pass the gathered batch on, since it is full or its window has ended."""
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if self._gathering is not None:
            self._ready.append(self._gathering)
            self._gathering = None
            self._launch()

    def _visible_at(self, asked_at: float) -> float:
        return asked_at + self.settings.visibility_timeout_seconds

    # invoking

    def _launch(self) -> None:
        """Invoke the function with batches that are ready, while there is room; on FIFO one batch per group at once."""
        now = self._scheduler.now
        most = min(self._scaling.limit(now), math.inf if self._limit is None else self._limit)
        waiting, self._ready = self._ready, deque()
        for batch in waiting:
            if batch.until <= now:
                self._record_dropped(batch)
            elif len(self._running) < most and not self._would_overtake(batch):
                self._running.append(batch)
                self._invoke(batch)
            else:
                self._ready.append(batch)

    def _would_overtake(self, batch: GatheredBatch) -> bool:
        """Return whether an earlier batch with a message group of this one runs or waits."""
        if not self.mapping.is_fifo:
            return False
        return any(batch.groups & earlier.groups for earlier in [*self._running, *self._ready])

    def _invoke(self, batch: GatheredBatch) -> None:
        self._function.invoke({"Records": batch.records}, partial(self._ended, batch), self.mapping.qualifier)

    def _ended(self, batch: GatheredBatch, result: InvocationResult) -> None:
        if result.kind == "throttled":
            return self._throttled(batch)
        now, running, ids = self._scheduler.now, len(self._running), batch.ids
        failed, ignored, why = self._judged(ids, result)
        each = batch_error(result.value, ids) if result.kind == "error" else None
        errors = (each.by_id if each else {}) | {
            message_id: error for message_id, error in result.errors.items() if message_id in failed | ignored
        }
        self._history.record(
            "answered",
            function=self.mapping.function,
            queue=self._name,
            request_id=result.request_id,
            kind=result.kind,
            failed=[message_id for message_id in ids if message_id in failed],
            ignored=[message_id for message_id in ids if message_id in ignored],
            why=why if each is None else each.summary,
            **({"errors": errors} if errors else {}),
        )
        if result.kind not in ("returned", "recursive"):
            self._scaling.failed(now, running)
        done = [record["receiptHandle"] for record in batch.records if record["messageId"] not in failed]
        self._running.remove(batch)
        self._delete(done, batch.until)
        self._launch()
        self._poll()

    def _judged(self, ids: list[str], result: InvocationResult) -> tuple[frozenset[str], frozenset[str], str]:
        """Return the ids that failed, those that are named as failed but deleted, and why the whole batch failed.

        Without `ReportBatchItemFailures`, Lambda ignores what a response names.
        """
        none = frozenset[str]()
        if result.kind != "returned":
            return frozenset(ids), none, result.text
        try:
            named, why = failed_ids(result.value, ids), ""
        except WholeBatchFailed as error:
            named, why = frozenset(ids), str(error)
        if self.mapping.reports_failures:
            return named, none, why
        names_any = isinstance(result.value, dict) and result.value.get(FAILURES_KEY)
        return none, named if names_any else none, ""

    def _throttled(self, batch: GatheredBatch) -> None:
        """Retry the invocation with growing pauses; drop the batch when its messages become visible again."""
        self._history.record("throttled", function=self.mapping.function, queue=self._name, delivery_ids=batch.ids)
        pause = min(MAX_THROTTLE_PAUSE_SECONDS, THROTTLE_PAUSE_SECONDS * 2**batch.throttles)
        batch.throttles += 1
        retry_at = self._scheduler.now + pause
        if retry_at < batch.until:
            self._scheduler.at(retry_at, partial(self._invoke, batch))
        else:
            self._scheduler.at(batch.until, partial(self._drop, batch))

    def _drop(self, batch: GatheredBatch) -> None:
        self._running.remove(batch)
        self._record_dropped(batch)
        self._launch()
        self._poll()

    def _record_dropped(self, batch: GatheredBatch) -> None:
        """Record that the messages of a batch became visible again without an invocation."""
        self._history.record("dropped", function=self.mapping.function, queue=self._name, delivery_ids=batch.ids)

    # deleting

    def _delete(self, handles: list[str], until: float) -> None:
        for first in range(0, len(handles), MAX_PER_REQUEST):
            ten = handles[first : first + MAX_PER_REQUEST]
            self._queue.delete(ten, partial(self._deleted, ten, until))

    def _deleted(self, handles: list[str], until: float, error: Exception | None) -> None:
        if error is not None and self._scheduler.now + PAUSE_SECONDS < until:
            self._scheduler.after(PAUSE_SECONDS, partial(self._delete, handles, until))
