"""The session of a `tarry failed` command: the AWS client, the queues, the signals, and its output.

Each result is a line on stdout; guidance, progress and the totals beside JSON go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from tarry import failed
from tarry.failed import scanned
from tarry.failed.archive import ArchiveFile, new_archive
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.failed.journal import CannotWrite
from tarry.failed.queue_names import region_of
from tarry.failed.selection import found_by_ids, lost_leases, newer
from tarry.failed.text import count_of, duration, printable, progress_text
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note, of_tarry_local, refusals, refuse
from tarry.tools.cli.failed.prompts import StoppedBySignal, Stopping, confirms
from tarry.tools.cli.failed.rendering import queue_options, suggest_restoring
from tarry.tools.cli.failed.targets import (
    AwsAccess,
    Targets,
    at_place,
    check_placed,
    confirms_place,
    find_targets,
    in_project,
)
from tarry.tools.cli.options import TargetOptions
from tarry.tools.common.audit import Audit
from tarry.world import use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rich.progress import Progress

    from tarry.failed import DeadLetterQueue, Inspection, Result, Selection
    from tarry.failed.selection import FoundDeadLetter


class CommandAudit(Audit):
    """The audit of one run of a command. If it cannot be written, the command ends with exit code 1.

    ``asked`` are the fields that say what the user asked for: queues, ids, conditions.
    """

    def __init__(self, path: Path | None, command: str, account: AwsAccess, asked: dict[str, Any]) -> None:
        self._is_refused = False
        try:
            super().__init__(path, command, account, asked)
        except CannotWrite as error:
            refuse(str(error), 1)
        if why := self.line.get("who_error"):
            note(f"The audit does not say who you are at AWS: sts:GetCallerIdentity failed ({why}).")

    def begin(self) -> None:
        """Write what was asked for; if that fails, nothing is changed."""
        try:
            super().begin()
        except CannotWrite as error:
            if self._is_refused:  # in another thread, which has said it
                raise typer.Exit(1) from error
            self._is_refused = True
            refuse(str(error), 1)

    def end(self, **more: Any) -> None:
        """Write what was done; if that fails, it is printed."""
        try:
            super().end(**more)
        except CannotWrite as error:
            refuse(f"{str(error).partition(';')[0]}; the line is: {json.dumps(self.line)}", 1)


@dataclass
class CommandSession:
    """The options of a command, its queues and results, and whether to stop."""

    where: TargetOptions
    account: AwsAccess
    targets: Targets
    queues: list[DeadLetterQueue]
    stopping: Stopping
    guidance: Console
    keepalive: float
    results: ResultReport | None = None
    audit: CommandAudit | None = None
    archive: ArchiveFile | None = None

    def something_was_done(self) -> bool:
        return self.results is not None and self.results.something_was_done

    @contextmanager
    def opened(self, queue: DeadLetterQueue) -> Iterator[Inspection]:
        """Open a dead-letter queue; at the end, write how much was scanned, and what a signal stopped and released."""
        warn_about(queue)
        stopped = "stopped after the current dead letters"
        inspection: Inspection | None = None
        try:
            with failed.opened(
                queue, keepalive=self.keepalive, stop=self.should_stop, before_change=self.begin_change
            ) as inspection:
                yield inspection
        except StoppedBySignal:
            stopped = "stopped"
            raise
        finally:
            if inspection is not None and inspection.leases.not_released:
                note(
                    f"{queue.name}: {inspection.leases.not_released:,} dead letters could not be released; "
                    "they become visible when their visibility timeout ends"
                )
            if inspection is not None and self.stopping():
                released = inspection.leases.released
                were = "was" if released == 1 else "were"
                note(f"{self.stopping.name}: {stopped}; {count_of(released)} of {queue.name} {were} released")
        report_inspection(inspection)

    @contextmanager
    def found(self, ids: tuple[str, ...]) -> Iterator[dict[str, FoundDeadLetter]]:
        """Find dead letters by id in all queues; they stay in flight within the context."""
        with ExitStack() as opened:

            def each_opened() -> Iterator[Inspection]:
                for queue in self.queues:
                    if not self.should_stop():
                        yield opened.enter_context(self.opened(queue))

            yield found_by_ids(each_opened(), ids)

    @contextmanager
    def found_once(self, ids: tuple[str, ...], report: ResultReport) -> Iterator[list[FoundDeadLetter]]:
        """Find dead letters by id as `found`, each once, and report the ids that were not found."""
        with self.found(ids) as by_id, report.progress():
            for each in ids:
                if each not in by_id and not self.stopping():
                    report.add(failed.Result(each, "failed", f"not found in {self.queue_names}"))
            yield list({each.dead_letter.delivery_id: each for each in by_id.values()}.values())

    def confirms_selection(self, selection: Selection, action: str, more: str = "") -> bool:
        """Ask for confirmation of the action, with the number of dead letters and their queues."""
        names, about = self.queue_names, f"about {sum(queue.about for queue in self.queues):,}"
        if selection.is_filter:
            question = f"{action} the dead letters in {names} where {selection} (out of {about}){more}?"
        else:
            question = f"{action} all dead letters in {names} ({about}){more}?"
        return confirms(self.guidance, self.stopping, question)

    def report_no_match(self, selection: Selection, count: int) -> int:
        """Write that a filter has selected nothing; return the exit code: 1 for a group that does not exist."""
        if count or not selection.is_filter or self.stopping():
            return 0
        note(f"tarry: no dead letter in {self.queue_names} matches {selection}")
        if selection.group is None:
            return 0
        options = queue_options(self.queues[0].name if len(self.queues) == 1 else None, self.where)
        note(f"The groups there are: tarry failed show --group-by fingerprint {options}".rstrip())
        return 1

    @property
    def queue_names(self) -> str:
        return ", ".join(queue.name for queue in self.queues)

    def should_stop(self) -> bool:
        return self.stopping() or (self.results is not None and self.results.is_cut_off)

    def report(self, *outcomes: str, as_json: bool, shows_all: bool) -> ResultReport:
        """Return the report of the results, which are some of these outcomes."""
        self.results = ResultReport(self.guidance, outcomes, as_json=as_json, shows_all=shows_all)
        self.results.audit = self.audit
        return self.results

    def begin_audit(self, path: Path | None, command: str, **asked: Any) -> None:
        """Open the audit file, before anything changes. Raises `CannotWrite`."""
        queues = [each.arn.text for each in self.queues]
        self.audit = CommandAudit(path, command, self.account, {"queues": queues, **asked})

    def begin_change(self) -> None:
        """Write to the audit what is about to be done, before the first change."""
        if self.audit is not None:
            self.audit.begin()

    def archived(self, path: Path | None = None) -> ArchiveFile:
        """Return the archive of this run, opened on first use. Raises `CannotWrite`."""
        if self.archive is None:
            self.archive = ArchiveFile(path or new_archive([each.name for each in self.queues]))
            if self.audit is not None:
                self.audit.line["archive"] = str(self.archive.path)
            note(f"Dead letters are written to {self.archive.path} before they are deleted.")
        return self.archive

    def close(self) -> None:
        """Close the archive, and write the line of the audit."""
        if self.archive is not None:
            self.archive.close()
            suggest_restoring(self.archive, self.where)
        if self.audit is not None:
            if self.archive is not None and not self.archive.count:
                del self.audit.line["archive"]  # a new file was not kept
            self.audit.came_back = self.results.came_back if self.results else ""
            self.audit.end(signal=self.stopping.name)

    def end(self, report: ResultReport, code: int = 0) -> NoReturn:
        """Write the totals and end the command. ``code``: the exit code if nothing else has failed."""
        if report.is_cut_off:
            note("Output closed; stopped after the current dead letters.")
        report.write_totals()
        self.exit(report.exit_code or code)

    def exit(self, code: int) -> NoReturn:
        raise typer.Exit(self.stopping.exit_code if self.stopping() else code)


@contextmanager
def session(
    where: TargetOptions,
    *,
    keepalive: float = KEEPALIVE_SECONDS,
    needs_handlers: bool = False,
    action: str | None = None,
    force: bool = False,
) -> Iterator[CommandSession]:
    """Find the queues, and say where they are; turn errors in the input and errors of AWS into a line on stderr.

    ``needs_handlers``: whether the template is needed. ``action``: what a command that changes something does, for the
    question that names a place that the user did not; with ``force`` there is none.
    """
    stopping = Stopping()
    guidance = Console(file=sys.stderr, highlight=False)
    run: CommandSession | None = None
    with refusals(lambda: run is not None and run.something_was_done(), aws=True):
        named = at_place(where)
        if action is not None:
            check_placed(named, force=force)
        where = in_project(named)
        account = AwsAccess(where)
        where = replace(where, aws=account.is_aws and not where.endpoint_url)  # for the commands that are suggested
        of_project = f", stack {where.stack} (of the samconfig file)" if where.stack != named.stack else ""
        with use(account.world()), stopping.listening():
            try:
                with stopping.at_prompt():  # nothing to finish yet
                    targets = find_targets(where, account, needs_template=needs_handlers)
                    queues = [_found(each, account) for each in targets.queues]
                place = f"{account.place(queues[0].arn.account, region_of(queues[0].arn.text))}{of_project}"
                note(place)
                run = CommandSession(where, account, targets, queues, stopping, guidance, keepalive)
                question = f"{action} dead letters of {run.queue_names} at {place}?"
                if action is not None and not confirms_place(named, question, stopping):
                    run.exit(0)
                yield run
            except StoppedBySignal:
                if run is None:
                    note(f"{stopping.name}: stopped before an inspection began")
                elif run.results is not None:
                    run.results.write_totals()
                raise typer.Exit(stopping.exit_code) from None
            except typer.Exit:
                raise
            except Exception:
                if run is not None and run.results is not None and run.something_was_done():
                    run.results.write_totals()
                raise
            finally:
                if run is not None:
                    run.close()


def _found(queue: str, account: AwsAccess) -> DeadLetterQueue:
    try:
        return failed.find(queue)
    except failed.UnknownQueue as error:
        note(account.place())
        if account.is_aws and (hint := of_tarry_local()):
            raise UsageError(f"{error}; {hint}") from error
        raise


# output

LINE_EVERY_SECONDS = 10.0
FRAME_EVERY_SECONDS = 0.1


class ProgressReport:
    """The progress of one operation. Lines on the same terminal are written after `clear`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_at = self._shown_at = time.monotonic()
        self._bar: Progress | None = None

    def begin(self) -> None:
        """Measure the rate from now."""
        self._began_at = time.monotonic()

    def show(self, name: str, done: int, total: int, more: str = "") -> None:
        """Show how much is done, at a limited rate. ``more``: shown after it where there is no terminal."""
        if self._is_due():
            text = progress_text(done, total, self._shown_at - self._began_at)
            if self._console.is_terminal:
                self._draw(name, done, total, text)
            else:
                note(f"{name}: {text}" + (f"; {more}" if more else ""))

    def show_wait(self, name: str, left: float, total: float) -> None:
        """Show how many seconds of a wait are left."""
        if self._is_due():
            text = f"{duration(left)} left" if left >= 1 else "nearly done"
            if self._console.is_terminal:
                self._draw(name, int(total - left), max(1, int(total)), text)
            else:
                note(f"{name}: {text}")

    def _is_due(self) -> bool:
        now, every = time.monotonic(), FRAME_EVERY_SECONDS if self._console.is_terminal else LINE_EVERY_SECONDS
        is_due = now - self._shown_at >= every
        self._shown_at = now if is_due else self._shown_at
        return is_due

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, name: str, done: int, total: int, text: str) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn  # only a terminal needs it

            columns = (TextColumn("{task.description}", markup=False), BarColumn(16), TextColumn("{task.fields[text]}"))
            self._bar = Progress(
                *columns,
                console=self._console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.add_task(printable(name), total=total, text="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, text=text)
        self._bar.refresh()


def write_json(value: Any) -> None:
    """Write a JSON object as one line of ASCII, so that it contains no control characters."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def warn_about(queue: DeadLetterQueue) -> None:
    if queue.moves_to is not None:
        note(
            f"warning: {queue.name} has a redrive policy: each inspection counts as a receive, and after "
            f"{queue.moves_after} receives SQS moves a dead letter to {queue.moves_to}"
        )
    if queue.sources == ():
        note(f"warning: SQS lists no source queue of {queue.name}: no redrive policy names it as the dead-letter queue")
    if queue.in_flight:
        note(
            f"{queue.name}: {queue.in_flight:,} of about {queue.about:,} dead letters are in flight (received by "
            "another consumer or by a killed process); they become visible when their visibility timeout ends"
        )


def report_inspection(inspection: Inspection) -> None:
    """Write how much of the queue was inspected, and why not all of it."""
    note(f"{inspection.queue.name}: {scanned(inspection)} in {inspection.requests:,} requests")
    if inspection.is_full:
        note(f"{inspection.queue.name}: too many messages in flight; retry or remove some, then run the command again")
    elif inspection.queue.arn.is_fifo and inspection.scanned < inspection.queue.about:
        note(
            f"{inspection.queue.name}: FIFO delivers no more of a message group while its first messages are in flight"
        )
    if inspection.newer:
        note(f"{inspection.queue.name}: {newer(inspection)}")
    if lost := lost_leases(inspection):
        note(f"{inspection.queue.name}: {lost}")
    if repeated := inspection.handled.repeated:
        note(f"skipped {repeated:,} whose ids were already handled (duplicates, or dead-lettered again)")


class ResultReport:
    """The results of a command, counted and written.

    ``outcomes`` are those that the command can have, in the order of the totals.
    """

    def __init__(self, console: Console, outcomes: tuple[str, ...], *, as_json: bool, shows_all: bool) -> None:
        self.audit: Audit | None = None
        self.counts: Counter[str] = Counter()
        self.hindered = 0
        """The number of dead letters that failed for a reason that the user can change."""
        self.is_cut_off = False
        """Whether the output was closed; the command then stops after the current dead letters."""
        self.came_back = ""
        """How many retried messages came back, if the command stopped for it."""
        self.as_json = as_json
        self._outcomes = outcomes
        self._shows_all = shows_all
        self.bar = ProgressReport(console)

    def add(self, result: Result) -> None:
        """Count a result, and write it if it should be shown."""
        self.counts[result.outcome] += 1
        if self.audit is not None:
            self.audit.add(result)
        self.hindered += result.hindrance in ("nowhere", "denied")
        if self.as_json:
            fields = {"id": result.id, "outcome": result.outcome}
            self.write(json.dumps(fields if result.error is None else {**fields, "error": result.error}))
            if result.note:
                note(printable(f"{result.id}: {result.note}"))
        elif self._shows_all or result.outcome in ("failed", "unconfirmed", "skipped") or result.note:
            why = result.error or result.note
            line = f"{result.id}  {result.outcome}" + (f": {why}" if why else "")
            self.bar.clear()
            self.write(printable(line))

    @property
    def handled(self) -> int:
        return self.counts.total()

    def write(self, line: str) -> None:
        """Write a line to stdout; if that fails, the command stops after the current dead letters."""
        if self.is_cut_off:
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except OSError as error:  # closed, or its disk is full; the results that follow are counted all the same
            self.is_cut_off = True
            if not isinstance(error, BrokenPipeError):
                note(f"tarry: the output cannot be written ({error.strerror}); what is done is in the audit")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the next flush must not fail

    def write_totals(self) -> None:
        """Write the totals: to stdout, but to stderr beside JSON or if stdout is closed."""
        write = note if self.as_json or self.is_cut_off else self.write
        write(str(self))

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Measure the rate from here; remove the bar when the context ends."""
        self.bar.begin()
        try:
            yield
        finally:
            self.bar.clear()

    def add_all(self, results: Iterable[Result], inspection: Inspection | None = None) -> None:
        """Add results; show the progress of an inspection, at a limited rate, unless each result is shown."""
        for result in results:
            self.add(result)
            if inspection is not None and not self._shows_all:
                self.bar.show(inspection.queue.name, inspection.scanned, inspection.queue.about, str(self))

    def __str__(self) -> str:
        outcomes = [*self._outcomes, *(["unconfirmed"] if self.counts["unconfirmed"] else [])]
        return ", ".join(f"{outcome} {self.counts[outcome]:,}" for outcome in outcomes)

    @property
    def something_was_done(self) -> bool:
        """Whether a queue was changed, or may have been."""
        return any(self.counts[outcome] for outcome in ("retried", "deleted", "restored", "started", "unconfirmed"))

    @property
    def exit_code(self) -> int:
        """0 without failures; 2 if nothing was done and all failures are for the user to change; otherwise 1."""
        failures = self.counts["failed"]
        if failures and failures == self.hindered and not self.something_was_done:
            return 2
        return 1 if failures or self.counts["unconfirmed"] or self.is_cut_off or self.came_back else 0
