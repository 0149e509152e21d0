"""`tarry failed show`, `retry` and `remove`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tarry import failed
from tarry.cli.errors import note, refusals
from tarry.cli.failed.pending import show_pending
from tarry.cli.failed.prompts import confirms, has_terminal
from tarry.cli.failed.removing import check_options, confirms_emptying, is_asked_in_full, say_where
from tarry.cli.failed.rendering import WIDTH_WITHOUT_TERMINAL, details, line, table
from tarry.cli.failed.reporting import ResultReport, count_of, report_inspection, write_json
from tarry.cli.failed.retrying import RetryMethod, ask_for_each, ask_for_found, distinct, remove_found, retry_found
from tarry.cli.failed.session import CommandSession, session
from tarry.cli.failed.targets import TargetOptions
from tarry.cli.options import (
    All,
    ArchivePath,
    AsJson,
    Audit,
    Concurrency,
    Conditions,
    EndpointUrl,
    Force,
    Ids,
    Keepalive,
    NoArchive,
    Parameters,
    Profile,
    QueueName,
    Region,
    StackName,
    TemplateFile,
    Via,
    YesDelete,
    pairs,
)
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.failed.selection import MAX_SHOWN
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tarry.failed import DeadLetterMessage, Inspection, Result, Selection

EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed retry --queue orders-dlq"""
SHOW_EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq --pytest > tests/test_1.py
tarry failed show --stack shop --where 'type = app.CardDeclined'
tarry failed show --pending --stack shop"""
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
    as_test: Annotated[
        bool, typer.Option("--pytest", help="With ids: print a test file that fails as the message did.")
    ] = False,
    is_pending: Annotated[
        bool, typer.Option("--pending", help="Show the messages that wait for a retry, from the table of attempts=.")
    ] = False,
    attempts_table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="The table of --pending; by default that of the stack."),
    ] = None,
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
    options = TargetOptions(
        queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile
    )
    with refusals(aws=True):
        selection = failed.select(ids or (), where or ())
        if attempts_table and not is_pending:
            raise UsageError("--table is the table of --pending: add --pending, or leave it out")
        if is_pending:
            if ids or where or as_event or as_test:
                raise UsageError("--pending takes only --table, --stack, --queue, --max and --json")
            return show_pending(options, attempts_table, most, as_json=as_json)
        written = _one_format({"--json": as_json, "--event": as_event, "--pytest": as_test})
        if as_test and not selection.ids:
            raise UsageError("--pytest needs ids: name the dead letters that become tests")
    with session(options, needs_handlers=as_test) as run:
        if selection.ids:
            run.exit(_show_found(run, selection.ids, keepalive, written))
        shown: list[DeadLetterMessage] = []
        for found in run.queues:
            with run.opened(found, keepalive) as inspection:
                dead_letters = failed.show(inspection, selection, most).dead_letters
            shown += dead_letters
            if not as_event:
                _print(dead_letters, found.name, as_json=as_json)
            report_inspection(inspection)
            if run.stopping():
                break
        if as_event:
            write_json(failed.as_event(shown))
        run.exit(0)


def _one_format(formats: dict[str, bool]) -> str:
    """Return the option that was given, or an empty text. Raises `UsageError` for several."""
    given = [option for option, is_given in formats.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: give one of them")
    return given[0] if given else ""


def _show_found(run: CommandSession, ids: tuple[str, ...], keepalive: float, written: str) -> int:
    """Show the dead letters with these ids; return the exit code."""
    with run.found(ids, keepalive) as found:
        dead_letters = list(dict.fromkeys(each.dead_letter for each in found.values()))
    if written == "--event":
        write_json(failed.as_event(dead_letters))
    elif written == "--pytest":
        from tarry.cli.failed.pytest_file import test_file

        if dead_letters:
            sys.stdout.write(test_file(dead_letters, run.targets))
    elif written == "--json":
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    else:
        console = _console()
        for dead_letter in dead_letters:
            console.print(details(dead_letter))
            console.print()
    missing = [] if run.stopping() else [each for each in ids if each not in found]
    for each in missing:
        note(f"tarry: dead letter {each!r} was not found in {run.queue_names}")
    return 1 if missing else 0


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
    audit: Audit = None,
) -> None:
    """Send dead letters back to the queues they came from: send, confirm, then delete.

    At a terminal, the command shows each dead letter and asks for one key: retry,
    edit, delete, skip or quit. With --all or --where it asks once for all.

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
        is_bulk = bool(selection.conditions or selection.everything)
    options = TargetOptions(
        queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile
    )
    with session(options, needs_handlers=via is Via.local) as run:
        run.begin_audit(audit, "failed retry", asked_ids=ids, where=where, all=everything, to=to, via=via.value)
        report = run.report(as_json=as_json, shows_all=not is_bulk)
        method = RetryMethod(run, to, local=via is Via.local)
        if is_bulk and not force and has_terminal() and not _confirms(run, selection, "Retry"):
            run.exit(0)
        if selection.ids:
            with run.found(selection.ids, keepalive) as by_id, report.progress():
                _report_missing(run, report, selection.ids, by_id)
                found = distinct(by_id)
                if asks:
                    results = ask_for_found(run, found, method, edit=edit)
                else:
                    results = retry_found(run, found, method, edit=edit, concurrency=concurrency)
                _report(report, results)
            run.end(report)
        for each in run.queues:
            with run.opened(each, keepalive) as inspection, report.progress():
                if asks:
                    results = ask_for_each(run, inspection, method)
                else:
                    results = method.retry(inspection, selection, concurrency)
                _report(report, results, inspection)
            report_inspection(inspection)
            if run.stopping():
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
    archive: ArchivePath = None,
    no_archive: NoArchive = False,
    yes_delete: YesDelete = None,
    audit: Audit = None,
) -> None:
    """Delete dead letters, after writing them to an archive.

    tarry failed restore sends the dead letters of an archive back to a queue. If
    the archive cannot be written, no dead letter is deleted.

    At a terminal, the command asks once for all. At AWS, --all asks for the name
    of the queue, also with --force.

    Exit code: 0 success, 1 some dead letters could not be deleted, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    with refusals(aws=True):
        selection = failed.select(ids or (), where or (), everything=everything)
        if selection.is_empty:
            raise UsageError("no dead letters selected: give ids, --where or --all")
        check_options(archive, yes_delete or (), no_archive=no_archive, everything=everything)
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile)
    ) as run:
        run.begin_audit(audit, "failed remove", asked_ids=ids, where=where, all=everything)
        report = run.report(as_json=as_json, shows_all=bool(selection.ids))
        asks = has_terminal() and not force
        say_where(run)
        if is_asked_in_full(run, yes_delete or (), everything=selection.everything):
            if not confirms_emptying(run, yes_delete or ()):
                run.exit(0)
            asks = False
        kept = None if no_archive else run.archived(archive)
        if selection.ids:
            with run.found(selection.ids, keepalive) as by_id, report.progress():
                _report_missing(run, report, selection.ids, by_id)
                found = distinct(by_id)
                for dead_letter, _ in found:
                    note(line(dead_letter))
                question = f"Permanently delete {count_of(len(found))}?"
                if found and asks and not confirms(run.guidance, run.stopping, question):
                    run.exit(0)
                _report(report, remove_found(run, found, concurrency, kept))
            run.end(report)
        if asks and not _confirms(run, selection, "Permanently delete"):
            run.exit(0)
        for each in run.queues:
            with run.opened(each, keepalive) as inspection, report.progress():
                results = failed.remove(inspection, selection, concurrency=concurrency, archive=kept)
                _report(report, results, inspection)
            report_inspection(inspection)
            if run.stopping():
                break
        run.end(report)


def _report(report: ResultReport, results: Iterable[Result], inspection: Inspection | None = None) -> None:
    """Report each result, and the progress of an inspection."""
    for result in results:
        report.add(result)
        if inspection is not None:
            report.tick(inspection)


def _report_missing(run: CommandSession, report: ResultReport, ids: Iterable[str], found: Collection[str]) -> None:
    """Report the ids that were not found, unless a signal ended the search."""
    for each in ids:
        if each not in found and not run.stopping():
            report.add(failed.Result(each, "failed", f"not found in {run.queue_names}"))


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()):
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


def _print(dead_letters: Sequence[DeadLetterMessage], queue: str, *, as_json: bool) -> None:
    if as_json:
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    elif dead_letters:
        console = _console()
        console.print(Text(queue, "bold"))
        console.print(table(dead_letters, console.width))
    else:
        note(f"{queue}: no dead letters to show")


# selection


def _asks(selection: Selection, *, force: bool) -> bool:
    """Whether to ask for each dead letter: ids or none are selected, and there is a terminal."""
    asks = has_terminal() and not force
    if selection.is_empty and not asks:
        raise UsageError("no dead letters selected, and no terminal to ask at: give ids, --where or --all")
    return asks and not (selection.conditions or selection.everything)


def _confirms(run: CommandSession, selection: Selection, action: str) -> bool:
    """Ask for confirmation of the action, with the number of dead letters and their queues."""
    names, about = run.queue_names, f"about {sum(queue.about for queue in run.queues):,}"
    if selection.conditions:
        conditions = " and ".join(each.text for each in selection.conditions)
        question = f"{action} the dead letters in {names} where {conditions} (out of {about})?"
    else:
        question = f"{action} all dead letters in {names} ({about})?"
    return confirms(run.guidance, run.stopping, question)
