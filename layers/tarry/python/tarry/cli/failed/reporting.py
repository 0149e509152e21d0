"""The results of a command: one line each on stdout, guidance on stderr, totals at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.cli.errors import note
from tarry.failed import scanned
from tarry.tooling.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from tarry.failed import DeadLetterQueue, Inspection, Result

OUTCOMES = ("retried", "failed", "skipped", "deleted")
LINE_EVERY_SECONDS = 10.0
FRAME_EVERY_SECONDS = 0.1


def write_json(value: Any) -> None:
    """One object a line; in ASCII, so that nothing in it can move a cursor."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def about(queue: DeadLetterQueue) -> None:
    """Warn about a queue before it is inspected."""
    if queue.moves_to is not None:
        note(
            f"warning: {queue.name} has a redrive policy of its own: each inspection counts as a receive, and after "
            f"{queue.moves_after} of them SQS moves a dead letter to {queue.moves_to}"
        )
    if queue.sources == ():
        note(f"warning: SQS lists no queue that has {queue.name} as its dead-letter queue")
    if queue.in_flight:
        note(
            f"{queue.in_flight:,} of about {queue.about:,} dead letters in {queue.name} are in flight: "
            "another consumer holds them, or a process that was killed; they become visible when their timeout ends"
        )


def afterwards(inspection: Inspection) -> None:
    """Say how much of the queue was inspected, and what was not."""
    note(f"{inspection.queue.name}: {scanned(inspection)}")
    if inspection.is_full:
        note(f"{inspection.queue.name}: no more can be in flight at once: remove or retry some, then run this again")
    elif inspection.queue.arn.is_fifo and inspection.scanned < inspection.queue.about:
        note(f"{inspection.queue.name} is FIFO: SQS shows no more of a group while its first messages are in flight")
    if inspection.not_offered:
        note(f"skipped, their ids were handled before (duplicates, or dead-lettered again): {inspection.not_offered:,}")


class ResultReport:
    """The results of all dead letters of one command."""

    def __init__(self, console: Console, *, as_json: bool, shows_all: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.hindered = 0
        """Dead letters for which nothing was done, for a reason that the caller can remove."""
        self.is_cut_off = False
        """Whether the output was closed: the current dead letters are finished, and no others begun."""
        self._as_json = as_json
        self._shows_all = shows_all
        self._progress = console
        self._told_at = time.monotonic()

    def add(self, result: Result) -> None:
        """Count a result, and write it where it is to be shown."""
        self.counts[result.outcome] += 1
        self.hindered += result.hindrance in ("nowhere", "denied")
        if self._as_json:
            told = {"id": result.id, "outcome": result.outcome}
            self._tell(json.dumps(told if result.error is None else {**told, "error": result.error}))
            if result.note:
                note(printable(f"{result.id}: {result.note}"))
        elif self._shows_all or result.outcome in ("failed", "skipped") or result.note:
            why = result.error or result.note
            line = f"{result.id}  {result.outcome}" + (f": {why}" if why else "")
            self._clear()
            self._tell(printable(line))

    def _tell(self, line: str) -> None:
        if self.is_cut_off:
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.is_cut_off = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show progress by `tick` for as long as the context lasts."""
        try:
            yield
        finally:
            self._clear()
            sys.stdout.flush()

    def tick(self, inspection: Inspection) -> None:
        """Show progress, at most every few moments; not at all if each result is shown anyway."""
        if self._shows_all:
            return
        now = time.monotonic()
        if now - self._told_at < (FRAME_EVERY_SECONDS if self._progress.is_terminal else LINE_EVERY_SECONDS):
            return
        self._told_at = now
        text = f"{inspection.queue.name}: {scanned(inspection)}; {self}"
        if self._progress.is_terminal:
            sys.stderr.write("\r\x1b[K" + printable(text)[: self._progress.width - 1])
            sys.stderr.flush()
        else:
            note(text)

    def _clear(self) -> None:
        if self._progress.is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __str__(self) -> str:
        return ", ".join(f"{outcome} {self.counts[outcome]:,}" for outcome in OUTCOMES)

    @property
    def exit_code(self) -> int:
        """0 if all went well, 1 if something failed, 2 if nothing was done and the input has to change."""
        failures = self.counts["failed"]
        if failures and failures == self.hindered and not self.counts["retried"] and not self.counts["deleted"]:
            return 2
        return 1 if failures or self.is_cut_off else 0
