"""`Queue`: sending messages, one or any number, now or later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tarry import world
from tarry.errors import ConfigurationError, DelayNotSupported, SendError, Unsent
from tarry.sqs.client import client_of
from tarry.sqs.outgoing import Entry, check_delay, pack, sendable
from tarry.sqs.receipts import doubt
from tarry.support.arn import QueueArn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from tarry.delay import Delay
    from tarry.world import World


class Queue:
    """A queue to send to.

        orders = Queue("orders")  # or its URL or ARN; no request is made yet
        orders.send({"id": 1}, delay=timedelta(hours=2))
        orders.send_batch({"id": number} for number in range(10_000))

    A name is looked up once, at the first send (``sqs:GetQueueUrl``); a URL needs no look-up. ``sqs`` is a boto3 client
    to use instead of tarry's own, which waits 1 s for a connection and 5 s for an answer, and makes two attempts.

    ``delay`` is the default delay of messages: seconds or a ``timedelta``, at most 43,200 s (12 hours). A delay passed
    to `send`, 0 included, overrides it.

    On a standard queue a message can be sent twice: botocore repeats a send whose answer is lost.

    Raises `ConfigurationError` if ``name_or_url`` does not name a queue, or ``delay`` is not a number or ``timedelta``;
    `DelayNotSupported` for a ``delay`` of more than 12 hours, or on a FIFO queue.
    """

    def __init__(self, name_or_url: str, *, delay: float | timedelta | None = None, sqs: Any = None) -> None:
        if not name_or_url or not isinstance(name_or_url, str):  # os.environ.get() is where a None comes from
            raise ConfigurationError(f"Queue takes a queue's name, URL or ARN, got {name_or_url!r}")
        self._given = name_or_url
        self._sqs = sqs
        self._urls: WeakKeyDictionary[World, str] = WeakKeyDictionary()
        self.name = _name_in(name_or_url)
        """The queue's name."""
        self.is_fifo = self.name.endswith(".fifo")
        """Whether it is a FIFO queue: its name ends in ``.fifo``."""
        self.delay = self._default(delay)
        """The default delay of messages, in seconds; None for the queue's own ``DelaySeconds``."""

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
        """Send one message; return its id, the `Message.id` that its handler sees.

        ``body``: a str is sent as it is; a dict, list, dataclass or pydantic model is sent as JSON.
        ``delay``: seconds, a ``timedelta`` or an aware ``datetime``, rounded up to whole seconds; at most 43,200 s (12
        hours). ``None`` means the delay of this `Queue`, else the queue's own ``DelaySeconds``; 0 means no delay. For
        more than 900 s the queue's consumer must be a tarry consumer, which keeps the rest of the wait. A FIFO queue
        takes no delay.
        ``attributes``: message attributes; str, int, float, Decimal or bytes, as in `Message.attributes`.
        ``group_id``: required on FIFO; on a standard queue it names the tenant for fair queues and implies no order.
        ``deduplication_id``: for FIFO only; if it is missing, a new one is made, also on a queue with content-based
        deduplication.

        Raises `ValueError` for a value that exceeds SQS's limits, `TypeError` for a body or attribute of another type,
        and `DelayNotSupported`, all before anything is sent; botocore's errors, after its own retries; `SendError` if
        SQS's answer does not confirm the message (its id, and the MD5 of the body). After an error without an answer
        SQS may still have the message. On a standard queue botocore's retry after a lost answer sends a second copy; on
        FIFO the deduplication id prevents it.
        """
        here = world.current()
        entry = Entry(body, self.delay if delay is None else delay, attributes, group_id, deduplication_id)
        packed = pack(entry, here, fifo=self.is_fifo)
        answer = self._client(here).send_message(QueueUrl=self._url(here), **packed.parameters)
        if (reason := doubt(packed.body, answer)) is not None:
            raise SendError([Unsent(0, body, reason, packed.entry)], [None]) from reason
        return packed.stable_id or str(answer["MessageId"])

    @staticmethod
    def entry(
        body: Any,
        delay: Delay | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> Entry:
        """Make a message for `send_batch` with its own delay, attributes or ids; the arguments are those of `send`."""
        return Entry(body, delay, attributes, group_id, deduplication_id)

    def send_batch(
        self,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
    ) -> list[str]:
        """Send any number of messages in as few requests as possible; return their ids in the same order.

        ``messages``: bodies as for `send`, or entries made by `Queue.entry`; the iterable is read while messages are
        sent. ``delay`` (``None``: the delay of this `Queue`) and ``group_id`` are defaults for messages without their
        own; ``attributes`` are added to every message, whose own attribute of the same name takes precedence.

        Up to ten requests of ten messages or 1 MiB are in progress at once. An entry that SQS refuses temporarily is
        sent up to three more times, after about 0.2, 0.8 and 3.2 s. On FIFO the requests of one group go one after the
        other; after a message that could not be sent, no later message of its group is sent.

        Raises `SendError` at the end if some messages were not sent, with each of them and its error; all others were
        sent. An invalid ``delay`` or ``attributes`` is refused before anything is sent, as by `send`. An exception of
        the iterable is raised after the messages read before it are sent.
        """
        if isinstance(messages, (str, bytes, dict)):
            raise TypeError(f"send_batch takes an iterable of bodies, got one {type(messages).__name__}: use send")
        given = iter(messages)
        delay = self.delay if delay is None else delay
        check_delay(delay, fifo=self.is_fifo)
        common = dict(attributes or {})
        sendable(common)
        here = world.current()

        def fill(message: Any) -> Entry:
            entry = message if isinstance(message, Entry) else Entry(message)
            return Entry(
                entry.body,
                delay if entry.delay is None else entry.delay,
                {**common, **(entry.attributes or {})},
                group_id if entry.group_id is None else entry.group_id,
                entry.deduplication_id,
            )

        from tarry.sqs.bulk import Bulk

        bulk = Bulk(self._client(here), self._url(here), here, fifo=self.is_fifo)
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
