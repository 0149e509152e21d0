"""The session of a `tarry failed` command: the AWS client, the queues, the signals."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from tarry import failed
from tarry.failed.archive import ArchiveFile, new_archive
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.failed.journal import CannotWrite
from tarry.failed.queue_names import region_of
from tarry.failed.selection import found_by_ids
from tarry.failed.usage import UsageError
from tarry.failed.wording import count_of
from tarry.tools.cli.errors import note, of_tarry_local, refusals, refuse
from tarry.tools.cli.failed.prompts import StoppedBySignal, Stopping, confirms
from tarry.tools.cli.failed.rendering import queue_options, suggest_restoring
from tarry.tools.cli.failed.reporting import ResultReport, report_inspection, warn_about
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
    from collections.abc import Iterator
    from pathlib import Path

    from tarry.failed import DeadLetterQueue, Inspection, Selection
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
