"""The output of a command: one line per result on stdout, guidance on stderr, totals at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.failed import scanned
from tarry.failed.text import duration, printable, progress_text
from tarry.failed.wording import lost_leases, newer
from tarry.tools.cli.errors import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console
    from rich.progress import Progress

    from tarry.failed import DeadLetterQueue, Inspection, Result
    from tarry.tools.common.audit import Audit

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
            sys.stdout.flush()

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
