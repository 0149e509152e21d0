"""Groups of dead letters as text and JSON, each with the next command to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tarry.failed.text import printable
from tarry.failed.wording import brief_failure, period
from tarry.tools.cli.errors import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from tarry.failed import ArchiveFile, Group
    from tarry.failed.causes import Cause
    from tarry.tools.cli.failed.targets import TargetOptions

NO_VALUE = "(none)"


def group_table(groups: Sequence[Group]) -> RenderableType:
    """Return a table with one row for each group: how many, what, since when, and an example."""
    by = groups[0].by
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(justify="right", no_wrap=True)
    found.add_column(overflow="fold")
    for group in groups:
        value = printable(group.value or NO_VALUE)
        error = brief_failure(group.failure)
        title = Text(value, "bold" if group.value else "dim")
        if by != "error" and error != value:
            title.append(f"  {error}", "" if group.failure else "dim")
        found.add_row(Text(f"{group.count:,}", "bold"), title)
        found.add_row("", Text(f"{period(group)}; for example {printable(group.example)}", "dim"))
    return found


def cause_table(causes: Sequence[Cause]) -> RenderableType:
    """Return a table with one row for each cause: how many, what, and in which queues."""
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(justify="right", no_wrap=True)
    found.add_column(overflow="fold")
    for cause in causes:
        group = cause.groups[0][1]
        is_error = group.by in {"fingerprint", "error"}
        title = brief_failure(group.failure) if is_error else printable(group.value or NO_VALUE)
        found.add_row(Text(f"{cause.count:,}", "bold"), Text(title, "bold" if group.value else "dim"))
        found.add_row("", Text(", ".join(f"{count:,} in {name}" for name, count in cause.queues.items()), "dim"))
    return found


def group_json(queue: str, group: Group) -> dict[str, Any]:
    """Return a group as a JSON object."""
    failure = group.failure
    return {
        "queue": queue,
        "by": group.by,
        "value": group.value,
        "count": group.count,
        "first": group.first,
        "last": group.last,
        "per_minute": None if group.per_minute is None else round(group.per_minute, 3),
        "example": group.example,
        "error": None if failure is None else brief_failure(failure),
        "where": list(group.conditions),
    }


def group_options(group: Group) -> str:
    """Return the options that select a group."""
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
