"""The inspection of a dead-letter queue: its messages are received, kept invisible, and released in the end.

SQS shows a message only by delivering it. However an inspection ends, its messages are released. Only a killed process
leaves that to the visibility timeout, which is therefore short, and extended for as long as the inspection lasts.
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
"""What is held is held for so many keepalives: two extensions may fail."""
HELD_A_SECOND = 50
"""Held longer where many are held, so that extending them takes at most five requests a second."""
WAIT_SECONDS = 1
"""How long a poll waits for a letter; one that waits asks all of SQS's servers."""
POLLS_IN_VAIN = 2
"""Polls that bring nothing new, after which there is nothing more to be seen."""
MOST_HELD = 100_000
"""Of the 120,000 that a queue can have in flight: consumers of the queue, if it has any, keep some."""


class HeldDeadLetter(NamedTuple):
    """A dead letter that was received, and until when it is invisible to other consumers."""

    delivery: Delivery
    until: float


class Inspection:
    """A dead-letter queue that is being inspected. Made by `opened`."""

    def __init__(self, queue: DeadLetterQueue, keepalive: float, stop: Callable[[], bool]) -> None:
        if isinstance(keepalive, bool) or not 1 <= keepalive <= MAX_VISIBILITY_SECONDS / INTERVALS:
            raise ConfigurationError(f"keepalive is from 1 to 14400 seconds, got {keepalive!r}")
        self.queue = queue
        self.is_full = False
        """Whether it has ended since SQS, or tarry, lets no more be held at once."""
        self.done: set[str] = set()
        """The stable ids that were handled: not offered again, even if dead-lettered again meanwhile."""
        self.not_offered = 0
        """Dead letters that were skipped for that reason: duplicates, or dead-lettered again."""
        self.stopped_groups: dict[tuple[str, str], str] = {}
        """Groups of FIFO queues (by ARN and group id) in which nothing more is sent, since this letter was not."""
        self.not_released = 0
        """Dead letters that could not be released: they become visible when their visibility timeout ends."""
        self.lookups = lookups()
        self._stop = stop
        self._every = keepalive
        self._world = world.current()
        self._held: dict[str, HeldDeadLetter] = {}
        self._seen: set[str] = set()
        self._counted: set[str] = set()
        self._ended: Event | None = None
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<Inspection of {self.queue.name}: {self.scanned} scanned>"

    @property
    def scanned(self) -> int:
        """How many dead letters were received, each counted once."""
        return len(self._counted)

    @property
    def is_stopped(self) -> bool:
        """Whether the inspection was told to stop."""
        return self._stop()

    # looking

    def polls(self, most: int = MAX_ENTRIES, total: float = math.inf) -> Iterator[list[DeadLetterMessage]]:
        """Receive new dead letters, ``most`` at a time and ``total`` in all, until no more come."""
        in_vain, left = 0, total
        while left > 0 and in_vain < POLLS_IN_VAIN and not self.is_stopped and not self.is_full:
            dead_letters = [
                dead_letter for received in self._receive(int(min(most, left))) for dead_letter in self._take(received)
            ]
            in_vain, left = 0 if dead_letters else in_vain + 1, left - len(dead_letters)
            if dead_letters:
                yield dead_letters

    def dead_letters(self) -> Iterator[DeadLetterMessage]:
        """The same one by one, each received when it is asked for; on FIFO ten, since none follows a held one."""
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
                    for each in received:  # they are held, and nobody else knows of them
                        self._take(each)
                    raise answer
                self.is_full = True
        return received

    def _take(self, received: dict[str, Any]) -> list[DeadLetterMessage]:
        """Return the dead letter if it is new; remember the newest receipt handle of one that came back."""
        dead_letter = read_dead_letter(received, self.queue.arn, self._world.clock.time())
        delivery = Delivery(dict(dead_letter.record), dead_letter.delivery_id, self.lookups.requests.invocation)
        self._held[dead_letter.delivery_id] = HeldDeadLetter(delivery, received["until"])
        self.is_full = self.is_full or len(self._held) >= MOST_HELD
        if dead_letter.delivery_id in self._seen:
            return []
        self._seen.add(dead_letter.delivery_id)
        self._counted.add(dead_letter.delivery_id)
        return [dead_letter]

    # holding

    def delivery(self, dead_letter: DeadLetterMessage) -> Delivery | None:
        """The dead letter as it was received last; None if it was deleted, or another consumer received it."""
        held = self._held.get(dead_letter.delivery_id)
        if held is not None and held.until - self._world.clock.time() < self._every:
            self._extend([held])
            held = self._held.get(dead_letter.delivery_id)
        return None if held is None else held.delivery

    def forget(self, dead_letters: Iterable[DeadLetterMessage]) -> None:
        """Forget deleted dead letters: there is nothing to release."""
        for dead_letter in dead_letters:
            self._held.pop(dead_letter.delivery_id, None)

    def delete(self, dead_letters: Sequence[DeadLetterMessage]) -> dict[str, Exception | None]:
        """Delete dead letters; return the errors by delivery id (None: another consumer has it)."""
        kept: dict[str, Exception | None] = {}
        messages = []
        for dead_letter in dead_letters:
            delivery = self.delivery(dead_letter)
            if delivery is None:
                kept[dead_letter.delivery_id] = None
            else:
                messages.append(delivery)
        chunks = list(tens(messages))
        answers = self.lookups.requests.all([partial(delete, chunk, self.lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            if isinstance(answer, Exception):
                kept |= dict.fromkeys((each.delivery_id for each in chunk), answer)
            else:
                kept |= answer
        self.forget(dead_letter for dead_letter in dead_letters if dead_letter.delivery_id not in kept)
        return kept

    def release(self, but: Collection[str] = ()) -> None:
        """Release all dead letters but these; one that fails waits for its visibility timeout."""
        with self._not_extending():
            going = [held for delivery_id, held in self._held.items() if delivery_id not in but]
            changes = [VisibilityChange(held.delivery, 0) for held in going]
            for hidden in change_visibility(changes, self.queue.arn, self.lookups):
                self._held.pop(hidden.change.delivery.delivery_id, None)
                self._seen.discard(hidden.change.delivery.delivery_id)  # and can be seen again
                self.not_released += hidden.error is not None and not is_stale_handle(hidden.error)

    def _lease_seconds(self) -> int:
        return min(MAX_VISIBILITY_SECONDS, math.ceil(max(self._every * INTERVALS, len(self._held) / HELD_A_SECOND)))

    # the thread that extends

    def open(self) -> None:
        """Start to extend the visibility timeouts."""
        self._ended = self._world.threads.event()
        self._thread = self._world.threads.start(partial(self._keep_alive, self._ended))

    def close(self) -> None:
        """Stop extending, and wait for a request under way: a later extension would hide what was released."""
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
                self._extend([held for held in list(self._held.values()) if held.until <= horizon])
            except Exception as error:  # noqa: BLE001 it must not end with one bad answer
                LOG.problem("runtime_failed", "visibility of dead letters was not extended", error=error, level=WARNING)

    def _extend(self, due: Sequence[HeldDeadLetter]) -> None:
        if not due:
            return
        seconds, asked_at = self._lease_seconds(), self._world.clock.time()
        changes = [VisibilityChange(held.delivery, seconds) for held in due]
        for hidden in change_visibility(changes, self.queue.arn, self.lookups):
            delivery = hidden.change.delivery
            held = self._held.get(delivery.delivery_id)
            if held is None or held.delivery is not delivery:
                continue  # done with meanwhile, or received once more
            if hidden.error is None:
                self._held[delivery.delivery_id] = HeldDeadLetter(delivery, asked_at + hidden.change.seconds)
            elif hidden.is_lost:
                del self._held[delivery.delivery_id]


@contextmanager
def opened(
    name_or_url: str | DeadLetterQueue,
    *,
    keepalive: float = KEEPALIVE_SECONDS,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Inspection]:
    """Opens a dead-letter queue for a look; in the end, however it comes, what is held is shown again.

    ``keepalive``: every so many seconds what is held is held anew, for three times as long: so long what was held stays
    hidden if this process is killed. ``stop`` is asked before each step: True ends the work when what is at hand is
    done.

    Raises `UnknownQueue`, and whatever botocore raises.
    """
    inspection = Inspection(name_or_url if not isinstance(name_or_url, str) else find(name_or_url), keepalive, stop)
    inspection.open()
    try:
        yield inspection
    finally:
        inspection.close()
        inspection.release()
