"""The inspection of a dead-letter queue: receive its messages, keep them in flight, release them at the end.

SQS can show a message only by delivering it. However an inspection ends, its messages are released. If the process is
killed, they become visible when their visibility timeouts end; these are therefore short, and extended during the
inspection.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tarry import world
from tarry.errors import ConfigurationError
from tarry.failed.dead_letters import read_dead_letter
from tarry.failed.leases import INTERVALS, Leases
from tarry.failed.queues import ALL, find
from tarry.failed.requests import LOG, PatientRequests
from tarry.message.delivery import Delivery
from tarry.settle.requests import delete
from tarry.sqs.client import Lookups
from tarry.sqs.refusals import MAX_ENTRIES, Unconfirmed, error_code, failed_entries, may_be_applied, tens
from tarry.support.values import MAX_VISIBILITY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.queues import DeadLetterQueue
    from tarry.failed.selection import Selection


class HandledIds:
    """The stable ids of the dead letters that were handled, or are being handled in a thread."""

    def __init__(self) -> None:
        self._sent_at: dict[str, int] = {}
        """When each dead letter was sent, in milliseconds by the clock of SQS."""
        self._repeated: set[str] = set()
        self._returned: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, own_id: str) -> bool:
        return own_id in self._sent_at

    @property
    def repeated(self) -> int:
        """The number of dead letters whose id was handled before: duplicates, or dead-lettered again."""
        return len(self._repeated)

    @property
    def returned(self) -> int:
        """The number of these that were sent later than the one that was handled: they were dead-lettered again."""
        return len(self._returned)

    def claim(self, dead_letter: DeadLetterMessage) -> bool:
        """Mark an id as handled; return False if it was handled before."""
        with self._lock:
            if dead_letter.id in self._sent_at:
                return False
            self._sent_at[dead_letter.id] = _sent_milliseconds(dead_letter)
            return True

    def unclaim(self, dead_letter: DeadLetterMessage) -> None:
        self._sent_at.pop(dead_letter.id, None)

    def count_repeated(self, dead_letter: DeadLetterMessage) -> None:
        self._repeated.add(dead_letter.delivery_id)
        if self.is_returned(dead_letter):
            self._returned.add(dead_letter.delivery_id)

    def is_returned(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether it was handled before, and is a later dead letter with the same id."""
        before = self._sent_at.get(dead_letter.id)
        return before is not None and _sent_milliseconds(dead_letter) > before


def _sent_milliseconds(dead_letter: DeadLetterMessage) -> int:
    return int(dead_letter.record["attributes"].get("SentTimestamp", 0))


T = TypeVar("T")

KEEPALIVE_SECONDS = 5.0
WAIT_SECONDS = 1
"""The wait of a poll; a long poll asks all servers of SQS."""
MAX_EMPTY_POLLS = 2
"""The number of polls in a row without a new message that end an inspection."""
ROUNDS = 25
"""The polls for each thread of `Inspection.in_threads` before the results of all are yielded. In between the threads
wait for the slowest of them.
"""
MAX_IN_FLIGHT = 100_000
"""Below SQS's limit of 120,000 messages in flight, to leave some to other consumers of the queue."""


class InspectionRequests(PatientRequests):
    """The requests of an inspection. Its leases know which dead letters are being deleted."""

    leases: Leases

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation == "send_message_batch":  # `send_patiently` repeats it, if the leases have not ended
            return self._call(operation, parameters)
        return super().call(operation, **parameters)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation != "delete_message_batch":
            return super()._call(operation, parameters)
        handles = [each["ReceiptHandle"] for each in parameters["Entries"]]
        lasted = self.leases.begin_delete(handles)
        try:
            answer = super()._call(operation, parameters)
            if len(answer.get("Successful") or []) + len(answer.get("Failed") or []) < len(handles):
                raise Unconfirmed("its answer does not name each message")
        except BaseException as error:
            self.leases.end_delete(handles, (), handles if _is_refusal(error) else ())
            raise
        failed = {handles[int(index)]: error for index, error in failed_entries(answer).items()}
        refused = [each for each, error in failed.items() if _is_refusal(error)]
        self.leases.end_delete(handles, lasted.difference(failed), refused)
        return answer


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, Exception) and not may_be_applied(error)


class Inspection:
    """A dead-letter queue under inspection. Made by `opened`."""

    def __init__(
        self,
        queue: DeadLetterQueue,
        keepalive: float,
        longest: float,
        stop: Callable[[], bool],
        before_change: Callable[[], None],
    ) -> None:
        if isinstance(keepalive, bool) or not 1 <= keepalive <= MAX_VISIBILITY_SECONDS / INTERVALS:
            raise ConfigurationError(f"keepalive must be from 1 to 14400 seconds, got {keepalive!r}")
        if isinstance(longest, bool) or not 1 <= longest <= MAX_VISIBILITY_SECONDS:
            raise ConfigurationError(f"longest must be from 1 to 43200 seconds, got {longest!r}")
        self.queue = queue
        self.most_in_flight = max(MAX_ENTRIES, MAX_IN_FLIGHT - queue.in_flight)
        """The number of dead letters that it receives at most without deleting or releasing some."""
        self.is_full = False
        """Whether it has ended because no more messages can be in flight at once."""
        self.is_outrun = False
        """Whether it has ended because dead letters became visible again faster than all could be received: the last
        receives brought as many known ones as there are, and no new one.
        """
        self.handled = HandledIds()
        self.stopped_groups: dict[tuple[str, str], str] = {}
        """FIFO groups (queue ARN and group id) that are sent no more messages, and the id of the one that failed."""
        self._requests = InspectionRequests()
        self.before_change = before_change
        """Called before dead letters are sent or deleted."""
        self.lookups = Lookups(self._requests, LOG)
        self.leases = Leases(queue.arn, self.lookups, keepalive, longest, world.current())
        self._requests.leases = self.leases
        self._stop = stop
        self._world = world.current()
        self._seen: set[str] = set()
        self._counted: set[str] = set()
        self._forgotten = 0
        self._chosen = 0
        self._newer: set[str] = set()
        self._choosing = Lock()
        self._repeats = 0

    def __repr__(self) -> str:
        return f"<Inspection of {self.queue.name}: {self.scanned} scanned>"

    @property
    def scanned(self) -> int:
        """The number of dead letters received, each counted once."""
        return len(self._counted)

    @property
    def requests(self) -> int:
        """The number of requests to SQS so far."""
        return self._requests.made + self.leases.requests

    @property
    def newer(self) -> int:
        """The number of dead letters that a selection left because they came after its preview."""
        return len(self._newer)

    def chooses(self, dead_letter: DeadLetterMessage, selection: Selection) -> bool:
        """Whether a selection selects the dead letter, which it then counts as chosen, or as newer."""
        if not selection.matches(dead_letter):
            return False
        with self._choosing:
            if selection.is_new(dead_letter, self._chosen):
                self._newer.add(dead_letter.delivery_id)
                return False
            self._chosen += 1
            return True

    @property
    def is_stopped(self) -> bool:
        """Whether the inspection should stop."""
        return self._stop()

    # receiving

    def polls(self, most: int = MAX_ENTRIES, total: float = math.inf) -> Iterator[list[DeadLetterMessage]]:
        """Receive new dead letters, ``most`` at a time and ``total`` in all, until no more come."""
        empty_polls, left = 0, total
        while left > 0 and empty_polls < MAX_EMPTY_POLLS and not self.is_stopped and not self.is_full:
            dead_letters = self.poll(int(min(most, left)))
            empty_polls, left = 0 if dead_letters else empty_polls + 1, left - len(dead_letters)
            if dead_letters:
                yield dead_letters

    def in_threads(
        self,
        work: Callable[[list[DeadLetterMessage]], Iterable[T]],
        number: int,
        size: int = MAX_ENTRIES,
        goes_on: Callable[[], bool] = lambda: True,
        rounds: int = ROUNDS,
    ) -> Iterator[list[T]]:
        """Receive and work in ``number`` threads, each ``size`` dead letters at a time, until no more come.

        While one thread waits for SQS, the others work. Yield the results of ``rounds`` polls for each thread at a
        time; in between no thread runs. An error is raised once the results before it are yielded. ``goes_on``: asked
        by each thread before it receives.
        """
        empty, lock = 0, Lock()
        while empty < MAX_EMPTY_POLLS and goes_on() and not self.is_stopped and not self.is_full:
            results: list[T] = []
            left = math.ceil((self.queue.about - len(self.leases)) / size)
            threads = 1 if empty else max(1, min(number, left))  # after an empty poll, one asks whether there are more
            polls = iter(range(threads * rounds if number > 1 else 1))

            def work_on(results: list[T] = results, polls: Iterator[int] = polls) -> None:
                nonlocal empty
                for _ in polls:
                    if self.is_stopped or self.is_full or not goes_on():
                        return
                    dead_letters = self.poll(size, None, goes_on)
                    with lock:
                        empty = 0 if dead_letters else empty + 1
                    if not dead_letters:
                        return
                    results.extend(work(dead_letters))
                    if self.queue.arn.is_fifo:
                        empty = 0  # only now does SQS deliver the next messages of the groups that were worked on

            ended = self.lookups.requests.all([work_on] * threads)
            yield results
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    def poll(
        self, most: int = MAX_ENTRIES, wait: int | None = None, goes_on: Callable[[], bool] = lambda: True
    ) -> list[DeadLetterMessage]:
        """Receive new dead letters, waiting up to ``wait`` seconds for one.

        Known ones, whose visibility timeouts have ended, are in flight again, and others are received if ``goes_on``.
        """
        while True:
            received = self._receive(most, WAIT_SECONDS if wait is None else wait)
            found = [dead_letter for each in received for dead_letter in self._register(each)]
            self._repeats = 0 if found or not received else self._repeats + len(received)
            self.is_outrun = self._repeats > 0 and self._repeats >= len(self._seen) - self._forgotten
            if found or not received or self.is_outrun or self.is_full or self.is_stopped or not goes_on():
                return found

    def dead_letters(self) -> Iterator[DeadLetterMessage]:
        """Receive new dead letters one at a time, each when it is asked for.

        On FIFO ten are received at a time: SQS delivers no further message of a group that has one in flight.
        """
        for dead_letters in self.polls(MAX_ENTRIES if self.queue.arn.is_fifo else 1):
            for dead_letter in dead_letters:
                if self.is_stopped:
                    return
                yield dead_letter

    def _receive(self, most: int, wait: int) -> list[dict[str, Any]]:
        seconds, arn = self.leases.seconds(), self.queue.arn

        def poll(number: int) -> list[dict[str, Any]]:
            answer = self._requests.call(
                "receive_message",
                QueueUrl=self.lookups.url(arn),
                MaxNumberOfMessages=number,
                VisibilityTimeout=seconds,
                WaitTimeSeconds=wait,
                MessageSystemAttributeNames=ALL,
                MessageAttributeNames=ALL,
            )
            # An answer comes soon after the delivery, which may be at the end of a wait as long as the timeout.
            since = max(self._requests.asked_at, self._world.clock.time() - seconds / INTERVALS)
            lease = {"since": since, "seconds": seconds}
            return [{**each, "lease": lease} for each in answer.get("Messages", [])]

        sizes = [min(MAX_ENTRIES, most - start) for start in range(0, most, MAX_ENTRIES)]
        answers = self.lookups.requests.all([partial(poll, size) for size in sizes])
        received = [each for answer in answers if isinstance(answer, list) for each in answer]
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
        self.leases.add(dead_letter.delivery_id, received["ReceiptHandle"], **received["lease"])
        self.is_full = self.is_full or len(self.leases) >= self.most_in_flight
        if dead_letter.delivery_id in self._seen:
            return []
        self._seen.add(dead_letter.delivery_id)
        self._counted.add(dead_letter.delivery_id)
        return [dead_letter]

    # in flight

    def delivery(self, dead_letter: DeadLetterMessage) -> Delivery | None:
        """Return the last delivery; None if the message was deleted, or another consumer received it."""
        handle = self.leases.handle(dead_letter.delivery_id)
        if handle is None:
            return None
        record = {**dead_letter.record, "receiptHandle": handle}
        return Delivery(record, dead_letter.delivery_id, self.lookups.requests.invocation)

    def may_be_deleted(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether a delete may have been carried out: SQS did not answer it, or its lease had ended before it."""
        return self.leases.is_unsure(dead_letter.delivery_id)

    def forget(self, dead_letters: Iterable[DeadLetterMessage]) -> None:
        """Forget deleted dead letters, which need no release."""
        self._forgotten += self.leases.forget(dead_letter.delivery_id for dead_letter in dead_letters)

    def delete(self, dead_letters: Sequence[DeadLetterMessage]) -> dict[str, Exception | None]:
        """Delete dead letters; return the errors by delivery id (None: its lease had ended, so it may be there)."""
        errors = self._delete(dead_letters)
        lost = [each for each in dead_letters if each.delivery_id in errors and errors[each.delivery_id] is None]
        if again := [each for each in lost if self.leases.handle(each.delivery_id)]:  # it was received again
            named = {each.delivery_id for each in again}
            errors = {name: error for name, error in errors.items() if name not in named} | self._delete(again)
        self.forget(dead_letter for dead_letter in dead_letters if dead_letter.delivery_id not in errors)
        return errors

    def _delete(self, dead_letters: Sequence[DeadLetterMessage]) -> dict[str, Exception | None]:
        deliveries = {each.delivery_id: self.delivery(each) for each in dead_letters}
        errors: dict[str, Exception | None] = {name: None for name, each in deliveries.items() if each is None}
        chunks = list(tens([each for each in deliveries.values() if each is not None]))
        answers = self.lookups.requests.all([partial(delete, chunk, self.lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            if isinstance(answer, Exception):
                errors |= dict.fromkeys((each.delivery_id for each in chunk), answer)
            else:
                errors |= answer | {
                    each.delivery_id: None
                    for each in chunk
                    if each.delivery_id not in answer and self.leases.is_unsure(each.delivery_id)
                }
        return errors

    def release(self, keep: Collection[str] = ()) -> None:
        """Release all dead letters but those with the delivery ids in ``keep``; they can be received again."""
        for delivery_id in self.leases.release(keep):
            self._seen.discard(delivery_id)

    def begin_again(self, keep: Collection[str] = ()) -> None:
        """Release all dead letters but those in ``keep``, to receive again those that were not handled."""
        self.release(keep)
        self.is_full = False


@contextmanager
def opened(
    name_or_url: str | DeadLetterQueue,
    *,
    keepalive: float = KEEPALIVE_SECONDS,
    longest: float = MAX_VISIBILITY_SECONDS,
    stop: Callable[[], bool] = lambda: False,
    before_change: Callable[[], None] = lambda: None,
) -> Iterator[Inspection]:
    """Open a dead-letter queue for inspection; release all messages when the context ends.

    Args:
        name_or_url: The name, URL or ARN of the queue, or the result of `find`.
        keepalive: A third of a visibility timeout in seconds, 1 to 14400; each is extended once a third has
            passed. They get longer with thousands in flight. If the process is killed, messages stay invisible that
            long.
        longest: The longest visibility timeout in seconds, from 1, however many are in flight. Dead letters whose
            timeouts cannot be extended in time become visible, and are received again.
        stop: Called before each step; if it returns True, the operation ends after the current messages.
        before_change: Called before dead letters are sent or deleted, also from several threads. If it raises, they are
            not: this is where an audit is begun.

    Raises:
        UnknownQueue: the queue does not exist.
        ConfigurationError: ``keepalive`` or ``longest`` is out of range.
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    queue = find(name_or_url) if isinstance(name_or_url, str) else name_or_url
    inspection = Inspection(queue, keepalive, longest, stop, before_change)
    inspection.leases.open()
    try:
        yield inspection
    finally:
        inspection.leases.close()
        inspection.release()
