"""The meaning of SQS's answers: a send confirmed, a refusal, or an error after which SQS may have it all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAYBE_APPLIED = "TarryMaybeApplied"  # the key in the metadata of an answer and the context of the request's tries


class OutOfTime(Exception):
    """The invocation had no time left for a request; whether SQS carried it out is unknown."""


class NoAnswer(OutOfTime):
    """A request may have been sent, and there was no time left to wait for its answer."""


class Refused(Exception):
    """SQS accepted the request and refused this entry.

    ``is_fault_of_sqs``: whether the entry was right, so that it may be accepted later. ``maybe_applied``: whether an
    earlier try of the request may have carried the entry out.
    """

    def __init__(self, code: str, text: str, *, is_fault_of_sqs: bool = False, maybe_applied: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.is_fault_of_sqs = is_fault_of_sqs
        self.maybe_applied = maybe_applied


def watch_tries(client: Any) -> None:
    """Have a client note each request's tries for `may_be_applied`; a second call, or a stand-in, changes nothing."""
    if (events := getattr(getattr(client, "meta", None), "events", None)) is not None:
        events.register("response-received.sqs", _note_try, unique_id="tarry-tries")


def _note_try(context: dict[str, Any], parsed_response: dict[str, Any] | None = None, **_: Any) -> None:
    """Handle botocore's event after each try; all tries of one request share ``context``."""
    if parsed_response is None:  # no answer
        context[MAYBE_APPLIED] = True
        return
    metadata = parsed_response.setdefault("ResponseMetadata", {})
    if context.get(MAYBE_APPLIED):
        metadata[MAYBE_APPLIED] = True
    elif _is_open(parsed_response):
        context[MAYBE_APPLIED] = True


def _is_open(answer: dict[str, Any]) -> bool:
    """Return whether an answer leaves open if SQS has carried the request out: an internal error, or an earlier try."""
    metadata = answer.get("ResponseMetadata") or {}
    status = metadata.get("HTTPStatusCode")
    is_internal = isinstance(status, int) and status >= 500
    return MAYBE_APPLIED in metadata or (is_internal and not is_throttle(str(answer.get("Error", {}).get("Code", ""))))


def failed_entries(answer: dict[str, Any]) -> dict[str, Exception]:
    """Return the errors of the entries that SQS refused in a successful batch request, by entry id."""
    is_open = _is_open(answer)
    return {
        entry["Id"]: Refused(
            entry.get("Code", ""),
            entry.get("Message", ""),
            is_fault_of_sqs=not entry.get("SenderFault"),
            maybe_applied=is_open,
        )
        for entry in answer.get("Failed") or []
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


def has_answer(error: Exception) -> bool:
    """Return whether SQS has answered the last try of a request as a whole, and this error is its answer."""
    return isinstance(getattr(error, "response", None), dict)


def may_be_applied(error: Exception) -> bool:
    """Return whether SQS may have carried the request out (SPEC C8, M6).

    It has not if it refused or throttled the request, unless an earlier try got no answer or an internal error; nor if
    botocore has not sent the request.
    """
    if isinstance(error, Refused):
        return error.maybe_applied
    if has_answer(error):
        return _is_open(error.response)  # type: ignore[attr-defined]
    bases = {base.__name__ for base in type(error).__mro__}  # without importing botocore
    return "BotoCoreError" not in bases or not bases.isdisjoint({"HTTPClientError", "ConnectionError"})


def was_repeated(answer: dict[str, Any]) -> bool:
    """Return whether SQS may have carried a successful request out twice: its answer is that to a second try."""
    return MAYBE_APPLIED in (answer.get("ResponseMetadata") or {})


def is_late(error: BaseException | None) -> bool:
    return isinstance(error, OutOfTime)


def is_refused_for_good(error: Exception) -> bool:
    """Return whether SQS refused the request for good, as for a permission or a wrong entry: no throttle, no fault."""
    code, passing = error_code(error), ("Internal", "Unavailable", "Timeout", "OverLimit")
    if may_be_applied(error) or is_throttle(code) or any(part in code for part in passing):
        return False
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return isinstance(error, Refused) or (isinstance(status, int) and 400 <= status < 500)


def is_throttle(code: str) -> bool:
    """Return whether SQS, or a service behind it, throttled the request: nothing was done, and a retry may succeed."""
    return any(part in code for part in ("Throttl", "RequestLimitExceeded", "SlowDown", "TooManyRequests"))


def is_refused_for_now(error: Exception) -> bool:
    """Return whether SQS refused the last try temporarily, which did nothing; a retry may succeed."""
    code = error_code(error)
    return is_throttle(code) or code == "ServiceUnavailable"


def is_no_queue(code: str) -> bool:
    return "NonExistentQueue" in code or "QueueDoesNotExist" in code or code == "InvalidAddress"


def is_denied(code: str) -> bool:
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
    if not isinstance(response, dict) or _is_open(response):
        return False
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    code = error_code(error)
    if is_throttle(code) or is_no_queue(code) or is_denied(code):
        return False
    of_whole_request = ("Denied", "OverLimit", "Token", "Signature")
    return 400 <= status < 500 and status not in (401, 403) and not any(part in code for part in of_whole_request)


MAYBE_SENT = "SQS may have the message all the same: sent again to a standard queue, it may arrive twice"


class Unconfirmed(Exception):
    """SQS's answer does not confirm that it has the message as it was sent."""


def doubt(body: str, receipt: Mapping[str, Any]) -> Unconfirmed | None:
    """Return why a message may not be in its queue; None if the receipt has its id and the body's MD5."""
    import hashlib

    if not receipt.get("MessageId"):
        return Unconfirmed("SQS answered without a message id")
    md5 = hashlib.md5(body.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    if receipt.get("MD5OfMessageBody") != md5:
        return Unconfirmed(f"SQS answered with the MD5 of another body: {receipt.get('MD5OfMessageBody')}")
    return None


def note_if_open(error: Exception) -> None:
    """Add a note to the error of a send if SQS may have the message all the same."""
    if may_be_applied(error) and MAYBE_SENT not in getattr(error, "__notes__", ()):
        error.add_note(MAYBE_SENT)
