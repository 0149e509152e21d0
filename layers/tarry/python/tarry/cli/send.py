"""`tarry send`: send a message to a queue."""

import json
from typing import Annotated

import typer

from tarry.cli.connection import place, sqs_at
from tarry.cli.options import AsJson, Aws, LocalEndpointUrl, pairs

EXAMPLE = """\
tarry send orders '{"id": 1}' --delay 60
tarry send ledger.fifo @entry.json --group a"""


def send(  # noqa: PLR0913, PLR0917 the options of the command
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The name, URL or ARN of the queue.")],
    body: Annotated[
        str, typer.Argument(metavar="BODY|@FILE|-", help="The body: text, the content of a file, or stdin.")
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
    as_json: AsJson = False,
) -> None:
    """Send a message, once or many times, to a queue of `tarry local`.

    The limits of SQS are checked before the message is sent. It goes to AWS only
    with --aws or an endpoint URL of AWS.

    Exit code: 0 sent, 1 SQS cannot be reached or refuses, 2 wrong usage.
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
