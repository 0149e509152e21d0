"""What a handler's return value says of its messages (SPEC A4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.message import Message

if TYPE_CHECKING:
    from collections.abc import Collection

    from tarry.batch import Batch

KEY = "batchItemFailures"


def returned_error(result: Any) -> BaseException | None:
    """A verdict or error that was returned, which counts as if it had been raised."""
    return result if isinstance(result, BaseException) else None


def named_as_failed(result: Any, subject: Message[Any] | Batch[Any]) -> Collection[str]:
    """The delivery ids that an answer as Powertools' names as failed; all of them if Lambda would reject it."""
    items = result.get(KEY) if isinstance(result, dict) else None
    if not items:
        return ()
    messages = [subject] if isinstance(subject, Message) else list(subject)
    everything = frozenset(message.delivery_id for message in messages)
    if isinstance(subject, Message):
        return everything
    by_id = {message.id: message.delivery_id for message in messages} | {each: each for each in everything}
    try:
        return frozenset(by_id[item["itemIdentifier"]] for item in items)
    except (KeyError, TypeError):
        return everything
