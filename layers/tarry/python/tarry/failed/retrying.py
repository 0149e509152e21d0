"""Retry dead letters: all, a selection, or some first."""

from __future__ import annotations

import threading
from itertools import chain, islice
from typing import TYPE_CHECKING

from tarry import world
from tarry.failed.inspection import ROUNDS
from tarry.failed.pacing import CanaryReturned, Limits, Pace, TooManyReturned, check_can_watch, seconds_to_return, watch
from tarry.failed.queue_names import counts_of
from tarry.failed.queues import ALL, part_of
from tarry.failed.removing import Result, check_may_delete
from tarry.failed.selection import Selection, by_ids, not_found, offered
from tarry.failed.sending import prepared, retry_dead_letters
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.limits import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.pacing import Canary
    from tarry.failed.queues import Routes

CHECK_SECONDS = 10
"""The time between two requests for the length of the queue, which SQS itself updates only now and then."""


class ReturnWatch:
    """The check of ``max_return`` during a retry."""

    def __init__(self, inspection: Inspection, limits: Limits) -> None:
        self._inspection = inspection
        self._limits = limits
        self._clock = world.current().clock
        self._checked_at = self._clock.monotonic()
        self._expected = 0 if limits.max_return is None else self._length()
        """The length of the queue without what was retried, and with what is known to have arrived."""

    def check(self, retried: int) -> None:
        """Check whether too many have come back, from time to time. Raises `TooManyReturned`."""
        limits, inspection = self._limits, self._inspection
        if limits.max_return is None:
            return
        if self._clock.monotonic() - self._checked_at >= CHECK_SECONDS and limits.allows(
            inspection.handled.returned, retried
        ):
            self._checked_at = self._clock.monotonic()
            arrived = self._length() - (self._expected - retried)
            if not limits.allows(inspection.handled.returned + arrived, retried):
                self._count()
                self._expected += arrived
        if not limits.allows(inspection.handled.returned, retried):
            raise TooManyReturned(inspection.handled.returned, retried, inspection.queue.name)

    def _length(self) -> int:
        lookups, queue = self._inspection.lookups, self._inspection.queue
        answer = lookups.requests.call("get_queue_attributes", QueueUrl=lookups.url(queue.arn), AttributeNames=ALL)
        return sum(counts_of(part_of(answer, "Attributes", "GetQueueAttributes")))

    def _count(self) -> None:
        """Receive all that is left, count those that came back, and release all."""
        inspection = self._inspection

        def those_back(dead_letters: list[DeadLetterMessage]) -> list[None]:
            for each in dead_letters:
                if inspection.handled.is_returned(each):
                    inspection.handled.count_repeated(each)
            return []

        for _ in inspection.in_threads(those_back, MAX_PARALLEL):
            pass
        inspection.begin_again()


def retry(
    inspection: Inspection,
    selection: Selection,
    routes: Routes,
    *,
    concurrency: int = 1,
    limits: Limits | None = None,
    canary: Canary | None = None,
) -> Iterator[Result]:
    """Send the selected dead letters back to their queues, ten at a time; yield the result of each.

    Dead letters selected by id are sent in the order of the ids. The permission to delete is checked before the first
    send, and for ids also the queue of each.

    Args:
        inspection: The inspection of the queue.
        selection: The dead letters to send.
        routes: Where to send them.
        concurrency: The number of threads; each receives ten dead letters, sends them and deletes them.
        limits: The rate, and the share of messages that may come back.
        canary: Send some first, and the others only if these do not come back. Not for ids, nor on FIFO.

    Raises:
        CanaryReturned: canaries came back; no others were sent.
        TooManyReturned: more messages came back than ``limits`` allows; no others were sent.
        ConfigurationError: a canary that came back could not be seen.
        NowhereToGo: the queue of a dead letter that was selected by id is unknown.
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)
    limits = limits or Limits()
    if selection.ids:
        yield from _retry_ids(inspection, selection.ids, routes, concurrency, limits)
        return
    if canary is not None:
        check_can_watch(inspection)
        if not (yield from _retry_canaries(inspection, selection, routes, canary)):
            return
    retried, returns = 0, ReturnWatch(inspection, limits)
    tens = TensToSend(inspection, selection, routes, limits)
    rounds = ROUNDS if limits.rate is None else 1
    for results in chain(
        inspection.in_threads(tens.send, concurrency, limits.size, rounds=rounds), iter(tens.send_rest, None)
    ):
        yield from results
        if results and all(result.hindrance == "denied" for result in results):
            return  # the others would be denied as well
        retried += sum(result.outcome == "retried" for result in results)
        returns.check(retried)


class TensToSend:
    """The dead letters that a retry has received and not yet sent: of a small group there are few in each receive."""

    def __init__(self, inspection: Inspection, selection: Selection, routes: Routes, limits: Limits) -> None:
        self._inspection = inspection
        self._selection = selection
        self._routes = routes
        self._pace = Pace(limits.rate, lambda: inspection.is_stopped)
        # On FIFO, SQS delivers no more of a group before these are sent.
        self._enough = 1 if inspection.queue.arn.is_fifo or limits.rate is not None else MAX_ENTRIES
        self._waiting: list[DeadLetterMessage] = []
        self._lock = threading.Lock()

    def send(self, dead_letters: list[DeadLetterMessage]) -> list[Result]:
        """Send the selected dead letters once there are ten."""
        chosen = offered(self._inspection, dead_letters, self._selection)
        with self._lock:
            self._waiting += chosen
            if len(self._waiting) < self._enough:
                return []
            batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
        return self._send(batch)

    def send_rest(self) -> list[Result] | None:
        """Send up to ten of those that wait; None if there are none."""
        batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
        return self._send(batch) if batch and not self._inspection.is_stopped else None

    def _send(self, batch: list[DeadLetterMessage]) -> list[Result]:
        if not self._pace.wait(len(batch)):
            return []
        return retry_dead_letters(self._inspection, batch, self._routes, by_id=False)


def _retry_ids(
    inspection: Inspection, ids: Sequence[str], routes: Routes, concurrency: int, limits: Limits
) -> Iterator[Result]:
    found = by_ids(inspection, ids)
    for dead_letter in found.values():
        if not dead_letter.is_undecodable:
            routes.target(dead_letter)
    named, pace = iter(ids), Pace(limits.rate, lambda: inspection.is_stopped)
    size = MAX_ENTRIES * concurrency if limits.rate is None else limits.size
    while not inspection.is_stopped and (some := list(islice(named, size))) and pace.wait(len(some)):
        dead_letters = list(dict.fromkeys(found[name] for name in some if name in found))
        results = dict(zip(dead_letters, retry_dead_letters(inspection, dead_letters, routes), strict=True))
        for name in some:
            yield results[found[name]] if name in found else Result(name, "failed", not_found(inspection))


def _retry_canaries(
    inspection: Inspection, selection: Selection, routes: Routes, canary: Canary
) -> Generator[Result, None, bool]:
    """Send the canaries and watch them; return whether to send the others. Raises `CanaryReturned`."""
    canaries: list[DeadLetterMessage] = []
    for dead_letters in inspection.polls():
        for each in dead_letters:
            if len(canaries) < canary.number and not each.is_undecodable:
                canaries += offered(inspection, [each], selection)
        if len(canaries) >= canary.number:
            break
    if not canaries or inspection.is_stopped:
        return not inspection.is_stopped
    seconds = canary.within or seconds_to_return(inspection, canaries, routes)
    results = retry_dead_letters(inspection, canaries, routes, by_id=False)
    yield from results
    sent = {result.id for result in results if result.outcome == "retried"}
    if sent and (returned := watch(inspection, sent, seconds, canary)):
        raise CanaryReturned(returned, len(sent), inspection.queue.name)
    inspection.begin_again()
    return bool(sent) and not inspection.is_stopped


def preview(inspection: Inspection, selection: Selection, routes: Routes) -> Iterator[Result]:
    """Yield the results that `retry` would have, without sending and deleting; the note of each names its queue.

    Raises:
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)

    def prepare(dead_letters: Sequence[DeadLetterMessage], *, by_id: bool = False) -> Iterator[Result]:
        for each in dead_letters:
            answer = prepared(inspection, each, routes, by_id=by_id)
            if isinstance(answer, Result):
                yield answer
            else:
                yield Result(each.id, "retried", note=f"to {answer.target.name}", dead_letter=each)

    if not selection.ids:
        for results in inspection.in_threads(
            lambda dead_letters: list(prepare(offered(inspection, dead_letters, selection))), MAX_PARALLEL
        ):
            yield from results
        return
    found = by_ids(inspection, selection.ids)
    for name in selection.ids:
        if name not in found:
            yield Result(name, "failed", not_found(inspection))
        elif inspection.handled.claim(found[name]):
            yield from prepare([found[name]], by_id=True)
