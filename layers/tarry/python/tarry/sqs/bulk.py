"""Many messages to one queue: cut into requests, several at once, what was refused for no fault of its own again.

On FIFO the requests that hold a group go one after the other, and where a message of it could not be sent, nothing
later of the group is: it would overtake.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

from tarry.errors import Unsent
from tarry.sqs.client import MAX_PARALLEL, result_of
from tarry.sqs.limits import requests_of
from tarry.sqs.outgoing import pack
from tarry.sqs.receipts import doubt
from tarry.sqs.refusals import Refused, is_throttle, is_worth_splitting
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tarry.sqs.outgoing import Entry, Parcel
    from tarry.world import World

TRIES = 4
"""Requests in which one entry goes out at most; botocore's own retries of a request come on top."""


class Behind(Exception):
    """A message was not sent since one before it in its FIFO group was not: it would have overtaken it."""


class Item(Value):
    """A message to be sent: its place, what the caller gave, and what it is for SQS."""

    index: int
    given: Any
    parcel: Parcel

    @property
    def group(self) -> str:
        return str(self.parcel.entry.group_id)


Result = str | Exception
Results = dict[int, Result]
"""By the items' places: the message's id, or why it was not sent."""


class Bulk:
    """One `Queue.send_batch`. ``ids`` and ``failed`` say what came of it."""

    def __init__(self, client: Any, url: str, world: World, *, fifo: bool) -> None:
        from tarry.policy.backoff import Exponential

        self._client = client
        self._url = url
        self._world = world
        self._fifo = fifo
        self._backoff = Exponential(0.2, 4, maximum=5, jitter="equal")
        self._stopped: dict[str, int] = {}
        self.ids: list[str | None] = []
        self.failed: list[Unsent] = []
        self.broken: Exception | None = None
        """What the messages' iterable raised; all that it gave before was sent."""

    def send(self, given: Iterator[Any], fill: Callable[[Any], Entry]) -> None:
        """Sends it all; ``fill`` makes an entry of what was given."""
        requests = requests_of((item, item.parcel.size) for item in self._items(given, fill))
        first_two = list(islice(requests, 2))
        if len(first_two) < 2:  # no thread is worth it
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
                item = Item(index, each, pack(entry, self._world, fifo=self._fifo))
            except Exception as error:  # noqa: BLE001 whatever is wrong with it, it is wrong with this one alone
                self._fail(index, each, error)
                if group is not None:
                    self._stopped.setdefault(group, index)
            else:
                yield item

    def _read(self, given: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from given
        except Exception as error:  # noqa: BLE001 the caller's own: raised when what was read is sent
            self.broken = error

    def _send_parallel(self, requests: Iterable[list[Item]]) -> None:
        """Several requests at once, each in a thread of its own; what comes of them is taken down in this one."""
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
                    self._start(partial(deliver, number, sendable))
        finally:
            while running:
                await_one()

    def _start(self, work: Callable[[], None]) -> None:
        try:
            self._world.threads.start(work)
        except RuntimeError:  # the process may have no more threads
            work()

    def _has_to_wait(self, request: list[Item], running: Iterable[list[Item]]) -> bool:
        """Whether a group of the request is under way in another."""
        if not self._fifo:
            return False
        groups = {item.group for item in request}
        return any(item.group in groups for other in running for item in other)

    def _not_behind(self, request: list[Item]) -> list[Item]:
        """Those that may be sent; the others stand behind one of their group that was not."""
        free = []
        for item in request:
            if self._fifo and self._stopped.get(item.group, item.index) < item.index:
                self._fail(item.index, item.given, self._behind(item, self._stopped[item.group]), item.parcel)
            else:
                free.append(item)
        return free

    def _take(self, request: list[Item], results: Results) -> None:
        for item in request:
            result = results[item.index]
            if isinstance(result, str):
                self.ids[item.index] = result
            else:
                self._fail(item.index, item.given, result, item.parcel)
                if self._fifo:
                    self._stopped[item.group] = min(item.index, self._stopped.get(item.group, item.index))

    def _fail(self, index: int, given: Any, reason: Exception, parcel: Parcel | None = None) -> None:
        self.failed.append(Unsent(index, given, reason, parcel and parcel.entry))

    # one request, with the tries of its entries

    def _deliver(self, request: list[Item]) -> Results:
        results: Results = {}
        todo = request
        for attempt in range(1, TRIES + 1):
            results |= self._request(todo)
            again = [item for item in todo if _is_worth_another_try(results[item.index])]
            if self._fifo:
                again = self._those_first(request, again, results)
            if not again or attempt == TRIES:
                break
            todo = again
            self._world.clock.sleep(self._backoff.delay(attempt, self._world.random))
        return results

    def _those_first(self, request: list[Item], again: list[Item], results: Results) -> list[Item]:
        """Those that may be sent again: none behind one of its group that never will be."""
        free = []
        for item in again:
            ahead = (other for other in request if other.group == item.group and other.index < item.index)
            lost = next((other for other in ahead if _is_final(results[other.index])), None)
            if lost is None:
                free.append(item)
            else:
                results[item.index] = self._behind(item, lost.index)
        return free

    def _behind(self, item: Item, index: int) -> Behind:
        return Behind(f"message {index}, which comes before it in group {item.group!r}, was not sent")

    def _request(self, items: list[Item]) -> Results:
        entries = [{"Id": str(place), **item.parcel.parameters} for place, item in enumerate(items)]
        try:
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        except Exception as error:  # noqa: BLE001 it is the reason for which these were not sent
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
                is_waiting = isinstance(ahead, Passing)  # and goes out with it, at the next try
                results[item.index] = ahead if is_waiting else self._behind(item, lost[item.group])
                continue
            results |= self._request([item])
            if not isinstance(results[item.index], str):
                lost[item.group] = item.index
        return results


class Passing(Refused):
    """SQS refused this entry for no fault of its own: it may be sent again."""


def _results(items: list[Item], answer: dict[str, Any]) -> Iterator[Result]:
    receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
    refused = {entry["Id"]: entry for entry in answer.get("Failed") or []}
    for place, item in enumerate(items):
        if (entry := refused.get(str(place))) is not None:
            yield _refusal(entry)
        elif (reason := doubt(item.parcel.body, receipt := receipts.get(str(place), {}))) is not None:
            yield reason
        else:
            yield item.parcel.stable_id or str(receipt["MessageId"])


def _refusal(entry: dict[str, Any]) -> Refused:
    code = entry.get("Code", "")
    is_passing = not entry.get("SenderFault") or is_throttle(code)
    return (Passing if is_passing else Refused)(code, entry.get("Message", ""))


def _is_worth_another_try(result: Result) -> bool:
    return isinstance(result, Passing)


def _is_final(result: Result) -> bool:
    return not isinstance(result, (str, Passing))
