"""An invocation, seen from outside: who runs it, how it ended, and which messages its response reports as failed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class InvocationResult:
    """How an invocation ended.

    ``value`` is what the function returned, as JSON carries it; text that is no JSON is left a str. Of an error it is
    what Lambda answers in its place. ``text`` is the error, as Lambda says it. A ``throttled`` or ``recursive``
    invocation never ran.
    """

    kind: Literal["returned", "error", "timeout", "crash", "throttled", "recursive"]
    value: Any = None
    text: str = ""
    request_id: str = ""


def timed_out(seconds: float, request_id: str) -> InvocationResult:
    """What Lambda answers for an invocation that it killed at its deadline."""
    return _broken_off("timeout", f"Task timed out after {seconds:.2f} seconds", "Sandbox.Timedout", request_id)


def exited(why: str, request_id: str) -> InvocationResult:
    """What Lambda answers for an invocation whose process ended; ``why`` may be empty."""
    text = f"Runtime exited with error: {why}" if why else "Runtime exited without providing a reason"
    return _broken_off("crash", text, "Runtime.ExitError", request_id)


def _broken_off(kind: Literal["timeout", "crash"], text: str, error_type: str, request_id: str) -> InvocationResult:
    value = {"errorType": error_type, "errorMessage": f"RequestId: {request_id} Error: {text}"}
    return InvocationResult(kind, value, text, request_id)


class FunctionHost(Protocol):
    """Whoever runs a function."""

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None]) -> None:
        """Invoke it; ``done`` is called on the timeline, later."""


KEY = "batchItemFailures"


class WholeBatchFailed(Exception):
    """The answer fails the whole batch; the text says why."""


def failed_ids(response: Any, batch: Collection[str]) -> frozenset[str]:
    """The ids that the answer reports as failed; the mapping deletes all others.

    An answer that says nothing, or null, is complete success. One that is damaged, or names what is not in the batch,
    is complete failure, and so is here what AWS does not document (an answer that is no object).

    Raises:
        WholeBatchFailed: nothing is to be deleted.
    """
    if response is None:
        return frozenset()
    if not isinstance(response, dict):
        raise WholeBatchFailed(f"the response is no object but {response!r:.40}")
    items = response.get(KEY)
    if items is None:
        return frozenset()
    if not isinstance(items, list):
        raise WholeBatchFailed(f"{KEY} is no list but {items!r:.40}")
    return frozenset(_identifier(item, batch) for item in items)


def _identifier(item: Any, batch: Collection[str]) -> str:
    if not isinstance(item, dict) or "itemIdentifier" not in item:
        raise WholeBatchFailed(f"{KEY} has an entry without itemIdentifier: {item!r:.60}")
    identifier = item["itemIdentifier"]
    if not isinstance(identifier, str) or not identifier:
        raise WholeBatchFailed(f"an itemIdentifier is {identifier!r:.40}")
    if identifier not in batch:
        raise WholeBatchFailed(f"an itemIdentifier names no message of the batch: {identifier:.60}")
    return identifier


def message_ids(event: Any) -> list[str]:
    """SQS's ids of the messages in an event; none if it is not an SQS event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return []
    return [record["messageId"] for record in records if isinstance(record, dict) and "messageId" in record]
