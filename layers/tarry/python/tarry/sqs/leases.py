"""The visibility of messages in flight: how long they stay hidden from the next receive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.sqs.client import Requests, error_code, is_worth_splitting
from tarry.sqs.limits import tens
from tarry.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.message import Message

BEYOND_THE_LIMIT = "Total VisibilityTimeout"
ASSUMED_VISIBILITY_TIMEOUT = 30  # SQS's default, where the queue's own may not be read


class Hide(Value):
    """To hide a message for so many seconds from now; 0 shows it at once."""

    __slots__ = ("message", "seconds")
    message: Message[Any]
    seconds: int

    def __init__(self, message: Message[Any], seconds: int) -> None:
        self._freeze(message=message, seconds=seconds)


class Refused(Exception):
    """SQS took the request and refused this entry."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Hidden(Value):
    """What came of a `Hide`: for how long it really is, or the error."""

    __slots__ = ("error", "hide")
    hide: Hide
    error: Exception | None

    def __init__(self, hide: Hide, error: Exception | None) -> None:
        self._freeze(hide=hide, error=error)


def change_visibility(
    hides: Sequence[Hide], requests: Requests, url: str, visibility_timeout: Callable[[], int | None]
) -> list[Hidden]:
    """Hides messages of one queue, ten in a request whatever their delays, several requests at once.

    An entry refused as beyond SQS's 12 hours is asked for once more, with as much as is certain to be allowed.
    """
    done = _in_tens(hides, requests, url)
    beyond = [hidden for hidden in done if BEYOND_THE_LIMIT in str(hidden.error)]
    if not beyond:
        return done
    certain = MAX_VISIBILITY_SECONDS - (visibility_timeout() or ASSUMED_VISIBILITY_TIMEOUT)
    shorter = [Hide(hidden.hide.message, min(hidden.hide.seconds, certain)) for hidden in beyond]
    return [hidden for hidden in done if hidden not in beyond] + _in_tens(shorter, requests, url)


def _in_tens(hides: Sequence[Hide], requests: Requests, url: str) -> list[Hidden]:
    chunks = list(tens([hide for hide in hides if hide.message._receipt_handle]))
    answers = requests.all([partial(_request, chunk, requests, url) for chunk in chunks])
    no_handle = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
    done = [Hidden(hide, no_handle) for hide in hides if not hide.message._receipt_handle]
    for chunk, answer in zip(chunks, answers, strict=True):
        done += [Hidden(hide, answer) for hide in chunk] if isinstance(answer, Exception) else answer
    return done


def _request(chunk: Sequence[Hide], requests: Requests, url: str) -> list[Hidden]:
    entries = [
        {"Id": str(index), "ReceiptHandle": hide.message._receipt_handle, "VisibilityTimeout": hide.seconds}
        for index, hide in enumerate(chunk)
    ]
    try:
        answer = requests.call("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever it is, the lease is as it was
        if len(chunk) > 1 and is_worth_splitting(error):
            return [hidden for hide in chunk for hidden in _request([hide], requests, url)]
        return [Hidden(hide, error) for hide in chunk]
    failed = failed_entries(answer)
    return [Hidden(hide, failed.get(str(index))) for index, hide in enumerate(chunk)]


def failed_entries(answer: dict[str, Any]) -> dict[str, Exception]:
    """The entries that SQS refused in an answer that is a 200 all the same, by their ids."""
    return {
        entry["Id"]: Refused(entry.get("Code", ""), entry.get("Message", "")) for entry in answer.get("Failed") or []
    }


def code_of(error: Exception) -> str:
    """SQS's code, whether the entry or the request was refused."""
    return error.code if isinstance(error, Refused) else error_code(error)


def is_stale_handle(error: Exception) -> bool:
    """Whether the lease on the message is gone: expired, deleted, or a handle that never was one."""
    return (
        "ReceiptHandleIsInvalid" in code_of(error)
        or "MessageNotInflight" in code_of(error)
        or ("InvalidParameterValue" in code_of(error) and "ReceiptHandle" in str(error))
    )
