"""The progress of long work on stderr: a bar at a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tarry.failed.text import duration, printable, progress_text
from tarry.tools.cli.errors import note

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

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
        now = time.monotonic()
        if now - self._shown_at < (FRAME_EVERY_SECONDS if self._console.is_terminal else LINE_EVERY_SECONDS):
            return
        self._shown_at = now
        text = progress_text(done, total, now - self._began_at)
        if self._console.is_terminal:
            self._draw(name, done, total, text)
        else:
            note(f"{name}: {text}" + (f"; {more}" if more else ""))

    def show_wait(self, name: str, left: float, total: float) -> None:
        """Show how many seconds of a wait are left."""
        now = time.monotonic()
        if now - self._shown_at < (FRAME_EVERY_SECONDS if self._console.is_terminal else LINE_EVERY_SECONDS):
            return
        self._shown_at = now
        text = f"{duration(left)} left" if left >= 1 else "nearly done"
        if self._console.is_terminal:
            self._draw(name, int(total - left), max(1, int(total)), text)
        else:
            note(f"{name}: {text}")

    def clear(self) -> None:
        """Remove the bar."""
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
