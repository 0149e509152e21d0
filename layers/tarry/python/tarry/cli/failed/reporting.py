"""What came of letters: results on stdout, guidance on stderr, the truth at the end."""

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
    """What is to be known of a queue before one looks at it."""
    if queue.moves_to is not None:
        note(
            f"warning: {queue.name} has a redrive policy of its own: each look counts as a receive, and after "
            f"{queue.moves_after} of them SQS moves a letter to {queue.moves_to}"
        )
    if queue.sources == ():
        note(f"warning: {queue.name} is the dead-letter queue of no queue, as far as SQS tells")
    if queue.in_flight:
        note(
            f"{queue.in_flight:,} of about {queue.about:,} letters of {queue.name} are held by somebody else, or were "
            "by a process that was killed: they are shown again when their visibility timeout ends"
        )


def afterwards(inspection: Inspection) -> None:
    """What is to be known when one has looked."""
    note(f"{inspection.queue.name}: {scanned(inspection)}")
    if inspection.is_full:
        note(f"{inspection.queue.name}: no more letters can be held at once: remove or retry some, then look again")
    elif inspection.queue.arn.is_fifo and inspection.scanned < inspection.queue.about:
        note(f"{inspection.queue.name} is FIFO: behind the first letters of a group that are held SQS shows no others")
    if inspection.not_offered:
        note(f"left, since their ids were dealt with in this run (doubles, or dead again): {inspection.not_offered:,}")


class ResultReport:
    """What came of all letters."""

    def __init__(self, console: Console, *, as_json: bool, shows_all: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.hindered = 0
        """Those for which nothing was done, for a reason that the caller can change."""
        self.is_cut_off = False
        """Whether nobody reads the results any more: what is at hand is finished, and no more begun."""
        self._as_json = as_json
        self._shows_all = shows_all
        self._progress = console
        self._told_at = time.monotonic()

    def add(self, result: Result) -> None:
        """Tells of one."""
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
        """While this goes on, `tick` shows how far it is."""
        try:
            yield
        finally:
            self._clear()
            sys.stdout.flush()

    def tick(self, inspection: Inspection) -> None:
        """Shows how far it is, not too often; where each letter is told of anyway, not at all."""
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
        """2 if nothing at all was done, and what was given has to change."""
        failures = self.counts["failed"]
        if failures and failures == self.hindered and not self.counts["retried"] and not self.counts["deleted"]:
            return 2
        return 1 if failures or self.is_cut_off else 0
