"""FIFO queues: groups in order, each message accepted once within five minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.contents import check_contents
from tarry.simulator.sqs.errors import SqsError, invalid, missing, wrong_for_queue_type
from tarry.simulator.sqs.order import Agenda
from tarry.simulator.sqs.queue import SendReceipt, SimulatedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tarry.simulator.sqs.handles import Receipt
    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.settings import QueueSettings
    from tarry.simulator.sqs.surroundings import Surroundings

INTERVAL_SECONDS = 300

Key = tuple[str | None, str]
"""The group, where each has its own ids, and the deduplication id."""


class Deduplication:
    """The deduplication ids of one queue. They outlive their messages: a delete does not free an id."""

    def __init__(self) -> None:
        self._first: dict[Key, StoredMessage] = {}
        self._ends: deque[tuple[float, Key]] = deque()

    def first_of(self, key: Key, now: float) -> StoredMessage | None:
        """The message that was sent with this id within the interval."""
        while self._ends and self._ends[0][0] <= now:
            del self._first[self._ends.popleft()[1]]
        return self._first.get(key)

    def remember(self, key: Key, message: StoredMessage, now: float) -> None:
        self._first[key] = message
        self._ends.append((now + INTERVAL_SECONDS, key))


class MessageGroups:
    """The messages of a FIFO queue, each group in its order.

    A receive takes what it can of the group whose head has waited longest, then of the next. It does not matter to a
    group what is hidden behind its head, nor to one group what is hidden in another.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[str, deque[StoredMessage]] = {}
        self._removed: set[int] = set()  # positions of those that left from behind their head, and are still listed
        self._heads = Agenda()  # the heads that can be received, by position

    def add(self, message: StoredMessage) -> None:
        self._groups.setdefault(message.group or "", deque()).append(message)

    def show(self, message: StoredMessage) -> None:
        self._look_at(message.group or "")

    def hide(self, message: StoredMessage) -> None:
        self._heads.discard(message)

    def remove(self, message: StoredMessage) -> None:
        self._removed.add(message.position)
        self._heads.discard(message)
        self._look_at(message.group or "")

    def receivable(self) -> Iterator[StoredMessage]:
        now = self._now()
        while (head := self._heads.pop()) is not None:
            for message in self._groups[head.group or ""]:
                if message.position in self._removed:
                    continue
                if message.visible_at > now:
                    break
                yield message

    def _look_at(self, name: str) -> None:
        """Whether a group can be received."""
        group = self._groups[name]
        while group and group[0].position in self._removed:
            self._removed.discard(group.popleft().position)
        if not group:
            del self._groups[name]
        elif group[0].visible_at <= self._now() and group[0] not in self._heads:
            self._heads.put(group[0], group[0].position)


SEQUENCE_START = 18_850_000_000_000_000_000
SEQUENCE_STEP = 256


class FifoQueue(SimulatedQueue):
    """A queue of groups; its handles end with the visibility of their messages."""

    def __init__(self, name: str, arn: str, number: int, settings: QueueSettings, around: Surroundings) -> None:
        super().__init__(name, arn, number, settings, around)
        self._sent_before = Deduplication()

    def _order(self) -> MessageGroups:
        return MessageGroups(self._around.now)

    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        if not entry.get("MessageGroupId"):
            raise missing("MessageGroupId")
        self.check_deduplication(entry)
        check_contents(entry, self.settings.maximum_bytes)
        if delay := entry.get("DelaySeconds"):
            raise wrong_for_queue_type(delay, "DelaySeconds")
        now = self._around.now()
        deduplication_id = entry.get("MessageDeduplicationId") or _content_based_id(entry["MessageBody"])
        key = (entry["MessageGroupId"] if self.settings.deduplicates_by_group else None, deduplication_id)
        first = self._sent_before.first_of(key, now)
        if first is not None:
            self._record("swallowed", first, deduplication_id=deduplication_id, body=entry["MessageBody"])
            return SendReceipt(first.delivery_id, first.sequence_number)
        sequence_number = _sequence_number(self._stock.next_position)
        message = self._take_in(
            entry, self.settings.delay, deduplication_id=deduplication_id, sequence_number=sequence_number
        )
        self._sent_before.remember(key, message, now)
        return SendReceipt(message.delivery_id, message.sequence_number)

    def check_deduplication(self, entry: Mapping[str, Any]) -> None:
        """Raises `SqsError` for a message without an id, where the queue makes none of the content."""
        if not entry.get("MessageDeduplicationId") and not self.settings.content_based_deduplication:
            text = (
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )
            raise SqsError("InvalidParameterValue", text)

    def _most(self, most: int, *, waits: bool) -> int:
        return most

    def _refuse_beyond_in_flight_limit(self) -> None:
        """A FIFO queue says nothing and gives nothing."""

    def _holds(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        if receipt.receive_count != message.receive_count or message.visible_at <= self._around.now():
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True

    def deliver_again(self, handle: str, seconds: float) -> None:
        """A FIFO queue delivers nothing twice."""

    def _moved_here(self, message: StoredMessage) -> StoredMessage:
        # Unlike on a standard queue its time begins anew.
        return self._numbered(replace(message, sent_at=self._around.now(), deduplication_id=message.delivery_id))

    def _numbered(self, message: StoredMessage) -> StoredMessage:
        return replace(message, sequence_number=_sequence_number(message.position))


def _sequence_number(position: int) -> str:
    return f"{SEQUENCE_START + SEQUENCE_STEP * position:020d}"


def _content_based_id(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
