"""`tarry queues`: list the queues with their numbers of messages."""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.failed.queue_names import existing_queues, queue_name
from tarry.failed.usage import UsageError
from tarry.tools.cli.connection import queue_at, queues_of_stack, sqs_at
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.targets import TargetOptions
from tarry.tools.cli.options import AsJson, Aws, EndpointUrl, Local, LocalPort, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.local.aws.queues import QueueDepth

EXAMPLE = """\
tarry queues
tarry queues orders OrdersDeadLetters --json
tarry queues --stack shop-dev"""
WIDE_ENOUGH = 250  # names are up to 80 characters long


def queues(  # noqa: PLR0917 the options of the command
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help="Names, URLs or ARNs of queues, or their logical ids in template.yaml; by default all queues.",
            show_default=False,
        ),
    ] = None,
    local: Local = False,
    port: LocalPort = None,
    aws: Aws = False,
    stack: Stack = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the queues with their numbers of messages.

    Without --local, --aws, --stack or --endpoint-url: the queues of the `tarry local`
    that runs the template in this directory, or else of AWS. The first line says which.

    The columns are messages ready, in flight (received, or waiting for a retry)
    and delayed, and the age of the oldest, which only `tarry local` provides.
    SQS counts messages approximately.

    Exit code: 0 success, 1 SQS cannot be reached or refuses, 2 wrong usage.
    """
    url = next((each for each in names or [] if "://" in each), None)
    where = TargetOptions(url, stack=stack, endpoint_url=endpoint_url, local=local, aws=aws, port=port)
    with sqs_at("tarry queues", where) as sqs:
        from tarry.tools.local.aws.queues import queue_depths

        wanted = [queue_at(sqs.client, each, stack) for each in names or []]
        if stack is not None and not names:
            wanted = [*queues_of_stack(sqs.client, stack).values()]
        depths = queue_depths(sqs.client)
        place = sqs.say_place(depths[0].url if depths else None)
        if names or stack is not None:
            depths = _selected(depths, wanted)
    now = time.time()
    if as_json:
        for depth in depths:
            fields = asdict(depth)
            fields["oldest_seconds"] = _age(fields.pop("oldest"), now)
            typer.echo(json.dumps(fields))
    elif depths:
        _print(depths, now)
    else:
        note(f"no queues at {place}")


def _selected(depths: "Sequence[QueueDepth]", wanted: "Sequence[str]") -> "list[QueueDepth]":
    """Return the wanted queues. Raises `UsageError` for one that does not exist."""
    found = {depth.name: depth for depth in depths}
    for each in wanted:
        if queue_name(each) not in found:
            raise UsageError(f"there is no queue {each!r}{existing_queues(each, list(found))}")
    return [found[name] for name in dict.fromkeys(map(queue_name, wanted))]


def _print(depths: "Sequence[QueueDepth]", now: float) -> None:
    from tarry.failed.text import duration

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE_ENOUGH
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("QUEUE", overflow="fold")
    for name in ("READY", "IN FLIGHT", "DELAYED", "OLDEST"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("DEAD-LETTER QUEUE", overflow="fold")
    for depth in depths:
        age = _age(depth.oldest, now)
        table.add_row(
            Text(depth.name, "bold" if depth.messages else ""),
            *(Text(f"{count:,}", "" if count else "dim") for count in (depth.ready, depth.in_flight, depth.delayed)),
            Text("-", "dim") if age is None else duration(age),
            Text(depth.dead_letter_queue or "-", "" if depth.dead_letter_queue else "dim"),
        )
    console.print(table)


def _age(oldest: float | None, now: float) -> int | None:
    """Return the age of the oldest message in whole seconds."""
    return None if oldest is None else max(0, int(now - oldest))
