"""The visibility of messages in flight: how long they stay hidden from the next receive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.sqs.limits import tens
from tarry.sqs.refusals import Refused, failed_entries, is_worth_splitting
from tarry.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.arn import QueueArn
    from tarry.message import Message
    from tarry.sqs.lookups import Lookups

BEYOND_THE_LIMIT = "Total VisibilityTimeout"


class Hide(Value):
    """To hide a message for so many seconds from now; 0 shows it at once."""

    __slots__ = ("message", "seconds")
    message: Message[Any]
    seconds: int

    def __init__(self, message: Message[Any], seconds: int) -> None:
        self._freeze(message=message, seconds=seconds)


class Hidden(Value):
    """What came of a `Hide`: for how long it really is, or the error."""

    __slots__ = ("error", "hide")
    hide: Hide
    error: Exception | None

    def __init__(self, hide: Hide, error: Exception | None) -> None:
        self._freeze(hide=hide, error=error)


def change_visibility(hides: Sequence[Hide], queue: QueueArn, lookups: Lookups) -> list[Hidden]:
    """Hides messages of one queue, ten in a request whatever their delays, several requests at once.

    An entry refused as beyond SQS's 12 hours is asked for once more, with as much as is certain to be allowed.
    """
    done = _in_tens(hides, queue, lookups)
    beyond = [hidden.hide for hidden in done if _is_beyond(hidden)]
    if not beyond:
        return done
    certain = MAX_VISIBILITY_SECONDS - lookups.visibility_timeout(queue)
    shorter = [Hide(hide.message, min(hide.seconds, certain)) for hide in beyond]
    return [hidden for hidden in done if not _is_beyond(hidden)] + _in_tens(shorter, queue, lookups)


def _is_beyond(hidden: Hidden) -> bool:
    return hidden.error is not None and BEYOND_THE_LIMIT in str(hidden.error)


def _in_tens(hides: Sequence[Hide], queue: QueueArn, lookups: Lookups) -> list[Hidden]:
    chunks = list(tens([hide for hide in hides if hide.message._receipt_handle]))
    answers = lookups.requests.all([partial(_request, chunk, queue, lookups) for chunk in chunks])
    no_handle = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
    done = [Hidden(hide, no_handle) for hide in hides if not hide.message._receipt_handle]
    for chunk, answer in zip(chunks, answers, strict=True):
        done += [Hidden(hide, answer) for hide in chunk] if isinstance(answer, Exception) else answer
    return done


def _request(chunk: Sequence[Hide], queue: QueueArn, lookups: Lookups) -> list[Hidden]:
    entries = [
        {"Id": str(index), "ReceiptHandle": hide.message._receipt_handle, "VisibilityTimeout": hide.seconds}
        for index, hide in enumerate(chunk)
    ]
    try:
        url = lookups.url(queue)  # here, where the time is watched: it may have to make the client
        answer = lookups.requests.call("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever it is, the lease is as it was
        if len(chunk) > 1 and is_worth_splitting(error):
            return [hidden for hide in chunk for hidden in _request([hide], queue, lookups)]
        return [Hidden(hide, error) for hide in chunk]
    failed = failed_entries(answer)
    return [Hidden(hide, failed.get(str(index))) for index, hide in enumerate(chunk)]
