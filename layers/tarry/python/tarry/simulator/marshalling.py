"""Between a handler and Lambda everything is JSON, as the real runtime client writes and reads it."""

import json
import signal
import traceback
from decimal import Decimal
from typing import Any, NoReturn

SIGNALS = {
    signal.SIGABRT: "aborted",
    signal.SIGFPE: "floating point exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGINT: "interrupt",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGTERM: "terminated",
    9: "killed",
}
"""As Go names them, in which Lambda's supervisor is written."""


class CannotMarshal(Exception):
    """What the handler returned is no JSON."""


def through_json(result: Any) -> Any:
    """What becomes of a handler's result on its way to Lambda; text that is no valid JSON (a NaN) is left a str.

    Raises:
        CannotMarshal: it holds something that JSON does not know.
    """
    try:
        text = result.decode() if isinstance(result, bytes) else json.dumps(result, default=_number)
    except Exception as error:
        raise CannotMarshal(f"Unable to marshal response: {error}") from error
    return read_response(text)


def read_response(text: str) -> Any:
    """What a function answered, as the mapping reads it; text that is no valid JSON (a NaN) is left a str."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def error_payload(error: Exception, request_id: str) -> dict[str, Any]:
    """What Lambda answers for an error that a handler raised."""
    cannot_marshal = isinstance(error, CannotMarshal)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return {
        "errorMessage": str(error),
        "errorType": "Runtime.MarshalError" if cannot_marshal else type(error).__name__,
        "requestId": request_id,
        "stackTrace": [] if cannot_marshal else traceback.format_list(frames),
    }


def exit_reason(error: BaseException) -> str:
    """How Lambda speaks of a process that this ended; it has no words for status 0."""
    if isinstance(error, KeyboardInterrupt):
        return "signal: interrupt"
    code = error.code if isinstance(error, SystemExit) else 1
    return exit_status(0 if code is None else code if isinstance(code, int) else 1)


def exit_status(status: int) -> str:
    """How Lambda speaks of a process that ended with a status, below 0 by that signal."""
    if status < 0:
        return f"signal: {SIGNALS.get(-status, -status)}"
    return f"exit status {status}" if status else ""


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
