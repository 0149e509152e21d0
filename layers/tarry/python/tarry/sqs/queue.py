"""`Queue`: sending messages, one or any number, now or later.

Many messages are sent in parallel requests, with retries for entries that SQS refuses temporarily. On FIFO the requests
that contain the same group go one after the other. If a message cannot be sent, no later message of its group is sent
either: it would overtake the first.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, count, islice
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tarry import world
from tarry.errors import ConfigurationError, DelayNotSupported, SendError, Unsent
from tarry.sqs.client import MAX_PARALLEL, client_of, result_of, start
from tarry.sqs.outgoing import Entry, check_delay, pack, sendable
from tarry.sqs.refusals import (
    Refused,
    doubt,
    failed_entries,
    is_refused_for_now,
    is_worth_splitting,
    may_be_applied,
    note_if_open,
    requests_of,
    watch_tries,
)
from tarry.support.values import QueueArn, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from tarry.sqs.outgoing import PackedMessage
    from tarry.support.values import Delay
    from tarry.world import World

T = TypeVar("T")


class Queue:
    """A queue to send to.

        orders = Queue("orders")  # or its URL or ARN; this sends no request
        orders.send({"id": 1}, delay=timedelta(hours=2))
        orders.send_batch({"id": number} for number in range(10_000))

    On a standard queue a message can arrive twice: if the answer to a send is lost, botocore sends again.

    Args:
        name_or_url: The queue's name, URL or ARN. A name is looked up once, at the first send (``sqs:GetQueueUrl``).
        delay: The delay of messages that are sent without one: seconds or a ``timedelta``, at most 43,200 s (12 hours).
            A delay given at a send overrides it, 0 included.
        sqs: A boto3 client to use instead of tarry's own, which waits 1 s for a connection, 5 s for an answer, and
            tries twice.

    Raises:
        ConfigurationError: ``name_or_url`` is not a queue, or ``delay`` is not seconds or a ``timedelta``.
        DelayNotSupported: ``delay`` is longer than 12 hours, or the queue is FIFO.
    """

    def __init__(self, name_or_url: str, *, delay: float | timedelta | None = None, sqs: Any = None) -> None:
        if not name_or_url or not isinstance(name_or_url, str):  # os.environ.get() is where a None comes from
            raise ConfigurationError(f"Queue takes a queue's name, URL or ARN, got {name_or_url!r}")
        self._given = name_or_url
        self._sqs = sqs
        watch_tries(sqs)
        self._urls: WeakKeyDictionary[World, str] = WeakKeyDictionary()
        self.name = _name_in(name_or_url)
        """The queue's name."""
        self.is_fifo = self.name.endswith(".fifo")
        """Whether it is a FIFO queue: its name ends in ``.fifo``."""
        self.delay = self._default(delay)
        """The delay in seconds of messages that are sent without one; None is the queue's own."""

    def __repr__(self) -> str:
        return f"Queue({self._given!r})" if self.delay is None else f"Queue({self._given!r}, delay={self.delay})"

    def _default(self, delay: float | timedelta | None) -> int | None:
        if hasattr(delay, "utcoffset"):  # a datetime is not a delay for all messages
            raise ConfigurationError(f"the delay of a Queue is a number of seconds or a timedelta, got {delay!r}")
        try:
            return check_delay(delay, fifo=self.is_fifo)
        except DelayNotSupported:
            raise
        except ValueError as error:
            raise ConfigurationError(f"the delay of a Queue: {error}") from error

    def send(
        self,
        body: Any,
        delay: Delay | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Send one message; return its id, which is the `Message.id` that its handler sees.

        Limits are checked before the request. Errors of SQS are raised as botocore raises them, after its retries. If
        SQS may have the message all the same, because a try got no answer, a note of the error says so.

        Args:
            body: A str is sent as it is; a dict, list, dataclass or pydantic model as JSON.
            delay: Seconds, a ``timedelta`` or an aware ``datetime``, rounded up to whole seconds, at most 43,200 s (12
                hours); not on FIFO. None is the delay of this `Queue`, else the queue's own; 0 is at once. Above 900 s,
                the queue's consumer must use tarry, which keeps the message invisible for the time that is left.
            attributes: Message attributes: str, int, float, Decimal or bytes.
            group_id: The message group; required on FIFO. On a standard queue it stands for no order (fair queues).
            deduplication_id: For FIFO only; a new one is made if it is None, also with content-based deduplication.

        Raises:
            ValueError: The message is beyond SQS's limits.
            TypeError: The body or an attribute has a type that cannot be sent.
            DelayNotSupported: SQS cannot keep the delay.
            SendError: SQS's answer does not confirm the message (its id, and the MD5 of the body).
        """
        entry = Entry(body, self.delay if delay is None else delay, attributes, group_id, deduplication_id)
        return self._traced(partial(self._send, entry))

    def _traced(self, send: Callable[[World, Mapping[str, str]], T]) -> T:
        """Return ``send(world, trace context)``, called within a span where OpenTelemetry is loaded."""
        here = world.current()
        if "opentelemetry.trace" not in modules:
            return send(here, {})
        from tarry.observe.opentelemetry import SendSpan

        with SendSpan(here, self.name) as span:
            sent = send(here, span.carrier)
            span.sent(sent)
            return sent

    def _send(self, entry: Entry, here: World, trace: Mapping[str, str]) -> str:
        packed = pack(entry, here, fifo=self.is_fifo, trace=trace)
        client, url = self._client(here), self._url(here)
        try:
            answer = client.send_message(QueueUrl=url, **packed.parameters)
        except Exception as error:
            note_if_open(error)
            raise
        if (reason := doubt(packed.body, answer)) is not None:
            note_if_open(reason)
            raise SendError(
                [Unsent(index=0, message=entry.body, reason=reason, entry=packed.entry)], [None]
            ) from reason
        return packed.stable_id or str(answer["MessageId"])

    @staticmethod
    def entry(
        body: Any,
        delay: Delay | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> Entry:
        """Return a message for `send_batch` with a delay, attributes or ids of its own; arguments as for `send`."""
        return Entry(body, delay, attributes, group_id, deduplication_id)

    def send_batch(
        self,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
    ) -> list[str]:
        """Send any number of messages; return their ids in order.

        Up to ten requests of ten messages or 1 MiB run at once. A throttled request, and messages that SQS refuses with
        an internal error, are sent again up to three times, after about 0.2, 0.8 and 3.2 s; on a standard queue not if
        SQS may have the messages all the same, because a try got no answer. On FIFO the requests of one group run one
        after the other; if a message is not sent, the messages behind it in its group are not sent either.

        Args:
            messages: Bodies as for `send`, or entries made by `Queue.entry`. They are read as they are sent; if the
                iterable raises, the messages read before are sent.
            delay: For messages without a delay of their own; None is the delay of this `Queue`.
            attributes: Added to all messages; a message's own attribute of the same name takes precedence.
            group_id: For messages without a group of their own.

        Raises:
            SendError: Some messages were not sent; all others were. Raised at the end.
            ValueError, TypeError, DelayNotSupported: ``delay`` or ``attributes`` cannot be sent with any message.
                Raised before anything is sent.
        """
        if isinstance(messages, (str, bytes, dict)):
            raise TypeError(f"send_batch takes an iterable of bodies, got one {type(messages).__name__}: use send")
        given = iter(messages)
        delay = self.delay if delay is None else delay
        check_delay(delay, fifo=self.is_fifo)
        common = dict(attributes or {})
        sendable(common)

        def fill(message: Any) -> Entry:
            entry = message if isinstance(message, Entry) else Entry(message)
            return entry._changed(
                delay=delay if entry.delay is None else entry.delay,
                attributes={**common, **(entry.attributes or {})},
                group_id=group_id if entry.group_id is None else entry.group_id,
            )

        return self._traced(partial(self._send_batch, given, fill))

    def _send_batch(
        self, given: Iterator[Any], fill: Callable[[Any], Entry], here: World, trace: Mapping[str, str]
    ) -> list[str]:
        bulk = Bulk(self._client(here), self._url(here), here, fifo=self.is_fifo, trace=trace)
        bulk.send(given, fill)
        if bulk.broken is not None:
            sent = len(bulk.ids) - len(bulk.failed)
            bulk.broken.add_note(f"of the {len(bulk.ids)} messages read before, {sent} were sent to {self.name}")
            raise bulk.broken
        if bulk.failed:
            failed = sorted(bulk.failed, key=lambda unsent: unsent.index)
            raise SendError(failed, bulk.ids) from failed[0].reason
        return [message_id for message_id in bulk.ids if message_id is not None]

    def _client(self, here: World) -> Any:
        return client_of(here) if self._sqs is None else self._sqs

    def _url(self, here: World) -> str:
        if "://" in self._given:
            return self._given
        if (known := self._urls.get(here)) is not None:
            return known
        account = QueueArn(self._given).account
        owner = {"QueueOwnerAWSAccountId": account} if account else {}
        url: str = self._client(here).get_queue_url(QueueName=self.name, **owner)["QueueUrl"]
        self._urls[here] = url
        return url


def _name_in(name_or_url: str) -> str:
    if name_or_url.startswith("arn:"):
        if not (name := QueueArn(name_or_url).name):
            raise ConfigurationError(f"{name_or_url!r} is not the ARN of an SQS queue")
        return name
    if "/" not in name_or_url:
        return name_or_url
    url = urlsplit(name_or_url)
    name = url.path.rstrip("/").rpartition("/")[2]
    if not (url.scheme and url.netloc and name):
        raise ConfigurationError(f"{name_or_url!r} is not the URL of an SQS queue: it has no name at its end")
    return name


# many messages

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
        self._backoff = Exponential(0.2, 4, jitter="equal")
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
            todo = self._retryable(request, results)
            if not todo or attempt == TRIES:
                break
            self._world.clock.sleep(self._backoff.delay(attempt, self._world.random))
        return results

    def _retryable(self, request: list[Item], results: Results) -> list[Item]:
        """Return the items to send again; on FIFO, fail those behind one of their group that is not sent again."""
        retryable = []
        lost: dict[str, int] = {}
        for item in request:
            result = results[item.index]
            if isinstance(result, str):
                continue
            if not self._is_worth_another_try(result):
                lost.setdefault(item.group, item.index)
            elif self._fifo and item.group in lost:
                results[item.index] = self._behind(item, lost[item.group])
            else:
                retryable.append(item)
        return retryable

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
        return dict(_results(items, answer))

    def _one_by_one(self, items: list[Item]) -> Results:
        """For a request that was refused as a whole since one of its entries was wrong."""
        results: Results = {}
        lost: dict[str, tuple[int, Exception]] = {}
        for item in items:
            if self._fifo and item.group in lost:
                index, error = lost[item.group]
                is_waiting = self._is_worth_another_try(error)  # and goes out with it, at the next try
                results[item.index] = error if is_waiting else self._behind(item, index)
                continue
            results |= self._request([item])
            if isinstance(result := results[item.index], Exception):
                lost[item.group] = item.index, result
        return results

    def _is_worth_another_try(self, error: Exception) -> bool:
        """Return whether SQS refused an item temporarily. On FIFO, it drops the item if it has it already."""
        if may_be_applied(error) and not self._fifo:
            return False
        return is_refused_for_now(error) or (isinstance(error, Refused) and error.is_fault_of_sqs)


def _results(items: list[Item], answer: dict[str, Any]) -> Iterator[tuple[int, Result]]:
    receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
    refused = failed_entries(answer)
    for place, item in enumerate(items):
        receipt = receipts.get(str(place), {})
        reason = refused.get(str(place)) or doubt(item.packed.body, receipt)
        if reason is not None:
            note_if_open(reason)
        yield item.index, reason or item.packed.stable_id or str(receipt["MessageId"])
