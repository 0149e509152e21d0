"""Reading errors without running any code of theirs.

An exception is a user's object: its ``__cause__`` may be a property that raises, its ``__bool__`` and ``__eq__`` may do
anything, and ``isinstance`` asks its ``__class__``. Everything here is read through the descriptors of Python's own
base classes, and compared by identity. Only `text_of` calls the error's code, and it guards that call.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType
    from typing import TypeGuard

T = TypeVar("T")

MAX_LINKS = 10_000
"""How many errors of one chain, or one tree of groups, are looked at."""

_MAY_BE_SUSPENDED = 0x20 | 0x80 | 0x200
"""Generator, coroutine, async generator: inspect's flags, without its import."""

_cause: Any = BaseException.__cause__.__get__  # type: ignore[union-attr]
_context: Any = BaseException.__context__.__get__  # type: ignore[union-attr]
_is_context_suppressed: Any = BaseException.__suppress_context__.__get__  # type: ignore[attr-defined]
_traceback: Any = BaseException.__traceback__.__get__  # type: ignore[union-attr]
_exceptions: Any = BaseExceptionGroup.exceptions.__get__
_bases: Any = type.__dict__["__mro__"].__get__
_module: Any = type.__dict__["__module__"].__get__
_qualified_name: Any = type.__dict__["__qualname__"].__get__


@overload
def is_a(value: object, kind: type[T]) -> TypeGuard[T]: ...
@overload
def is_a(value: object, kind: tuple[type[T], ...]) -> TypeGuard[T]: ...
def is_a(value: object, kind: Any) -> bool:
    """Whether ``value`` really is an instance of ``kind``, whatever its ``__class__`` claims."""
    return issubclass(type(value), kind)


def cause_of(error: BaseException) -> BaseException | None:
    """The error that ``error`` was raised from explicitly (``raise error from cause``)."""
    cause: BaseException | None = _cause(error)
    return cause


def origin_of(error: BaseException) -> BaseException | None:
    """The error that ``error`` came from, as Python's own traceback shows it: its cause, else its context."""
    if (cause := cause_of(error)) is not None or _is_context_suppressed(error):
        return cause
    context: BaseException | None = _context(error)
    return context


def traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback of ``error``."""
    trace: TracebackType | None = _traceback(error)
    return trace


def leaves_of(group: BaseExceptionGroup[Any]) -> tuple[BaseException, ...]:
    """The errors directly in a group."""
    leaves: tuple[BaseException, ...] = _exceptions(group)
    return leaves


def let_frames_go(error: BaseException) -> None:
    """Free what a failed handler holds: an error keeps the frames that it was raised through, and all their locals."""
    for link in everything_in(error, with_suppressed=True):
        BaseException.with_traceback(link, None)


def free_memory_of(raised: BaseException) -> None:
    """Free what a handler holds that ran out of memory: its error keeps the frames, and they all that it took.

    Without this there would be none left for the next message, nor for anything that has to be imported for this one.
    """
    for error in everything_in(raised, with_suppressed=True):
        if is_a(error, MemoryError):
            _clear_frames(traceback_of(error))


def clear_frames(error: BaseException) -> None:
    """Free what the frames hold that an error was raised through, and keep its traceback."""
    for link in everything_in(error, with_suppressed=True):
        _clear_frames(traceback_of(link))


def _clear_frames(trace: TracebackType | None) -> None:
    while trace is not None:
        _clear(trace.tb_frame)
        trace = trace.tb_next


def _clear(frame: FrameType) -> None:
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _MAY_BE_SUSPENDED:
        return  # one that waits would be ended
    try:
        frame.clear()
    except RuntimeError:
        return  # our own, which runs


def chain(error: BaseException) -> Iterator[BaseException]:
    """``error``, then each error that it came from. Cycles end."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < MAX_LINKS:
        seen.add(id(link))
        yield link
        link = origin_of(link)


def everything_in(error: BaseException, *, with_suppressed: bool = False) -> Iterator[BaseException]:
    """``error``, the errors of its groups, and each error that one of them came from, nearest first. Cycles end.

    ``with_suppressed``: both the cause and the context of each, since an error holds on to both.
    """
    seen = set[int]()
    todo: list[BaseException | None] = [error]
    for link in todo:  # which grows
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if len(todo) < MAX_LINKS:
            todo += leaves_of(link) if is_a(link, BaseExceptionGroup) else ()
            todo += (_cause(link), _context(link)) if with_suppressed else (origin_of(link),)


def bases_of(error: BaseException) -> tuple[type, ...]:
    """The classes of ``error``, the most specific first."""
    bases: tuple[type, ...] = _bases(type(error))
    return bases


def name_of(kind: type) -> str:
    """``module.Name`` of a class, without the module for built-in ones, at most 200 characters."""
    module, name = _plain(_module(kind)), _plain(_qualified_name(kind))
    return (name if module == "builtins" else f"{module}.{name}")[:200]


def type_name(error: BaseException) -> str:
    """`name_of` the error's class."""
    return name_of(type(error))


def text_of(value: object, limit: int) -> str:
    """``str(value)``, at most ``limit`` characters. If it cannot be described, the text says so."""
    try:
        return str.__getitem__(str(value), slice(limit))
    except BaseException as failure:  # noqa: BLE001 an odd __str__ must not hide the error, nor end the batch
        return f"<{name_of(type(failure))} while describing it>"


def _plain(name: object) -> str:
    """The name as a real ``str``: a class may have anything as its ``__module__``."""
    return str.__str__(name) if issubclass(type(name), str) else "?"
