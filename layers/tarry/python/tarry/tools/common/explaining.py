"""The text of an error for a user: one line with the remedy; None for a bug in tarry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tarry.errors import TarryError
from tarry.failed.usage import UsageError
from tarry.tools.common.installation import install_command
from tarry.tools.common.places import is_aws

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRAS = {
    "boto3": "aws,cli",
    "botocore": "aws,cli",
    "jmespath": "cli",
    "samtranslator": "local",
    "yaml": "local",
}
"""The extras of tarry that install each library."""
CREDENTIALS = "log in (aws sso login), set AWS_PROFILE, or give a profile (--profile)"


def usage_line(error: Exception) -> str | None:
    """Return the text of an error in what the user gave."""
    if isinstance(error, (UsageError, *_loaded("tarry.tools.template.model", "TemplateError"))):
        return str(error)
    return None


def aws_line(error: Exception, local_hint: Callable[[], str]) -> str | None:
    """Return the text of an error of AWS or of `tarry.failed`, or about a missing library.

    ``local_hint`` returns how to use the `tarry local` that runs here, if there is one; otherwise nothing.
    """
    if isinstance(error, TarryError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (library := (error.name or "").partition(".")[0]) in EXTRAS:
        extras = EXTRAS[library]
        return f"this command needs {library}; install it with: {install_command(extras)}"
    if isinstance(error, _loaded("botocore.exceptions", "BotoCoreError", "ClientError")):
        return _aws_error_text(error, local_hint)
    return None


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return exception classes of a module if it is loaded; otherwise none of them can have been raised."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


def has_expired(error: Exception) -> bool:
    """Whether AWS refused a request, or boto3 did not send it, because the credentials have expired."""
    name, response = type(error).__name__, getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return name in ("TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError") or "Expired" in code


def _aws_error_text(error: Exception, local_hint: Callable[[], str]) -> str:
    """Return the text of an AWS error, with the remedy."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"):
        return "; ".join(filter(None, [f"no usable AWS credentials ({error}): {CREDENTIALS}", local_hint()]))
    if has_expired(error):
        return f"the AWS credentials have expired ({error}): {CREDENTIALS}"
    if code in ("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"):
        return f"AWS rejects the credentials ({error}): {CREDENTIALS}"
    if name == "NoRegionError":
        return "no AWS region is set: set AWS_REGION, or give a region (--region); " + (
            local_hint() or "for the queues of tarry local: --local"
        )
    if "AccessDenied" in code or code in ("AuthorizationError", "UnauthorizedOperation"):
        return f"AWS denies access: {error}; the credentials need this permission"
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"):
        return _unreachable(error)
    if code == "ValidationError" and "does not exist" in str(error):
        return f"the stack does not exist: {error}"
    return str(error)


def _unreachable(error: Exception) -> str:
    url = getattr(error, "kwargs", {}).get("endpoint_url", "")
    if url and not is_aws(url):
        return f"no SQS answers at {url} ({error}): start tarry local there, or say where (--local, --aws)"
    return f"AWS cannot be reached: {error}; check the endpoint and the region"
