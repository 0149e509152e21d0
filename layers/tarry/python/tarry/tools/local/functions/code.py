"""The code and the environment variables of function processes, and why a handler cannot be imported.

The variables are those of Lambda, of the template, and of ``--env``. A process gets only the variables of the
developer's environment that it needs to run. Other variables could mask a mistake, or give credentials to a function.
"""

import json
import os
import re
import site
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tarry
from tarry.errors import ConfigurationError
from tarry.failed.usage import UsageError
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.client import HOST, WITHOUT_AWS, description, direct, queue_urls
from tarry.tools.simulator.code import lambda_environment
from tarry.tools.template import Template, TemplateFunction
from tarry.tools.template.code import PACKAGE, import_path, is_node, package_section
from tarry.tools.template.model import ACCOUNT, with_foreign_queues
from tarry.tools.template.variables import variables_of as template_variables_of
from tarry.world import WHOLE_CORE

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
        frames, kind, message = _frames_of(error), error.get("errorType"), error.get("errorMessage")
        own = [] if error.get("trace") or not error else [plain(f"{kind}: {message}" if message else str(kind))]
        super().__init__(f"{handler} cannot be imported from {function.code}: {why}", "\n".join([*frames, *own]))
        self.why = why
        self.frames = "\n".join(frames)
        """The frames of the traceback, without the error."""


def _missing_package(why: str, function: TemplateFunction) -> str:
    """Return which package of Node.js is not installed, with the command that installs it; empty for other errors."""
    found = NOT_FOUND.match(why) if is_node(function.runtime) else None
    if found is None or function.code is None:
        return ""
    package, folder = found[1], function.code.resolve()
    places = (each for each in (folder, *folder.parents) if (each / PACKAGE).is_file())
    listed = next(places, folder)
    place = Path(os.path.relpath(listed))
    change = "" if place == Path() else f"cd {place} && "
    if is_in_lambda(package, function.runtime or ""):
        why = f"{package} is not installed; on Lambda, {function.runtime} has it, but this machine has not"
        options = f" --save-dev {package}"
    else:
        why = f"{package} is not installed"
        is_listed = any(
            package in package_section(listed / PACKAGE, each) for each in ("dependencies", "devDependencies")
        )
        options = "" if is_listed else f" {package}"
    return f"{why}. To install it: {change}npm install{options}"


def is_in_lambda(package: str, runtime: str) -> bool:
    """Whether a runtime of Node.js on Lambda contains a package: the AWS SDK, version 3 from nodejs18.x on."""
    version = re.match(r"nodejs(\d+)", runtime)
    has_sdk_3 = version is None or int(version[1]) >= FIRST_WITH_SDK_3
    return package.startswith(("@aws-sdk/", "@smithy/")) if has_sdk_3 else package == "aws-sdk"


def _frames_of(error: Mapping[str, Any]) -> list[str]:
    """Return the lines of a traceback except the last, without frames of the runtime client.

    Of Node.js they are all, since its ``trace`` begins with the error.
    """
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


FOR_ALL = "Parameters"
"""The key for the variables of all functions in a file for ``--env-vars`` of SAM CLI."""
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Overrides:
    """Variables by the logical id or name of a function, which have precedence over those of `FOR_ALL`."""

    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, function: TemplateFunction) -> dict[str, str]:
        """Return the variables of a function."""
        all_, named, own = (self.values.get(each, {}) for each in (FOR_ALL, function.name, function.logical_id))
        return {**all_, **named, **own}


def read_overrides(given: Iterable[str]) -> Overrides:
    """Read the values of ``--env``, each ``NAME=VALUE`` or a file; later values have precedence.

    A file has lines ``NAME=VALUE``, or is JSON: ``{"NAME": "value"}``, or in the format of ``--env-vars`` of SAM CLI:
    ``{"Parameters": {"NAME": "for all"}, "OrdersFunction": {"NAME": "for one"}}``. Raises `UsageError` if a file cannot
    be read, or has another format.
    """
    found: dict[str, dict[str, str]] = {}
    for each in given:
        pair = _PAIR.fullmatch(each)
        for name, value in ({pair[1]: pair[2]} if pair else _read(Path(each))).items():
            function, values = (name, value) if isinstance(value, dict) else (FOR_ALL, {name: value})
            texts = {key: one if isinstance(one, str) else json.dumps(one) for key, one in values.items()}
            found.setdefault(function, {}).update(texts)
    return Overrides(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--env must be NAME=VALUE or a file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--env {path} is not a text file") from error
    if not text.lstrip().startswith("{"):
        return dict(_pairs(path, text))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--env {path} is not JSON: {error}") from error
    return dict(found)


def _pairs(path: Path, text: str) -> Iterable[tuple[str, str]]:
    lines = (line.strip().removeprefix("export ") for line in text.splitlines())
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            pair = _PAIR.fullmatch(line)
            if pair is None:
                raise UsageError(f"--env {path}, line {number}: must be NAME=VALUE")
            value = pair[2].strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            yield pair[1], value[1:-1] if quoted else value


PASSED_ON = (
    *("PATH", "TMPDIR", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
PROFILE = ("HOME", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


@dataclass(frozen=True)
class Endpoints:
    """The AWS endpoints of functions.

    ``sqs`` is the endpoint of SQS, ``others`` that of all other services; None if it is the same. ``is_foreign``: they
    are not part of `tarry local`, and may need the credentials of the developer's environment.
    """

    sqs: str
    others: str | None = None
    is_foreign: bool = False


def variables_of(
    function: TemplateFunction,
    own: Mapping[str, str],
    endpoints: Endpoints,
    outside: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return all variables of a process, except those specific to one environment.

    ``own`` are those of the template and of the developer, which have precedence; ``outside`` is the environment of
    this process.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        **{name: outside[name] for name in PASSED_ON if name in outside},
        **direct(outside),
        **_import_path(function, outside),
        **lambda_environment(function, (function.code or Path()).resolve()),
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime if is_node(function.runtime) else python}",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_FORMAT": "JSON",  # overrides the template: the fields are read
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        WHOLE_CORE: "1",  # by its memory, a small function would expect that there is no time to load boto3
        **_of_aws(endpoints, outside),
        **own,
    }


def _import_path(function: TemplateFunction, outside: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the directories of modules that are not beside the code."""
    if is_node(function.runtime):
        major = re.sub(r"\D", "", (function.runtime or "").partition(".")[0])
        folders = [layer / "nodejs" / each for layer in reversed(function.layers) for each in (f"node{major}", "")]
        found = [str((folder / "node_modules").resolve()) for folder in folders]
        return {"NODE_PATH": os.pathsep.join([*found, str((function.code or Path()).resolve())])}
    # code, layers, and the path of this Python without its site-packages
    given = [Path(each).resolve() for each in outside.get("PYTHONPATH", "").split(os.pathsep) if each]
    own = Path(tarry.__file__).resolve().parents[1]
    mine = [] if str(own) in {*site.getsitepackages(), site.getusersitepackages()} else [own]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, [*import_path(function), *given, *mine])))}


def _of_aws(endpoints: Endpoints, outside: Mapping[str, str]) -> dict[str, str]:
    if endpoints.is_foreign and is_aws(endpoints.sqs):
        passed_on = {name: outside[name] for name in (*KEYS, *PROFILE) if name in outside}
        others = {"AWS_ENDPOINT_URL": endpoints.others} if endpoints.others else {}
        return {**passed_on, "AWS_ENDPOINT_URL_SQS": endpoints.sqs, **others}
    found = {
        "AWS_ENDPOINT_URL": endpoints.others or endpoints.sqs,
        "AWS_ENDPOINT_URL_SQS": endpoints.sqs,
        **WITHOUT_AWS,
    }
    if endpoints.is_foreign and all(name in outside for name in KEYS[:2]):
        return found | {name: outside[name] for name in KEYS if name in outside}
    return found | dict.fromkeys(KEYS, "local")


NO_AWS = f"http://{HOST}:9/tarry-invoke-has-no-AWS"
"""The AWS endpoint of a function without ``--endpoint-url``. No server listens; the text appears in errors."""


def variables_at(
    function: TemplateFunction, template: Template, overrides: Overrides, endpoint_url: str | None
) -> dict[str, str]:
    """Return the environment variables of a function, with the queues, tables and buckets at the endpoint URL.

    Without one they do not exist, and no request of the function is answered. Raises `TemplateError` if a variable
    refers to a resource without a known name, `UsageError` if no SQS answers at the endpoint URL.
    """
    queues, url = with_foreign_queues(template), endpoint_url or NO_AWS
    urls = {name: f"{url.rstrip('/')}/{ACCOUNT}/{name}" for name in queues}
    others, once = None, {"AWS_MAX_ATTEMPTS": "1"}
    if endpoint_url is not None:
        urls |= queue_urls(url, queues)
        # Another emulator, or AWS, has all services at one place; `tarry local` has others only if it uses them.
        about, once = {} if is_aws(url) else description(url), {}
        others = (about.get("other_services") or NO_AWS) if "queues" in about else None
    own = template_variables_of(function, template, urls, overrides.of(function))
    return variables_of(function, once | own, Endpoints(url, others, is_foreign=endpoint_url is not None))
