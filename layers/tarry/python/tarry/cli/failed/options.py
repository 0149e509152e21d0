"""The options of `tarry failed`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tarry.sqs.client import MAX_PARALLEL


class Via(StrEnum):
    """How a letter is retried."""

    queue = "queue"
    local = "local"


Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of letters, their own or SQS's.", show_default=False)
]
QueueName = Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME|URL", help="The dead-letter queue.")]
TemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--template", "-t", metavar="FILE", help="All dead-letter queues of a SAM template; by default template.yaml."
    ),
]
StackName = Annotated[
    str | None, typer.Option("--stack", metavar="NAME", help="All dead-letter queues of a deployed stack.")
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="'FIELD OP VALUE'",
        help="Those for which it holds; repeatable, all must. FIELD: type, reason, attempts, failed_at, origin, "
        "fingerprint, message, body, attributes, or a JMESPath into them; OP: = != < <= > >= ~ (regular expression).",
    ),
]
EndpointUrl = Annotated[str | None, typer.Option("--endpoint-url", metavar="URL", help="Another SQS than AWS's.")]
Region = Annotated[str | None, typer.Option("--region", metavar="REGION", help="The AWS region.")]
Profile = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="The profile of your AWS settings.")]
Keepalive = Annotated[
    float,
    typer.Option(
        "--keepalive",
        metavar="SECONDS",
        min=1,
        max=14400,
        help="Hold what is looked at anew every so many seconds, for three times as long.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Ask nothing.")]
Concurrency = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, max=MAX_PARALLEL, help="How many requests go out at once.")
]
