"""Groups of dead letters as text and JSON, each with the next command to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tarry import failed
from tarry.failed.text import printable
from tarry.failed.wording import brief_failure, period
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.prompts import confirms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tarry.failed import ArchiveFile, Group, Selection
    from tarry.failed.groups import Cause
    from tarry.tools.cli.failed.reporting import ResultReport
    from tarry.tools.cli.failed.session import CommandSession
    from tarry.tools.cli.options import TargetOptions

NO_VALUE = "(none)"


def _table(rows: Iterable[tuple[int, Text, str]]) -> Table:
    """Return a table of counts, each with a title and a line below it."""
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(justify="right", no_wrap=True)
    found.add_column(overflow="fold")
    for count, title, below in rows:
        found.add_row(Text(f"{count:,}", "bold"), title)
        found.add_row("", Text(below, "dim"))
    return found


def group_table(groups: Iterable[Group]) -> Table:
    """Return a table with one row for each group: how many, what, since when, and an example."""

    def title(group: Group) -> Text:
        value, error = printable(group.value or NO_VALUE), brief_failure(group.failure)
        text = Text(value, "bold" if group.value else "dim")
        if group.by != "error" and error != value:
            text.append(f"  {error}", "" if group.failure else "dim")
        return text

    return _table(
        (each.count, title(each), f"{period(each)}; for example {printable(each.example)}") for each in groups
    )


def cause_table(causes: Iterable[Cause]) -> Table:
    """Return a table with one row for each cause: how many, what, and in which queues."""

    def title(group: Group) -> Text:
        is_error = group.by in {"fingerprint", "error"}
        text = brief_failure(group.failure) if is_error else printable(group.value or NO_VALUE)
        return Text(text, "bold" if group.value else "dim")

    def queues(cause: Cause) -> str:
        return ", ".join(f"{count:,} in {name}" for name, count in cause.queues.items())

    return _table((each.count, title(each.groups[0][1]), queues(each)) for each in causes)


def group_json(queue: str, group: Group) -> dict[str, Any]:
    failure = group.failure
    return {
        "queue": queue,
        "by": group.by,
        "value": group.value,
        "count": group.count,
        "first": group.first,
        "last": group.last,
        "per_minute": rounded(group.per_minute),
        "example": group.example,
        "error": None if failure is None else brief_failure(failure),
        "where": list(group.conditions),
    }


def rounded(per_minute: float | None) -> float | None:
    return None if per_minute is None else round(per_minute, 3)


def group_options(group: Group) -> str:
    if group.by == "fingerprint" and group.value is not None:
        return f"--group {shlex.quote(group.value)}"
    return " ".join(f"--where {shlex.quote(each)}" for each in group.conditions)


def queue_options(queue: str | None, where: TargetOptions) -> str:
    """Return the options that name the queue, and the others of where it is, as the user did."""
    options: Iterable[tuple[str, object]] = (
        ("--queue", queue),
        ("--stack", where.stack),
        ("--template", where.template),
        ("--endpoint-url", where.endpoint_url),
        ("--region", where.region),
        ("--profile", where.profile),
    )
    given = [f"{name} {shlex.quote(str(value))}" for name, value in options if value is not None]
    return " ".join([*given, *(["--aws"] if where.aws and where.stack is None else [])])


def suggest_restoring(archive: ArchiveFile, where: TargetOptions) -> None:
    """Write the commands that send the dead letters of an archive back, one for each queue."""
    if archive.count:
        note("To restore them:")
    options = replace(where, template=None, stack=None)
    for queue in archive.queues:
        note(f"  tarry failed restore {shlex.quote(str(archive.path))} {queue_options(queue, options)}")


def confirms_selection(run: CommandSession, selection: Selection, action: str, more: str = "") -> bool:
    """Ask for confirmation of the action, with the number of dead letters and their queues."""
    names, about = run.queue_names, f"about {sum(queue.about for queue in run.queues):,}"
    if selection.is_filter:
        question = f"{action} the dead letters in {names} where {selection} (out of {about}){more}?"
    else:
        question = f"{action} all dead letters in {names} ({about}){more}?"
    return confirms(run.guidance, run.stopping, question)


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
    options = queue_options(run.queues[0].name if len(run.queues) == 1 else None, run.where)
    note(f"The groups there are: tarry failed show --group-by fingerprint {options}".rstrip())
    return 1
