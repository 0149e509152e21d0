"""`Queue`: sending messages, one or any number, now or later."""

from __future__ import annotations

from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tarry import world
from tarry.errors import ConfigurationError, DelayNotSupported, SendError, Unsent
from tarry.sqs.client import client_of
from tarry.sqs.outgoing import Entry, check_delay, pack, sendable
from tarry.sqs.refusals import doubt, note_if_open, watch_tries
from tarry.support.values import QueueArn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

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
                the queue's consumer must be tarry's, which keeps the message invisible for the rest.
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
        after the other, and a message behind one that was not sent is not sent either.

        Args:
            messages: Bodies as for `send`, or entries made by `Queue.entry`. They are read as they are sent; if the
                iterable raises, the messages read before are sent.
            delay: For messages without a delay of their own; None is the delay of this `Queue`.
            attributes: Added to all messages; a message's own attribute of the same name counts.
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
        from tarry.sqs.bulk import Bulk

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
