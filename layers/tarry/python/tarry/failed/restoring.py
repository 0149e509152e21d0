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
from tarry.failed.archive import ArchivedMessage, DamagedLine, read_line
from tarry.failed.journal import CannotWrite, Journal
from tarry.failed.removing import Result, twice_in
from tarry.failed.requests import TRIES, lookups, wait
from tarry.record.attribute import ATTRIBUTE, timestamp
from tarry.settle.copies import as_sent
from tarry.sqs.limits import MAX_ENTRIES, MAX_REQUEST_BYTES, is_reserved, message_size
from tarry.sqs.refusals import (
    doubt,
    failed_entries,
    is_refused_for_now,
    is_worth_splitting,
    may_be_applied,
    was_repeated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from tarry.failed.queues import DeadLetterQueue
    from tarry.sqs.lookups import Lookups

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
            if error is not None and is_refused_for_now(error) and not may_be_applied(error) and number < TRIES:
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
    """Return the result of a message that was sent, with this error or none."""
    if error is None:
        notes = [message.note, twice_in(queue.name) if message.may_be_twice else None]
        return Result(message.archived.id, "restored", note="; ".join(filter(None, notes)) or None)
    if may_be_applied(error) and not isinstance(error, _Dropped):
        why = f"SQS did not confirm the send ({error}): it may be in {queue.name}"
        return Result(message.archived.id, "unconfirmed", why)
    return Result(message.archived.id, "failed", f"not restored: {error}")


REMEDY = "no further message is sent; run the command again when the file can be written"


class ArchiveIndex(NamedTuple):
    """Where the dead letters of an archive are, so that only ten are in memory at a time."""

    offsets: dict[str, int]
    """The offset of each line, by delivery id, without those that were not deleted."""
    damaged: dict[int, str]
    """The faults of lines that cannot be read, by line number."""
    queues: frozenset[str]
    """The names of the queues that the dead letters were removed from."""
    unmarked: dict[str, str]
    """The names of the queues of those that may not have been deleted, by delivery id."""


def index_of(file: BinaryIO) -> ArchiveIndex:
    """Read an archive once, to its end."""
    offsets: dict[str, int] = {}
    damaged: dict[int, str] = {}
    queues: set[str] = set()
    unmarked: dict[str, str] = {}
    offset = 0
    for number, line in enumerate(file, 1):
        try:
            found = read_line(line) if line.strip() else None
        except DamagedLine as error:
            damaged[number] = str(error)
        else:
            if isinstance(found, ArchivedMessage):
                offsets[found.delivery_id] = offset
                queues.add(found.queue.name)
                if found.is_marked:
                    unmarked[found.delivery_id] = found.queue.name
            elif found is not None:
                for each in found.delivery_ids:
                    unmarked.pop(each, None)
                    if not found.are_deleted:
                        offsets.pop(each, None)
        offset += len(line)
    return ArchiveIndex(offsets, damaged, frozenset(queues), unmarked)


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
        index = index_of(file)
        _check(index, path, queue)
        progress = Journal(path.with_name(f"{path.name}.restored"), "progress file", REMEDY, is_ours=True)
        try:
            done = RestoreProgress(progress, queue.name)
            doubts = _doubts(index, done, queue)
            if doubts and twice(len(doubts)):
                doubts = {}
            yield from _restored(file, index, RestoreRun(queue, lookups(), done, doubts, {}, stop, before_change))
        finally:
            progress.close()
    for number, why in index.damaged.items():
        yield Result(f"line {number}", "failed", f"not restored: {why}")


def _check(index: ArchiveIndex, path: Path, queue: DeadLetterQueue) -> None:
    if not index.offsets:
        why = "".join(f" ({text} in line {number})" for number, text in list(index.damaged.items())[:1])
        raise ConfigurationError(f"{path} has no dead letter to restore{why}; it must be an archive of tarry")
    if len(index.queues) > 1 and queue.name not in index.queues:
        names = ", ".join(sorted(index.queues))
        raise ConfigurationError(
            f"{path} has dead letters of several queues ({names}), none of {queue.name}: restore to each of them"
        )


def _doubts(index: ArchiveIndex, progress: RestoreProgress, queue: DeadLetterQueue) -> dict[str, str]:
    """Return why dead letters of the archive may be in the queue already, by delivery id."""
    is_of_one = len(index.queues) < 2
    found = {
        each: "its removal was not confirmed"
        for each, name in index.unmarked.items()
        if is_of_one or name == queue.name
    }
    found |= {each: f"its send {when} was not confirmed" for each, when in progress.unconfirmed.items()}
    return {each: why for each, why in found.items() if each in index.offsets and each not in progress.sent}


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


def _restored(file: BinaryIO, index: ArchiveIndex, run: RestoreRun) -> Iterator[Result]:
    todo: list[OutgoingMessage] = []
    for delivery_id, offset in index.offsets.items():
        file.seek(offset)
        found = read_line(file.readline())
        assert isinstance(found, ArchivedMessage)
        if len(index.queues) > 1 and found.queue.name != run.queue.name:
            continue
        if delivery_id in run.progress.sent:
            yield Result(found.id, "skipped", note=f"already restored {run.progress.sent[delivery_id]}")
            continue
        message = OutgoingMessage(found, run.queue)
        if todo and not message.fits_behind(todo):
            yield from _sent(todo, run)
            todo = []
        if run.stop():
            return
        if (result := _not_sent(message, run)) is not None:
            run.stopped.setdefault(message.group, found.id)
            yield result
        else:
            todo.append(message)
    if todo and not run.stop():
        yield from _sent(todo, run)


def _not_sent(message: OutgoingMessage, run: RestoreRun) -> Result | None:
    """Return the result of a message that is not sent; None if it is."""
    if why := message.problem:
        return Result(message.archived.id, "failed", why)
    if why := run.doubts.get(message.archived.delivery_id, ""):
        error = f"not sent, since it may be in {run.queue.name} already: {why}"
        return Result(message.archived.id, "unconfirmed", error)
    return None


def _sent(messages: list[OutgoingMessage], run: RestoreRun) -> Iterator[Result]:
    """Send messages in one request, record those that SQS confirms, and yield the results."""
    results: dict[str, Result] = {}
    outgoing: list[OutgoingMessage] = []
    for each in messages:
        if each.is_fifo and each.group in run.stopped:
            why = f"not sent: it is behind {run.stopped[each.group]} in its message group, which was not sent"
            results[each.archived.delivery_id] = Result(each.archived.id, "failed", why)
        else:
            outgoing.append(each)
    run.before_change()
    run.progress.add({each.archived.delivery_id: "unconfirmed" for each in outgoing})
    errors = send(outgoing, run.queue, run.sending)
    sent = {
        each.archived.delivery_id: result_of(each, run.queue, errors[each.archived.delivery_id]) for each in outgoing
    }
    not_recorded: CannotWrite | None = None
    try:
        run.progress.add({each: result.outcome for each, result in sent.items()})
    except CannotWrite as error:  # the caller learns first what was sent
        not_recorded = error
    for each in outgoing:
        if sent[each.archived.delivery_id].outcome != "restored":
            run.stopped.setdefault(each.group, each.archived.id)
    results |= sent
    for each in messages:
        yield results[each.archived.delivery_id]
    if not_recorded is not None:
        raise not_recorded
