"""`tarry send`: send messages to a queue."""

import json
import sys
from typing import Annotated, Any

import typer

from tarry.cli.connection import place, queue_at, sqs_at
from tarry.cli.errors import note, refuse
from tarry.cli.options import AsJson, Aws, LocalEndpointUrl, Stack, pairs

EXAMPLE = """\
tarry send orders '{"id": 1}' --delay 60
tarry send ledger.fifo @entry.json --group a
tarry send orders - < orders.jsonl
tarry send OrdersQueue '{"id": 1}' --aws --stack shop-dev"""
STDIN = "-"
PROGRESS = 1_000
"""The number of messages after which the progress is shown."""
MOST_FAILURES_SHOWN = 20


def send(  # noqa: PLR0913, PLR0917 the options of the command
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
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="ID", help="The message group id; required on FIFO.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="A message attribute of type String; repeatable."),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option("--dedup", metavar="ID", help="The deduplication id (FIFO); by default a new one.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Send the message N times.")] = 1,
    endpoint_url: LocalEndpointUrl = None,
    aws: Aws = False,
    stack: Stack = None,
    as_json: AsJson = False,
) -> None:
    """Send a message, or each line of stdin as a message, to a queue of `tarry local`.

    The limits of SQS are checked before a message is sent. It goes to AWS only
    with --aws or an endpoint URL of AWS. Empty lines of stdin are skipped.

    Exit code: 0 sent, 1 SQS cannot be reached or refuses, or some lines were
    not sent, 2 wrong usage.
    """
    attributes = pairs(attribute or [], "--attribute")
    if body == STDIN:
        if count > 1 or dedup is not None:
            option = "--count" if count > 1 else "--dedup"
            refuse(f"{option} cannot be combined with -, which sends each line of stdin as a message")
        _send_lines(queue, endpoint_url, delay, group, attributes, aws=aws, stack=stack, as_json=as_json)
        return
    with sqs_at("tarry send", endpoint_url, aws=aws, queue=queue) as client:
        from tarry.local.aws.sending import body_of
        from tarry.local.aws.sending import send as send_to

        queue = queue_at(client, queue, stack)
        ids = send_to(
            client,
            queue,
            body_of(body),
            count=count,
            delay=delay,
            group_id=group,
            attributes=attributes,
            deduplication_id=dedup,
        )
    if as_json:
        for message_id in ids:
            typer.echo(json.dumps({"queue": queue, "message_id": message_id}))
    elif count == 1:
        typer.echo(f"sent to {queue} at {place(client)}: {ids[0]}")
    else:
        typer.echo(_total(len(ids), queue, client))


def _send_lines(
    queue: str,
    endpoint_url: str | None,
    delay: float | None,
    group: str | None,
    attributes: dict[str, str],
    *,
    aws: bool,
    stack: str | None,
    as_json: bool,
) -> None:
    with sqs_at("tarry send", endpoint_url, aws=aws, queue=queue) as client:
        from tarry.local.aws.sending import send_lines

        queue = queue_at(client, queue, stack)
        found = send_lines(
            client, queue, sys.stdin.buffer, show_progress, delay=delay, group_id=group, attributes=attributes
        )
    if as_json:
        for number, message_id in found.ids.items():
            typer.echo(json.dumps({"queue": queue, "message_id": message_id, "line": number}))
    else:
        typer.echo(_total(len(found.ids), queue, client))
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
