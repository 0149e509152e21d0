"""The result of an invocation, and the messages that its response reports as failed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class InvocationResult:
    """The end of an invocation.

    ``value`` is the function's return value after JSON; text that is not JSON stays a str. After an error, it is the
    payload that Lambda returns instead, and ``text`` is Lambda's error message. A ``throttled`` or ``recursive``
    invocation never ran.
    """

    kind: Literal["returned", "error", "timeout", "crash", "throttled", "recursive"]
    value: Any = None
    text: str = ""
    request_id: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    """The errors of messages by delivery id, as far as its process has written them."""


def timed_out(seconds: float, request_id: str) -> InvocationResult:
    """Return the result of an invocation that Lambda killed at its deadline."""
    return _terminated("timeout", f"Task timed out after {seconds:.2f} seconds", "Sandbox.Timedout", request_id)


def exited(why: str, request_id: str) -> InvocationResult:
    """Return the result of an invocation whose process exited; ``why`` may be empty."""
    text = f"Runtime exited with error: {why}" if why else "Runtime exited without providing a reason"
    return _terminated("crash", text, "Runtime.ExitError", request_id)


def _terminated(kind: Literal["timeout", "crash"], text: str, error_type: str, request_id: str) -> InvocationResult:
    value = {"errorType": error_type, "errorMessage": f"RequestId: {request_id} Error: {text}"}
    return InvocationResult(kind, value, text, request_id)


class FunctionHost(Protocol):
    """A function that a mapping can invoke."""

    def invoke(self, event: dict[str, Any], done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        """Start an invocation; ``done`` is called later, on the scheduler's thread.

        ``qualifier`` is the alias or version that is invoked, the end of the ARN in the context of the handler.
        """


def qualified_arn(arn: str, qualifier: str) -> str:
    """Return the ARN of a function with the alias or version that is invoked; the qualifier may be empty."""
    return f"{arn}:{qualifier}" if qualifier else arn


FAILURES_KEY = "batchItemFailures"


class WholeBatchFailed(Exception):
    """The response fails the whole batch; the error text is the reason."""


def failed_ids(response: Any, batch: Collection[str]) -> frozenset[str]:
    """Return the ids that the response reports as failed; the mapping deletes all other messages of the batch.

    An empty response or null is a complete success. An invalid response, or one with an id that is not in the batch, is
    a complete failure; so is a response that is not an object, about which the documentation of AWS says nothing.

    Raises:
        WholeBatchFailed: The mapping must delete no message.
    """
    if response is None:
        return frozenset()
    if not isinstance(response, dict):
        raise WholeBatchFailed(f"the response is not an object: {response!r:.40}")
    items = response.get(FAILURES_KEY)
    if items is None:
        return frozenset()
    if not isinstance(items, list):
        raise WholeBatchFailed(f"{FAILURES_KEY} is not a list: {items!r:.40}")
    return frozenset(_identifier(item, batch) for item in items)


def _identifier(item: Any, batch: Collection[str]) -> str:
    if not isinstance(item, dict) or "itemIdentifier" not in item:
        raise WholeBatchFailed(f"{FAILURES_KEY} has an entry without itemIdentifier: {item!r:.60}")
    identifier = item["itemIdentifier"]
    if not isinstance(identifier, str) or not identifier:
        raise WholeBatchFailed(f"an itemIdentifier is not a non-empty string: {identifier!r:.40}")
    if identifier not in batch:
        raise WholeBatchFailed(f"an itemIdentifier is not the id of a message of the batch: {identifier:.60}")
    return identifier


def ids_named(response: Any, batch: Collection[str]) -> frozenset[str]:
    """Return the ids that a response names as failed, for a mapping that ignores them; never raises.

    If ``batchItemFailures`` is invalid, that is the whole batch, as it would be for a mapping that does not ignore it.
    """
    if not isinstance(response, dict) or not response.get(FAILURES_KEY):
        return frozenset()
    try:
        return failed_ids(response, batch)
    except WholeBatchFailed:
        return frozenset(batch)


def message_ids(event: Any) -> list[str]:
    """Return the delivery ids of the messages in an SQS event; empty for any other event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return []
    return [record["messageId"] for record in records if isinstance(record, dict) and "messageId" in record]
