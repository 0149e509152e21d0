"""The archive of removed dead letters: written before a dead letter is deleted, so that it can be restored.

An archive is JSON lines. A line is a dead letter: the SQS record with body and attributes as SQS returned them, the
`Tarry` attribute included, and a checksum. A line ``deleted`` has the delivery ids of dead letters that are deleted, as
SQS has confirmed; a line ``kept`` that of one that was not deleted. A dead letter without such a line may still be in
the queue: the process was killed, or an answer was lost. Archives of version 1 have no lines ``deleted``.
"""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from tarry import world
from tarry.failed.journal import CannotWrite, Journal, state_folder
from tarry.record.attribute import timestamp
from tarry.support.values import QueueArn, Value, queue_arn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tarry.failed.dead_letters import DeadLetterMessage

VERSION = 2
REMEDY = "nothing more is removed; name another file (--archive FILE)"


class Archive(Protocol):
    """A place that `remove` writes to before it deletes. An exception of ``add`` ends the removal."""

    def add(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Write dead letters durably, before they are deleted."""

    def deleted(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Note that these dead letters, which were written, are deleted."""

    def keep(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Note that these dead letters, which were written, could not be deleted."""


class _LineArchive(Archive):
    """An archive that is written line by line: `_write` makes lines durable, or raises and has none of them."""

    count = 0
    """The number of dead letters written."""

    def add(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        records = [(each.id, {**each.record, "receiptHandle": ""}) for each in dead_letters]
        self._append([{"id": own_id, "sum": checksum(record), "record": record} for own_id, record in records])
        self.count += len(dead_letters)

    def deleted(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        self._append([{"deleted": [each.delivery_id for each in dead_letters]}] if dead_letters else [])

    def keep(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        self._append([{"kept": each.delivery_id} for each in dead_letters])

    def _append(self, lines: list[dict[str, Any]]) -> None:
        head = {"v": VERSION, "at": timestamp(world.current().clock.time())}
        if lines:
            self._write([head | line for line in lines])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        raise NotImplementedError


class ArchiveFile(_LineArchive):
    """An archive in a file, to which dead letters are appended. Close it at the end.

    Args:
        path: The file.
        remedy: What to do if it cannot be written, for the error.

    Raises:
        tarry.failed.journal.CannotWrite: the file cannot be written, or is not an archive.
    """

    def __init__(self, path: Path, remedy: str = REMEDY) -> None:
        _check_is_archive(path)
        self._journal = Journal(path, "archive", remedy, is_ours=True)
        self.path = path
        self.queues: dict[str, None] = {}
        """The names of the queues that they were removed from, in order."""

    def add(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Write dead letters to the disk. Raises `CannotWrite`; the file has none of them then."""
        super().add(dead_letters)
        self.queues |= {queue_arn(each.record["eventSourceARN"]).name: None for each in dead_letters}

    def _write(self, lines: list[dict[str, Any]]) -> None:
        self._journal.append(lines)

    def close(self) -> None:
        """Close the file; delete it if it is new and empty."""
        self._journal.close()


def _check_is_archive(path: Path) -> None:
    """Check that an existing file begins as an archive. Raises `CannotWrite`."""
    try:
        if path.is_file():  # opening a named pipe would block
            with path.open("rb") as file:
                if first := file.readline():
                    read_line(first)
    except DamagedLine as error:
        raise CannotWrite(f"{path} exists and is not an archive of tarry ({error} in line 1); {REMEDY}") from error
    except OSError:  # it does not exist, or cannot be opened: opening it for writing gives the error
        return


def new_archive(queues: Sequence[str], state: Path | None = None) -> Path:
    """Return the path of a new archive in a state directory (tarry's by default), named after the time and queue."""
    from datetime import UTC, datetime

    folder = (state or state_folder()) / "removed"
    of = queues[0] if len(queues) == 1 else f"{len(queues)}-queues"
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{of}"
    paths = (folder / f"{name}{'' if number == 1 else f'-{number}'}.jsonl" for number in count(1))
    return next(path for path in paths if not path.exists())


def checksum(record: Mapping[str, Any]) -> str:
    """Return the checksum of a record, which does not depend on the order of its keys."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("ascii")).hexdigest()[:16]


# reading


class DamagedLine(Exception):
    """A line of an archive cannot be read. The text says why."""


class ArchivedMessage(Value):
    """A removed dead letter, as an archive has it."""

    id: str
    """The stable id."""
    record: Mapping[str, Any]
    """The SQS record, as in the event of an event source mapping, without a receipt handle."""
    is_marked: bool
    """Whether a later line says what became of it: not in archives of version 1."""

    @property
    def delivery_id(self) -> str:
        """The SQS message id that it had."""
        return str(self.record["messageId"])

    @property
    def body(self) -> str:
        return str(self.record["body"])

    @property
    def queue(self) -> QueueArn:
        return queue_arn(self.record["eventSourceARN"])


class ArchiveMark(Value):
    """A line that says whether dead letters of the archive were deleted."""

    delivery_ids: tuple[str, ...]
    are_deleted: bool
    """Whether they were deleted; otherwise they were kept."""


def read_line(line: bytes) -> ArchivedMessage | ArchiveMark:
    """Return the dead letter of a line, or what it says of others. Raises `DamagedLine`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedLine("it is not complete JSON") from error
    version = found.get("v") if isinstance(found, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise DamagedLine(f"it is of version {version}, and this tarry reads archives up to version {VERSION}")
    if version not in (1, VERSION):
        raise DamagedLine("it is not a line of a tarry archive")
    if isinstance(named := found.get("kept"), str):
        return ArchiveMark((named,), are_deleted=False)
    if isinstance(ids := found.get("deleted"), list):
        return ArchiveMark(tuple(map(str, ids)), are_deleted=True)
    record = found.get("record")
    if not isinstance(record, dict) or not isinstance(found.get("id"), str) or found.get("sum") != checksum(record):
        raise DamagedLine("its checksum does not match")
    if not _is_whole(record):  # another program made the checksum
        raise DamagedLine("its record lacks a part, or has one of another type")
    return ArchivedMessage(found["id"], record, found["v"] == VERSION)


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Return whether a record has the parts that are read."""
    texts = (record.get("messageId"), record.get("body"), record.get("eventSourceARN"))
    attributes = record.get("messageAttributes")
    if not isinstance(attributes, dict) or not isinstance(record.get("attributes"), dict):
        return False
    return all(isinstance(each, str) for each in texts) and all(isinstance(each, dict) for each in attributes.values())


class ArchiveBucket(_LineArchive):
    """An archive in a bucket: an encrypted object for each call of ``add``, numbered in order.

    The objects, one after the other, are an archive for `restore`. An error of S3 ends the removal, and what it could
    not write is not deleted.

    Args:
        s3: A boto3 client of S3. It needs ``s3:PutObject``.
        bucket: The name of the bucket.
        prefix: The beginning of the keys, used by no other run.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._prefix = prefix.rstrip("/")
        self._objects = 0
        self.place = f"s3://{bucket}/{self._prefix}/"
        """Where the objects are."""

    def _write(self, lines: list[dict[str, Any]]) -> None:
        self._objects += 1
        self._s3.put_object(
            Bucket=self._bucket,
            Key=f"{self._prefix}/{self._objects:05}.jsonl",  # S3 lists keys as text: the zeros keep the order
            Body="".join(json.dumps(line) + "\n" for line in lines).encode(),
            ContentType="application/jsonl",
            ServerSideEncryption="AES256",
        )
