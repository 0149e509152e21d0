"""A share of a core, as a Lambda function with less than 1,769 MB has it.

A process of its own, in which no other thread delays it, reads the CPU time of each function every 2 ms, and stops a
function (SIGSTOP) while it has used more than its share, as the kernel does on Lambda. A function that waits uses none,
and saves at most a period's share.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock

PERIOD_SECONDS = 0.02
TICK_SECONDS = 0.002


class Shares:
    """The functions with less than a core."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = Lock()

    def limit(self, pid: int, share: float) -> None:
        """Give a process this share of a core from now on; 1 if it is ending."""
        with self._lock:
            self._connection.send((pid, share))


@contextmanager
def shares() -> Iterator[Shares]:
    """Start the process that stops and continues the functions."""
    context = get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_keep, args=(its,), daemon=True)
    process.start()
    its.close()
    try:
        yield Shares(ours)
    finally:
        ours.close()
        process.join()


def prefer(priority: int, pid: int = 0) -> None:
    """Run a process before all other programs of the machine, if that is permitted; they would take its share.

    This process comes before the functions (1), and the one that stops them before both (3).
    """
    if sys.platform == "linux":
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(priority))


def _keep(connection: Connection) -> None:
    limited: dict[int, _Limited] = {}
    prefer(3)
    try:
        while True:
            while connection.poll(TICK_SECONDS):
                pid, share = connection.recv()
                if (before := limited.pop(pid, None)) is not None:
                    before.run()
                prefer(1, pid)
                if share < 1:
                    limited[pid] = _Limited(pid, share)
            for each in limited.values():
                each.keep()
    except EOFError:
        for each in limited.values():
            each.run()


class _Limited:
    def __init__(self, pid: int, share: float) -> None:
        self._pid, self._share = pid, share
        self._used, self._at = cpu_seconds(pid), time.monotonic()
        self._left = 0.0
        self._is_stopped = False

    def keep(self) -> None:
        used, now = cpu_seconds(self._pid), time.monotonic()
        earned = self._left + (now - self._at) * self._share
        self._left = min(PERIOD_SECONDS * self._share, earned) - (used - self._used)
        self._used, self._at = used, now
        if self._left >= 0:
            self.run()
        elif not self._is_stopped:
            self._is_stopped = True
            _signal(self._pid, signal.SIGSTOP)

    def run(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            _signal(self._pid, signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, 0 if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0


def delayed_seconds(pid: int) -> float:
    """Return for how long the threads of a process waited for a core that was busy: not because they were stopped."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1])
        except OSError:
            continue  # the thread has ended
    return total / 1e9


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended
