"""`tarry failed retry --via aws`: start, watch and cancel a message move task of SQS."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tarry import failed
from tarry.failed.pacing import STEP_SECONDS
from tarry.failed.queues import destination
from tarry.record.attribute import timestamp
from tarry.sqs.refusals import error_code
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.prompts import confirms
from tarry.world import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.failed import DeadLetterQueue, MessageMoveTask, Routes
    from tarry.tools.cli.failed.reporting import ResultReport
    from tarry.tools.cli.failed.session import CommandSession

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
