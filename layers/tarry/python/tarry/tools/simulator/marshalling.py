"""The JSON between a handler and Lambda, as the real runtime client writes and reads it."""

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
"""The names of signals in Go, in which Lambda's supervisor is written."""


class CannotMarshal(Exception):
    """The handler's return value cannot be converted to JSON."""


def through_json(result: Any) -> Any:
    """Convert a handler's return value to JSON and back; text that is not valid JSON (with NaN) stays a str.

    Raises:
        CannotMarshal: The value contains an object without a JSON form.
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
