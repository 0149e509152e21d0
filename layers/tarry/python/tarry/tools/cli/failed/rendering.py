"""Dead letters and their groups as text for a terminal, and the options of the next command to type.

Markup and control characters in messages have no effect.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tarry.failed import ArchiveFile, DeadLetterMessage
from tarry.failed import Group as DeadLetterGroup
from tarry.failed.groups import Cause, period
from tarry.failed.text import (
    attempts_of,
    brief_failure,
    facts_of,
    has_history,
    minute,
    origin_name,
    printable,
    traceback_of,
    when,
)
from tarry.record.attribute import FailureRecord
from tarry.tools.cli.errors import note
from tarry.tools.cli.options import TargetOptions

LINES_SHOWN = 12
"""Lines of a traceback in a summary: the last ones, which show where the error was raised."""
BODY_SHOWN = 2_000
WIDTH_WITHOUT_TERMINAL = 200
ERROR_WIDTH = 40
"""The columns that a table keeps for the errors, if they need as many, before it shows origins and whole ids."""
MINUTE_WIDTH = len("2026-11-21 08:21")
COLUMN_GAP = 2
SHORTEST_ID = 8
NO_VALUE = "(none)"


def result_console() -> Console:
    """Return a console for stdout; without a terminal it is wide, so that a pipe gets whole lines."""
    console = Console(file=sys.stdout, highlight=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()):
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


def print_lines(console: Console, renderable: RenderableType) -> None:
    """Print without the spaces at the end of lines, which fill the width of a table."""
    with console.capture() as capture:
        console.print(renderable)
    console.file.write("".join(f"{text.rstrip(' ')}\n" for text in capture.get().splitlines()))


def table(dead_letters: Sequence[DeadLetterMessage], width: int) -> RenderableType:
    """Return a table with one row for each dead letter.

    If the errors have no room in this width, the table has no origins; if that is not enough, the ids are shortened.
    """
    ids = [printable(each.id) for each in dead_letters]
    origins = [printable(origin_name(each)) for each in dead_letters]
    errors = [brief_failure(each.failure) for each in dead_letters]
    needed = min(ERROR_WIDTH, max(map(len, errors)))
    attempts = [_short_attempts(each.failure) for each in dead_letters if each.failure]
    left = width - MINUTE_WIDTH - _widest("attempts", attempts) - COLUMN_GAP * 3
    shows_origins = left - _widest("id", ids) - _widest("origin", origins) - COLUMN_GAP >= needed
    if not shows_origins and left - _widest("id", ids) < needed:
        ids = shortened_ids(ids)
    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, COLUMN_GAP - 1, 0, 0))
    found.add_column("id", no_wrap=True)
    found.add_column("when (UTC)", no_wrap=True)
    found.add_column("error", overflow="fold", ratio=1)
    found.add_column("attempts", justify="right", no_wrap=True)
    if shows_origins:
        found.add_column("origin", no_wrap=True)
    for dead_letter, own_id, error, origin in zip(dead_letters, ids, errors, origins, strict=True):
        failure = dead_letter.failure
        row = [
            Text(own_id),
            _text(minute(when(dead_letter))),
            Text(error, "" if failure else "dim"),
            _text("" if failure is None else _short_attempts(failure)),
        ]
        found.add_row(*row, *([Text(origin)] if shows_origins else []))
    return found


def _short_attempts(failure: FailureRecord) -> str:
    """Return `attempts_of` for a narrow column."""
    return attempts_of(failure).replace("at most ", "≤")


def _widest(title: str, texts: Sequence[str]) -> int:
    return max(len(title), *map(len, texts))


def shortened_ids(ids: Sequence[str]) -> list[str]:
    """Return the beginnings of the ids: as short as they can be without two becoming equal, but 8 characters."""
    distinct = set(ids)
    length = SHORTEST_ID
    while len({each[:length] for each in distinct}) < len(distinct):
        length += 1
    return [each[:length] for each in ids]


def line(dead_letter: DeadLetterMessage) -> str:
    """Return the dead letter as one line: its id, and why it was dead-lettered."""
    return f"{printable(dead_letter.id)}  {brief_failure(dead_letter.failure)}"


def details(dead_letter: DeadLetterMessage, *, is_short: bool = False) -> RenderableType:
    """Return all about a dead letter; ``is_short``: with traceback and body shortened."""
    traceback = _traceback(dead_letter, LINES_SHOWN if is_short else None)
    body = _body(dead_letter, BODY_SHOWN if is_short else None)
    return Group(*_about(dead_letter), *_history(dead_letter), *traceback, *body)


def _about(dead_letter: DeadLetterMessage) -> Iterable[RenderableType]:
    yield Text.assemble((printable(dead_letter.id), "bold"), f"  in {printable(dead_letter.queue)}")
    grid = Table.grid(padding=(0, 2, 0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts_of(dead_letter):
        grid.add_row(name, _text(value))
    yield grid


def _history(dead_letter: DeadLetterMessage) -> Iterable[RenderableType]:
    if has_history(dead_letter):
        yield Text("\nhistory", "dim")
        for entry in dead_letter.history:
            yield Text(f"  {printable(_entry(entry))}")


def _entry(entry: Mapping[str, Any]) -> str:
    delay = entry.get("delay")
    waited = "" if delay is None else f", retried after {delay} s"
    return f"{entry.get('at', '')}  attempt {entry.get('attempt', '?')}  {entry.get('error', '')}{waited}"


def _traceback(dead_letter: DeadLetterMessage, most: int | None) -> Iterable[RenderableType]:
    if text := traceback_of(dead_letter.failure):
        lines = text.split("\n")
        shown = lines if most is None else lines[-most:]
        yield Text("\ntraceback" if len(shown) == len(lines) else "\ntraceback (last lines)", "dim")
        yield Text(printable("\n".join(shown), keep="\n\t"))


def _body(dead_letter: DeadLetterMessage, most: int | None) -> Iterable[RenderableType]:
    yield Text("\nbody", "dim")
    yield Text(printable(dead_letter.body[:most], keep="\n\t"))
    if most is not None and (left := len(dead_letter.body) - most) > 0:
        yield Text(f"... and {left:,} more characters", "dim")


def _text(text: str) -> Text:
    return Text(printable(text))


# groups


def _table(rows: Iterable[tuple[int, Text, str]]) -> Table:
    """Return a table of counts, each with a title and a line below it."""
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(justify="right", no_wrap=True)
    found.add_column(overflow="fold")
    for count, title, below in rows:
        found.add_row(Text(f"{count:,}", "bold"), title)
        found.add_row("", Text(below, "dim"))
    return found


def group_table(groups: Iterable[DeadLetterGroup]) -> Table:
    """Return a table with one row for each group: how many, what, since when, and an example."""

    def title(group: DeadLetterGroup) -> Text:
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

    def title(group: DeadLetterGroup) -> Text:
        is_error = group.by in {"fingerprint", "error"}
        text = brief_failure(group.failure) if is_error else printable(group.value or NO_VALUE)
        return Text(text, "bold" if group.value else "dim")

    def queues(cause: Cause) -> str:
        return ", ".join(f"{count:,} in {name}" for name, count in cause.queues.items())

    return _table((each.count, title(each.groups[0][1]), queues(each)) for each in causes)


def group_json(queue: str, group: DeadLetterGroup) -> dict[str, Any]:
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


def group_options(group: DeadLetterGroup) -> str:
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
