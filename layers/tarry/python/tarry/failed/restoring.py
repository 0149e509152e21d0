"""Send the dead letters of an archive back to a queue, with body and attributes as they were.

A file beside the archive, ``ARCHIVE.restored``, records messages before they are sent, and then which of them SQS has
confirmed; a second run skips these. A dead letter that may be in the queue already, because its removal or an earlier
send was killed or not confirmed, is sent only if the caller says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import world
from tarry.errors import ConfigurationError
from tarry.failed.archive import ArchivedMessage, ArchiveMark, DamagedLine, read_line
from tarry.failed.journal import CannotWrite, Journal
from tarry.failed.removing import Result, twice_in
from tarry.failed.requests import TRIES, lookups, wait, was_throttled
from tarry.record.attribute import ATTRIBUTE, timestamp
from tarry.settle.copies import as_sent
from tarry.sqs.refusals import (
    MAX_ENTRIES,
    MAX_REQUEST_BYTES,
    doubt,
    failed_entries,
    is_reserved,
    is_worth_splitting,
    may_be_applied,
    message_size,
    was_repeated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from tarry.failed.queues import DeadLetterQueue
    from tarry.sqs.client import Lookups

DROPPED = (
    "SQS dropped it: a message with the same deduplication id was sent to this queue in the last 5 minutes; "
    "restore it again after that"
)


class OutgoingMessage:
    """A message to send: the entry of a request, and why it cannot be sent."""

    def __init__(self, archived: ArchivedMessage, queue: DeadLetterQueue) -> None:
        record, system = archived.record, archived.record["attributes"]
        self.archived = archived
        attributes = record["messageAttributes"]
        self.left_out = [name for name in attributes if is_reserved(name)]  # SQS refuses them in a send
        self._attributes = {name: as_sent(each) for name, each in attributes.items() if name not in self.left_out}
        self.is_fifo = queue.arn.is_fifo
        self.group = system.get("MessageGroupId", "")
        self.size = message_size(archived.body, self._attributes)
        self.may_be_twice = False
        """Whether SQS has confirmed the send, but the answer to an earlier try was lost."""
        self.problem = ""
        if self.is_fifo != archived.queue.is_fifo:
            was, is_now = ("FIFO", "standard") if archived.queue.is_fifo else ("standard", "FIFO")
            self.problem = f"it was removed from {archived.queue.name}, a {was} queue; {queue.name} is a {is_now} queue"

    def fits_behind(self, others: list[OutgoingMessage]) -> bool:
        """Whether it can be in a request with these; on FIFO, one message of a group at a time."""
        has_room = len(others) < MAX_ENTRIES and sum(each.size for each in others) + self.size <= MAX_REQUEST_BYTES
        return has_room and not (self.is_fifo and any(each.group == self.group for each in others))

    def entry(self, entry_id: str) -> dict[str, Any]:
        system = self.archived.record["attributes"]
        entry: dict[str, Any] = {"Id": entry_id, "MessageBody": self.archived.body}
        if self._attributes:
            entry["MessageAttributes"] = self._attributes
        if header := system.get("AWSTraceHeader"):
            entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
        if self.group:
            entry["MessageGroupId"] = self.group
        if self.is_fifo:
            entry["MessageDeduplicationId"] = system["MessageDeduplicationId"]
        else:
            entry["DelaySeconds"] = 0  # whatever the default of the queue
        return entry

    @property
    def note(self) -> str | None:
        """An explanation of what is different from before; None if nothing is."""
        record = self.archived.record
        if self.left_out:
            return f"without its attributes {', '.join(self.left_out)}, which only AWS can set"
        if ATTRIBUTE not in record["messageAttributes"] and "DeadLetterQueueSourceArn" in record["attributes"]:
            source = record["attributes"]["DeadLetterQueueSourceArn"].rpartition(":")[2]
            return f"it gets a new id, and SQS no longer knows that it came from {source}: retry it with --to {source}"
        return None


def send(messages: list[OutgoingMessage], queue: DeadLetterQueue, sending: Lookups) -> dict[str, Exception | None]:
    """Send messages, repeating what SQS throttles; return the errors by delivery id, None if confirmed."""
    errors: dict[str, Exception | None] = {}
    left = messages
    for number in range(1, TRIES + 1):
        throttled = []
        for message, error in _request(left, queue, sending):
            if error is not None and was_throttled(error) and number < TRIES:
                throttled.append(message)
            errors[message.archived.delivery_id] = error
        if not throttled:
            break
        left = throttled
        wait(number)
    return errors


def _request(
    messages: list[OutgoingMessage], queue: DeadLetterQueue, sending: Lookups
) -> Iterator[tuple[OutgoingMessage, Exception | None]]:
    if not messages:
        return
    entries = [message.entry(str(index)) for index, message in enumerate(messages)]
    try:
        answer = sending.requests.call("send_message_batch", QueueUrl=sending.url(queue.arn), Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever the error, no message is confirmed
        if len(messages) > 1 and is_worth_splitting(error):
            for message in messages:
                yield from _request([message], queue, sending)
        else:
            yield from ((message, error) for message in messages)
        return
    for message in messages:
        message.may_be_twice = was_repeated(answer) and not message.is_fifo
    refused = failed_entries(answer)
    receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
    for index, message in enumerate(messages):
        receipt = receipts.get(str(index), {})
        was_dropped = message.is_fifo and receipt.get("MessageId") == message.archived.delivery_id
        doubts = doubt(message.archived.body, receipt) or (_Dropped(DROPPED) if was_dropped else None)
        yield message, refused.get(str(index)) or doubts


class _Dropped(Exception):
    """SQS took the message for a duplicate of its own first send."""


def result_of(message: OutgoingMessage, queue: DeadLetterQueue, error: Exception | None) -> Result:
    if error is None:
        notes = [message.note, twice_in(queue.name) if message.may_be_twice else None]
        return Result(message.archived.id, "restored", note="; ".join(filter(None, notes)) or None)
    if may_be_applied(error) and not isinstance(error, _Dropped):
        why = f"SQS did not confirm the send ({error}): it may be in {queue.name}"
        return Result(message.archived.id, "unconfirmed", why)
    return Result(message.archived.id, "failed", f"not restored: {error}")


REMEDY = "no further message is sent; run the command again when the file can be written"


class ArchivePlace(NamedTuple):
    """Where a dead letter is in an archive, the name of its queue, and whether it may not have been deleted there."""

    offset: int
    queue: str
    may_be_left: bool


class ArchiveIndex:
    """An archive, read once to its end: where its dead letters are, so that only ten are in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self.places: dict[str, ArchivePlace] = {}
        """By delivery id, without dead letters that were not deleted."""
        self.damaged: dict[int, str] = {}
        """The faults of lines that cannot be read, by line number."""
        self.queues: set[str] = set()
        """The names of the queues that dead letters were removed from."""
        offset = 0
        for number, line in enumerate(file, 1):
            try:
                self._add(read_line(line) if line.strip() else None, offset)
            except DamagedLine as error:
                self.damaged[number] = str(error)
            offset += len(line)

    def _add(self, found: ArchivedMessage | ArchiveMark | None, offset: int) -> None:
        if isinstance(found, ArchivedMessage):
            self.queues.add(found.queue.name)
            self.places[found.delivery_id] = ArchivePlace(offset, found.queue.name, found.is_marked)
        elif found is not None:
            for each in found.delivery_ids:
                if not found.are_deleted:
                    self.places.pop(each, None)
                elif each in self.places:
                    self.places[each] = self.places[each]._replace(may_be_left=False)

    def of(self, queue: str) -> dict[str, ArchivePlace]:
        """Return the places of the dead letters to restore to a queue: all, unless they are of several queues."""
        return {each: place for each, place in self.places.items() if len(self.queues) < 2 or place.queue == queue}


def restore(
    path: Path,
    queue: DeadLetterQueue,
    *,
    stop: Callable[[], bool] = lambda: False,
    before_change: Callable[[], None] = lambda: None,
    twice: Callable[[int], bool] = lambda count: False,
) -> Iterator[Result]:
    """Send the dead letters of an archive to a queue, in the order of the archive; yield the result of each.

    From an archive of several queues, those that were removed from a queue of this name are sent.

    Args:
        path: The archive. ``PATH.restored``, beside it, names the messages that were sent; they are skipped.
        queue: The queue to send to, usually the one they were removed from; from `find`.
        stop: Called before each request; if it returns True, the operation ends.
        before_change: Called before each request. If it raises, nothing is sent.
        twice: Called before anything is sent if dead letters may be in the queue already, with their number. If it
            returns True, they are sent, and may then be there twice.

    Raises:
        ConfigurationError: the file has no dead letter, or none of this queue among those of several queues.
        tarry.failed.journal.CannotWrite: ``PATH.restored`` cannot be written.
        OSError: the archive cannot be read.
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    with path.open("rb") as file:
        index = ArchiveIndex(file)
        _check(index, path, queue)
        places = index.of(queue.name)
        progress = Journal(path.with_name(f"{path.name}.restored"), "progress file", REMEDY, is_ours=True)
        try:
            done = RestoreProgress(progress, queue.name)
            doubts = {each: "its removal was not confirmed" for each, place in places.items() if place.may_be_left}
            doubts |= {each: f"its send {when} was not confirmed" for each, when in done.unconfirmed.items()}
            doubts = {each: why for each, why in doubts.items() if each in places and each not in done.sent}
            if doubts and twice(len(doubts)):
                doubts = {}
            yield from _restored(file, places, RestoreRun(queue, lookups(), done, doubts, {}, stop, before_change))
        finally:
            progress.close()
    for number, why in index.damaged.items():
        yield Result(f"line {number}", "failed", f"not restored: {why}")


def _check(index: ArchiveIndex, path: Path, queue: DeadLetterQueue) -> None:
    if not index.places:
        why = "".join(f" ({text} in line {number})" for number, text in list(index.damaged.items())[:1])
        raise ConfigurationError(f"{path} has no dead letter to restore{why}; it must be an archive of tarry")
    if len(index.queues) > 1 and queue.name not in index.queues:
        names = ", ".join(sorted(index.queues))
        raise ConfigurationError(
            f"{path} has dead letters of several queues ({names}), none of {queue.name}: restore to each of them"
        )


class RestoreProgress:
    """The messages of an archive that were sent, by delivery id, with the queue and the time."""

    def __init__(self, journal: Journal, queue: str) -> None:
        self._journal = journal
        self._queue = queue
        self.sent: dict[str, str] = {}
        self.unconfirmed: dict[str, str] = {}
        with journal.path.open("rb") as file:
            for line in file:
                try:
                    self._read(json.loads(line))
                except (ValueError, TypeError, KeyError, RecursionError):
                    continue  # a process was killed in the middle of it

    def _read(self, found: Mapping[str, str]) -> None:
        when = f"to {found['queue']} at {found['at']}"
        if each := found.get("restored"):
            self.sent[each] = when
        elif each := found.get("failed"):
            self.unconfirmed.pop(each, None)
        else:
            self.unconfirmed[found["unconfirmed"]] = when

    def add(self, outcomes: Mapping[str, str]) -> None:
        """Record outcomes: unconfirmed before a send, since without a later line it is not known what was sent."""
        now = timestamp(world.current().clock.time())
        if outcomes:
            lines = [{outcome: each, "queue": self._queue, "at": now} for each, outcome in outcomes.items()]
            self._journal.append(lines)


class RestoreRun(NamedTuple):
    queue: DeadLetterQueue
    sending: Lookups
    progress: RestoreProgress
    doubts: Mapping[str, str]
    """Why dead letters may be in the queue already, by delivery id: these are not sent."""
    stopped: dict[str, str]
    """FIFO groups of which no more is sent, and the id of the message that was not."""
    stop: Callable[[], bool]
    before_change: Callable[[], None]


def _restored(file: BinaryIO, places: Mapping[str, ArchivePlace], run: RestoreRun) -> Iterator[Result]:
    todo: list[OutgoingMessage] = []
    for delivery_id, place in places.items():
        file.seek(place.offset)
        found = read_line(file.readline())
        assert isinstance(found, ArchivedMessage)
        if delivery_id in run.progress.sent:
            yield Result(found.id, "skipped", note=f"already restored {run.progress.sent[delivery_id]}")
            continue
        message = OutgoingMessage(found, run.queue)
        if todo and not message.fits_behind(todo):
            yield from _sent(todo, run)
            todo = []
        if run.stop():
            return
        why = run.doubts.get(delivery_id)
        if message.problem or why:
            run.stopped.setdefault(message.group, found.id)
            error = f"not sent, since it may be in {run.queue.name} already: {why}"
            is_wrong = bool(message.problem)
            yield Result(found.id, "failed" if is_wrong else "unconfirmed", message.problem or error)
        else:
            todo.append(message)
    if todo and not run.stop():
        yield from _sent(todo, run)


def _sent(messages: list[OutgoingMessage], run: RestoreRun) -> Iterator[Result]:
    """Send messages in one request, record those that SQS confirms, and yield the results."""
    sendable = [each for each in messages if not (each.is_fifo and each.group in run.stopped)]
    outgoing = {each.archived.delivery_id: each for each in sendable}
    run.before_change()
    run.progress.add(dict.fromkeys(outgoing, "unconfirmed"))  # before the send: a kill leaves them in doubt
    errors = send([*outgoing.values()], run.queue, run.sending)
    sent = {name: result_of(each, run.queue, errors[name]) for name, each in outgoing.items()}
    not_recorded: CannotWrite | None = None
    try:
        run.progress.add({each: result.outcome for each, result in sent.items()})
    except CannotWrite as error:  # the caller learns first what was sent
        not_recorded = error
    for name, each in outgoing.items():
        if sent[name].outcome != "restored":
            run.stopped.setdefault(each.group, each.archived.id)
    for each in messages:
        behind = f"not sent: it is behind {run.stopped.get(each.group)} in its message group, which was not sent"
        yield sent.get(each.archived.delivery_id) or Result(each.archived.id, "failed", behind)
    if not_recorded is not None:
        raise not_recorded
