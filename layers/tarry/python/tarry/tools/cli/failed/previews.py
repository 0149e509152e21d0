"""`tarry failed retry --dry-run`: what would be done to each dead letter."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from tarry import failed
from tarry.failed.text import printable
from tarry.failed.wording import count_of
from tarry.tools.cli.errors import note
from tarry.tools.cli.options import Via

if TYPE_CHECKING:
    from tarry.failed import Result, Selection
    from tarry.tools.cli.failed.reporting import ResultReport
    from tarry.tools.cli.failed.retrying import RetryMethod
    from tarry.tools.cli.failed.session import CommandSession


def preview(
    run: CommandSession,
    report: ResultReport,
    method: RetryMethod,
    selection: Selection,
    keepalive: float,
    *,
    as_json: bool,
) -> NoReturn:
    """Write what `retry` would do to each selected dead letter, and end the command."""
    counts: Counter[str] = Counter()
    for queue in run.queues:
        with run.opened(queue, keepalive) as inspection, report.progress():
            for result in failed.preview(inspection, selection, method.routes(inspection)):
                counts[result.outcome] += 1
                report.write(_json(result) if as_json else _line(result, method.settings.via))
        if run.should_stop():
            break
    if method.settings.canary and counts["retried"]:
        first = min(method.settings.canary, counts["retried"])
        note(f"{first:,} of these first, and the others only if none of the {first:,} comes back")
    total = f"would retry {count_of(counts['retried'])}, fail {counts['failed']:,}, skip {counts['skipped']:,}"
    if as_json:
        note(f"{total}; nothing was changed")
    else:
        report.write(f"{total}; nothing was changed")
    code = 1 if counts["failed"] else 0
    if not counts.total() and selection.is_filter:
        note(f"tarry: no dead letter in {run.queue_names} matches {selection}")
        code = 1 if selection.group is not None else 0
    run.exit(code)


def _line(result: Result, via: Via) -> str:
    match result.outcome:
        case "retried" if via is Via.local:
            would = f"would be run by the handler of {(result.note or '').removeprefix('to ')}"
        case "retried":
            would = f"would be sent {result.note}"
        case "failed":
            would = f"would fail: {result.error}"
        case _:
            would = f"would be skipped: {result.note}"
    return printable(f"{result.id}  {would}")


def _json(result: Result) -> str:
    fields = {"id": result.id, "would": result.outcome}
    if result.outcome == "retried":
        fields["queue"] = (result.note or "").removeprefix("to ")
    elif why := result.error or result.note:
        fields["why"] = why
    return json.dumps(fields)
