"""Acknowledged messages deleted while the batch still runs, so that a later crash does not repeat them (SPEC G3).

They are deleted ten at a time, or after a second. A failed delete loses nothing: Lambda deletes the message when the
invocation returns.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from tarry.settle.requests import SHARE, delete, patience, tens_by_queue
from tarry.sqs.client import Lookups, Requests, result_of, start
from tarry.sqs.refusals import MAX_ENTRIES, NoAnswer, error_code, has_answer, is_denied, is_late
from tarry.support.values import WARNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.world import Event

FLUSH_SECONDS = 1.0


class Acks:
    """The acknowledged messages of one batch. A thread deletes them when there are ten, or after a second."""

    # ``waits``: whether `add` waits until ten messages are deleted: only where no other handler runs in its thread.
    def __init__(self, invocation: Invocation, log: Log, *, waits: bool) -> None:
        self.together = MAX_ENTRIES  # the number of messages that makes a request worth sending
        self._lookups = Lookups(Requests(invocation), log)
        self._log = log
        self._waits = waits
        self._invocation = invocation
        self._threads = invocation.world.threads
        self._lock = threading.Lock()
        self._waiting: list[Delivery] = []
        self._notify: list[Event] = []
        self._some, self._enough = self._threads.event(), self._threads.event()
        self._has_thread = False
        self._is_over = False

    def add(self, delivery: Delivery) -> None:
        with self._lock:
            if self._is_over or not self._take(delivery):
                return
            self._waiting.append(delivery)
            self._some.set()
            if not self._has_thread:
                self._has_thread = True
                if not start(self._invocation.world, self._work):
                    self._is_over = True
            if len(self._waiting) < self.together:
                return
            deleted = self._threads.event()
            self._notify.append(deleted)
            self._enough.set()
        if self._waits:
            # After a wait in vain, the run waits for no further delete, since SQS hangs.
            self._waits = deleted.wait(patience(self._invocation))

    def delete_now(self, deliveries: Iterable[Delivery]) -> bool:
        """Delete messages, and all that wait, in parallel requests; return whether SQS answered in time."""
        with self._lock:
            self._waiting += [delivery for delivery in deliveries if self._take(delivery)]
        chunks, notify = self._requests()
        answers = self._lookups.requests.all([partial(self._delete, chunk) for chunk in chunks], SHARE)
        for event in notify:
            event.set()
        return not (self._is_over or any(isinstance(answer, NoAnswer) for answer in answers))

    def close(self) -> None:
        """Stop deleting; Lambda deletes the other messages when the invocation returns."""
        self._is_over = True
        self._some.set()
        self._enough.set()

    def _take(self, delivery: Delivery) -> bool:
        """Return whether to delete a message: not twice, nor if its lease is lost (another consumer may have it)."""
        if delivery.is_given_up or delivery.is_lost:
            return False
        delivery.is_given_up = True
        return True

    # in its own thread

    def _work(self) -> None:
        while not self._is_over:
            self._some.wait()
            self._enough.wait(FLUSH_SECONDS)
            chunks, notify = self._requests()
            for chunk in chunks:
                result_of(partial(self._delete, chunk))
            for event in notify:
                event.set()

    def _requests(self) -> tuple[list[Sequence[Delivery]], list[Event]]:
        """Take all waiting messages, cut into requests, with the events to set when the requests have ended."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            notify, self._notify = self._notify, []
            self._some.clear()
            self._enough.clear()
        return tens_by_queue(waiting, lambda delivery: delivery), notify

    def _delete(self, chunk: Sequence[Delivery]) -> None:
        if self._is_over or not (kept := delete(chunk, self._lookups)):
            return
        if len(kept) == len(chunk) and len({id(error) for error in kept.values()}) == 1:
            self._failed(next(iter(kept.values())), chunk)
            return
        for delivery in chunk:
            if (error := kept.get(delivery.delivery_id)) is not None:
                text = "The message is acknowledged, but it was not deleted. Lambda deletes it after the response."
                self._log_failure(text, delivery, error)

    def _failed(self, error: Exception, chunk: Sequence[Delivery]) -> None:
        """Log a request that failed as a whole. Stop deleting if the next one would fail too, or only cost time."""
        self._lookups.warn(error, "delete_message_batch", chunk[0].source)
        is_logged = is_denied(error_code(error)) or is_late(error)
        if is_logged or not has_answer(error):
            self.close()
        if not is_logged:
            text = f"{len(chunk)} acknowledged messages were not deleted. Lambda deletes them after the response."
            self._log_failure(text, None, error)

    def _log_failure(self, text: str, delivery: Delivery | None, error: Exception) -> None:
        self._log.problem("delete_failed", text, delivery, error=error, level=WARNING)
