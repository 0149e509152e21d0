"""What SQS says when it refuses a request, or an entry of one, and what that means."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """SQS took the request and refused this entry."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def failed_entries(answer: dict[str, Any]) -> dict[str, Exception]:
    """The entries that SQS refused in an answer that is a 200 all the same, by their ids."""
    return {
        entry["Id"]: Refused(entry.get("Code", ""), entry.get("Message", "")) for entry in answer.get("Failed") or []
    }


def error_code(error: Exception) -> str:
    """AWS's code, whether the entry or the request was refused; the exception's name where it is another error."""
    if isinstance(error, Refused):
        return error.code
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def is_stale_handle(error: Exception) -> bool:
    """Whether the lease on the message is gone: expired, deleted, or a handle that never was one."""
    code = error_code(error)
    return (
        "ReceiptHandleIsInvalid" in code
        or "MessageNotInflight" in code
        or ("InvalidParameterValue" in code and "ReceiptHandle" in str(error))
    )


def may_be_applied(error: Exception) -> bool:
    """Whether SQS may have done all the same what was asked of it: the error is not its refusal."""
    return not (isinstance(error, Refused) or isinstance(getattr(error, "response", None), dict))


def is_refused_for_good(error: Exception) -> bool:
    """Whether SQS has done nothing for certain, and would not the next time: no permission, a wrong entry.

    No answer says neither, a throttle or a fault of SQS's own not the second.
    """
    code = error_code(error)
    if is_throttle(code) or any(part in code for part in ("Internal", "Unavailable", "Timeout", "OverLimit")):
        return False
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return isinstance(error, Refused) or (isinstance(status, int) and 400 <= status < 500)


def is_throttle(code: str) -> bool:
    """Whether SQS, or a service it asks, has had too many requests: nothing was done, and a later one may succeed."""
    return any(part in code for part in ("Throttl", "RequestLimitExceeded", "SlowDown", "TooManyRequests"))


def is_refused_for_now(error: Exception) -> bool:
    """Whether SQS has done nothing, and the same request may succeed in a moment."""
    code = error_code(error)
    return is_throttle(code) or code == "ServiceUnavailable"


def is_no_queue(code: str) -> bool:
    """Whether SQS says that the queue does not exist."""
    return "NonExistentQueue" in code or "QueueDoesNotExist" in code or code == "InvalidAddress"


def is_denied(code: str) -> bool:
    """Whether the function lacks a permission."""
    return "AccessDenied" in code or code in {"AuthorizationError", "UnauthorizedOperation"}


def is_of_a_key(code: str) -> bool:
    """Whether it is the queue's KMS key that may not be used, not the queue."""
    return "kms" in code.lower()


def is_worth_splitting(error: Exception) -> bool:
    """Whether a batch request that was refused as a whole may succeed entry by entry: one entry was wrong.

    Not so where the error says nothing of an entry (no permission, a throttle, a queue that is not there), nor where
    it does not say that nothing was done.
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
    says_all = ("Denied", "OverLimit", "Token", "Signature")
    return 400 <= status < 500 and status not in (401, 403) and not any(part in code for part in says_all)
