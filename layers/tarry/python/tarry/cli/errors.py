"""The errors of all commands: one line on stderr with the remedy, and exit code 2, or 1 if work was done before.

Control characters are escaped, so no text of a message or an error can move the cursor.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from tarry.errors import TarryError
from tarry.tooling.errors import UsageError
from tarry.tooling.installation import install_command
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
"""The extras of tarry that install each library."""
CREDENTIALS = "log in (aws sso login), set AWS_PROFILE, or give a profile (--profile)"


def note(text: str) -> None:
    """Write guidance to stderr; nothing for an empty text."""
    if text:
        sys.stderr.write(printable(text, keep="\n\t") + "\n")
        sys.stderr.flush()


def refuse(text: str, code: int = 2) -> NoReturn:
    """Write the error to stderr and end the command."""
    note(f"tarry: {text}")
    raise typer.Exit(code)


@contextmanager
def refusals(something_was_done: Callable[[], bool] = lambda: False, *, aws: bool = False) -> Iterator[None]:
    """Turn errors in the input into a line on stderr and exit code 2, or 1 if something was done before.

    ``aws``: also errors of AWS and of `tarry.failed`, and missing libraries.
    """
    try:
        yield
    except Exception as error:
        line = _line(error) or (_aws_line(error) if aws else None)
        if line is None:
            raise  # a bug in tarry
        note(getattr(error, "details", ""))
        refuse(" ".join(line.split()) if aws else line, 1 if something_was_done() else 2)


@contextmanager
def libraries(command: str, extras: str) -> Iterator[None]:
    """Turn a missing library into a line on stderr that names the extras to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "tarry":
            raise
        refuse(f"{command} needs {library}; install it with: {install_command(extras)}")


def of_tarry_local() -> str:
    """Return the option for the queues of the `tarry local` that runs the template here; empty if there is none."""
    try:
        from tarry.local.instances import instance_here

        found = instance_here()
    except ModuleNotFoundError:  # of the extra that reads templates
        return ""
    return f"for the queues of the tarry local that runs here: --endpoint-url {found.url}" if found else ""


def _line(error: Exception) -> str | None:
    if isinstance(error, (UsageError, *_loaded("tarry.template.model", "TemplateError"))):
        return str(error)
    return None


def _aws_line(error: Exception) -> str | None:
    if isinstance(error, (TarryError, *_loaded("tarry.simulator.code", "CodeError"))):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (library := (error.name or "").partition(".")[0]) in EXTRAS:
        extras = EXTRAS[library]
        return f"this command needs {library}; install it with: {install_command(extras)}"
    if isinstance(error, _loaded("botocore.exceptions", "BotoCoreError", "ClientError")):
        return _aws_error_text(error)
    return None


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return exception classes of a module if it is loaded; otherwise none of them can have been raised."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


def _aws_error_text(error: Exception) -> str:
    """Return the text of an AWS error, with the remedy."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"):
        return "; ".join(filter(None, [f"no usable AWS credentials ({error}): {CREDENTIALS}", of_tarry_local()]))
    if name in ("TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError") or "Expired" in code:
        return f"the AWS credentials have expired ({error}): {CREDENTIALS}"
    if code in ("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"):
        return f"AWS rejects the credentials ({error}): {CREDENTIALS}"
    if name == "NoRegionError":
        return "no AWS region is set: set AWS_REGION, or give a region (--region); " + (
            of_tarry_local() or "for the queues of tarry local: --endpoint-url http://127.0.0.1:4576"
        )
    if "AccessDenied" in code or code in ("AuthorizationError", "UnauthorizedOperation"):
        return f"AWS denies access: {error}; the credentials need this permission"
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"):
        return f"AWS cannot be reached: {error}; check the endpoint and the region"
    if code == "ValidationError" and "does not exist" in str(error):
        return f"the stack does not exist: {error}"
    return str(error)
