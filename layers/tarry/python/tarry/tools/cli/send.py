"""`tarry send`: send messages to a queue."""

import json
import sys
from typing import Annotated, Any

import typer

from tarry.tools.cli.errors import note, refuse, renamed
from tarry.tools.cli.options import AsJson, SqsOptions, TargetOptions, pairs
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
    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="The name, URL or ARN of the queue, or its logical id in template.yaml."),
    ],
    body: Annotated[
        str,
        typer.Argument(
            metavar="BODY|@FILE|-", help="The body: text, or the content of a file; - sends each line of stdin."
        ),
    ],
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay", "-d", metavar="SECONDS", help="Delay the message; by default as the queue is configured.", min=0
        ),
    ] = None,
    group_id: Annotated[
        str | None, typer.Option("--group-id", metavar="ID", help="The message group id; required on FIFO.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", hidden=True)] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="A message attribute of type String; repeatable."),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option("--dedup", metavar="ID", help="The deduplication id (FIFO); by default a new one.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Send the message N times.")] = 1,
    options: SqsOptions,
    as_json: AsJson = False,
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
    if body == STDIN:
        if count > 1 or dedup is not None:
            option = "--count" if count > 1 else "--dedup"
            refuse(f"{option} cannot be combined with -, which sends each line of stdin as a message")
        _send_lines(queue, where, delay, group_id, attributes, as_json=as_json)
        return
    with sqs_at("tarry send", where, sends=True) as sqs:
        from tarry.tools.local.aws.queues import body_of
        from tarry.tools.local.aws.queues import send as send_to

        queue = queue_at(sqs.client, queue, stack)
        sqs.confirm("Send", queue)
        ids = send_to(
            sqs.client,
            queue,
            body_of(body),
            count=count,
            delay=delay,
            group_id=group_id,
            attributes=attributes,
            deduplication_id=dedup,
        )
    if as_json:
        for message_id in ids:
            typer.echo(json.dumps({"queue": queue, "message_id": message_id}))
    elif count == 1:
        typer.echo(f"sent to {queue} at {place(sqs.client)}: {ids[0]}")
    else:
        typer.echo(_total(len(ids), queue, sqs.client))


def _send_lines(
    queue: str,
    where: TargetOptions,
    delay: float | None,
    group_id: str | None,
    attributes: dict[str, str],
    *,
    as_json: bool,
) -> None:
    with sqs_at("tarry send", where, sends=True) as sqs:
        from tarry.tools.local.aws.queues import send_lines

        queue = queue_at(sqs.client, queue, where.stack)
        sqs.confirm("Send", queue)
        found = send_lines(
            sqs.client, queue, sys.stdin.buffer, show_progress, delay=delay, group_id=group_id, attributes=attributes
        )
    if as_json:
        for number, message_id in found.ids.items():
            typer.echo(json.dumps({"queue": queue, "message_id": message_id, "line": number}))
    else:
        typer.echo(_total(len(found.ids), queue, sqs.client))
    for number, reason in list(found.failed.items())[:MOST_FAILURES_SHOWN]:
        note(f"tarry: line {number} was not sent: {' '.join(str(reason).split())}")
    if found.failed:
        refuse(f"{len(found.failed):,} of {len(found.failed) + len(found.ids):,} lines were not sent", 1)


def show_progress(count: int) -> None:
    """Show how many messages were read so far, once in a while, if someone watches."""
    if count % PROGRESS == 0 and sys.stderr.isatty():
        note(f"{count:,} messages read")


def _total(count: int, queue: str, client: Any) -> str:
    return f"sent {count:,} message{'s'[: count != 1]} to {queue} at {place(client)}"
