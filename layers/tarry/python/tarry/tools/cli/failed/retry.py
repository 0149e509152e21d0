"""`tarry failed retry`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tarry import failed
from tarry.failed import DeadLetterQueue, MessageMoveTask, Result, Routes, Selection
from tarry.failed.pacing import STEP_SECONDS
from tarry.failed.queues import destination
from tarry.failed.selection import selection_fields
from tarry.failed.text import count_of, printable
from tarry.failed.usage import UsageError
from tarry.record.attribute import timestamp
from tarry.sqs.refusals import error_code
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.prompts import confirms, has_terminal
from tarry.tools.cli.failed.rendering import queue_options
from tarry.tools.cli.failed.retrying import RetryMethod, ask_for_each, ask_for_found, retry_found, settings_of
from tarry.tools.cli.failed.session import CommandSession, ResultReport, session
from tarry.tools.cli.options import ALL, AUDIT, ChangeOptions, PaceOptions, Selected, TargetOptions, Via, option
from tarry.world import current


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


# --via aws: a message move task of SQS

STEPS_OF_POLL = 4
"""The steps between two requests for the state of a task."""
LISTED_WITHIN_STEPS = 40
"""The steps after which a task that was started must be in SQS's list."""


def move(
    run: CommandSession, report: ResultReport, to: str | None, rate: float | None, *, dry_run: bool, asks: bool
) -> NoReturn:
    """Let SQS move all messages of the dead-letter queues, one queue after the other, and end the command."""
    code = 0
    routes = [failed.Routes(queue, to, run.targets.known) for queue in run.queues]
    targets = [destination(each) for each in routes]  # all are known before the first task starts
    for each, target in zip(routes, targets, strict=True):
        queue, earlier = each.queue, failed.last_move(each.queue)
        is_running = earlier is not None and earlier.is_running
        look = partial(failed.last_move, queue) if is_running else partial(failed.moved_since, queue, earlier)
        change: dict[str, Any] = {"queue": queue.arn.text, "to": target.text, "move_task": "started"}
        if dry_run:
            state = "; a task that moves them is running already" if is_running else ""
            report.write(f"{queue}: SQS would move about {queue.about:,} messages to {target.name}{state}")
            continue
        if is_running and earlier is not None:
            note(
                f"{queue}: a message move task that was started at {timestamp(earlier.started_at)} is running; "
                "watching it. Ctrl-C cancels it."
            )
        else:
            question = f"Let SQS move all messages of {queue} (about {queue.about:,}) to {target.name}?"
            if asks and not confirms(run.guidance, run.stopping, question):
                continue
            run.begin_change()
            change["move_task"] = _started(each, rate, target.name)
            report.counts[change["move_task"]] += 1
        if run.audit is not None and not is_running:
            run.audit.add_change(change)
        try:
            task = _watched(run, report, queue, look)
        except Exception:
            note(f"{queue}: if a message move task was started, it goes on; --dry-run says whether it runs")
            raise
        if task is not None:
            change |= {"move_task": task.status.lower(), "moved": task.moved}
        if run.audit is not None and is_running and run.stopping():
            run.audit.add_change(change)  # cancelled a task that was not started here
        code = max(code, _report(report, queue, task, target.name))
        if run.stopping():
            break
    run.exit(code)


def _started(routes: Routes, rate: float | None, target: str) -> str:
    """Start a task; return whether SQS has confirmed it, in the words of the audit."""
    try:
        failed.start_move(routes, rate)
    except failed.MoveUnconfirmed as error:
        note(f"tarry: {error}")
        return "unconfirmed"
    note(f"{routes.queue}: SQS moves its messages to {target}. Ctrl-C cancels this; messages moved so far stay.")
    return "started"


def _watched(
    run: CommandSession, report: ResultReport, queue: DeadLetterQueue, look: Callable[[], MessageMoveTask | None]
) -> MessageMoveTask | None:
    """Watch a task until its end, and cancel it at a signal; None if SQS does not list it."""
    clock, steps, cancelled = current().clock, 0, False
    with report.progress():
        while True:
            task = look()
            if (task is not None and not task.is_running) or (steps > LISTED_WITHIN_STEPS and task is None):
                return task
            if task is not None:
                report.bar.show(str(queue), task.moved, task.to_move or queue.about)
                if run.stopping() and not cancelled:
                    run.begin_change()
                    cancelled = _cancelled(task)
                    continue
            for _ in range(STEPS_OF_POLL):
                steps += 1
                if run.stopping() and not cancelled:
                    break
                clock.sleep(STEP_SECONDS)


def _cancelled(task: MessageMoveTask) -> bool:
    """Cancel a task; return True, also if it has just ended."""
    try:
        failed.cancel_move(task)
    except Exception as error:
        if "ResourceNotFound" not in error_code(error):
            raise
    return True


def _report(report: ResultReport, queue: DeadLetterQueue, task: MessageMoveTask | None, target: str) -> int:
    """Write how a task has ended; return the exit code."""
    if task is None:
        note(f"tarry: {queue}: SQS lists no message move task that was started now; see the SQS console")
        return 1
    if report.as_json:
        fields = {"queue": queue.name, "status": task.status, "moved": task.moved, "error": task.failure}
        report.write(json.dumps({name: value for name, value in fields.items() if value is not None}))
    else:
        why = f": {task.failure}" if task.failure else ""
        report.write(f"{queue}: {task.status.lower()}, about {task.moved:,} messages moved to {target}{why}")
    if task.status == "FAILED":
        note(f"{queue}: the others are still there; move or retry them again once the reason is gone")
    return 0 if task.status == "COMPLETED" else 1
