"""Inspecting a handler and its results: whether it is async, and whether it takes one argument."""

from __future__ import annotations

import sys
from functools import partial
from types import CodeType, GeneratorType

# the flags of the inspect module, without its import
_CO_VARARGS, _CO_COROUTINE, _CO_ITERABLE_COROUTINE = 0x4, 0x80, 0x100


def is_async(function: object) -> bool:
    """Return whether ``function`` is an ``async def``, also below ``partial`` or as ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    for candidate in (function, getattr(type(function), "__call__", None)):  # noqa: B004 read for its code, not to test if it is callable
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType) and code.co_flags & (_CO_COROUTINE | _CO_ITERABLE_COROUTINE):
            return True
    return False


def is_awaitable(result: object) -> bool:
    """Return whether a handler's result can be awaited."""
    if isinstance(result, GeneratorType):
        return bool(result.gi_code.co_flags & _CO_ITERABLE_COROUTINE)  # made by types.coroutine
    return hasattr(type(result), "__await__")


def cannot_take_one(function: object) -> str | None:
    """Return why a handler cannot be called with one argument, the message or the batch; None if it can."""
    if isinstance(function, type):
        return "it is a class: decorate a function, or an instance with __call__"
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    bound = 1 if getattr(function, "__self__", None) is not None else 0
    positional = code.co_argcount - bound
    needed = positional - len(getattr(function, "__defaults__", None) or ())
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    unset = [name for name in keyword_only if name not in (getattr(function, "__kwdefaults__", None) or {})]
    if needed > 1 or unset or (positional < 1 and not code.co_flags & _CO_VARARGS):
        names = ", ".join(code.co_varnames[bound : code.co_argcount + code.co_kwonlyargcount])
        return f"it takes ({names}), and is called with one argument, the message or the batch"
    return None


def is_cancelled_error(error: BaseException) -> bool:
    """Return whether an error is asyncio's ``CancelledError``, without importing asyncio."""
    exceptions = sys.modules.get("asyncio.exceptions")
    return exceptions is not None and issubclass(type(error), exceptions.CancelledError)
