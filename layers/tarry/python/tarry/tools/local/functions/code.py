"""The code of a function, and why its handler cannot be imported."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tarry
from tarry.errors import ConfigurationError
from tarry.failed.usage import UsageError
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import is_node

MACHINERY = ('File "<frozen importlib', "/importlib/__init__.py", "/awslambdaric/")

WARNING = "LAMBDA_WARNING: Unhandled exception"
"""The start of the line that the client of AWS prints before the error of a handler that cannot be loaded."""

IMPORT_ERRORS = {
    "SyntaxError: ": re.compile(r"^Runtime\.UserCodeSyntaxError: Syntax error in module '[^']*': "),
    "ImportError: ": re.compile(r"^Runtime\.ImportModuleError: Unable to import module '[^']*': "),
}
"""Errors of Python, and how runtime clients report them."""

NOT_FOUND = re.compile(
    r"Runtime\.ImportModuleError: Error: Cannot find (?:module|package) '(@[^/']+/[^/']+|[^@./':][^/':]*)['/]"
)
"""The error of Node.js for a package, rather than a file, that is not installed."""
FIRST_WITH_SDK_3 = 18
PACKAGE = "package.json"


@dataclass(frozen=True)
class FunctionCode:
    """The code that a process runs: a function of the template, and all environment variables of its processes."""

    function: TemplateFunction
    variables: Mapping[str, str]


class CannotImport(UsageError):
    """The handler of a function cannot be imported.

    Args:
        code: The code of the function.
        why: The error, as text.
        error: The error as the runtime client reports it; empty if there is none.
    """

    def __init__(self, code: FunctionCode, why: str, error: Mapping[str, Any] | None = None) -> None:
        function, error = code.function, _without_frames_of_tarry(error or {}, code)
        advice = _missing_package(why, function)
        self.is_not_installed = bool(advice)
        """Whether the code imports a package of Node.js that is not installed. No traceback is needed to see why."""
        if advice:
            error, why = {}, advice
        handler = f"{function.logical_id}: its handler {function.handler}"
        text = f"{handler} cannot be imported from {function.code}: {why}"
        super().__init__(text, traceback_of(error) if error else "")
        self.why = why
        self.frames = "\n".join(_frames_of(error))
        """The frames of the traceback, without the error."""


def _missing_package(why: str, function: TemplateFunction) -> str:
    """Return which package of Node.js is not installed, with the command that installs it; empty for other errors."""
    found = NOT_FOUND.match(why) if is_node(function.runtime) else None
    if found is None or function.code is None:
        return ""
    package, folder = found[1], function.code.resolve()
    listing = next(
        (each / PACKAGE for each in (folder, *folder.parents) if (each / PACKAGE).is_file()), folder / PACKAGE
    )
    place = Path(os.path.relpath(listing.parent))
    change = "" if place == Path() else f"cd {place} && "
    if is_in_lambda(package, function.runtime or ""):
        why = f"{package} is not installed; on Lambda, {function.runtime} has it, but this machine has not"
        options = f" --save-dev {package}"
    else:
        why = f"{package} is not installed"
        options = "" if _is_listed(listing, package) else f" {package}"
    return f"{why}. To install it: {change}npm install{options}"


def is_in_lambda(package: str, runtime: str) -> bool:
    """Whether a runtime of Node.js on Lambda contains a package: the AWS SDK, version 3 from nodejs18.x on."""
    version = re.match(r"nodejs(\d+)", runtime)
    has_sdk_3 = version is None or int(version[1]) >= FIRST_WITH_SDK_3
    return package.startswith(("@aws-sdk/", "@smithy/")) if has_sdk_3 else package == "aws-sdk"


def _is_listed(listing: Path, package: str) -> bool:
    """Whether a package.json lists a package, so that a plain `npm install` installs it."""
    try:
        found = json.loads(listing.read_bytes())
    except (OSError, ValueError):
        return False
    lists = [found.get(name) for name in ("dependencies", "devDependencies")] if isinstance(found, dict) else []
    return any(isinstance(each, dict) and package in each for each in lists)


def traceback_of(error: Mapping[str, Any]) -> str:
    """Format an error with ``stackTrace``, ``errorType`` and ``errorMessage``, without frames of the runtime client."""
    if error.get("trace"):
        return "\n".join(_frames_of(error))
    kind, text = error.get("errorType"), error.get("errorMessage")
    return "\n".join([*_frames_of(error), plain(f"{kind}: {text}" if text else str(kind))])


def _frames_of(error: Mapping[str, Any]) -> list[str]:
    """Return the lines of a traceback except the last; of Node.js all, since its ``trace`` begins with the error."""
    if isinstance(trace := error.get("trace"), list) and trace:
        return list(map(str, trace))
    frames = error.get("stackTrace")
    frames = [str(each).rstrip("\n") for each in frames] if isinstance(frames, list) else []
    own = [each for each in frames if not any(part in each for part in MACHINERY)]
    return ["Traceback (most recent call last):", *own] if own else []


def plain(error: str) -> str:
    """Return an error of Lambda about the code as Python names it."""
    for name, reported in IMPORT_ERRORS.items():
        error = reported.sub(name, error)
    return error


def _without_frames_of_tarry(error: Mapping[str, Any], code: FunctionCode) -> Mapping[str, Any]:
    """Leave out how tarry found a mistake in its settings; only the place of the mistake matters."""
    if error.get("errorType") != ConfigurationError.__name__ or not isinstance(error.get("stackTrace"), list):
        return error
    places = [*code.variables.get("PYTHONPATH", "").split(os.pathsep), str(Path(tarry.__file__).resolve().parents[1])]
    own = tuple(f'File "{place}{os.sep}tarry{os.sep}' for place in places if place)
    frames = [each for each in error["stackTrace"] if not str(each).lstrip().startswith(own)]
    return {**error, "stackTrace": frames}


def is_of_failed_init(fields: Mapping[str, Any]) -> bool:
    """Whether a log line is the report of a runtime client about a handler that it cannot load."""
    if "stackTrace" in fields and not fields.get("requestId"):
        return "logger" not in fields
    return str(fields.get("message")).startswith(WARNING)
