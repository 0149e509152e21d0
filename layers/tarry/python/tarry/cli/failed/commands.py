"""`tarry failed show`, `retry` and `remove`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tarry import failed
from tarry.cli.errors import note, refusals
from tarry.cli.failed.prompts import confirms, has_terminal
from tarry.cli.failed.rendering import WIDTH_WITHOUT_TERMINAL, details, table
from tarry.cli.failed.reporting import ResultReport, report_inspection, write_json
from tarry.cli.failed.retrying import RetryMethod, ask_for_each, edit_and_retry
from tarry.cli.failed.session import CommandSession, session
from tarry.cli.failed.targets import TargetOptions
from tarry.cli.options import (
    All,
    AsJson,
    Concurrency,
    Conditions,
    EndpointUrl,
    Force,
    Ids,
    Keepalive,
    Parameters,
    Profile,
    QueueName,
    Region,
    StackName,
    TemplateFile,
    Via,
    pairs,
)
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.failed.selection import MAX_SHOWN
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.failed import DeadLetterMessage, DeadLetterQueue, Inspection, Result, Selection

EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed retry --queue orders-dlq"""
SHOW_EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq
tarry failed show --stack shop --where 'type = app.CardDeclined'"""
RETRY_EXAMPLE = """\
tarry failed retry --queue orders-dlq
tarry failed retry 636e0ad2 --queue orders-dlq
tarry failed retry --stack shop --where 'failed_at > 2026-11-21T08:00Z'"""
REMOVE_EXAMPLE = """\
tarry failed remove 636e0ad2 --queue orders-dlq
tarry failed remove --queue orders-dlq --where 'body.id < 100'"""


def show(  # noqa: PLR0913, PLR0917 the options of the command
    ids: Ids = None,
    queue: QueueName = None,
    template: TemplateFile = None,
    stack: StackName = None,
    parameter: Parameters = None,
    where: Conditions = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="Show at most N dead letters of each queue.")
    ] = MAX_SHOWN,
    as_json: AsJson = False,
    as_event: Annotated[bool, typer.Option("--event", help="Print the SQS event that the function would get.")] = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    keepalive: Keepalive = KEEPALIVE_SECONDS,
) -> None:
    """Show the dead letters in a queue and why they failed; with ids, all details of each.

    SQS can show a message only by delivering it: dead letters are invisible to
    other consumers during the inspection, and released when it ends.

    Exit code: 0 success, 1 an id was not found, 2 wrong usage.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or ())
        if as_json and as_event:
            raise UsageError("--json and --event cannot be combined: give one of them")
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile)
    ) as run:
        missing = list(selection.ids)
        shown: list[DeadLetterMessage] = []
        for found in run.queues:
            wanted = failed.select(missing) if selection.ids else selection
            with run.opened(found, keepalive) as inspection:
                answer = failed.show(inspection, wanted, most)
            missing = list(answer.missing)
            shown += answer.dead_letters
            if not as_event:
                _print(answer.dead_letters, inspection, as_json=as_json, in_detail=bool(selection.ids))
            report_inspection(inspection)
            if run.stopping() or (selection.ids and not missing):
                break
        if as_event:
            write_json(failed.as_event(shown))
        for each in missing:
            note(f"tarry: dead letter {each!r} was not found in {', '.join(found.name for found in run.queues)}")
        run.exit(1 if missing else 0)


def retry(  # noqa: PLR0913, PLR0917 the options of the command
    ids: Ids = None,
    queue: QueueName = None,
    template: TemplateFile = None,
    stack: StackName = None,
    parameter: Parameters = None,
    everything: All = False,
    where: Conditions = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME|URL", help="Send to this queue instead of the queue each came from."),
    ] = None,
    via: Annotated[
        Via,
        typer.Option(
            "--via", metavar="queue|local", help="Send each back to its queue, or run its handler in this process."
        ),
    ] = Via.queue,
    edit: Annotated[bool, typer.Option("--edit", help="Open each body in $EDITOR first.")] = False,
    force: Force = False,
    as_json: AsJson = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    keepalive: Keepalive = KEEPALIVE_SECONDS,
    concurrency: Concurrency = 1,
) -> None:
    """Send dead letters back to the queues they came from: send, confirm, then delete.

    Without ids, --all or --where, show each dead letter and ask for one key:
    retry, edit, delete, skip or quit.

    Exit code: 0 success, 1 some dead letters could not be retried, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or (), everything=everything)
        if edit and not selection.ids:
            raise UsageError(
                "--edit needs ids: give ids, or run without --all and --where to edit each dead letter when it is shown"
            )
        if via is Via.local and concurrency > 1:
            raise UsageError("--via local runs one dead letter at a time: leave out --concurrency")
        asks = _asks(selection, force=force)
    options = TargetOptions(
        queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile
    )
    with session(options, needs_handlers=via is Via.local) as run:
        report = run.report(as_json=as_json, shows_all=asks)
        method = RetryMethod(run, to, local=via is Via.local)
        routes = [method.routes(found) for found in run.queues]
        if not asks and not force and has_terminal() and not _confirms(run, selection, "Retry"):
            run.exit(0)
        missing: tuple[str, ...] = selection.ids
        for found, route in zip(run.queues, routes, strict=True):
            with run.opened(found, keepalive) as inspection, report.progress():
                if asks:
                    results = ask_for_each(run, inspection, method, route)
                elif edit:
                    results = edit_and_retry(run, inspection, missing, method, route)
                else:
                    wanted = failed.select(missing) if selection.ids else selection
                    results = method.retry(inspection, wanted, route, concurrency)
                missing = _report(report, inspection, results, run.queues)
            report_inspection(inspection)
            if run.stopping() or (selection.ids and not missing):
                break
        run.end(report)


def remove(  # noqa: PLR0913, PLR0917 the options of the command
    ids: Ids = None,
    queue: QueueName = None,
    template: TemplateFile = None,
    stack: StackName = None,
    parameter: Parameters = None,
    everything: All = False,
    where: Conditions = None,
    force: Force = False,
    as_json: AsJson = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    keepalive: Keepalive = KEEPALIVE_SECONDS,
    concurrency: Concurrency = 1,
) -> None:
    """Delete dead letters permanently.

    Exit code: 0 success, 1 some dead letters could not be deleted, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or (), everything=everything)
        if selection.is_empty:
            raise UsageError("no dead letters selected: give ids, --where or --all")
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile)
    ) as run:
        report = run.report(as_json=as_json, shows_all=False)
        if not force and has_terminal() and not _confirms(run, selection, "Permanently delete"):
            run.exit(0)
        missing: tuple[str, ...] = selection.ids
        for found in run.queues:
            with run.opened(found, keepalive) as inspection, report.progress():
                wanted = failed.select(missing) if selection.ids else selection
                missing = _report(
                    report, inspection, failed.remove(inspection, wanted, concurrency=concurrency), run.queues
                )
            report_inspection(inspection)
            if run.stopping() or (selection.ids and not missing):
                break
        run.end(report)


def _report(
    report: ResultReport, inspection: Inspection, results: Iterable[Result], queues: Sequence[DeadLetterQueue]
) -> tuple[str, ...]:
    """Report each result; return the ids that were not found, which may be in another queue."""
    missing: list[str] = []
    for result in results:
        if result.dead_letter is None and inspection.queue is not queues[-1]:
            missing.append(result.id)
            continue
        if result.dead_letter is None and len(queues) > 1:
            names = ", ".join(queue.name for queue in queues)
            report.add(failed.Result(result.id, "failed", f"not found in {names}"))
        else:
            report.add(result)
        report.tick(inspection)
    return tuple(missing)


def _print(
    dead_letters: Iterable[DeadLetterMessage], inspection: Inspection, *, as_json: bool, in_detail: bool
) -> None:
    dead_letters = list(dead_letters)
    if as_json:
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
        return
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    if in_detail:
        for dead_letter in dead_letters:
            console.print(details(dead_letter))
            console.print()
    elif dead_letters:
        console.print(Text(inspection.queue.name, "bold"))
        console.print(table(dead_letters, console))
    else:
        note(f"{inspection.queue.name}: no dead letters to show")


# selection


def _asks(selection: Selection, *, force: bool) -> bool:
    """Whether to ask for each dead letter: none are selected, and there is a terminal."""
    if not selection.is_empty:
        return False
    if force or not has_terminal():
        raise UsageError("no dead letters selected, and no terminal to ask at: give ids, --where or --all")
    return True


def _confirms(run: CommandSession, selection: Selection, action: str) -> bool:
    """Ask for confirmation of the action, with the number of dead letters and their queues."""
    names = ", ".join(queue.name for queue in run.queues)
    about = f"about {sum(queue.about for queue in run.queues):,}"
    if selection.ids:
        question = f"{action} {len(selection.ids)} dead letter{'s'[: len(selection.ids) != 1]} in {names}?"
    elif selection.conditions:
        conditions = " and ".join(each.text for each in selection.conditions)
        question = f"{action} the dead letters in {names} where {conditions} (out of {about})?"
    else:
        question = f"{action} all dead letters in {names} ({about})?"
    return confirms(run.guidance, run.stopping, question)
