"""The limits of a request to SQS, and the meaning of its answers.

An answer is a send confirmed, a refusal, or an error after which SQS may have it all the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

MAX_ENTRIES = 10  # entries in a batch request

MAX_REQUEST_BYTES = 1_048_576
"""A message, and the messages of one batch request together: 1 MiB, bodies and attributes counted together."""

MAX_ATTRIBUTES = 10  # user attributes of a message

MAX_NAME_LENGTH = 256
MAX_ID_LENGTH = 128


def tens(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut entries into batches of ten."""
    for start in range(0, len(entries), MAX_ENTRIES):
        yield entries[start : start + MAX_ENTRIES]


def requests_of(entries: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Cut entries, each with its size in bytes, into requests of at most ten entries and 1 MiB, in order."""
    request: list[T] = []
    total = 0
    for entry, size in entries:
        if request and (len(request) == MAX_ENTRIES or total + size > MAX_REQUEST_BYTES):
            yield request
            request, total = [], 0
        request.append(entry)
        total += size
    if request:
        yield request


def message_size(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the size in bytes as SQS counts it: the body, and the names, types and values of the attributes."""
    if not attributes:
        return utf8_length(body)
    return utf8_length(body) + sum(
        utf8_length(name) + utf8_length(attribute["DataType"]) + _value_length(attribute)
        for name, attribute in attributes.items()
    )


def _value_length(attribute: Mapping[str, Any]) -> int:
    return len(attribute["BinaryValue"]) if "BinaryValue" in attribute else utf8_length(attribute["StringValue"])


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# SQS accepts only the characters of XML 1.0 in a body or a text value.
_REFUSED_CHARACTER = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
# SQS accepts alphabetic characters beyond ASCII too, although its documentation does not say so.
_NAME_PART = r"(?:[^\W\d]|[0-9-])+"
_NAME = rf"{_NAME_PART}(\.{_NAME_PART})*"
_ID = "[!-~]+"  # ASCII letters, digits and punctuation


def check_body(body: str) -> None:
    """Raise `ValueError` for a body that is empty, or has a character that SQS refuses."""
    if not body:
        raise ValueError("the body is empty: SQS takes 1 character or more")
    _check_characters("the body", body)


def check_size(size_bytes: int) -> None:
    """Raise `ValueError` for a message of more than 1 MiB."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise ValueError(
            f"the message is {size_bytes} bytes, body and attributes counted together: SQS takes at most "
            f"{MAX_REQUEST_BYTES} (1 MiB)"
        )


def check_attribute_name(name: object) -> None:
    """Raise `TypeError` or `ValueError` for an attribute name that SQS would refuse."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an attribute is a str, got {name!r:.100}")
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(
            f"the name of an attribute has 1 to {MAX_NAME_LENGTH} characters, {name!r:.50} has {len(name)}"
        )
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"an attribute name may contain only letters, digits 0-9, _, - and single dots between them, got {name!r}"
        )
    if is_reserved(name):
        raise ValueError(f"names of attributes that begin with AWS. or Amazon. are AWS's own, got {name!r}")


def is_reserved(name: str) -> bool:
    """Return whether an attribute name is reserved by AWS; SQS refuses it in a send."""
    return name.lower().startswith(("aws.", "amazon."))


def check_attribute_value(name: str, value: str | bytes | bytearray) -> None:
    """Raise `ValueError` for an attribute value that SQS would refuse."""
    if not value:
        raise ValueError(f"attribute {name!r} is empty: SQS takes values of 1 byte or more")
    if isinstance(value, str):
        _check_characters(f"attribute {name!r}", value)


def check_id(what: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` for a group or deduplication id that SQS would refuse."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, got {value!r:.100}")
    if not 1 <= len(value) <= MAX_ID_LENGTH:
        raise ValueError(f"{what} has 1 to {MAX_ID_LENGTH} characters, got {len(value)}")
    if not re.fullmatch(_ID, value):
        raise ValueError(
            f"{what} may contain only ASCII letters, digits and punctuation (U+0021 to U+007E), got {value!r}"
        )


def _check_characters(where: str, text: str) -> None:
    if found := re.search(_REFUSED_CHARACTER, text):
        raise ValueError(
            f"{where} holds U+{ord(found[0]):04X} at index {found.start()}: SQS takes U+0009, U+000A, U+000D and "
            "U+0020 to U+10FFFF, except U+D800 to U+DFFF, U+FFFE and U+FFFF"
        )


MAYBE_APPLIED = "TarryMaybeApplied"  # the key in the metadata of an answer and the context of the request's tries


class OutOfTime(Exception):
    """The invocation had no time left for a request; whether SQS carried it out is unknown."""


class NoAnswer(OutOfTime):
    """A request may have been sent, and there was no time left to wait for its answer."""


class Refused(Exception):
    """SQS accepted the request and refused this entry."""

    def __init__(self, code: str, text: str, *, is_fault_of_sqs: bool = False, maybe_applied: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.is_fault_of_sqs = is_fault_of_sqs  # whether the entry was right, so that it may be accepted later
        self.maybe_applied = maybe_applied  # whether an earlier try of the request may have carried the entry out


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


def error_code(error: BaseException) -> str:
    """Return the AWS error code of a refused entry or request; the class name of any other error."""
    try:
        if isinstance(error, Refused):
            return error.code
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
    """Return whether SQS may have carried the request out (SPEC C8, M6)."""
    # Not if it refused or throttled the request, unless an earlier try got no answer; nor if botocore has not sent it.
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
    return isinstance(error, Refused) or (isinstance(status, int) and status >= 400)  # 500 and above may be applied


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
    """Return whether a batch request that was refused as a whole may succeed entry by entry: one entry was wrong."""
    if type(error).__name__ == "ParamValidationError":  # botocore's own check, before anything is sent
        return True
    # It may not if the error concerns no entry (a permission, a throttle, a missing queue), or SQS may have it already
    response = getattr(error, "response", None)
    if not isinstance(response, dict) or _is_open(response):
        return False
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    code = error_code(error)
    if is_throttle(code) or is_no_queue(code) or is_denied(code):
        return False
    of_whole_request = ("Denied", "OverLimit", "Token", "Signature")
    return status >= 400 and status not in (401, 403) and not any(part in code for part in of_whole_request)


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
