"""`tarry send`: send messages to a queue."""

import json
import sys
from collections.abc import Mapping

import typer

from tarry.tools.cli.errors import note, refuse, renamed
from tarry.tools.cli.options import AS_JSON, REQUIRED, SqsOptions, TargetOptions, argument, option, pairs
from tarry.tools.cli.queues import place, queue_at, sqs_at

EXAMPLE = """\
tarry send orders '{"id": 1}' --local --delay 60
tarry send ledger.fifo @entry.json --local --group-id a
tarry send orders - --local < orders.jsonl
tarry send OrdersQueue '{"id": 1}' --stack shop-dev"""
STDIN = "-"
PROGRESS = 1_000
"""The number of messages after which the progress is shown."""
MOST_FAILURES_SHOWN = 20


def send(  # noqa: PLR0913 the options of the command
    *,
    queue: str = argument("QUEUE", "The name, URL or ARN of the queue, or its logical id in template.yaml.", REQUIRED),
    body: str = argument(
        "BODY|@FILE|-", "The body: text, or the content of a file; - sends each line of stdin.", REQUIRED
    ),
    delay: float | None = option(
        "--delay -d SECONDS", "Delay the message; by default as the queue is configured.", min=0
    ),
    group_id: str | None = option("--group-id ID", "The message group id; required on FIFO."),
    group: str | None = option("--group -g", "", hidden=True),
    attribute: list[str] | None = option(
        "--attribute -a NAME=VALUE", "A message attribute of type String; repeatable."
    ),
    dedup: str | None = option("--dedup ID", "The deduplication id (FIFO); by default a new one."),
    count: int = option("--count -n N", "Send the message N times.", 1, min=1),
    options: SqsOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Send a message, or each line of stdin as a message, to a queue.

    Say where with --local, --aws, --stack, --endpoint-url or the URL of the queue.
    Otherwise the command asks at a terminal, and ends with exit code 2 without one.
    The limits of SQS are checked before a message is sent. Empty lines of stdin are
    skipped.

    Exit code: 0 sent, 1 SQS cannot be reached or refuses, or some lines were
    not sent, 2 wrong usage.
    """
    attributes = pairs(attribute or [], "--attribute")
    group_id = group_id or renamed("--group", "--group-id", group)
    where, stack = TargetOptions(queue, **vars(options)), options.stack
    if body == STDIN and (count > 1 or dedup is not None):
        option = "--count" if count > 1 else "--dedup"
        refuse(f"{option} cannot be combined with -, which sends each line of stdin as a message")
    failed: Mapping[int, Exception] = {}
    with sqs_at("tarry send", where, sends=True) as sqs:
        from tarry.tools.local.aws.client import body_of, send_lines, target_of

        queue = queue_at(sqs.client, queue, stack)
        sqs.confirm("Send", queue)
        target = target_of(sqs.client, queue, group_id)
        if body == STDIN:
            settings = {"delay": delay, "attributes": attributes}
            lines, failed = send_lines(target, sys.stdin.buffer, show_progress, group_id=group_id, **settings)
            sent = [{"message_id": each, "line": number} for number, each in lines.items()]
        else:
            given = body_of(body), delay, attributes, group_id, dedup
            ids = [target.send(*given)] if count == 1 else target.send_batch([target.entry(*given)] * count)
            sent = [{"message_id": each} for each in ids]
    to = f"to {queue} at {place(sqs.client)}"
    if as_json:
        for each in sent:
            typer.echo(json.dumps({"queue": queue, **each}))
    elif count > 1 or body == STDIN:
        typer.echo(f"sent {len(sent):,} message{'s'[: len(sent) != 1]} {to}")
    else:
        typer.echo(f"sent {to}: {ids[0]}")
    for number, reason in list(failed.items())[:MOST_FAILURES_SHOWN]:
        note(f"tarry: line {number} was not sent: {' '.join(str(reason).split())}")
    if failed:
        refuse(f"{len(failed):,} of {len(failed) + len(sent):,} lines were not sent", 1)


def show_progress(count: int) -> None:
    """Show how many messages were read so far, once in a while, if someone watches."""
    if count % PROGRESS == 0 and sys.stderr.isatty():
        note(f"{count:,} messages read")
