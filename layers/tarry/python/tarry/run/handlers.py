"""Inspecting a handler: whether it is async, and plainly takes its argument. The meaning of its result (SPEC A4)."""

from __future__ import annotations

import sys
from functools import partial
from types import AsyncGeneratorType, CodeType, FunctionType, GeneratorType

from tarry.errors import UnexplainedFailure
from tarry.message.message import Message
from tarry.message.outcomes import Answer
from tarry.support.guards import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import FailureSteps
    from tarry.message.batch import Batch
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
    if isinstance(result, GeneratorType):
        return bool(result.gi_code.co_flags & _CO_ITERABLE_COROUTINE)  # made by types.coroutine
    return hasattr(type(result), "__await__")


def is_generator(function: FunctionType) -> bool:
    """Return whether a function contains ``yield``, so that a call runs none of its code."""
    flags = function.__code__.co_flags
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


KEY = "batchItemFailures"
RETURNED = f"the handler of one message returned {KEY}: raise the error instead, or call message.fail(error)"


class HandlerNeverRan(TypeError):
    """The handler returned a generator, so no line of it has run."""

    __module__ = "tarry"  # in records and logs, where no file of tarry is named


def apply_result(result: Any, subject: Message[Any] | Batch[Any]) -> None:
    """Apply the return value of a handler: raise a verdict, or an error if it failed without raising one."""
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise HandlerNeverRan("the handler contains yield, so calling it ran none of its code: remove the yield")
    if is_a(result, BaseException):
        raise result
    if not is_a(result, dict) or (failures := dict.get(result, KEY)) is None:
        return
    if not isinstance(subject, Message):
        from tarry.message.batch import batch_verdict_of

        batch_verdict_of(subject).answer = _answer(failures, subject)
    elif failures:
        raise UnexplainedFailure(RETURNED)


def _answer(failures: object, batch: Batch[Any]) -> Answer | None:
    if not is_a(failures, (list, tuple)):
        return Answer(refusal=f"{KEY} is not a list")
    by_id: dict[str, list[str]] = {}
    for message in batch:
        by_id.setdefault(message.id, []).append(message.delivery_id)
    delivery_ids = {message.delivery_id for message in batch}
    named = set[str]()
    for entry in failures:
        identifier = entry.get("itemIdentifier") if is_a(entry, dict) else None
        if type(identifier) is not str or not identifier:
            return Answer(refusal=f"an entry of {KEY} has no itemIdentifier")
        if identifier in delivery_ids:
            named.add(identifier)
        elif identifier in by_id:
            named.update(by_id[identifier])
        else:
            return Answer(refusal=f"an itemIdentifier in {KEY} is not the id of a message of the batch")
    return Answer(frozenset(named)) if named else None
