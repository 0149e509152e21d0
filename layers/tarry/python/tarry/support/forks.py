"""Forked child processes: a handler may call ``os.fork``.

A child that returns from the handler, or raises, is a copy of the whole invocation. It must not run or settle the other
messages of the batch: the parent does. (A child of ``multiprocessing`` never returns to the handler.)
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tarry.support.causes import is_a

watches = set[Any]()  # the watches of the runs in progress on a main thread of this process


class Forked(BaseException):
    """The verdict of the running message in a forked child, so that its loop does not check for a fork every time."""


_generation = 0


def generation() -> int:
    """Return the number of forks between this process and the first one. Unlike ``os.getpid``, it is no system call."""
    return _generation


def exit_if_forked(began_in: int, raised: BaseException | None) -> None:
    """Exit with the exit code of ``raised`` if the process was forked since `generation` returned ``began_in``."""
    if _generation == began_in:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 the stream is closed
            continue
    os._exit(_exit_code(raised))


def _exit_code(raised: BaseException | None) -> int:
    if raised is None:
        return 0
    code: Any = SystemExit.__dict__["code"].__get__(raised) if is_a(raised, SystemExit) else 1
    if code is None:
        return 0
    return code & 0xFF if type(code) is int else 1


def _mark_child() -> None:
    """Count the fork in the child, and mark the message that runs, so that the loop of its run exits."""
    global _generation  # noqa: PLW0603 a fork concerns the whole process
    _generation += 1
    for watch in watches:
        watch.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_child)
