"""How an invocation ended, and who invokes: the seam between the event source mapping and whoever runs functions."""

from collections.abc import Callable
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
