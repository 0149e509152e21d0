"""The messages that are left in the queues at the end of a run, as an SQS event that can be played again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tarry.failed.dead_letters import as_event, as_json, read_dead_letter
from tarry.failed.queue_names import region_of
from tarry.failed.received import event_record
from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.simulator.sqs.message import RequestedAttributes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tarry.tools.simulator.sqs import Sqs, StoredMessage
    from tarry.tools.template import Template

EVERYTHING = RequestedAttributes({"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]})


def check_keep(path: Path) -> None:
    """Raise `UsageError` if the file cannot be written."""
    if path.is_dir():
        raise UsageError(f"--keep {path} is a directory: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"--keep {path}: the directory {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--keep {path}: permission denied")


def messages_left(sqs: Sqs) -> str:
    """Return how many messages are left in which queues, as a text; empty for none."""
    counts = {queue: len(messages) for queue in sqs.queues() if (messages := sqs.peek(queue))}
    if not counts:
        return ""
    total = sum(counts.values())
    return f"{total:,} message{'s'[: total != 1]} ({', '.join(f'{n:,} in {queue}' for queue, n in counts.items())})"


def keep(path: Path, sqs: Sqs, template: Template, now: float) -> str:
    """Write all messages to a file, as an SQS event; return a text about it.

    A dead letter is a record for the queue it came from, as `tarry failed show --event` prints it. Beside the fields
    of an SQS record, each record has ``leftIn``, the name of the queue that the message was in, and a dead letter has
    ``failure``, its failure record.

    Raises:
        UsageError: the file cannot be written.
    """
    event = {"Records": list(_records(sqs, template, now))}
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(json.dumps(event, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"--keep {path}: {error.strerror or error}") from error
    left = messages_left(sqs)
    return (
        f"Wrote {left} to {path}. To send them again: tarry local --event {path}"
        if left
        else f"Wrote {path}: no message was left."
    )


def _records(sqs: Sqs, template: Template, now: float) -> Iterator[dict[str, Any]]:
    dead_letter_queues = {queue_arn(each.dead_letter_arn).name for each in template.queues.values()}
    for queue in sqs.queues():
        for message in sqs.peek(queue):
            record = (_dead_letter if queue in dead_letter_queues else _message)(message, sqs.arn(queue), now)
            yield {**record, "leftIn": queue}


def _message(message: StoredMessage, arn: str, _: float) -> dict[str, Any]:
    return event_record(message.as_received("", EVERYTHING), arn, region_of(arn))


def _dead_letter(message: StoredMessage, arn: str, now: float) -> dict[str, Any]:
    dead_letter = read_dead_letter(message.as_received("", EVERYTHING), queue_arn(arn), now)
    [record] = as_event([dead_letter])["Records"]
    return {**record, "failure": as_json(dead_letter)["failure"]}
