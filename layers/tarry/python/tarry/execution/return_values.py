"""Return values of handlers: a verdict, a Powertools-style answer, or a value that has no meaning (SPEC A4)."""

from __future__ import annotations

from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from tarry.batch import batch_verdict_of
from tarry.errors import UnexplainedFailure
from tarry.message import Message
from tarry.support.causes import is_a
from tarry.verdict import Answer

if TYPE_CHECKING:
    from tarry.batch import Batch

KEY = "batchItemFailures"

NAMED = f"the batch handler named the message in {KEY}, without an error: call message.fail(error) to record one"
RETURNED = f"the handler of one message returned {KEY}: raise the error instead, or call message.fail(error)"
NO_VERDICT = 'the batch handler returned without a verdict on the message, and unsaid="fail" makes that a failure'


class HandlerNeverRan(TypeError):
    """The handler returned a generator, so no line of it has run."""


def apply_result(result: Any, subject: Message[Any] | Batch[Any]) -> None:
    """Apply the return value of a handler.

    Raises:
        BaseException: The verdict that the handler returned.
        HandlerNeverRan: The handler returned a generator.
        UnexplainedFailure: The handler of one message returned an answer with failures.
    """
    _refuse_generator(result)
    if is_a(result, BaseException):
        raise result
    if not is_a(result, dict) or (failures := dict.get(result, KEY)) is None:
        return
    if not isinstance(subject, Message):
        batch_verdict_of(subject).answer = _answer(failures, subject)
    elif failures:
        raise UnexplainedFailure(RETURNED)


def _refuse_generator(result: object) -> None:
    """Raise `HandlerNeverRan` for a generator: a handler with a ``yield`` has run none of its code."""
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise HandlerNeverRan("the handler contains yield, so calling it ran none of its code: remove the yield")


def _answer(failures: object, batch: Batch[Any]) -> Answer | None:
    """Return the answer; None if it names no message."""
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
