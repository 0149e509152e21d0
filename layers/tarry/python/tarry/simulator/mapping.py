"""The event source mapping: receives, invokes, deletes what was not reported as failed.

It is a state machine of callbacks on a timeline, virtual or real. One batch is gathered at a time; as many are with the
function at once as the scaling allows.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tarry.simulator.filters import Filters
from tarry.simulator.history import History
from tarry.simulator.invocations import FunctionHost, InvocationResult, WholeBatchFailed, failed_ids
from tarry.simulator.mapping_settings import MappingSettings
from tarry.simulator.scaling import Scaling
from tarry.simulator.timeline import Timeline, Timer
from tarry.sqs.received import event_record
from tarry.support.arn import QueueArn
from tarry.tooling.queues import region_of

Message = dict[str, Any]

MAX_EVENT_BYTES = 6 * 1024 * 1024
MOST_PER_REQUEST = 10
PAUSE_SECONDS = 1.0
"""After a request to SQS that failed."""
THROTTLE_PAUSE_SECONDS, MAX_THROTTLE_PAUSE_SECONDS = 1.0, 30.0
EVENT_OVERHEAD_BYTES = len('{"Records": []}')


class QueuePort(Protocol):
    """A mapping's way to its queue. What it answers, it answers on the timeline, later."""

    def receive(self, most: int, then: Callable[[list[Message] | Exception], None]) -> None:
        """Receive up to ``most`` messages (10 at most), with all their attributes."""

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        """Delete up to ten messages."""

    def on_change(self, look: Callable[[], None]) -> None:
        """Call ``look`` whenever there may be something to receive; nothing else makes an idle mapping ask again.

        A port that cannot be told of changes polls: it calls ``look`` after each empty answer to a long poll.
        """


class GatheredBatch:
    """Messages that go to the function together. ``until``: when the first of them is visible again."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.records: list[dict[str, Any]] = []
        self.bytes = EVENT_OVERHEAD_BYTES
        self.throttles = 0

    @property
    def ids(self) -> list[str]:
        return [record["messageId"] for record in self.records]

    @property
    def groups(self) -> set[str]:
        return {record["attributes"].get("MessageGroupId", "") for record in self.records}


class EventSourceMapping:
    """One mapping, from its queue to its function. It begins with `start`."""

    def __init__(
        self,
        timeline: Timeline,
        queue: QueuePort,
        function: FunctionHost,
        history: History,
        settings: MappingSettings,
    ) -> None:
        self.settings = settings
        self._timeline = timeline
        self._queue = queue
        self._function = function
        self._history = history
        self._filters = Filters(settings.filters)
        self._region = region_of(settings.queue_arn)
        self._name = QueueArn(settings.queue_arn).name
        self._scaling = Scaling(settings.maximum_concurrency, is_fifo=settings.is_fifo)
        self._stopped = True
        self._receiving = False
        self._look_again = False
        self._gathering: GatheredBatch | None = None
        self._window: Timer | None = None
        self._more_room: Timer | None = None
        self._ready: deque[GatheredBatch] = deque()
        self._running: list[GatheredBatch] = []
        queue.on_change(self._look)

    def start(self) -> None:
        """Poll from now on."""
        self._stopped = False
        self._look()

    def stop(self) -> None:
        """Poll no more. What is with the function is still answered for."""
        self._stopped = True

    # receiving

    def _look(self) -> None:
        """Receive, if there is room for one more batch."""
        if self._receiving:
            self._look_again = True
        elif not self._stopped and self._has_room():
            self._receiving, self._look_again = True, False
            gathered = len(self._gathering.records) if self._gathering else 0
            most = min(MOST_PER_REQUEST, self.settings.batch_size - gathered)
            self._queue.receive(most, partial(self._received, self._timeline.now))

    def _has_room(self) -> bool:
        now = self._timeline.now
        if self._gathering or len(self._running) + len(self._ready) < self._scaling.limit(now):
            return True
        when = self._scaling.more_wanted(now)
        if when is not None and self._more_room is None:
            self._more_room = self._timeline.at(when, self._on_more_room)
        return False

    def _on_more_room(self) -> None:
        self._more_room = None
        self._launch()
        self._look()

    def _received(self, asked_at: float, messages: list[Message] | Exception) -> None:
        self._receiving = False
        if isinstance(messages, Exception):
            self._timeline.after(PAUSE_SECONDS, self._look)
        elif messages:
            self._gather(self._wanted(messages, asked_at), asked_at)
            self._look()
        elif self._look_again:
            self._look()
        else:
            self._scaling.enough(self._timeline.now, len(self._running))

    def _wanted(self, messages: list[Message], asked_at: float) -> list[Message]:
        """Those that match the filters; the others are deleted."""
        if not self._filters:
            return messages
        wanted: list[Message] = []
        unwanted: list[str] = []
        for message in messages:
            if self._filters.match(message["Body"]):
                wanted.append(message)
            else:
                unwanted.append(message["ReceiptHandle"])
                self._history.record("filtered", queue=self._name, delivery_id=message["MessageId"])
        self._delete(unwanted, self._visible_at(asked_at))
        return wanted

    def _gather(self, messages: list[Message], asked_at: float) -> None:
        settings = self.settings
        for message in messages:
            record = event_record(message, settings.queue_arn, self._region)
            size = len(json.dumps(record, ensure_ascii=False).encode()) + len(", ")
            if self._gathering and self._gathering.bytes + size > MAX_EVENT_BYTES:
                self._gathered()
            batch = self._gathering = self._gathering or GatheredBatch(self._visible_at(asked_at))
            batch.records.append(record)
            batch.bytes += size
        if self._gathering is None:
            return
        if not settings.window_seconds or len(self._gathering.records) >= settings.batch_size:
            self._gathered()
        elif self._window is None:
            self._window = self._timeline.at(asked_at + settings.window_seconds, self._gathered)

    def _gathered(self) -> None:
        """The batch is full, or its window has ended."""
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
        """Hand what is ready to the function, as far as there is room; on FIFO no group twice at once."""
        now = self._timeline.now
        waiting, self._ready = self._ready, deque()
        for batch in waiting:
            if batch.until <= now:
                self._dropped(batch)
            elif len(self._running) < self._scaling.limit(now) and not self._overtakes(batch):
                self._running.append(batch)
                self._invoke(batch)
            else:
                self._ready.append(batch)

    def _overtakes(self, batch: GatheredBatch) -> bool:
        """Whether a group of its is with the function, or waits before it."""
        if not self.settings.is_fifo:
            return False
        return any(batch.groups & ahead.groups for ahead in [*self._running, *self._ready])

    def _invoke(self, batch: GatheredBatch) -> None:
        self._function.invoke({"Records": batch.records}, partial(self._answered, batch))

    def _answered(self, batch: GatheredBatch, answer: InvocationResult) -> None:
        if answer.kind == "throttled":
            return self._throttled(batch)
        now, running = self._timeline.now, len(self._running)
        failed, why = self._failed(batch, answer)
        self._history.record(
            "answered",
            function=self.settings.function,
            queue=self._name,
            request_id=answer.request_id,
            kind=answer.kind,
            failed=[message_id for message_id in batch.ids if message_id in failed],
            why=why,
        )
        if answer.kind not in ("returned", "recursive"):
            self._scaling.failed(now, running)
        done = [record["receiptHandle"] for record in batch.records if record["messageId"] not in failed]
        self._running.remove(batch)
        self._delete(done, batch.until)
        self._launch()
        self._look()

    def _failed(self, batch: GatheredBatch, answer: InvocationResult) -> tuple[frozenset[str], str]:
        """The ids of those that go back to the queue, and why if all do."""
        ids = batch.ids
        if answer.kind != "returned":
            return frozenset(ids), answer.text
        if not self.settings.reports_failures:
            return frozenset(), ""
        try:
            return failed_ids(answer.value, ids), ""
        except WholeBatchFailed as error:
            return frozenset(ids), str(error)

    def _throttled(self, batch: GatheredBatch) -> None:
        """Try again, more and more slowly, until the messages are visible again; then they are dropped."""
        self._history.record("throttled", function=self.settings.function, queue=self._name, delivery_ids=batch.ids)
        pause = min(MAX_THROTTLE_PAUSE_SECONDS, THROTTLE_PAUSE_SECONDS * 2**batch.throttles)
        batch.throttles += 1
        again_at = self._timeline.now + pause
        if again_at < batch.until:
            self._timeline.at(again_at, partial(self._invoke, batch))
        else:
            self._timeline.at(batch.until, partial(self._give_up, batch))

    def _give_up(self, batch: GatheredBatch) -> None:
        self._running.remove(batch)
        self._dropped(batch)
        self._launch()
        self._look()

    def _dropped(self, batch: GatheredBatch) -> None:
        """Its messages are visible again, a receive older."""
        self._history.record("dropped", function=self.settings.function, queue=self._name, delivery_ids=batch.ids)

    # deleting

    def _delete(self, handles: list[str], until: float) -> None:
        for first in range(0, len(handles), MOST_PER_REQUEST):
            ten = handles[first : first + MOST_PER_REQUEST]
            self._queue.delete(ten, partial(self._deleted, ten, until))

    def _deleted(self, handles: list[str], until: float, error: Exception | None) -> None:
        if error is not None and self._timeline.now + PAUSE_SECONDS < until:
            self._timeline.after(PAUSE_SECONDS, partial(self._delete, handles, until))
