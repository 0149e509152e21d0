"""The result of an invocation, as JSON, and the messages that its response reports as failed."""

import json
import signal
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NoReturn, Protocol


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
    Raises `WholeBatchFailed` if the mapping must delete no message.
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


def message_ids(event: Any) -> list[str]:
    """Return the delivery ids of the messages in an SQS event; empty for any other event."""
    return [record["messageId"] for record in messages_in(event)]


def messages_in(event: Any) -> list[dict[str, Any]]:
    """Return the records of the messages in an SQS event; none of any other event."""
    records = event.get("Records") if isinstance(event, dict) else None
    found = records if isinstance(records, list) else []
    return [record for record in found if isinstance(record, dict) and "messageId" in record]


SIGNALS = {
    signal.SIGABRT: "aborted",
    signal.SIGFPE: "floating point exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGINT: "interrupt",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGTERM: "terminated",
    9: "killed",
}
"""The names of signals in Go, in which Lambda's supervisor is written."""


class CannotMarshal(Exception):
    """The handler's return value cannot be converted to JSON."""


def through_json(result: Any) -> Any:
    """Convert a handler's return value to JSON and back; text that is not valid JSON (with NaN) stays a str.

    Raises `CannotMarshal` if the value contains an object without a JSON form.
    """
    try:
        text = result.decode() if isinstance(result, bytes) else _write(result)
    except Exception as error:
        raise CannotMarshal(f"Unable to marshal response: {error}") from error
    return read_response(text)


def read_response(text: str) -> Any:
    """Parse a function's response as the mapping does; text that is not valid JSON (with NaN) stays a str."""
    try:
        return _read(text)
    except ValueError:
        return text


def error_payload(error: Exception, request_id: str) -> dict[str, Any]:
    """Return the payload with which Lambda answers if the handler raises an exception."""
    cannot_marshal = isinstance(error, CannotMarshal)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return {
        "errorMessage": str(error),
        "errorType": "Runtime.MarshalError" if cannot_marshal else type(error).__name__,
        "requestId": request_id,
        "stackTrace": [] if cannot_marshal else traceback.format_list(frames),
    }


def exit_reason(error: BaseException) -> str:
    """Return Lambda's text for a process that exited with this exception; empty for status 0."""
    if isinstance(error, KeyboardInterrupt):
        return "signal: interrupt"
    code = error.code if isinstance(error, SystemExit) else 1
    return exit_status(0 if code is None else code if isinstance(code, int) else 1)


def exit_status(status: int) -> str:
    """Return Lambda's text for an exit status (negative: a signal); empty for status 0."""
    if status < 0:
        return f"signal: {SIGNALS.get(-status, -status)}"
    return f"exit status {status}" if status else ""


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_write = json.JSONEncoder(default=_number).encode
_read = json.JSONDecoder(parse_constant=_refuse).decode
