"""The environment variables of function processes: those of Lambda, of the template, and of ``--env``.

A process gets only the variables of the developer's environment that it needs to run. Other variables could mask a
mistake, or give credentials to a function.
"""

import json
import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tarry
from tarry.failed.usage import UsageError
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.client import HOST
from tarry.tools.simulator.code import lambda_environment
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import import_path, is_node

FOR_ALL = "Parameters"
"""The key for the variables of all functions in a file for ``--env-vars`` of SAM CLI."""
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Overrides:
    """Variables for all functions, and variables by logical id or name, which have precedence."""

    of_all: Mapping[str, str] = field(default_factory=dict)
    of_some: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, function: TemplateFunction) -> dict[str, str]:
        """Return the variables of a function."""
        some = self.of_some
        return {**self.of_all, **some.get(function.name, {}), **some.get(function.logical_id, {})}


def read_overrides(given: Iterable[str]) -> Overrides:
    """Read the values of ``--env``, each ``NAME=VALUE`` or a file; later values have precedence.

    A file has lines ``NAME=VALUE``, or is JSON: ``{"NAME": "value"}``, or in the format of ``--env-vars`` of SAM CLI:
    ``{"Parameters": {"NAME": "for all"}, "OrdersFunction": {"NAME": "for one"}}``. Raises `UsageError` if a file cannot
    be read, or has another format.
    """
    of_all: dict[str, str] = {}
    of_some: dict[str, dict[str, str]] = {}
    for each in given:
        if pair := _PAIR.fullmatch(each):
            of_all[pair[1]] = pair[2]
            continue
        for name, value in _read(Path(each)).items():
            if not isinstance(value, dict):
                of_all[name] = _text(value)
            elif name == FOR_ALL:
                of_all |= {key: _text(one) for key, one in value.items()}
            else:
                of_some.setdefault(name, {}).update({key: _text(one) for key, one in value.items()})
    return Overrides(of_all, of_some)


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
    return {**_of_the_machine(outside), **_of_lambda(function, outside), **_of_aws(endpoints, outside), **own}


def _of_the_machine(outside: Mapping[str, str]) -> dict[str, str]:
    direct = {name: ",".join(filter(None, [outside.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}
    return {name: outside[name] for name in PASSED_ON if name in outside} | direct


def _of_lambda(function: TemplateFunction, outside: Mapping[str, str]) -> dict[str, str]:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        **_import_path(function, outside),
        **lambda_environment(function, (function.code or Path()).resolve()),
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime if is_node(function.runtime) else python}",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_FORMAT": "JSON",  # overrides the template: the fields are read
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
        "LANG": "en_US.UTF-8",
        "TARRY_LOAD_BOTO3": "later",  # a machine has a whole core at any time
        "TZ": ":UTC",
    }


def _import_path(function: TemplateFunction, outside: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the directories of modules that are not beside the code."""
    if is_node(function.runtime):
        major = re.sub(r"\D", "", (function.runtime or "").partition(".")[0])
        folders = [layer / "nodejs" / each for layer in reversed(function.layers) for each in (f"node{major}", "")]
        found = [str((folder / "node_modules").resolve()) for folder in folders]
        return {"NODE_PATH": os.pathsep.join([*found, str((function.code or Path()).resolve())])}
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(_path(function, outside)))}


def _path(function: TemplateFunction, outside: Mapping[str, str]) -> Iterator[str]:
    """Yield the import path: code, layers, and the path of this Python without its site-packages."""
    yield from map(str, import_path(function))
    yield from (str(Path(each).resolve()) for each in outside.get("PYTHONPATH", "").split(os.pathsep) if each)
    own = str(Path(tarry.__file__).resolve().parents[1])
    if own not in {*site.getsitepackages(), site.getusersitepackages()}:
        yield own


def _of_aws(endpoints: Endpoints, outside: Mapping[str, str]) -> dict[str, str]:
    if endpoints.is_foreign and is_aws(endpoints.sqs):
        passed_on = {name: outside[name] for name in (*KEYS, *PROFILE) if name in outside}
        others = {"AWS_ENDPOINT_URL": endpoints.others} if endpoints.others else {}
        return {**passed_on, "AWS_ENDPOINT_URL_SQS": endpoints.sqs, **others}
    found = {
        "AWS_ENDPOINT_URL": endpoints.others or endpoints.sqs,
        "AWS_ENDPOINT_URL_SQS": endpoints.sqs,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",  # of some operations, such as cp.maps.127.0.0.1
    }
    if endpoints.is_foreign and all(name in outside for name in KEYS[:2]):
        return found | {name: outside[name] for name in KEYS if name in outside}
    return found | dict.fromkeys(KEYS, "local")
