"""Sending many messages to one queue: parallel requests, with retries for entries that SQS refuses temporarily.

On FIFO the requests that contain the same group go one after the other. If a message cannot be sent, no later message
of its group is sent either: it would overtake the first.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

from tarry.errors import Unsent
from tarry.sqs.client import MAX_PARALLEL, result_of, start
from tarry.sqs.outgoing import pack
from tarry.sqs.refusals import (
    Refused,
    doubt,
    failed_entries,
    is_refused_for_now,
    is_worth_splitting,
    may_be_applied,
    note_if_open,
    requests_of,
)
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tarry.sqs.outgoing import Entry, PackedMessage
    from tarry.world import World

TRIES = 4  # the most requests in which one entry is sent; botocore's retries of a request come on top


class Behind(Exception):
    """A message was not sent because an earlier message of its FIFO group was not: it would have overtaken it."""


class Item(Value):
    """A message to be sent: its index, the value that the caller passed, and the request made of it."""

    index: int
    given: Any
    packed: PackedMessage

    @property
    def group(self) -> str:
        return str(self.packed.entry.group_id)


Result = str | Exception
Results = dict[int, Result]  # by item index: the message's id, or the error because of which it was not sent


class Bulk:
    """One `Queue.send_batch`; ``ids`` and ``failed`` have its results."""

    def __init__(
        self, client: Any, url: str, world: World, *, fifo: bool, trace: Mapping[str, str] | None = None
    ) -> None:
        from tarry.decide.retry_policy import Exponential

        self._client = client
        self._url = url
        self._world = world
        self._fifo = fifo
        self._trace = trace
        self._backoff = Exponential(0.2, 4, maximum=5, jitter="equal")
        self._stopped: dict[str, int] = {}
        self.ids: list[str | None] = []
        self.failed: list[Unsent] = []
        self.broken: Exception | None = None
        """The exception that the iterable of messages raised; all messages before it were sent."""

    def send(self, given: Iterator[Any], fill: Callable[[Any], Entry]) -> None:
        """Send all messages; ``fill`` makes an entry of each value of ``given``."""
        requests = requests_of((item, item.packed.size) for item in self._items(given, fill))
        first_two = list(islice(requests, 2))
        if len(first_two) < 2:  # not worth a thread
            for request in filter(None, map(self._not_behind, first_two)):
                self._take(request, self._deliver(request))
        else:
            self._send_parallel(chain(first_two, requests))

    def _items(self, given: Iterator[Any], fill: Callable[[Any], Entry]) -> Iterator[Item]:
        for index, each in enumerate(self._read(given)):
            self.ids.append(None)
            group = None
            try:
                entry = fill(each)
                group = str(entry.group_id)
                item = Item(index, each, pack(entry, self._world, fifo=self._fifo, trace=self._trace))
            except Exception as error:  # noqa: BLE001 the error concerns this message alone
                self._fail(index, each, error)
                if group is not None:
                    self._stopped.setdefault(group, index)
            else:
                yield item

    def _read(self, given: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from given
        except Exception as error:  # noqa: BLE001 the caller's own error: raised once the messages before it are sent
            self.broken = error

    def _send_parallel(self, requests: Iterable[list[Item]]) -> None:
        """Send several requests at once, each in a thread of its own; record their results in this one."""
        running: dict[int, list[Item]] = {}
        ended: deque[tuple[int, Results]] = deque()
        one_has_ended = self._world.threads.event()
        numbers = count()

        def deliver(number: int, request: list[Item]) -> None:
            results = result_of(partial(self._deliver, request))
            if isinstance(results, Exception):
                results = dict.fromkeys((item.index for item in request), results)
            ended.append((number, results))
            one_has_ended.set()

        def await_one() -> None:
            one_has_ended.wait()
            one_has_ended.clear()
            while ended:
                number, results = ended.popleft()
                self._take(running.pop(number), results)

        try:
            for request in requests:
                while len(running) >= MAX_PARALLEL or self._has_to_wait(request, running.values()):
                    await_one()
                if sendable := self._not_behind(request):
                    number = next(numbers)
                    running[number] = sendable
                    if not start(self._world, partial(deliver, number, sendable)):
                        deliver(number, sendable)
        finally:
            while running:
                await_one()

    def _has_to_wait(self, request: list[Item], running: Iterable[list[Item]]) -> bool:
        """Return whether another request with a group of this one is in progress."""
        if not self._fifo:
            return False
        groups = {item.group for item in request}
        return any(item.group in groups for other in running for item in other)

    def _not_behind(self, request: list[Item]) -> list[Item]:
        """Return the items that may be sent; fail those behind an unsent message of their group."""
        free = []
        for item in request:
            if self._fifo and self._stopped.get(item.group, item.index) < item.index:
                self._fail(item.index, item.given, self._behind(item, self._stopped[item.group]), item.packed)
            else:
                free.append(item)
        return free

    def _take(self, request: list[Item], results: Results) -> None:
        for item in request:
            result = results[item.index]
            if isinstance(result, str):
                self.ids[item.index] = result
            else:
                self._fail(item.index, item.given, result, item.packed)
                if self._fifo:
                    self._stopped[item.group] = min(item.index, self._stopped.get(item.group, item.index))

    def _fail(self, index: int, given: Any, reason: Exception, packed: PackedMessage | None = None) -> None:
        self.failed.append(Unsent(index=index, message=given, reason=reason, entry=packed and packed.entry))

    # one request, with the tries of its entries

    def _deliver(self, request: list[Item]) -> Results:
        results: Results = {}
        todo = request
        for attempt in range(1, TRIES + 1):
            results |= self._request(todo)
            retryable = [item for item in todo if self._is_worth_another_try(results[item.index])]
            if self._fifo:
                retryable = self._retryable_in_order(request, retryable, results)
            if not retryable or attempt == TRIES:
                break
            todo = retryable
            self._world.clock.sleep(self._backoff.delay(attempt, self._world.random))
        return results

    def _retryable_in_order(self, request: list[Item], retryable: list[Item], results: Results) -> list[Item]:
        """Return the items to retry; fail those behind a message of their group that SQS refused permanently."""
        free = []
        for item in retryable:
            ahead = (other for other in request if other.group == item.group and other.index < item.index)
            lost = next((other for other in ahead if self._is_final(results[other.index])), None)
            if lost is None:
                free.append(item)
            else:
                results[item.index] = self._behind(item, lost.index)
        return free

    def _behind(self, item: Item, index: int) -> Behind:
        return Behind(f"message {index}, which comes before it in group {item.group!r}, was not sent")

    def _request(self, items: list[Item]) -> Results:
        entries = [{"Id": str(place), **item.packed.parameters} for place, item in enumerate(items)]
        try:
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        except Exception as error:  # noqa: BLE001 the reason why these items were not sent
            note_if_open(error)
            if len(items) > 1 and is_worth_splitting(error):
                return self._one_by_one(items)
            return dict.fromkeys((item.index for item in items), error)
        return {item.index: result for item, result in zip(items, _results(items, answer), strict=True)}

    def _one_by_one(self, items: list[Item]) -> Results:
        """For a request that was refused as a whole since one of its entries was wrong."""
        results: Results = {}
        lost: dict[str, int] = {}
        for item in items:
            if self._fifo and item.group in lost:
                ahead = results[lost[item.group]]
                is_waiting = not self._is_final(ahead)  # and goes out with it, at the next try
                results[item.index] = ahead if is_waiting else self._behind(item, lost[item.group])
                continue
            results |= self._request([item])
            if not isinstance(results[item.index], str):
                lost[item.group] = item.index
        return results

    def _is_worth_another_try(self, result: Result) -> bool:
        """Return whether SQS refused an item temporarily. On FIFO, it drops the item if it has it already."""
        if isinstance(result, str) or (may_be_applied(result) and not self._fifo):
            return False
        return is_refused_for_now(result) or (isinstance(result, Refused) and result.is_fault_of_sqs)

    def _is_final(self, result: Result) -> bool:
        return not (isinstance(result, str) or self._is_worth_another_try(result))


def _results(items: list[Item], answer: dict[str, Any]) -> Iterator[Result]:
    receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
    refused = failed_entries(answer)
    for place, item in enumerate(items):
        receipt = receipts.get(str(place), {})
        reason = refused.get(str(place)) or doubt(item.packed.body, receipt)
        if reason is not None:
            note_if_open(reason)
        yield reason or item.packed.stable_id or str(receipt["MessageId"])
