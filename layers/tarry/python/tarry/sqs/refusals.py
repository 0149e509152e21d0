"""The errors with which SQS refuses a request, or an entry of one, and their meaning."""

from __future__ import annotations

from typing import Any


class OutOfTime(Exception):
    """The invocation had no time left for a request; whether SQS carried it out is unknown."""


class NoAnswer(OutOfTime):
    """A request may have been sent, and there was no time left to wait for its answer."""


class Refused(Exception):
    """SQS accepted the request and refused this entry."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def failed_entries(answer: dict[str, Any]) -> dict[str, Exception]:
    """Return the errors of the entries that SQS refused in a successful batch request, by entry id."""
    return {
        entry["Id"]: Refused(entry.get("Code", ""), entry.get("Message", "")) for entry in answer.get("Failed") or []
    }


def error_code(error: Exception) -> str:
    """Return the AWS error code of a refused entry or request; the class name of any other error."""
    if isinstance(error, Refused):
        return error.code
    try:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    except BaseException:  # noqa: BLE001 an error of a persistence layer or a client of the user's
        return type(error).__name__
    return type(error).__name__


def is_stale_handle(error: Exception) -> bool:
    """Return whether SQS refuses the receipt handle: it expired, its message was deleted, or it is not valid."""
    code = error_code(error)
    return (
        "ReceiptHandleIsInvalid" in code
        or "MessageNotInflight" in code
        or ("InvalidParameterValue" in code and "ReceiptHandle" in str(error))
    )


def may_be_applied(error: Exception) -> bool:
    """Return whether SQS may have carried the request out: the error is not a refusal by SQS."""
    return not (isinstance(error, Refused) or isinstance(getattr(error, "response", None), dict))


def is_late(error: BaseException | None) -> bool:
    """Return whether only the time was lacking for a request."""
    return isinstance(error, OutOfTime)


def is_refused_for_good(error: Exception) -> bool:
    """Return whether SQS refused the request and would refuse it again, such as for a permission or a wrong entry.

    False for a missing answer, a throttle, and an internal error of SQS.
    """
    code = error_code(error)
    if is_throttle(code) or any(part in code for part in ("Internal", "Unavailable", "Timeout", "OverLimit")):
        return False
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return isinstance(error, Refused) or (isinstance(status, int) and 400 <= status < 500)


def is_throttle(code: str) -> bool:
    """Return whether SQS, or a service behind it, throttled the request: nothing was done, and a retry may succeed."""
    return any(part in code for part in ("Throttl", "RequestLimitExceeded", "SlowDown", "TooManyRequests"))


def is_refused_for_now(error: Exception) -> bool:
    """Return whether SQS refused the request temporarily: nothing was done; a retry may succeed."""
    code = error_code(error)
    return is_throttle(code) or code == "ServiceUnavailable"


def is_no_queue(code: str) -> bool:
    """Return whether an error code says that the queue does not exist."""
    return "NonExistentQueue" in code or "QueueDoesNotExist" in code or code == "InvalidAddress"


def is_denied(code: str) -> bool:
    """Return whether an error code says that the function lacks a permission."""
    return "AccessDenied" in code or code in {"AuthorizationError", "UnauthorizedOperation"}


def is_of_a_key(code: str) -> bool:
    """Return whether an error code concerns the queue's KMS key, not the queue."""
    return "kms" in code.lower()


def is_worth_splitting(error: Exception) -> bool:
    """Return whether a batch request that was refused as a whole may succeed entry by entry: one entry was wrong.

    False if the error does not concern an entry (a permission, a throttle, a missing queue), or if SQS may have carried
    the request out.
    """
    if type(error).__name__ == "ParamValidationError":  # botocore's own check, before anything is sent
        return True
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return False
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    code = error_code(error)
    if is_throttle(code) or is_no_queue(code) or is_denied(code):
        return False
    of_whole_request = ("Denied", "OverLimit", "Token", "Signature")
    return 400 <= status < 500 and status not in (401, 403) and not any(part in code for part in of_whole_request)
