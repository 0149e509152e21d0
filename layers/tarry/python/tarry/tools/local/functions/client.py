"""A small Lambda runtime client, for systems for which AWS's `awslambdaric` has no build.

It is run as a file and imports only the standard library, so it does not change the environment of the handler.
"""

import http.client
import importlib
import json
import logging
import os
import runpy
import socket
import sys
import time
import traceback
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PREFIX = "/2018-06-01/runtime"
TIMESTAMP = "%Y-%m-%dT%H:%M:%SZ"
OWN_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""The fields of every log record; all others came as ``extra``."""

_request_id = ""


class HandlerFault(Exception):
    """An error of the handler, with the type and text of Lambda."""

    def __init__(self, kind: str, text: str, frames: list[str] | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.frames = frames or []


class RuntimeContext:
    """The context object that a handler gets as its second argument."""

    def __init__(self, headers: http.client.HTTPMessage) -> None:
        self.aws_request_id = headers["Lambda-Runtime-Aws-Request-Id"]
        self.invoked_function_arn = headers["Lambda-Runtime-Invoked-Function-Arn"]
        self.function_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION")
        self.memory_limit_in_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
        self.log_group_name = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME")
        self.log_stream_name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME")
        self.identity = SimpleNamespace(cognito_identity_id=None, cognito_identity_pool_id=None)
        self.client_context = None
        self.tenant_id = None
        self._deadline_ms = int(headers["Lambda-Runtime-Deadline-Ms"])

    def get_remaining_time_in_millis(self) -> int:
        return max(0, self._deadline_ms - int(time.time() * 1000))

    def log(self, text: object) -> None:
        sys.stdout.write(str(text))


class Api:
    """A connection to the Runtime API."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def next(self) -> tuple[http.client.HTTPMessage, bytes]:
        self._connection.request("GET", f"{PREFIX}/invocation/next")
        response = self._connection.getresponse()
        return response.headers, response.read()

    def post(self, path: str, body: bytes, error_type: str = "") -> None:
        headers = {"Content-Type": "application/json"}
        if error_type:
            headers["Lambda-Runtime-Function-Error-Type"] = error_type
        self._connection.request("POST", f"{PREFIX}/{path}", body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.ACCEPTED:
            raise ConnectionError(f"the Runtime API answered {response.status} to {path}: {answer!r}")


def main(name: str) -> None:
    """Run the handler for each invocation, until the process is ended."""
    global _request_id  # noqa: PLW0603 also in log lines of other threads
    _set_up_logging()
    api = Api(os.environ["AWS_LAMBDA_RUNTIME_API"])
    try:
        handler = _load(name)
    except Exception as error:  # noqa: BLE001 it is reported
        fields = _error(error, "")
        _log_error(fields)
        api.post("init/error", _encode(fields), fields["errorType"])
        sys.exit(1)
    while True:
        headers, event = api.next()
        _request_id = headers["Lambda-Runtime-Aws-Request-Id"]
        os.environ["_X_AMZN_TRACE_ID"] = headers["Lambda-Runtime-Trace-Id"]
        try:
            result = _marshalled(handler(json.loads(event), RuntimeContext(headers)))
        except Exception as error:  # noqa: BLE001 it is reported
            fields = _error(error, _request_id)
            _log_error(fields)
            api.post(f"invocation/{_request_id}/error", _encode(fields), fields["errorType"])
        else:
            api.post(f"invocation/{_request_id}/response", result)


def _load(name: str) -> Any:
    module_name, dot, attribute = name.rpartition(".")
    if not dot:
        raise HandlerFault("Runtime.MalformedHandlerName", f"Bad handler '{name}': it has no dot")
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except ImportError as error:
        text = f"Unable to import module '{module_name}': {error}"
        raise HandlerFault("Runtime.ImportModuleError", text, _frames(error)) from error
    except SyntaxError as error:
        frames = [*_frames(error), f'  File "{error.filename}", line {error.lineno}\n    {error.text}']
        text = f"Syntax error in module '{module_name}': {error}"
        raise HandlerFault("Runtime.UserCodeSyntaxError", text, frames) from error
    if not hasattr(module, attribute):
        raise HandlerFault("Runtime.HandlerNotFound", f"Handler '{attribute}' missing on module '{module_name}'")
    return getattr(module, attribute)


def _marshalled(result: Any) -> bytes:
    try:
        return result if isinstance(result, bytes) else _encode(result)
    except Exception as error:
        raise HandlerFault("Runtime.MarshalError", f"Unable to marshal response: {error}") from error


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=_number).encode("utf-8", "backslashreplace")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _error(error: Exception, request_id: str) -> dict[str, Any]:
    return {
        "errorMessage": str(error),
        "errorType": error.kind if isinstance(error, HandlerFault) else type(error).__name__,
        "requestId": request_id,
        "stackTrace": error.frames if isinstance(error, HandlerFault) else _frames(error),
    }


def _frames(error: BaseException) -> list[str]:
    """Return the traceback without the frames of this file and of the import machinery."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if each.filename != __file__ and "importlib" not in each.filename]
    return traceback.format_list(own)


# logging, in Lambda's JSON: `tarry local` reads the fields


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "timestamp": self.formatTime(record, TIMESTAMP),
            "level": record.levelname,
            "message": record.msg if isinstance(record.msg, dict) and not record.args else record.getMessage(),
            "logger": record.name,
            "requestId": _request_id or None,
        }
        if record.exc_info and record.exc_info[0]:
            fields["stackTrace"] = traceback.format_tb(record.exc_info[2])
            fields["errorType"] = record.exc_info[0].__name__
            fields["errorMessage"] = str(record.exc_info[1])
            fields["location"] = f"{record.pathname}:{record.funcName}:{record.lineno}"
        extras = {name: value for name, value in vars(record).items() if name not in OWN_FIELDS}
        return _json_line({**extras, **fields})


def _set_up_logging() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.Formatter.converter = time.gmtime
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(_Json())
    root = logging.getLogger()
    root.addHandler(lines)
    logging.getLogger("tarry").setLevel(logging.INFO)  # `tarry local` reads its log
    level = os.environ.get("AWS_LAMBDA_LOG_LEVEL", "").upper()
    level = "DEBUG" if level == "TRACE" else level
    if level in logging.getLevelNamesMapping():
        root.setLevel(level)


def _log_error(fields: dict[str, Any]) -> None:
    print(_json_line({"timestamp": time.strftime(TIMESTAMP, time.gmtime()), "level": "ERROR", **fields}))  # noqa: T201


def _json_line(fields: dict[str, Any]) -> str:
    known = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(known, ensure_ascii=False, default=str)


if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[2] / "simulator" / "record_errors.py"), run_name="__main__")
    main(sys.argv[1])
