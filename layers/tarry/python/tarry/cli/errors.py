"""Errors of all commands: a line on stderr that says what to do, and exit code 2, or 1 if work was done before.

What is shown is printable: no text of a message or an error can move the cursor.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

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


def note(text: str) -> None:
    """Write guidance to stderr; nothing for an empty text."""
    if text:
        sys.stderr.write(printable(text, keep="\n\t") + "\n")
        sys.stderr.flush()


def refuse(text: str, code: int = 2) -> NoReturn:
    """Write the reason to stderr, and end the command."""
    note(f"tarry: {text}")
    raise typer.Exit(code)


@contextmanager
def refusals(something_was_done: Callable[[], bool] = lambda: False, *, aws: bool = False) -> Iterator[None]:
    """Turn errors of the input into a line on stderr and exit code 2, or 1 if something was done before.

    ``aws``: also errors of AWS, of `tarry.failed` and of libraries that are not installed.
    """
    try:
        yield
    except Exception as error:
        line = _line(error) or (_aws_line(error) if aws else None)
        if line is None:
            raise  # a bug of tarry's
        note(getattr(error, "details", ""))
        refuse(" ".join(line.split()) if aws else line, 1 if something_was_done() else 2)


@contextmanager
def libraries(command: str, extras: str) -> Iterator[None]:
    """Where a library cannot be imported, say which extras bring it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "tarry":
            raise
        refuse(f'{command} needs {library}: pip install "tarry[{extras}]"')


def _line(error: Exception) -> str | None:
    if isinstance(error, (UsageError, *_loaded("tarry.template.model", "TemplateError"))):
        return str(error)
    return None


def _aws_line(error: Exception) -> str | None:
    if isinstance(error, (TarryError, *_loaded("tarry.simulator.code", "CodeError"))):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (library := (error.name or "").partition(".")[0]) in EXTRAS:
        return f'this needs {library}: pip install "tarry[{EXTRAS[library]}]"'
    if isinstance(error, _loaded("botocore.exceptions", "BotoCoreError", "ClientError")):
        return _said(error)
    return None


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Classes of a module, if it is loaded: else there can be no such error, and it takes long to load."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


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
