"""Signals: finish the current dead letters, then stop; at a prompt, stop at once."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP")
"""SIGHUP: the terminal or the connection was closed."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal came while there was nothing to finish, or a second one."""


class Stopping:
    """Whether a signal came. It raises `StoppedBySignal` within `at_prompt`; within `at_work`, the second one does."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._raises_at: int | None = None
        self._came = 0

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of a shell for a process that a signal ended: 128 plus its number."""
        return 128 + (self.signal or 0)

    @property
    def name(self) -> str:
        """The name of the signal that came."""
        return signal.Signals(self.signal).name if self.signal else ""

    @contextmanager
    def listening(self) -> Iterator[Stopping]:
        """Handle the signals within the context."""
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]  # for nohup
        before = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_prompt(self) -> Iterator[None]:
        """Stop at once at a signal, within the context: the user is being asked."""
        with self._raising_at(1):
            yield

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Stop at a second signal, within the context: a handler runs, and may not end."""
        with self._raising_at(2):
            yield

    @contextmanager
    def _raising_at(self, count: int) -> Iterator[None]:
        if self._came >= count:
            raise StoppedBySignal
        before, self._raises_at = self._raises_at, count
        try:
            yield
        finally:
            self._raises_at = before

    def _take(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._came += 1
        if self._raises_at is not None and self._came >= self._raises_at:
            raise StoppedBySignal
