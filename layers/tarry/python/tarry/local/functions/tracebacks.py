"""An error as a runtime client tells it, as the traceback that Python would print."""

from collections.abc import Mapping
from typing import Any

MACHINERY = ('File "<frozen importlib', "/importlib/__init__.py", "/awslambdaric/")

WARNING = "LAMBDA_WARNING: Unhandled exception"
"""How AWS's client begins what it says before each error of a handler that cannot be loaded."""


def traceback_of(error: Mapping[str, Any]) -> str:
    """The traceback of an error with ``stackTrace``, ``errorType`` and ``errorMessage``, without what runs handlers."""
    frames = error.get("stackTrace")
    frames = [str(each).rstrip("\n") for each in frames] if isinstance(frames, list) else []
    own = [each for each in frames if not any(part in each for part in MACHINERY)]
    lines = ["Traceback (most recent call last):", *own] if own else []
    kind, text = error.get("errorType"), error.get("errorMessage")
    return "\n".join([*lines, f"{kind}: {text}" if text else str(kind)])


def is_of_failed_init(fields: Mapping[str, Any]) -> bool:
    """Whether a line of the log is a runtime client's, about a handler that it cannot load."""
    if "stackTrace" in fields and not fields.get("requestId"):
        return "logger" not in fields
    return str(fields.get("message")).startswith(WARNING)
