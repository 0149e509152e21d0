"""`tarry invoke`: invoke a function once, as Lambda does."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarry.cli.errors import libraries, note, refusals, refuse
from tarry.cli.options import Env, Parameters, Template, pairs

if TYPE_CHECKING:
    from tarry.simulator.history import HistoryEvent
    from tarry.template import TemplateFunction

EXAMPLE = """\
tarry invoke OrdersFunction -e events/orders.json
tarry invoke Digest -e - < event.json"""


def invoke(  # noqa: PLR0917 the options of the command
    function: Annotated[str, typer.Argument(metavar="FUNCTION", help="The logical id or name of the function.")],
    event: Annotated[
        str, typer.Option("--event", "-e", metavar="FILE|-", help="The event as JSON, in a file or on stdin.")
    ],
    template: Template = Path("template.yaml"),
    parameter: Parameters = None,
    env: Env = None,
    region: Annotated[
        str | None, typer.Option("--region", help="The value of AWS::Region in the template.", show_default=False)
    ] = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option(
            "--endpoint-url",
            metavar="URL",
            help="The AWS endpoint of the function; by default it can reach none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Invoke a function once, as Lambda does, and print its response.

    The response goes to stdout as JSON, the log of the handler to stderr. The
    function runs in a separate process that cannot reach AWS: calls to SQS or to
    a table fail at once, unless you give --endpoint-url.

    Exit code: 0 the handler returned, 1 it failed, timed out or crashed,
    2 wrong usage.
    """
    with libraries("tarry invoke", "local"):
        from tarry.local.aws.client import endpoint_of
        from tarry.local.aws.client import region as usual_region
        from tarry.local.functions.calling import call, read_event, variables
        from tarry.local.functions.variables import read_overrides
        from tarry.local.plan import function_named
        from tarry.local.show.log import LogReader
        from tarry.template import read_template

    log = LogReader(verbose=True)

    def print_log(event: HistoryEvent) -> None:
        for line in log.lines(event):
            note(line.text)

    try:
        with refusals():
            found = read_template(template, pairs(parameter or [], "--parameter"), region or usual_region())
            called: TemplateFunction = function_named(function, found)
            url = endpoint_url and endpoint_of(endpoint_url, os.environ)
            environment = variables(called, found, read_overrides(env or []), url)
            answer = asyncio.run(call(called, environment, read_event(event), print_log))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    typer.echo(_shown(answer.value))
    if answer.kind != "returned":
        refuse(f"{called.logical_id}: {answer.text}", 1)


def _shown(value: Any) -> str:
    """Return JSON without control characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if text.replace("\n", "").isprintable() else json.dumps(value, indent=2)
