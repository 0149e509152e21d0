"""`tarry invoke`: invoke a function once, as Lambda does."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import libraries, note, refusals, refuse
from tarry.tools.cli.options import REQUIRED, ProjectOptions, argument, option
from tarry.tools.cli.queues import say_endpoint
from tarry.tools.common.places import is_aws

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.template import TemplateFunction

NOT_SQS = "InvalidEvent"
"""The type of the error that a consumer of tarry raises for an event that is not from SQS."""
EXAMPLE = """\
tarry invoke OrdersFunction -e events/orders.json
tarry invoke Digest -e - < event.json"""


def invoke(
    *,
    function: str = argument("FUNCTION", "The logical id or name of the function.", REQUIRED),
    event: str = option("--event -e FILE|-", "The event as JSON, in a file or on stdin.", REQUIRED),
    project: ProjectOptions,
    region: str | None = option("--region", "The value of AWS::Region in the template."),
    endpoint_url: str | None = option(
        "--endpoint-url URL",
        "The SQS that the function uses, with its tables and buckets; by default it can reach none.",
    ),
) -> None:
    """Invoke a function once, as Lambda does, and print its response.

    The response goes to stdout as JSON, the log of the handler to stderr. The
    function runs in a separate process that cannot reach AWS: calls to SQS or to
    a table fail at once. With --endpoint-url http://127.0.0.1:4576, it uses the
    queues, tables and buckets of a running tarry local.

    Exit code: 0 the handler returned, 1 it failed, timed out or crashed,
    2 wrong usage.
    """
    import asyncio  # here and not above: no other command needs it at its start

    with libraries("tarry invoke", "local"):
        import samtranslator  # noqa: F401 reading a SAM template needs it, later

        from tarry.tools.local.aws.client import endpoint_of, given_region
        from tarry.tools.local.functions.code import read_overrides, variables_at
        from tarry.tools.local.functions.host import call
        from tarry.tools.local.plan import function_named
        from tarry.tools.local.project import note_builds, read_project, template_path, with_placeholders
        from tarry.tools.local.samples import not_sqs, read_event
        from tarry.tools.local.show.timeline import LogReader
        from tarry.tools.simulator.batch_errors import batch_error, partial_text

    log = LogReader(verbose=True, whole_batches=False)
    refused = False

    def print_log(event: HistoryEvent) -> None:
        nonlocal refused
        refused = refused or (event.fields.get("fields") or {}).get("errorType") == NOT_SQS
        for line in () if refused else log.lines(event):
            note(line.text)

    try:
        with refusals():
            url = endpoint_url and endpoint_of(endpoint_url, os.environ)
            strict = bool(url and is_aws(url))
            if url:
                say_endpoint(url)
            found = read_project(
                template_path(project.template, note),
                project.parameters,
                region or given_region(),
                project.config_env,
                note,
                strict=strict,
            )
            overrides = read_overrides(project.env or [])
            if not strict:
                found = with_placeholders(found, [function_named(function, found).name], overrides, note)
            called: TemplateFunction = function_named(function, found)
            note_builds([called], note)
            environment = variables_at(called, found, overrides, url)
            given = read_event(event)
            answer = asyncio.run(call(called, environment, given, print_log))
            if refused:
                why = not_sqs(given) or f"not valid: {answer.value['errorMessage']}"
                raise UsageError(f"{called.logical_id} is a consumer of SQS messages, but the event is {why}")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if answer.kind == "returned" and answer.errors:
        note(partial_text(answer.errors))
    typer.echo(_shown(answer.value))
    if answer.kind != "returned":
        batch = batch_error(answer.value, ())
        refuse(f"{called.logical_id}: {batch.heading if batch else answer.text}", 1)


def _shown(value: Any) -> str:
    """Return JSON without control characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if text.replace("\n", "").isprintable() else json.dumps(value, indent=2)
