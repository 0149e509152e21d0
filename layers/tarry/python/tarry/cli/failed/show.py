"""`tarry failed show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tarry import failed
from tarry.cli.errors import note, refusals
from tarry.cli.failed.groups import show_groups
from tarry.cli.failed.rendering import details, result_console, table
from tarry.cli.failed.reporting import write_json
from tarry.cli.failed.selections import report_no_match
from tarry.cli.failed.session import CommandSession, session
from tarry.cli.failed.targets import TargetOptions
from tarry.cli.options import (
    AsJson,
    Conditions,
    EndpointUrl,
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
    from collections.abc import Sequence

    from tarry.cli.options import Grouping
    from tarry.failed import DeadLetterMessage, Selection

EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq --pytest > tests/test_1.py
tarry failed show --queue orders-dlq --group-by fingerprint --since 2h"""


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
    as_test: Annotated[
        bool, typer.Option("--pytest", help="With ids: print a test file that fails as the message did.")
    ] = False,
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
        _check_form(selection, group_by, sample, {"--json": as_json, "--event": as_event, "--pytest": as_test})
    with session(
        TargetOptions(queue, template, stack, pairs(parameter or [], "--parameter"), endpoint_url, region, profile),
        needs_handlers=as_test,
    ) as run:
        if selection.ids:
            written = "json" if as_json else "event" if as_event else "test" if as_test else "text"
            run.exit(_show_found(run, selection.ids, keepalive, written))
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


def _check_form(selection: Selection, group_by: Grouping | None, sample: int | None, formats: dict[str, bool]) -> None:
    """Check that the options go together. Raises `UsageError`."""
    given = [option for option, is_given in formats.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: give one of them")
    if group_by is None and sample is not None:
        raise UsageError("--sample needs --group-by: --max limits a list")
    if group_by is not None and selection.ids:
        raise UsageError("--group-by counts dead letters: it cannot be combined with ids")
    if group_by is not None and given and given != ["--json"]:
        raise UsageError(f"--group-by counts dead letters: it cannot be combined with {given[0]}")
    if "--pytest" in given and not selection.ids:
        raise UsageError("--pytest needs ids: name the dead letters that become tests")


def _show_found(run: CommandSession, ids: tuple[str, ...], keepalive: float, written: str) -> int:
    """Show the dead letters with these ids; return the exit code."""
    with run.found(ids, keepalive) as found:
        dead_letters = list(dict.fromkeys(each.dead_letter for each in found.values()))
    if written == "event":
        write_json(failed.as_event(dead_letters))
    elif written == "test":
        from tarry.cli.failed.pytest_file import test_file

        if dead_letters:
            sys.stdout.write(test_file(dead_letters, run.targets))
    elif written == "json":
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
