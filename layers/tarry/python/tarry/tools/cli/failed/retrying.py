"""Retry dead letters through their queues or in this process: in bulk, edited, or one by one; or let SQS move all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from rich.text import Text

from tarry import failed
from tarry.failed import ArchiveFile, DeadLetterMessage, DeadLetterQueue, Inspection, MessageMoveTask, Routes, Selection
from tarry.failed.pacing import STEP_SECONDS, RetrySettings
from tarry.failed.queues import destination
from tarry.failed.removing import Result, skipped
from tarry.failed.selection import FoundDeadLetter
from tarry.failed.text import count_of, duration, parsed_duration, printable
from tarry.failed.usage import UsageError
from tarry.record.attribute import timestamp
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.refusals import MAX_ENTRIES, error_code
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.prompts import KEYS, NoEditor, ask, confirms, in_editor
from tarry.tools.cli.failed.rendering import details, line
from tarry.tools.cli.failed.session import CommandSession, ResultReport
from tarry.tools.cli.options import PaceOptions, Via
from tarry.world import current

if TYPE_CHECKING:
    from tarry.tools.cli.failed.handlers import Handlers


def settings_of(selection: Selection, via: Via, pace: PaceOptions, *, concurrency: int, edit: bool) -> RetrySettings:
    """Parse and check the options. Raises `UsageError` and `ConfigurationError`."""
    given = {"--canary": pace.canary, "--rate": pace.rate, "--max-return": pace.max_return}
    given |= {"--concurrency": concurrency > 1 or None, "--edit": edit or None}
    if edit and not selection.ids:
        raise UsageError(
            "--edit needs ids: give ids, or run without --all and --where to edit each dead letter when it is shown"
        )
    if pace.within is not None and pace.canary is None:
        raise UsageError("--within says how long to watch canaries: give --canary N")
    if pace.canary is not None and not (selection.is_filter or selection.everything):
        raise UsageError("--canary retries some of a selection first: give --group, --where or --all")
    _check_via(via, selection, [name for name, value in given.items() if value is not None])
    within = None if pace.within is None else parsed_duration(pace.within, "--within")
    return RetrySettings(pace.canary, within, pace.rate, pace.max_return)


def _check_via(via: Via, selection: Selection, options: list[str]) -> None:
    """Check the options that a way of retrying does not have. Raises `UsageError`."""
    if via is Via.local:
        for name in ("--canary", "--rate", "--max-return", "--concurrency"):
            if name in options:
                raise UsageError(f"--via local runs one dead letter at a time: leave out {name}")
    if via is Via.aws:
        if not selection.everything or selection.is_filter:
            raise UsageError(
                "--via aws moves the whole dead-letter queue: give --all, without ids, --where, --group, --since "
                "and --until"
            )
        for name in options:
            if name != "--rate":
                raise UsageError(f"--via aws lets SQS move the messages: leave out {name}")


class RetryMethod:
    """The way to retry dead letters: back to their queues, or through their handlers in this process."""

    def __init__(
        self, run: CommandSession, to: str | None, settings: RetrySettings, concurrency: int, *, in_process: bool
    ) -> None:
        self.settings = settings
        self._concurrency = concurrency
        self._run = run
        self._routes = {queue.name: failed.Routes(queue, to, run.targets.known) for queue in run.queues}
        self._handlers = self._load() if in_process else None

    def routes(self, inspection: Inspection) -> Routes:
        return self._routes[inspection.queue.name]

    def retry(self, inspection: Inspection, selection: Selection) -> Iterator[Result]:
        """Retry the dead letters of a queue that a selection without ids matches."""
        routes = self.routes(inspection)
        if self._handlers is not None:
            return failed.run(inspection, selection, routes, self._handlers.of)
        most = min(self.at_once, max(inspection.queue.about, 1))
        sending = "message that it is sending" if most == 1 else f"messages that it is sending (up to {most})"
        note(f"If this command is killed, the {sending} may be delivered twice, under the same stable id.")
        canary, limits = self.settings.watched(self._watch), self.settings.limits
        self._is_watching = False
        return failed.retry(inspection, selection, routes, concurrency=self._concurrency, limits=limits, canary=canary)

    def _watch(self, left: float, total: float) -> None:
        """Show how long the canaries of a queue are still watched."""
        assert self._run.results is not None
        bar = self._run.results.bar
        if not self._is_watching:
            self._is_watching = True
            bar.clear()
            note(f"Watching for {duration(total)} whether they come back; then the others are retried.")
        bar.show_wait("canaries", left, total)
        if not left:
            bar.clear()

    @property
    def at_once(self) -> int:
        """How many dead letters `each` should get at once: a signal stops the command between two calls."""
        return 1 if self._handlers is not None else MAX_ENTRIES * self._concurrency

    def check(self, found: FoundDeadLetter) -> None:
        """Check that its queue and its handler are known. Raises `NowhereToGo`."""
        if not found.dead_letter.is_undecodable:
            target = self.routes(found.inspection).target(found.dead_letter)
            if self._handlers is not None:
                self._handlers.of(target.name)

    def each(self, found: Sequence[FoundDeadLetter]) -> list[Result]:
        inspection = found[0].inspection
        routes, dead_letters = self.routes(inspection), [each.dead_letter for each in found]
        if self._handlers is not None:
            handlers = self._handlers.of
            return [failed.run_dead_letter(inspection, each, routes, handlers) for each in dead_letters]
        return failed.retry_dead_letters(inspection, dead_letters, routes)

    def _load(self) -> Handlers:
        """Import all handlers that may be needed, before any message is sent or deleted."""
        from tarry.tools.cli.failed.handlers import Handlers

        named = [route.to for route in self._routes.values() if route.to]
        sources = [source for queue in self._run.queues for source in queue.sources or ()]
        return Handlers(self._run, dict.fromkeys(each.name for each in named or sources))


def ask_for_each(run: CommandSession, inspection: Inspection, method: RetryMethod) -> Iterator[Result]:
    """Show each dead letter of a queue once, and carry out the user's choice."""
    failed.check_may_delete(inspection)
    about = inspection.queue.about
    note(f"{f'about {count_of(about)}' if about else 'no dead letters'} in {inspection.queue}")
    prompt = DeadLetterPrompt(run, inspection, method, has_alike=True)
    for dead_letter in inspection.dead_letters():
        if dead_letter.id in inspection.handled:
            inspection.handled.count_repeated(dead_letter)
        elif dead_letter.delivery_id in prompt.decided or inspection.delivery(dead_letter) is None:
            continue  # decided, or released with all others, and received again later
        elif fingerprint(dead_letter) in prompt.skipped:
            yield Result(dead_letter.id, "skipped", dead_letter=dead_letter)
        elif (results := prompt.decide(dead_letter)) is None:
            return
        else:
            yield from results


def ask_for_found(
    run: CommandSession, found: Sequence[FoundDeadLetter], method: RetryMethod, *, edit: bool
) -> Iterator[Result]:
    """Show each of these dead letters, and carry out the user's choice. ``edit``: open the editor first."""
    _check_may_delete(found)
    if found:
        note(f"{count_of(len(found))} in {', '.join(dict.fromkeys(each.inspection.queue.name for each in found))}")
    for dead_letter, inspection in found:
        if run.stopping():
            return
        prompt = DeadLetterPrompt(run, inspection, method, has_alike=False)
        if (results := prompt.decide(dead_letter, edit_first=edit)) is None:
            return
        yield from results


def retry_found(
    run: CommandSession, found: Sequence[FoundDeadLetter], method: RetryMethod, *, edit: bool
) -> Iterator[Result]:
    """Write each of these dead letters to stderr, then retry them. ``edit``: open each body in the editor first."""
    _check_may_delete(found)
    for each in found:
        method.check(each)
    for each in found:
        note(line(each.dead_letter))
    for group in _groups(found, 1 if edit else method.at_once):
        if run.should_stop():
            return
        if edit:
            yield _edit_and_retry(group[0], method)
        else:
            yield from method.each(group)


def remove_found(
    run: CommandSession, found: Sequence[FoundDeadLetter], concurrency: int, archive: ArchiveFile | None
) -> Iterator[Result]:
    _check_may_delete(found)
    for group in _groups(found, MAX_ENTRIES * concurrency):
        if run.should_stop():
            return
        yield from failed.remove_dead_letters(group[0].inspection, [each.dead_letter for each in group], archive)


def _check_may_delete(found: Sequence[FoundDeadLetter]) -> None:
    for inspection in dict.fromkeys(each.inspection for each in found):
        failed.check_may_delete(inspection)


def _groups(found: Sequence[FoundDeadLetter], size: int) -> Iterator[Sequence[FoundDeadLetter]]:
    """Split into groups of at most this size, each of one queue."""
    for _, of_queue in groupby(found, lambda each: each.inspection.queue.name):
        rest = list(of_queue)
        for start in range(0, len(rest), size):
            yield rest[start : start + size]


def _edit_and_retry(found: FoundDeadLetter, method: RetryMethod) -> Result:
    dead_letter = found.dead_letter
    try:
        changed = edited(dead_letter)
    except (NoEditor, failed.CannotEdit) as error:
        return Result(dead_letter.id, "failed", str(error), dead_letter=dead_letter)
    if changed is dead_letter:
        return skipped(dead_letter, "you did not change its body")
    return method.each([FoundDeadLetter(changed, found.inspection)])[0]


GROUP_KEYS = "rdsb"


class DeadLetterPrompt:
    """The prompt for one dead letter of a queue: retry, edit, delete, skip, quit, or all that failed like it."""

    def __init__(self, run: CommandSession, inspection: Inspection, method: RetryMethod, *, has_alike: bool) -> None:
        self._run = run
        self._console = run.guidance
        self._inspection = inspection
        self._method = method
        self._has_alike = has_alike
        self.decided: set[str] = set()
        """The delivery ids of the dead letters that the user was asked about."""
        self.skipped: set[str | None] = set()
        """The fingerprints of which the user skips all."""

    def decide(self, dead_letter: DeadLetterMessage, *, edit_first: bool = False) -> Iterable[Result] | None:
        """Show a dead letter and ask what to do; return the results, or None to quit.

        ``edit_first``: open the body in the editor before.
        """
        given, shown = dead_letter, None
        if edit_first:
            dead_letter = self._edited(dead_letter)
        while True:
            if shown != dead_letter:
                self._console.print()
                self._console.print(details(dead_letter, is_short=True))
                self._console.print()
                shown = dead_letter
            keys = ("" if dead_letter.is_undecodable else "r") + ("edsa" if self._has_alike else "eds") + "q"
            key = self._ask("", keys)
            if key == "q":
                return None
            if key == "e":
                dead_letter = self._edited(dead_letter)
            elif key == "d" and not self._confirms("Permanently delete this dead letter?"):
                continue
            elif key != "a":
                results: Iterable[Result] = self._do(key, [dead_letter])
                break
            elif (of_all := self._ask_alike(dead_letter)) is not None:
                results = self._do_alike(of_all, dead_letter)
                break
        self.decided.add(given.delivery_id)
        return results

    def _edited(self, dead_letter: DeadLetterMessage) -> DeadLetterMessage:
        try:
            return edited(dead_letter)
        except (NoEditor, failed.CannotEdit) as error:
            self._console.print(Text(printable(str(error)), "yellow"), soft_wrap=True)
            return dead_letter

    def _ask(self, question: str, keys: str) -> str:
        choices = "  ".join(f"[{key}]{KEYS[key][1:]}" for key in keys)
        return ask(self._console, self._run.stopping, f"{question}{choices} ", keys)

    def _confirms(self, question: str) -> bool:
        return confirms(self._console, self._run.stopping, question)

    def _do(self, key: str, dead_letters: list[DeadLetterMessage]) -> list[Result]:
        if key == "d":
            return failed.remove_dead_letters(self._inspection, dead_letters, self._run.archived())
        if key == "s":
            return [Result(each.id, "skipped", dead_letter=each) for each in dead_letters]
        return self._method.each([FoundDeadLetter(each, self._inspection) for each in dead_letters])

    def _ask_alike(self, dead_letter: DeadLetterMessage) -> str | None:
        """Show how many failed like this one, and ask what to do with all of them; return the key, or None to go back.

        All others are released before the question.
        """
        inspection, same = self._inspection, fingerprint(dead_letter)

        def like_it(dead_letters: list[DeadLetterMessage]) -> list[int]:
            return [1 for each in dead_letters if self._is_like(each, dead_letter)]

        count = 1 + sum(sum(found) for found in inspection.in_threads(like_it, MAX_PARALLEL))
        inspection.begin_again(keep={dead_letter.delivery_id})
        how = f"the fingerprint {same}" if same else "no failure record"
        text = printable(f"{count_of(count)} with {how} in {inspection.queue}")
        self._console.print(Text(text, "bold"), soft_wrap=True)
        key = self._ask("All of them: ", GROUP_KEYS.replace("r", "") if dead_letter.is_undecodable else GROUP_KEYS)
        if key == "b" or (key == "d" and not self._confirms(f"Permanently delete {count_of(count)}?")):
            return None
        return key

    def _do_alike(self, key: str, dead_letter: DeadLetterMessage) -> Iterator[Result]:
        """Do the same with this dead letter and all that failed like it."""
        yield from self._do(key, [dead_letter])
        if key == "s":
            self.skipped.add(fingerprint(dead_letter))
            return
        for dead_letters in self._inspection.polls(MAX_ENTRIES if key == "d" else self._method.at_once):
            if chosen := [each for each in dead_letters if self._is_like(each, dead_letter)]:
                yield from self._do(key, chosen)
        self._inspection.begin_again()

    def _is_like(self, dead_letter: DeadLetterMessage, other: DeadLetterMessage) -> bool:
        if dead_letter.delivery_id in self.decided or dead_letter.id in self._inspection.handled:
            return False
        return fingerprint(dead_letter) == fingerprint(other)


def fingerprint(dead_letter: DeadLetterMessage) -> str | None:
    """Return the fingerprint of the error; None if there is none."""
    return dead_letter.failure.fingerprint if dead_letter.failure else None


def edited(dead_letter: DeadLetterMessage) -> DeadLetterMessage:
    """Open the body in the editor; return the dead letter with the new one. Raises `NoEditor` and `CannotEdit`."""
    return failed.edit(dead_letter, in_editor(dead_letter.body), current().clock.time())


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
