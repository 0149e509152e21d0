"""The dead letters that the options of a command select: the question before a change, and the results after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import failed
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.grouping import queue_options
from tarry.tools.cli.failed.prompts import confirms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tarry.failed import Inspection, Result, Selection
    from tarry.tools.cli.failed.reporting import ResultReport
    from tarry.tools.cli.failed.session import CommandSession


def confirms_selection(run: CommandSession, selection: Selection, action: str, more: str = "") -> bool:
    """Ask for confirmation of the action, with the number of dead letters and their queues."""
    names, about = run.queue_names, f"about {sum(queue.about for queue in run.queues):,}"
    if selection.is_filter:
        question = f"{action} the dead letters in {names} where {selection} (out of {about}){more}?"
    else:
        question = f"{action} all dead letters in {names} ({about}){more}?"
    return confirms(run.guidance, run.stopping, question)


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
    options = queue_options(run.queues[0].name if len(run.queues) == 1 else None, run.where)
    note(f"The groups there are: tarry failed show --group-by fingerprint {options}".rstrip())
    return 1
