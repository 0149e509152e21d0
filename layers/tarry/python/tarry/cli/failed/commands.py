"""`tarry failed show` and `remove`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tarry import failed
from tarry.cli.errors import note, refusals
from tarry.cli.failed.grouping import queue_options
from tarry.cli.failed.groups import show_groups
from tarry.cli.failed.prompts import confirms, has_terminal
from tarry.cli.failed.rendering import details, line, result_console, table
from tarry.cli.failed.reporting import ResultReport, count_of, write_json
from tarry.cli.failed.retrying import distinct, remove_found
from tarry.cli.failed.session import CommandSession, session
from tarry.cli.failed.targets import TargetOptions
from tarry.cli.options import (
    All,
    AsJson,
    Concurrency,
    Conditions,
    EndpointUrl,
    Force,
    GroupedBy,
    GroupFingerprint,
    Ids,
    Keepalive,
    Parameters,
    Profile,
    QueueName,
    Region,
    Since,
    StackName,
    TemplateFile,
    Until,
    pairs,
)
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.failed.showing import MAX_SHOWN
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tarry.failed import DeadLetterMessage, Inspection, Result, Selection

SHOW_EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq
tarry failed show --stack shop --where 'type = app.CardDeclined'
tarry failed show --queue orders-dlq --group-by fingerprint --since 2h"""
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
    group: GroupFingerprint = None,
    since: Since = None,
    until: Until = None,
    group_by: GroupedBy = None,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="With --group-by: look at about N of each queue.")
    ] = None,
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

    With --group-by, count them in groups, with the command to type next.

    SQS can show a message only by delivering it: dead letters are invisible to
    other consumers during the inspection, and released when it ends.

    Exit code: 0 success, 1 an id or a group was not found, 2 wrong usage.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or (), group=group, since=since, until=until)
        if group_by is None and sample is not None:
            raise UsageError("--sample needs --group-by: --max limits a list")
        if group_by is not None and (selection.ids or as_event):
            raise UsageError("--group-by counts dead letters: it cannot be combined with ids or --event")
        if as_json and as_event:
            raise UsageError("--json and --event cannot be combined: give one of them")
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile)
    ) as run:
        if selection.ids:
            run.exit(_show_found(run, selection.ids, keepalive, as_json=as_json, as_event=as_event))
        if group_by is not None:
            count = show_groups(run, group_by.value, selection, keepalive, sample=sample, as_json=as_json)
            run.exit(report_no_match(run, selection, count))
        shown: list[DeadLetterMessage] = []
        for found in run.queues:
            with run.opened(found, keepalive) as inspection:
                dead_letters = failed.show(inspection, selection, most).dead_letters
            shown += dead_letters
            if not as_event:
                _print(dead_letters, found.name, as_json=as_json)
            if run.stopping():
                break
        if as_event:
            write_json(failed.as_event(shown))
        run.exit(report_no_match(run, selection, len(shown)))


def _show_found(run: CommandSession, ids: tuple[str, ...], keepalive: float, *, as_json: bool, as_event: bool) -> int:
    """Show the dead letters with these ids; return the exit code."""
    with run.found(ids, keepalive) as found:
        dead_letters = list(dict.fromkeys(each.dead_letter for each in found.values()))
    if as_event:
        write_json(failed.as_event(dead_letters))
    elif as_json:
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    else:
        console = result_console()
        for dead_letter in dead_letters:
            console.print(details(dead_letter))
            console.print()
    missing = [] if run.stopping() else [each for each in ids if each not in found]
    for each in missing:
        note(f"tarry: dead letter {each!r} was not found in {run.queue_names}")
    return 1 if missing else 0


def remove(  # noqa: PLR0913, PLR0917 the options of the command
    ids: Ids = None,
    queue: QueueName = None,
    template: TemplateFile = None,
    stack: StackName = None,
    parameter: Parameters = None,
    everything: All = False,
    where: Conditions = None,
    group: GroupFingerprint = None,
    since: Since = None,
    until: Until = None,
    force: Force = False,
    as_json: AsJson = False,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    keepalive: Keepalive = KEEPALIVE_SECONDS,
    concurrency: Concurrency = 1,
) -> None:
    """Delete dead letters permanently.

    At a terminal, the command asks once for all.

    Exit code: 0 success, 1 some dead letters could not be deleted, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or (), everything=everything, group=group, since=since, until=until)
        if selection.is_empty:
            raise UsageError("no dead letters selected: give ids, --where, --group or --all")
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile)
    ) as run:
        report = run.report(as_json=as_json, shows_all=bool(selection.ids))
        asks = has_terminal() and not force
        if selection.everything and not asks and not queue and run.account.is_aws:
            raise UsageError(f"remove --all without a question needs the queue's name at AWS: --queue {run.queues[0]}")
        if selection.ids:
            with run.found(selection.ids, keepalive) as by_id, report.progress():
                report_missing(run, report, selection.ids, by_id)
                found = distinct(by_id)
                for dead_letter, _ in found:
                    note(line(dead_letter))
                question = f"Permanently delete {count_of(len(found))}?"
                if found and asks and not confirms(run.guidance, run.stopping, question):
                    run.exit(0)
                report_results(report, remove_found(run, found, concurrency))
            run.end(report)
        if asks and not confirms_selection(run, selection, "Permanently delete"):
            run.exit(0)
        for each in run.queues:
            with run.opened(each, keepalive) as inspection, report.progress():
                report_results(report, failed.remove(inspection, selection, concurrency=concurrency), inspection)
            if run.stopping():
                break
        run.end(report, report_no_match(run, selection, report.handled))


def report_results(report: ResultReport, results: Iterable[Result], inspection: Inspection | None = None) -> None:
    """Report each result, and the progress of an inspection."""
    for result in results:
        report.add(result)
        if inspection is not None:
            report.tick(inspection)


def report_missing(run: CommandSession, report: ResultReport, ids: Iterable[str], found: Collection[str]) -> None:
    """Report the ids that were not found, unless a signal ended the search."""
    for each in ids:
        if each not in found and not run.stopping():
            report.add(failed.Result(each, "failed", f"not found in {run.queue_names}"))


def report_no_match(run: CommandSession, selection: Selection, count: int) -> int:
    """Write that a filter has selected nothing; return the exit code: 1 for a group that does not exist."""
    if count or not selection.is_filter or run.stopping():
        return 0
    note(f"tarry: no dead letter in {run.queue_names} matches {selection}")
    if selection.group is None:
        return 0
    note("The groups there are: tarry failed show --group-by fingerprint " + queue_options(run.queue_names, run.where))
    return 1


def _print(dead_letters: Sequence[DeadLetterMessage], queue: str, *, as_json: bool) -> None:
    if as_json:
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    elif dead_letters:
        console = result_console()
        console.print(Text(queue, "bold"))
        console.print(table(dead_letters, console.width))
    else:
        note(f"{queue}: no dead letters to show")


# selection


def confirms_selection(run: CommandSession, selection: Selection, action: str, more: str = "") -> bool:
    """Ask for confirmation of the action, with the number of dead letters and their queues."""
    names, about = run.queue_names, f"about {sum(queue.about for queue in run.queues):,}"
    if selection.is_filter:
        question = f"{action} the dead letters in {names} where {selection} (out of {about}){more}?"
    else:
        question = f"{action} all dead letters in {names} ({about}){more}?"
    return confirms(run.guidance, run.stopping, question)
