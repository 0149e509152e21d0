"""The environment variables of a function's processes: those that Lambda sets, and its own.

Of the developer's environment they get only what a process needs to run here. What a function has on this machine and
would not have on Lambda hides a mistake; and no credentials reach what should not have them.
"""

import os
import site
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tarry
from tarry.local.aws.endpoint import is_aws
from tarry.local.aws.isolation import HOST
from tarry.template import Function
from tarry.tooling.queues import region_of

PASSED_ON = (
    *("PATH", "TMPDIR", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
PROFILE = ("HOME", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


@dataclass(frozen=True)
class Endpoints:
    """Where functions find AWS.

    ``sqs`` is where SQS answers, ``others`` all other services; None if that is the same. ``is_foreign``: they are not
    of our making, and may want the credentials that the developer's environment has.
    """

    sqs: str
    others: str | None = None
    is_foreign: bool = False


def variables_of(
    function: Function,
    own: Mapping[str, str],
    endpoints: Endpoints,
    outside: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """All variables of a process, but for those that each one has of its own.

    Args:
        function: What they are for.
        own: What the template and the developer give it. That goes before all else.
        endpoints: Where it finds AWS.
        outside: The environment that this process was started in.
    """
    return {**_of_the_machine(outside), **_of_lambda(function, outside), **_of_aws(endpoints, outside), **own}


def _of_the_machine(outside: Mapping[str, str]) -> dict[str, str]:
    direct = {name: ",".join(filter(None, [outside.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}
    return {name: outside[name] for name in PASSED_ON if name in outside} | direct


def _of_lambda(function: Function, outside: Mapping[str, str]) -> dict[str, str]:
    region = region_of(function.arn)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{python}",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_FORMAT": "JSON",  # whatever the template says: its fields are read
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_LEVEL": "INFO",
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
        "LAMBDA_TASK_ROOT": str((function.code or Path()).resolve()),
        "LANG": "en_US.UTF-8",
        "POWERTOOLS_TRACE_DISABLED": "true",  # there is no X-Ray daemon to send to
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(_path(function, outside))),
        "TZ": ":UTC",
        "_HANDLER": function.handler or "",
    }


def _path(function: Function, outside: Mapping[str, str]) -> Iterator[str]:
    """Code, layers, then what this Python has; its site-packages come by themselves, after the standard library."""
    if function.code is not None:
        yield str(function.code.resolve())
    for layer in reversed(function.layers):
        packages = layer / "python"
        yield str((packages if packages.is_dir() else layer).resolve())
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
    }
    if endpoints.is_foreign and all(name in outside for name in KEYS[:2]):
        return found | {name: outside[name] for name in KEYS if name in outside}
    return found | dict.fromkeys(KEYS, "local")
