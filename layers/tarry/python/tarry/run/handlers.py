"""Inspecting a handler and its results: whether it is async, and whether it plainly takes its argument."""

from __future__ import annotations

import sys
from functools import partial
from types import CodeType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import FailureSteps
    from tarry.observe.logs import Log

    class Handling(Protocol):
        """A consumer's settings, as far as running its handler needs them."""

        function: Callable[[Any], Any]
        is_async: bool
        concurrency: int
        timeout: float | None
        policy: RetryPolicy
        steps: FailureSteps
        log: Log
        isolate: bool
        fails_without_verdict: bool


# the flags of the inspect module, without its import
_CO_COROUTINE, _CO_ITERABLE_COROUTINE, _CO_GENERATORS = 0x80, 0x100, 0x20 | 0x200


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


def is_generator(function: object) -> bool:
    """Return whether a function contains ``yield``, so that a call runs none of its code."""
    code = getattr(function, "__code__", None)
    flags = code.co_flags if isinstance(code, CodeType) else 0
    return bool(flags & _CO_GENERATORS) and not flags & _CO_ITERABLE_COROUTINE


def is_plain(function: object, kind: type) -> bool:
    """Return whether a function plainly takes one argument of this kind, so that no closer check is needed."""
    if type(function) is not FunctionType or "__wrapped__" in function.__dict__ or is_generator(function):
        return False
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or (name := code.co_varnames[0]) == "self":
        return False
    try:
        annotation = function.__annotations__.get(name)
    except NameError:  # Python 3.14 evaluates annotations here
        return False
    if type(annotation) is str and annotation == kind.__name__:
        annotation = function.__globals__.get(annotation)  # None if it is imported for type checkers only
    return annotation is None or annotation is kind


def is_cancelled_error(error: BaseException) -> bool:
    """Return whether an error is asyncio's ``CancelledError``, without importing asyncio."""
    exceptions = sys.modules.get("asyncio.exceptions")
    return exceptions is not None and issubclass(type(error), exceptions.CancelledError)
