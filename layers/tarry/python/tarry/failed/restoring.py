"""Send the dead letters of an archive back to a queue, with body and attributes as they were.

What SQS has confirmed is recorded in a file beside the archive, ``ARCHIVE.restored``, before the next ten are sent. A
second run skips it: after a kill, at most the messages of one request are sent twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from tarry import world
from tarry.envelope.attribute import timestamp
from tarry.errors import ConfigurationError
from tarry.failed.archive import ArchivedMessage, DamagedLine, read_line
from tarry.failed.requests import lookups
from tarry.failed.resending import OutgoingMessage, send
from tarry.failed.result import Result
from tarry.tooling.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from tarry.failed.queues import DeadLetterQueue
    from tarry.sqs.lookups import Lookups

REMEDY = "no further message is sent; run the command again when the file can be written"


class ArchiveIndex(NamedTuple):
    """Where the dead letters of an archive are, so that only ten are in memory at a time."""

    offsets: dict[str, int]
    """The offset of each line, by delivery id, without those that were not deleted."""
    damaged: dict[int, str]
    """The faults of lines that cannot be read, by line number."""
    queues: frozenset[str]
    """The names of the queues that the dead letters were removed from."""


def index_of(file: BinaryIO) -> ArchiveIndex:
    """Read an archive once, to its end."""
    offsets: dict[str, int] = {}
    damaged: dict[int, str] = {}
    queues: set[str] = set()
    offset = 0
    for number, line in enumerate(file, 1):
        try:
            found = read_line(line) if line.strip() else ""
        except DamagedLine as error:
            damaged[number] = str(error)
        else:
            if isinstance(found, ArchivedMessage):
                offsets[found.delivery_id] = offset
                queues.add(found.queue.name)
            else:
                offsets.pop(found, None)
        offset += len(line)
    return ArchiveIndex(offsets, damaged, frozenset(queues))


def restore(path: Path, queue: DeadLetterQueue, *, stop: Callable[[], bool] = lambda: False) -> Iterator[Result]:
    """Send the dead letters of an archive to a queue, in the order of the archive; yield the result of each.

    From an archive of several queues, those that were removed from a queue of this name are sent.

    Args:
        path: The archive. ``PATH.restored``, beside it, names the messages that were sent; they are skipped.
        queue: The queue to send to, usually the one they were removed from; from `find`.
        stop: Called before each request; if it returns True, the operation ends.

    Raises:
        ConfigurationError: the file has no dead letter, or none of this queue among those of several queues.
        tarry.tooling.journal.CannotWrite: ``PATH.restored`` cannot be written.
        OSError: the archive cannot be read.
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    with path.open("rb") as file:
        index = index_of(file)
        _check(index, path, queue)
        progress = Journal(path.with_name(f"{path.name}.restored"), "progress file", REMEDY, is_ours=True)
        try:
            yield from _restored(file, index, queue, RestoreProgress(progress), stop)
        finally:
            progress.close()
    for number, why in index.damaged.items():
        yield Result(f"line {number}", "failed", f"not restored: {why}")


def _check(index: ArchiveIndex, path: Path, queue: DeadLetterQueue) -> None:
    if not index.offsets:
        lines = f": {len(index.damaged)} lines cannot be read" if index.damaged else ""
        raise ConfigurationError(f"{path} has no dead letter to restore{lines}; it must be an archive of tarry")
    if len(index.queues) > 1 and queue.name not in index.queues:
        names = ", ".join(sorted(index.queues))
        raise ConfigurationError(
            f"{path} has dead letters of several queues ({names}), none of {queue.name}: restore to each of them"
        )


class RestoreProgress:
    """The messages of an archive that were sent, by delivery id, with their new ids."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.sent: dict[str, str] = {}
        with journal.path.open("rb") as file:
            for line in file:
                try:
                    found = json.loads(line)
                    self.sent[found["restored"]] = f"to {found['queue']} at {found['at']}"
                except (ValueError, TypeError, KeyError):
                    continue  # a process was killed in the middle of it

    def add(self, sent: Iterable[ArchivedMessage], queue: DeadLetterQueue) -> None:
        now = timestamp(world.current().clock.time())
        lines = [{"restored": each.delivery_id, "queue": queue.name, "at": now} for each in sent]
        if lines:
            self._journal.append(lines)


def _restored(
    file: BinaryIO, index: ArchiveIndex, queue: DeadLetterQueue, progress: RestoreProgress, stop: Callable[[], bool]
) -> Iterator[Result]:
    sending = lookups()
    stopped: dict[str, str] = {}
    todo: list[OutgoingMessage] = []
    for delivery_id, offset in index.offsets.items():
        file.seek(offset)
        found = read_line(file.readline())
        assert isinstance(found, ArchivedMessage)
        if len(index.queues) > 1 and found.queue.name != queue.name:
            continue
        if delivery_id in progress.sent:
            yield Result(found.id, "skipped", note=f"already restored {progress.sent[delivery_id]}")
            continue
        message = OutgoingMessage(found, queue)
        if todo and not message.fits_behind(todo):
            yield from _sent(todo, queue, sending, progress, stopped)
            todo = []
        if stop():
            return
        if why := message.problem:
            stopped.setdefault(message.group, found.id)
            yield Result(found.id, "failed", why)
        else:
            todo.append(message)
    if todo and not stop():
        yield from _sent(todo, queue, sending, progress, stopped)


def _sent(
    messages: list[OutgoingMessage],
    queue: DeadLetterQueue,
    sending: Lookups,
    progress: RestoreProgress,
    stopped: dict[str, str],
) -> Iterator[Result]:
    """Send messages in one request, record those that SQS confirms, and yield the results."""
    results: dict[str, Result] = {}
    outgoing: list[OutgoingMessage] = []
    for each in messages:
        if each.is_fifo and each.group in stopped:
            why = f"not sent: it is behind {stopped[each.group]} in its message group, which was not sent"
            results[each.archived.delivery_id] = Result(each.archived.id, "failed", why)
        else:
            outgoing.append(each)
    errors = send(outgoing, queue, sending)
    progress.add((each.archived for each in outgoing if errors[each.archived.delivery_id] is None), queue)
    for each in outgoing:
        found = each.archived
        if error := errors[found.delivery_id]:
            stopped.setdefault(each.group, found.id)
            results[found.delivery_id] = Result(found.id, "failed", f"not restored: {error}")
        else:
            results[found.delivery_id] = Result(found.id, "restored", note=each.note)
    for each in messages:
        yield results[each.archived.delivery_id]
