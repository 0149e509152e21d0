"""The inspection of a dead-letter queue: receive its messages, keep them in flight, release them at the end.

SQS can show a message only by delivering it. However an inspection ends, its messages are released. If the process is
killed, they become visible when their visibility timeouts end; these are therefore short, and extended during the
inspection.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import world
from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.delivery import Delivery
from tarry.errors import ConfigurationError
from tarry.failed.dead_letters import read_dead_letter
from tarry.failed.queues import ALL, find
from tarry.failed.requests import LOG, lookups
from tarry.sqs.deletes import delete
from tarry.sqs.limits import MAX_ENTRIES, tens
from tarry.sqs.refusals import error_code, is_stale_handle
from tarry.telemetry.logs import WARNING
from tarry.visibility.changes import VisibilityChange, change_visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.queues import DeadLetterQueue
    from tarry.world import Event, Thread

KEEPALIVE_SECONDS = 5.0
INTERVALS = 3
"""A visibility timeout lasts this many keepalive intervals, so two extensions may fail."""
MESSAGES_PER_SECOND = 50
"""Timeouts get longer with more messages in flight, so that at most this many (five requests) are extended a second."""
WAIT_SECONDS = 1
"""The wait of a poll; a long poll asks all servers of SQS."""
MAX_EMPTY_POLLS = 2
"""The number of polls in a row without a new message that end an inspection."""
MAX_IN_FLIGHT = 100_000
"""Below SQS's limit of 120,000 messages in flight, to leave some to other consumers of the queue."""


class InFlightDeadLetter(NamedTuple):
    """The last delivery of a dead letter, and when its visibility timeout ends (epoch seconds)."""

    delivery: Delivery
    until: float


class Inspection:
    """A dead-letter queue under inspection. Made by `opened`."""

    def __init__(self, queue: DeadLetterQueue, keepalive: float, stop: Callable[[], bool]) -> None:
        if isinstance(keepalive, bool) or not 1 <= keepalive <= MAX_VISIBILITY_SECONDS / INTERVALS:
            raise ConfigurationError(f"keepalive must be from 1 to 14400 seconds, got {keepalive!r}")
        self.queue = queue
        self.is_full = False
        """Whether it has ended because no more messages can be in flight at once."""
        self.done: set[str] = set()
        """The stable ids that were handled, and are not offered again, even if dead-lettered again in the meantime."""
        self.not_offered = 0
        """The number of dead letters skipped for that reason: duplicates, or dead-lettered again."""
        self.stopped_groups: dict[tuple[str, str], str] = {}
        """FIFO groups (queue ARN and group id) that are sent no more messages, and the id of the one that failed."""
        self.not_released = 0
        """The number of dead letters that were not released: they become visible when their visibility timeout ends."""
        self.released = 0
        """The number of dead letters that the last release made visible again."""
        self.lookups = lookups()
        self._stop = stop
        self._every = keepalive
        self._world = world.current()
        self._in_flight: dict[str, InFlightDeadLetter] = {}
        self._seen: set[str] = set()
        self._counted: set[str] = set()
        self._ended: Event | None = None
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<Inspection of {self.queue.name}: {self.scanned} scanned>"

    @property
    def scanned(self) -> int:
        """The number of dead letters received, each counted once."""
        return len(self._counted)

    @property
    def is_stopped(self) -> bool:
        """Whether the inspection should stop."""
        return self._stop()

    # receiving

    def polls(self, most: int = MAX_ENTRIES, total: float = math.inf) -> Iterator[list[DeadLetterMessage]]:
        """Receive new dead letters, ``most`` at a time and ``total`` in all, until no more come."""
        empty_polls, left = 0, total
        while left > 0 and empty_polls < MAX_EMPTY_POLLS and not self.is_stopped and not self.is_full:
            dead_letters = [
                dead_letter
                for received in self._receive(int(min(most, left)))
                for dead_letter in self._register(received)
            ]
            empty_polls, left = 0 if dead_letters else empty_polls + 1, left - len(dead_letters)
            if dead_letters:
                yield dead_letters

    def dead_letters(self) -> Iterator[DeadLetterMessage]:
        """Receive new dead letters one at a time, each when it is asked for.

        On FIFO ten are received at a time: SQS delivers no further message of a group that has one in flight.
        """
        for dead_letters in self.polls(MAX_ENTRIES if self.queue.arn.is_fifo else 1):
            for dead_letter in dead_letters:
                if self.is_stopped:
                    return
                yield dead_letter

    def _receive(self, most: int) -> list[dict[str, Any]]:
        seconds, arn = self._lease_seconds(), self.queue.arn
        asked_at = self._world.clock.time()

        def poll(number: int) -> dict[str, Any]:
            return self.lookups.requests.call(
                "receive_message",
                QueueUrl=self.lookups.url(arn),
                MaxNumberOfMessages=number,
                VisibilityTimeout=seconds,
                WaitTimeSeconds=WAIT_SECONDS,
                MessageSystemAttributeNames=ALL,
                MessageAttributeNames=ALL,
            )

        sizes = [min(MAX_ENTRIES, most - start) for start in range(0, most, MAX_ENTRIES)]
        answers = self.lookups.requests.all([partial(poll, size) for size in sizes])
        received = [each for answer in answers if isinstance(answer, dict) for each in answer.get("Messages", [])]
        for each in received:
            each["until"] = asked_at + seconds
        for answer in answers:
            if isinstance(answer, Exception):
                if error_code(answer) != "OverLimit":
                    for each in received:  # to be released in the end
                        self._register(each)
                    raise answer
                self.is_full = True
        return received

    def _register(self, received: dict[str, Any]) -> list[DeadLetterMessage]:
        """Record the delivery, with its receipt handle; return the dead letter if it is new."""
        dead_letter = read_dead_letter(received, self.queue.arn, self._world.clock.time())
        delivery = Delivery(dict(dead_letter.record), dead_letter.delivery_id, self.lookups.requests.invocation)
        self._in_flight[dead_letter.delivery_id] = InFlightDeadLetter(delivery, received["until"])
        self.is_full = self.is_full or len(self._in_flight) >= MAX_IN_FLIGHT
        if dead_letter.delivery_id in self._seen:
            return []
        self._seen.add(dead_letter.delivery_id)
        self._counted.add(dead_letter.delivery_id)
        return [dead_letter]

    # in flight

    def delivery(self, dead_letter: DeadLetterMessage) -> Delivery | None:
        """Return the last delivery; None if the message was deleted, or another consumer received it."""
        in_flight = self._in_flight.get(dead_letter.delivery_id)
        if in_flight is not None and in_flight.until - self._world.clock.time() < self._every:
            self._extend([in_flight])
            in_flight = self._in_flight.get(dead_letter.delivery_id)
        return None if in_flight is None else in_flight.delivery

    def forget(self, dead_letters: Iterable[DeadLetterMessage]) -> None:
        """Forget deleted dead letters, which need no release."""
        for dead_letter in dead_letters:
            self._in_flight.pop(dead_letter.delivery_id, None)

    def delete(self, dead_letters: Sequence[DeadLetterMessage]) -> dict[str, Exception | None]:
        """Delete dead letters; return the errors by delivery id (None: another consumer has it)."""
        errors: dict[str, Exception | None] = {}
        messages = []
        for dead_letter in dead_letters:
            delivery = self.delivery(dead_letter)
            if delivery is None:
                errors[dead_letter.delivery_id] = None
            else:
                messages.append(delivery)
        chunks = list(tens(messages))
        answers = self.lookups.requests.all([partial(delete, chunk, self.lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            if isinstance(answer, Exception):
                errors |= dict.fromkeys((each.delivery_id for each in chunk), answer)
            else:
                errors |= answer
        self.forget(dead_letter for dead_letter in dead_letters if dead_letter.delivery_id not in errors)
        return errors

    def release(self, keep: Collection[str] = ()) -> None:
        """Release all dead letters but those with the delivery ids in ``keep``; count the failures."""
        with self._not_extending():
            released = [each for delivery_id, each in self._in_flight.items() if delivery_id not in keep]
            changes = [VisibilityChange(each.delivery, 0) for each in released]
            self.released = 0
            for changed in change_visibility(changes, self.queue.arn, self.lookups):
                self._in_flight.pop(changed.change.delivery.delivery_id, None)
                self._seen.discard(changed.change.delivery.delivery_id)  # it can be offered again
                self.released += changed.error is None
                self.not_released += changed.error is not None and not is_stale_handle(changed.error)

    def _lease_seconds(self) -> int:
        seconds = max(self._every * INTERVALS, len(self._in_flight) / MESSAGES_PER_SECOND)
        return min(MAX_VISIBILITY_SECONDS, math.ceil(seconds))

    # the thread that extends

    def open(self) -> None:
        """Start to extend the visibility timeouts."""
        self._ended = self._world.threads.event()
        self._thread = self._world.threads.start(partial(self._keep_alive, self._ended))

    def close(self) -> None:
        """Stop extending, and wait for the current request: a later extension would undo a release."""
        if self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join()
        self._ended = self._thread = None

    @contextmanager
    def _not_extending(self) -> Iterator[None]:
        was_open = self._thread is not None
        self.close()
        try:
            yield
        finally:
            if was_open:
                self.open()

    def _keep_alive(self, ended: Event) -> None:
        while not ended.wait(self._every):
            try:
                horizon = self._world.clock.time() + self._every * (INTERVALS - 1)
                self._extend([each for each in list(self._in_flight.values()) if each.until <= horizon])
            except Exception as error:  # noqa: BLE001 the thread goes on after an error
                LOG.problem("runtime_failed", "visibility of dead letters not extended", error=error, level=WARNING)

    def _extend(self, due: Sequence[InFlightDeadLetter]) -> None:
        if not due:
            return
        seconds, asked_at = self._lease_seconds(), self._world.clock.time()
        changes = [VisibilityChange(each.delivery, seconds) for each in due]
        for changed in change_visibility(changes, self.queue.arn, self.lookups):
            delivery = changed.change.delivery
            current = self._in_flight.get(delivery.delivery_id)
            if current is None or current.delivery is not delivery:
                continue  # deleted, released or received again in the meantime
            if changed.error is None:
                self._in_flight[delivery.delivery_id] = InFlightDeadLetter(delivery, asked_at + changed.change.seconds)
            elif changed.is_lost:
                del self._in_flight[delivery.delivery_id]


@contextmanager
def opened(
    name_or_url: str | DeadLetterQueue,
    *,
    keepalive: float = KEEPALIVE_SECONDS,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Inspection]:
    """Open a dead-letter queue for inspection; release all messages when the context ends.

    Args:
        name_or_url: The name, URL or ARN of the queue, or the result of `find`.
        keepalive: The interval in seconds, 1 to 14400, at which visibility timeouts are extended. They last three
            intervals; messages stay invisible that long if the process is killed.
        stop: Called before each step; if it returns True, the operation ends after the current messages.

    Raises:
        UnknownQueue: the queue does not exist.
        ConfigurationError: ``keepalive`` is out of range.
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    inspection = Inspection(name_or_url if not isinstance(name_or_url, str) else find(name_or_url), keepalive, stop)
    inspection.open()
    try:
        yield inspection
    finally:
        inspection.close()
        inspection.release()
