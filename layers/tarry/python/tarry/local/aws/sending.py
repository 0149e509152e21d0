"""Sending by hand: what `tarry send` does."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarry import Queue
from tarry.tooling.errors import UsageError


def body_of(given: str) -> str:
    """The body that an argument stands for: itself, a file's content (``@file``) or what stdin gives (``-``).

    Byte for byte, a newline at the end included.

    Raises:
        UsageError: there is no such file, or it is no text.
    """
    if given != "-" and not given.startswith("@"):
        return given
    name = given.removeprefix("@")
    try:
        content = sys.stdin.buffer.read() if given == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = "stdin" if given == "-" else name
        raise UsageError(f"{where} is no text: byte {error.start} is not UTF-8, and SQS takes text alone") from error


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
    """Sends a message ``count`` times; the ids. Checked as `tarry.Queue` checks, and raises what that raises."""
    target = Queue(queue, sqs=client)
    entry = target.entry(body, delay, attributes, group_id, deduplication_id)
    if count > 1:
        return target.send_batch(entry for _ in range(count))
    return [target.send(body, delay, attributes, group_id, deduplication_id)]
