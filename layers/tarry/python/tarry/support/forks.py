"""Processes that a handler forks.

A child that returns from the handler, or raises, is a copy of the whole invocation. It must not run or settle the other
messages of the batch: the parent does. (A child of ``multiprocessing`` never returns to the handler.)
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from tarry.support.causes import is_a

if TYPE_CHECKING:
    from typing import Protocol

    class Forkable(Protocol):
        """What is to be told that this process is a forked child now."""

        def forked(self) -> None: ...


watches = set["Forkable"]()
"""Of the sequential runs in this process."""


class Forked(BaseException):
    """The verdict of the running message in a forked child, so that its loop does not check for a fork every time."""


_generation = 0


def generation() -> int:
    """How often this process was forked from one that runs tarry. Unlike the process id, it costs no system call."""
    return _generation


def leave_if_forked(began_in: int, raised: BaseException | None) -> None:
    """End this process, with the exit code of ``raised``, if it was forked since `generation` was ``began_in``."""
    if _generation != began_in:
        _leave(raised)


def _leave(raised: BaseException | None) -> NoReturn:
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
    """In a child: count the fork, and mark the message that runs, so that its loop ends the process."""
    global _generation  # noqa: PLW0603 of the process, as is the fork
    _generation += 1
    for watch in watches:
        watch.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_child)
