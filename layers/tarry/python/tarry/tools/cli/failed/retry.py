"""`tarry failed retry`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NoReturn

from tarry import failed
from tarry.failed import Result, Selection
from tarry.failed.selection import selection_fields
from tarry.failed.text import count_of, printable
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.prompts import has_terminal
from tarry.tools.cli.failed.rendering import queue_options
from tarry.tools.cli.failed.retrying import RetryMethod, ask_for_each, ask_for_found, move, retry_found, settings_of
from tarry.tools.cli.failed.session import CommandSession, ResultReport, session
from tarry.tools.cli.options import ALL, AUDIT, ChangeOptions, PaceOptions, Selected, TargetOptions, Via, option


def preview(run: CommandSession, report: ResultReport, method: RetryMethod, selection: Selection, via: Via) -> NoReturn:
    """Write what `retry` would do to each selected dead letter, and end the command."""
    counts: Counter[str] = Counter()
    for queue in run.queues:
        with run.opened(queue) as inspection, report.progress():
            for result in failed.preview(inspection, selection, method.routes(inspection)):
                counts[result.outcome] += 1
                report.write(_json(result) if report.as_json else _line(result, via))
        if run.should_stop():
            break
    if first := min(method.settings.canary or 0, counts["retried"]):
        note(f"{first:,} of these first, and the others only if none of the {first:,} comes back")
    total = f"would retry {count_of(counts['retried'])}, fail {counts['failed']:,}, skip {counts['skipped']:,}"
    if report.as_json:
        note(f"{total}; nothing was changed")
    else:
        report.write(f"{total}; nothing was changed")
    run.exit(1 if counts["failed"] else run.report_no_match(selection, counts.total()))


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


EXAMPLE = """\
tarry failed retry --queue orders-dlq
tarry failed retry 636e0ad2 --queue orders-dlq
tarry failed retry --queue orders-dlq --group 9f2c61d0a4be --canary 10
tarry failed retry --stack shop --since 2h --rate 20/s --max-return 5%"""


def retry(  # noqa: PLR0913 the options of the command
    *,
    options: TargetOptions,
    chosen: Selected,
    pace: PaceOptions,
    everything: bool = ALL,
    to: str | None = option("--to NAME|URL", "Send to this queue instead of the queue each came from."),
    via: Via = option(
        "--via queue|local|aws",
        "Send each back to its queue, run its handler in this process, or let SQS move all of the queue.",
        Via.queue,
    ),
    edit: bool = option("--edit", "Open each body in $EDITOR first.", False),
    dry_run: bool = option("--dry-run", "Print what would be done to each, and change nothing.", False),
    change: ChangeOptions,
    audit: Path | None = AUDIT,
) -> None:
    """Send dead letters back to the queues they came from: send, confirm, then delete.

    At a terminal, the command shows each dead letter and asks for one key: retry,
    edit, delete, skip, quit, or all that failed in the same way. With --all,
    --group, --where, --since or --until it asks once for all.

    If the command is stopped or killed, run it again: it continues with the dead
    letters that are left.

    Exit code: 0 success, 1 some dead letters could not be retried or have come
    back, 2 wrong usage (nothing was changed), 128 plus its number after a signal.
    """
    force, action = change.force, None if dry_run else "Retry"
    with refusals(aws=True):
        selection = chosen.selection(everything=everything)
        settings = settings_of(selection, via, pace, concurrency=change.concurrency, edit=edit)
        asks = _asks(selection, force=force or dry_run)
    with session(
        options, keepalive=change.keepalive, needs_handlers=via is Via.local, action=action, force=force
    ) as run:
        if not dry_run:
            fields = {"to": to, "via": via.value, **settings.fields()}
            # before the report, which counts into the audit
            run.begin_audit(audit, "failed retry", **selection_fields(selection), **fields)
        outcomes = ("started",) if via is Via.aws else ("retried", "failed", "skipped", *(["deleted"] if asks else []))
        report = run.report(*outcomes, as_json=change.as_json, shows_all=selection.is_empty or bool(selection.ids))
        if via is Via.aws:
            move(run, report, to, settings.limits.rate, dry_run=dry_run, asks=has_terminal() and not force)
        method = RetryMethod(run, to, settings, change.concurrency, in_process=via is Via.local and not dry_run)
        if dry_run:
            preview(run, report, method, selection, via)
        is_bulk = selection.is_filter or selection.everything
        is_shown = is_bulk and has_terminal() and not force
        first = f", {settings.canary:,} of them first" if settings.canary else ""
        if is_shown and not run.confirms_selection(selection, "Retry", first):
            run.exit(0)
        if selection.ids:
            with run.found_once(selection.ids, report) as found:
                retrying = ask_for_found if asks else retry_found
                report.add_all(retrying(run, found, method, edit=edit))
            run.end(report)
        for each in run.queues:
            with run.opened(each) as inspection, report.progress():
                previewed = selection.as_previewed(each, is_shown=is_shown)
                results = ask_for_each(run, inspection, method) if asks else method.retry(inspection, previewed)
                try:
                    report.add_all(results, inspection)
                except (failed.CanaryReturned, failed.TooManyReturned) as error:
                    report.bar.clear()
                    shown = error.ids[0] if isinstance(error, failed.CanaryReturned) else "--group-by error"
                    queue = queue_options(inspection.queue.name, run.where)
                    note(f"tarry: {error}: tarry failed show {shown} {queue}")
                    report.came_back = str(error)
            if run.stopping() or report.came_back:
                break
        run.end(report, run.report_no_match(selection, report.handled))


def _asks(selection: Selection, *, force: bool) -> bool:
    """Whether to ask for each dead letter: ids or none are selected, and there is a terminal."""
    asks = has_terminal() and not force
    if selection.is_empty and not asks:
        raise UsageError("no dead letters selected, and no terminal to ask at: give ids, --where, --group or --all")
    return asks and not (selection.is_filter or selection.everything)
