"""What goes wrong before anything is done, in a line that says what to do."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from tarry.cli.failed.reporting import note
from tarry.errors import TarryError
from tarry.tooling.errors import UsageError
from tarry.tooling.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXTRAS = {
    "boto3": "aws,cli",
    "botocore": "aws,cli",
    "jmespath": "cli",
    "samtranslator": "local",
    "yaml": "local",
}
"""Which extra of tarry's brings a library."""
CREDENTIALS = "log in (aws sso login), set AWS_PROFILE, or name a profile (--profile)"


@contextmanager
def refusals(something_was_done: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """What is raised within becomes a line on stderr, and exit 2; exit 1 if something was done before."""
    try:
        yield
    except Exception as error:
        line = _line(error)
        if line is None:
            raise
        if details := getattr(error, "details", ""):
            typer.echo(printable(details, keep="\n\t"), err=True)
        refuse(line, 1 if something_was_done() else 2)


def _line(error: Exception) -> str | None:
    """What is to be said of it; None for a fault of tarry's own."""
    if isinstance(error, (TarryError, UsageError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (library := (error.name or "").partition(".")[0]) in EXTRAS:
        return f'this needs {library}: pip install "tarry[{EXTRAS[library]}]"'
    if isinstance(error, _loaded("tarry.template.model", "TemplateError")):
        return str(error)
    if isinstance(error, _loaded("tarry.simulator.code", "CodeError")):
        return str(error)
    if isinstance(error, _loaded("botocore.exceptions", "BotoCoreError", "ClientError")):
        return _said(error)
    return None


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Classes of a module, if it is loaded: else there can be no such error, and it takes long to load."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


def refuse(text: str, code: int = 2) -> NoReturn:
    """Says it, and ends."""
    note(f"tarry: {' '.join(text.split())}")
    raise typer.Exit(code)


def _said(error: Exception) -> str:
    """AWS's error, and what to do about it."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"):
        return f"there are no AWS credentials ({error}): {CREDENTIALS}"
    if name in ("TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError") or "Expired" in code:
        return f"the AWS credentials have expired ({error}): {CREDENTIALS}"
    if code in ("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"):
        return f"AWS does not know these credentials ({error}): {CREDENTIALS}"
    if name == "NoRegionError":
        return "it is not said which AWS region: set AWS_REGION, or name one (--region)"
    if "AccessDenied" in code or code in ("AuthorizationError", "UnauthorizedOperation"):
        return f"AWS does not allow it: {error}; the credentials need that permission"
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"):
        return f"AWS cannot be reached: {error}; is the endpoint or the region right?"
    if code == "ValidationError" and "does not exist" in str(error):
        return f"there is no such stack: {error}"
    return str(error)
