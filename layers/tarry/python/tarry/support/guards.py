"""Guards against what a handler may do: raise exceptions whose methods misbehave, or fork.

An exception can be of a user's class: its ``__cause__`` may be a property that raises, its ``__bool__`` and ``__eq__``
may do anything, and ``isinstance`` reads its ``__class__``. This module reads exceptions through the descriptors of
Python's base classes, and compares them by identity. Only `text_of` calls the exception's code, and guards the call.

A forked child that returns from the handler, or raises, is a copy of the whole invocation. It must not run or settle
the other messages of the batch: the parent does. (A child of ``multiprocessing`` never returns to the handler.)
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import Any, TypeGuard, TypeVar

    T = TypeVar("T")

MAX_LINKS = 10_000  # the most errors read from one chain or one tree of exception groups

_MAY_BE_SUSPENDED = 0x20 | 0x80 | 0x200  # generator, coroutine, async generator: inspect's flags, without its import

cause_of: Callable[[BaseException], BaseException | None]
"""Returns the error that an error was raised from explicitly (``raise error from cause``)."""
cause_of = BaseException.__cause__.__get__  # type: ignore[union-attr]
traceback_of: Callable[[BaseException], TracebackType | None]
traceback_of = BaseException.__traceback__.__get__  # type: ignore[union-attr]
leaves_of: Callable[[BaseExceptionGroup[Any]], tuple[BaseException, ...]] = BaseExceptionGroup.exceptions.__get__
"""Returns the errors directly in a group."""
_context: Any = BaseException.__context__.__get__  # type: ignore[union-attr]
_is_context_suppressed: Any = BaseException.__suppress_context__.__get__  # type: ignore[attr-defined]
_bases: Any = type.__dict__["__mro__"].__get__
_module: Any = type.__dict__["__module__"].__get__
_qualified_name: Any = type.__dict__["__qualname__"].__get__


def is_a(value: object, kind: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return whether ``value`` is an instance of ``kind``, whatever its ``__class__`` says."""
    return issubclass(type(value), kind)


def origin_of(error: BaseException) -> BaseException | None:
    """Return the error that led to ``error``, as Python's traceback shows it: its cause, else its context."""
    if (cause := cause_of(error)) is not None or _is_context_suppressed(error):
        return cause
    context: BaseException | None = _context(error)
    return context


def drop_tracebacks(error: BaseException) -> None:
    """Free the frames that an error was raised through, with their locals, by removing the tracebacks."""
    for link in everything_in(error, with_suppressed=True):
        BaseException.with_traceback(link, None)


def free_memory_of(raised: BaseException) -> None:
    """Free the locals of a handler that ran out of memory, for the next message and the imports of the settlement."""
    clear_frames(raised, MemoryError)


def clear_frames(error: BaseException, kind: type[BaseException] = BaseException) -> None:
    """Free the locals of the frames that an error was raised through, and keep its traceback."""
    for link in everything_in(error, with_suppressed=True):
        trace = traceback_of(link) if is_a(link, kind) else None
        while trace is not None:
            _clear(trace.tb_frame)
            trace = trace.tb_next


def _clear(frame: FrameType) -> None:
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _MAY_BE_SUSPENDED:
        return  # before Python 3.13, clearing a suspended generator or coroutine ends it
    try:
        frame.clear()
    except RuntimeError:
        return  # the frame is running: it is tarry's own


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, then each error that led to it. A cycle ends the chain."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < MAX_LINKS:
        seen.add(id(link))
        yield link
        link = origin_of(link)


def everything_in(error: BaseException, *, with_suppressed: bool = False) -> list[BaseException]:
    """Return ``error``, the errors in its groups, and those that led to each, nearest first; or suppressed ones too."""
    if cause_of(error) is None and _context(error) is None and not is_a(error, BaseExceptionGroup):
        return [error]  # as most errors are
    found: list[BaseException] = []
    seen = set[int]()
    todo: list[BaseException | None] = [error]
    for link in todo:  # the list grows while it is read
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        found.append(link)
        if len(todo) < MAX_LINKS:
            todo += leaves_of(link) if is_a(link, BaseExceptionGroup) else ()
            todo += (cause_of(link), _context(link)) if with_suppressed else (origin_of(link),)
    return found


def bases_of(error: BaseException) -> tuple[type, ...]:
    """Return the classes of ``error``, the most specific first."""
    bases: tuple[type, ...] = _bases(type(error))
    return bases


def name_of(kind: type) -> str:
    """Return the ``module.Name`` of a class, ``Name`` for a built-in one; at most 200 characters."""
    module, name = _plain(_module(kind)), _plain(_qualified_name(kind))
    return (name if module == "builtins" else f"{module}.{name}")[:200]


def type_name(error: BaseException) -> str:
    return name_of(type(error))


def text_of(value: object, limit: int) -> str:
    """Return ``str(value)``, at most ``limit`` characters; if ``__str__`` raises, a text that names the exception."""
    try:
        return str.__getitem__(str(value), slice(limit))
    except BaseException as failure:  # noqa: BLE001 a broken __str__ must not hide the error or end the batch
        return f"<{name_of(type(failure))} while describing it>"


def _plain(name: object) -> str:
    """Return a name as a plain ``str``: the ``__module__`` of a class can be anything."""
    return str.__str__(name) if issubclass(type(name), str) else "?"


watches: set[Any] = set()  # the watches of the runs in progress on a main thread of this process


class Forked(BaseException):
    """The verdict of the running message in a forked child, so that its loop does not check for a fork every time."""


_generation = 0


def generation() -> int:
    """Return the number of forks since the first process. Unlike ``os.getpid``, this makes no system call."""
    return _generation


def exit_if_forked(began_in: int, raised: BaseException | None) -> None:
    """Exit with the exit code of ``raised`` if the process was forked since `generation` returned ``began_in``."""
    if _generation == began_in:
        return
    _flush(sys.stdout)
    _flush(sys.stderr)
    os._exit(_exit_code(raised))


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except Exception:  # noqa: BLE001 the stream is closed
        return


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
