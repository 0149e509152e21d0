"""`tarry send`: put a message into a queue."""

import json
from typing import Annotated

import typer

from tarry.cli.connection import place, sqs_at
from tarry.cli.options import AsJson, Aws, LocalEndpointUrl, pairs

EXAMPLE = (
    """[bold]Examples[/]: tarry send orders '{"id": 1}' --delay 60; tarry send ledger.fifo @entry.json --group a"""
)


def send(  # noqa: PLR0913, PLR0917 the options of the command
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name, URL or ARN.")],
    body: Annotated[
        str, typer.Argument(metavar="BODY|@FILE|-", help="The body: as it stands here, in a file, or from stdin.")
    ],
    delay: Annotated[
        float | None,
        typer.Option("--delay", "-d", metavar="SECONDS", help="Not before; else the queue's own delay.", min=0),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="ID", help="The message group; a FIFO queue needs one.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="A message attribute; repeatable."),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option("--dedup", metavar="ID", help="The deduplication id (FIFO); else a fresh one.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Send it so many times.")] = 1,
    endpoint_url: LocalEndpointUrl = None,
    aws: Aws = False,
    as_json: AsJson = False,
) -> None:
    """Send a message, or many alike, to a queue of `tarry local`.

    Limits are checked before anything is sent. Nothing goes to AWS but with
    --aws, or an endpoint URL that is AWS's.

    Exit code: 0 sent, 1 SQS is not there or refuses, 2 something given is wrong.
    """
    attributes = pairs(attribute or [], "--attribute")
    with sqs_at("tarry send", endpoint_url, aws=aws) as client:
        from tarry.local.aws.client import body_of
        from tarry.local.aws.client import send as send_to

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
        typer.echo(f"sent {len(ids):,} messages to {queue} at {place(client)}")
