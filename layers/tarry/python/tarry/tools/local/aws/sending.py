"""The messages that a command sends: bodies from arguments, files and streams, and sending them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarry import Queue, SendError
from tarry.failed.usage import UsageError


def body_of(given: str) -> str:
    """Return the body for an argument: the text itself, or the content of a file (``@file``).

    The content is unchanged, including a newline at the end.

    Raises:
        UsageError: the file cannot be read, or is not text.
    """
    if not given.startswith("@"):
        return given
    name = given.removeprefix("@")
    try:
        return Path(name).read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not text: byte {error.start} is not UTF-8, and SQS accepts only text") from error


def lines_of(stream: Iterable[bytes]) -> Iterator[tuple[int, str | UsageError]]:
    """Yield the lines of a stream that are not empty, each with its number and without its end.

    A line that is not text is yielded as an error.
    """
    for number, line in enumerate(stream, start=1):
        content = line.rstrip(b"\r\n")
        if not content.strip():
            continue
        try:
            yield number, content.decode()
        except UnicodeDecodeError as error:
            yield number, UsageError(f"byte {error.start} is not UTF-8, and SQS accepts only text")


def send(
    client: Any,
    queue: str,
    body: str,
    *,
    count: int = 1,
    delay: float | None = None,
    group_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
    deduplication_id: str | None = None,
) -> list[str]:
    """Send a message ``count`` times; return the ids. Checks and raises like `tarry.Queue`."""
    target = _target(client, queue, group_id)
    entry = target.entry(body, delay, attributes, group_id, deduplication_id)
    if count > 1:
        return target.send_batch(entry for _ in range(count))
    return [target.send(body, delay, attributes, group_id, deduplication_id)]


@dataclass(frozen=True)
class SentLines:
    """The lines that were sent, each with the id of its message, and the others with the reason; by line number."""

    ids: Mapping[int, str]
    failed: Mapping[int, Exception]


def send_lines(
    client: Any,
    queue: str,
    stream: Iterable[bytes],
    on_read: Callable[[int], None],
    *,
    delay: float | None = None,
    group_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> SentLines:
    """Send each line of a stream that is not empty as a message, while the stream is read.

    ``on_read`` is called with the number of messages that were read so far. Checks and raises like
    `tarry.Queue.send_batch`, except that it returns the messages that could not be sent.
    """
    target = _target(client, queue, group_id)
    failed: dict[int, Exception] = {}
    numbers: list[int] = []

    def bodies() -> Iterator[str]:
        for number, line in lines_of(stream):
            if isinstance(line, UsageError):
                failed[number] = line
                continue
            numbers.append(number)
            yield line
            on_read(len(numbers))

    try:
        sent: Sequence[str | None] = target.send_batch(bodies(), delay=delay, group_id=group_id, attributes=attributes)
    except SendError as error:
        sent = error.message_ids
        failed |= {numbers[unsent.index]: unsent.reason for unsent in error.failed}
    ids = {number: message_id for number, message_id in zip(numbers, sent, strict=True) if message_id is not None}
    return SentLines(ids, dict(sorted(failed.items())))


def _target(client: Any, queue: str, group_id: str | None) -> Queue:
    """Return the queue to send to. Raises `UsageError` for a FIFO queue without a message group id."""
    target = Queue(queue, sqs=client)
    if target.is_fifo and not group_id:
        raise UsageError(f"{queue} is a FIFO queue: give a message group id (--group-id ID)")
    return target
