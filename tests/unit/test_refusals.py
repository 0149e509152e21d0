"""The limits of SQS requests, and the classification of errors: one function for each question."""

import hashlib
from collections import deque
from functools import cache, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from hypothesis import example, given
from hypothesis import strategies as st

from tarry.sqs import refusals
from tarry.sqs.client import make_client
from tarry.sqs.refusals import (
    MAX_REQUEST_BYTES,
    MAYBE_SENT,
    Refused,
    doubt,
    error_code,
    failed_entries,
    has_answer,
    is_refused_for_good,
    is_worth_splitting,
    may_be_applied,
    message_size,
    note_if_open,
    requests_of,
    tens,
    utf8_length,
    watch_tries,
)
from tests.wire import client_error, http_answer, session, url

# limits


@given(st.lists(st.integers(), max_size=105))
def test_tens_split_entries_in_order_into_as_few_requests_as_possible(entries: list[int]) -> None:  # SPEC G1
    requests = list(tens(entries))
    assert [entry for request in requests for entry in request] == entries
    assert len(requests) == -(-len(entries) // 10)
    assert all(1 <= len(request) <= 10 for request in requests)


@given(st.lists(st.integers(0, MAX_REQUEST_BYTES), max_size=60))
@example([MAX_REQUEST_BYTES - 1, 1, 1, MAX_REQUEST_BYTES - 1, 1, 1])
@example([1, MAX_REQUEST_BYTES + 1, 1])  # too large for any request: sent alone
def test_requests_keep_the_order_and_have_ten_entries_and_1_mib_and_end_only_if_the_next_entry_does_not_fit(
    sizes: list[int],
) -> None:  # SPEC E6
    requests = list(requests_of(enumerate(sizes)))
    assert [entry for request in requests for entry in request] == list(range(len(sizes)))
    bytes_of = [sum(sizes[entry] for entry in request) for request in requests]
    for request, total in zip(requests, bytes_of, strict=True):
        assert 1 <= len(request) <= 10
        assert total <= MAX_REQUEST_BYTES or len(request) == 1
    for (request, total), (following, _) in pairwise(zip(requests, bytes_of, strict=True)):
        assert len(request) == 10 or total + sizes[following[0]] > MAX_REQUEST_BYTES


def test_a_size_is_in_bytes_of_utf_8_and_includes_names_types_and_values_of_attributes() -> None:  # SPEC F3, J2
    lengths = {"": 0, "abc": 3, "é": 2, "€": 3, "😀": 4, "\ud800": 3, "a\x00b": 3}
    assert {text: utf8_length(text) for text in lengths} == lengths
    attributes: dict[str, dict[str, Any]] = {
        "tenant": {"DataType": "String", "StringValue": "é"},
        "raw": {"DataType": "Binary.png", "BinaryValue": b"\xff\x00\x01"},
    }
    assert message_size("😀", attributes) == 4 + len("tenantString") + 2 + len("rawBinary.png") + 3


# errors

LOST = ReadTimeoutError(endpoint_url="https://sqs")
WITHOUT_STATUS: Any = {"Error": {"Code": "InvalidParameterValue", "Message": "no"}}
NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress")
THROTTLES = (
    "RequestThrottled", "ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException",
)  # fmt: skip
SPLIT = "refused_for_good worth_splitting"
OF_CODES = ("throttle", "no_queue", "denied", "of_a_key")
OF_ERRORS = ("refused_for_now", "refused_for_good", "worth_splitting", "stale_handle")


def qualities_of(error: Exception) -> set[str]:
    found = {name for name in OF_CODES if getattr(refusals, f"is_{name}")(error_code(error))}
    found |= {name for name in OF_ERRORS if getattr(refusals, f"is_{name}")(error)}
    return found | ({"maybe_applied"} if may_be_applied(error) else set())


@pytest.mark.parametrize(
    ("qualities", "errors"),
    [
        ("", [client_error("OverLimit"), NoCredentialsError(), client_error("InvalidParameterValue", status=399)]),
        ("", [Refused("InternalError", "an entry", is_fault_of_sqs=True)]),
        ("throttle refused_for_now", [*map(client_error, THROTTLES), client_error("SlowDown", status=503)]),
        ("throttle refused_for_now", [Refused("ThrottlingException", "too many")]),
        ("throttle refused_for_now of_a_key", [*map(client_error, ("KmsThrottled", "KMS.ThrottlingException"))]),
        ("refused_for_now maybe_applied", [client_error("ServiceUnavailable", status=503)]),
        ("maybe_applied", [client_error("InternalError", status=500), LOST, ValueError("ReceiptHandle")]),
        (
            "maybe_applied",
            [each(endpoint_url="https://sqs") for each in (EndpointConnectionError, ConnectTimeoutError)],
        ),
        ("maybe_applied", [Refused("InvalidParameterValue", "an entry", maybe_applied=True)]),
        ("no_queue refused_for_good", [*map(client_error, NO_QUEUE)]),
        (
            "denied refused_for_good",
            [client_error("AccessDenied", "ReceiptHandle"), client_error("AuthorizationError")],
        ),
        ("denied refused_for_good", [client_error("AccessDenied", status=403), client_error("UnauthorizedOperation")]),
        ("denied refused_for_good of_a_key", [client_error("KMS.AccessDeniedException")]),
        ("refused_for_good of_a_key", [client_error("KmsDeniedByPolicy")]),
        ("refused_for_good", [*map(client_error, ("ExpiredToken", "SignatureDoesNotMatch"))]),
        ("refused_for_good", [client_error("InvalidParameterValue", status=status) for status in (401, 403)]),
        ("refused_for_good", [Refused("InvalidParameterValue", "an entry")]),
        (SPLIT, [*map(client_error, ("InvalidParameterValue", "BatchRequestTooLong", ""))]),
        (SPLIT, [client_error("InvalidParameterValue", status=status) for status in (402, 404, 499)]),
        (SPLIT, [client_error("InvalidParameterValue", "Total VisibilityTimeout")]),
        ("worth_splitting", [ClientError(WITHOUT_STATUS, "AnyOperation"), ParamValidationError(report="an entry")]),
        ("worth_splitting", [client_error("RequestTimeout")]),
        ("stale_handle refused_for_good", [Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")]),
        (f"stale_handle {SPLIT}", [client_error("ReceiptHandleIsInvalid"), client_error("MessageNotInflight")]),
        (f"stale_handle {SPLIT}", [client_error("InvalidParameterValue", "Value x for parameter ReceiptHandle is")]),
    ],
)
def test_every_function_recognizes_the_errors_that_it_asks_for_and_no_other(
    qualities: str, errors: list[Exception]
) -> None:  # SPEC C8, E6, F4, G1, M1, M5
    """A throttle is refused for now, a missing queue for good; a batch is split if one entry may be the reason."""
    expected = {*qualities.split()}
    assert [(error, qualities_of(error)) for error in errors] == [(error, expected) for error in errors]


def test_the_code_of_an_error_is_that_of_aws_or_its_class() -> None:
    class Odd(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError

    errors = (client_error("OverLimit"), Refused("InvalidId", "no"), OSError("no"), Odd())
    assert [error_code(error) for error in errors] == ["OverLimit", "InvalidId", "OSError", "Odd"]
    assert [has_answer(error) for error in errors[:3]] == [True, False, False]


def test_the_entries_that_sqs_refused_say_whose_fault_it_is() -> None:
    answer: dict[str, Any] = {"Failed": [{"Id": "0", "Code": "C", "Message": "M", "SenderFault": True}, {"Id": "1"}]}
    for status in (200, 500):
        errors: dict[str, Any] = failed_entries({**answer, "ResponseMetadata": {"HTTPStatusCode": status}})
        assert {name: (str(error), error.is_fault_of_sqs, error.maybe_applied) for name, error in errors.items()} == {
            "0": ("C: M", False, status == 500),
            "1": (": ", True, status == 500),
        }
    assert failed_entries({"Successful": []}) == {}
    refused = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
    assert (refused.is_fault_of_sqs, refused.maybe_applied) == (False, False)


MD5_OF_A = "0cc175b9c0f1b6a831c399e269772661"


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        ({"MessageId": "m", "MD5OfMessageBody": MD5_OF_A}, "None"),
        ({"MessageId": "", "MD5OfMessageBody": MD5_OF_A}, "SQS answered without a message id"),
        ({"MessageId": "m", "MD5OfMessageBody": "0"}, "SQS answered with the MD5 of another body: 0"),
        ({"MessageId": "m"}, "SQS answered with the MD5 of another body: None"),
    ],
)
def test_a_send_is_confirmed_by_an_id_and_the_md5_of_the_body(
    receipt: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC E6
    """Also in FIPS mode, in which the MD5 of a secret is refused."""
    monkeypatch.setattr(hashlib, "md5", partial(md5_in_fips_mode, hashlib.md5))
    assert str(doubt("a", receipt)) == why


def md5_in_fips_mode(md5: Any, text: bytes, *, usedforsecurity: bool = True) -> Any:
    assert not usedforsecurity
    return md5(text)


def test_the_error_of_a_send_that_may_be_applied_has_one_note() -> None:  # SPEC J6
    errors = [OSError("no"), client_error("AccessDenied")]
    for error in errors * 2:
        note_if_open(error)
    assert [getattr(error, "__notes__", []) for error in errors] == [[MAYBE_SENT], []]


# requests that botocore repeated


Answer = tuple[int, str] | Exception
"""The answer to one try: a status with an error code, or what the transport raises."""


@cache
def client() -> Any:
    return make_client(session())


def error_of(*tries: Answer) -> Exception:
    """Send two messages in a request whose tries are answered so; return the error of the first message."""
    left = deque(tries)

    def answer(**_: Any) -> AWSResponse:
        if isinstance(next_one := left.popleft(), Exception):
            raise next_one
        status, code = next_one
        entry = {"Id": "0", "Code": code, "SenderFault": False}
        confirmed = {"Id": "1", "MessageId": "m", "MD5OfMessageBody": "d"}
        body = {"__type": code} if status != 200 else {"Failed": [entry], "Successful": [confirmed]}
        return http_answer(status, body)

    client().meta.events.register("before-send.sqs", answer)
    try:
        sent = client().send_message_batch(QueueUrl=url("orders"), Entries=[{"Id": "0", "MessageBody": "a"}])
    except Exception as error:  # noqa: BLE001 what is tested
        return error
    finally:
        client().meta.events.unregister("before-send.sqs", answer)
        assert not left
    [refused] = failed_entries(sent).values()
    return refused


DENIED, THROTTLED, INTERNAL = (403, "AccessDenied"), (400, "ThrottlingException"), (500, "InternalError")


@pytest.mark.parametrize(
    ("tries", "maybe_applied"),
    [
        ((LOST, DENIED), True),
        ((LOST, THROTTLED), True),
        ((LOST, (200, "ThrottlingException")), True),  # the entry, in an answer that confirms another one
        ((LOST, (200, "InternalError")), True),
        ((INTERNAL, DENIED), True),
        ((INTERNAL, (200, "InternalError")), True),
        ((INTERNAL, INTERNAL), True),
        ((THROTTLED, INTERNAL), True),
        ((THROTTLED, LOST), True),
        ((LOST, LOST), True),
        ((ConnectionResetError("closed"),), True),
        ((DENIED,), False),
        ((THROTTLED, THROTTLED), False),
        ((THROTTLED, DENIED), False),
        (((503, "SlowDown"), DENIED), False),
        (((200, "InternalError"),), False),
    ],
)
def test_a_request_may_be_applied_after_a_try_without_an_answer_or_with_an_internal_error(
    tries: tuple[Answer, ...], maybe_applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A6, C8, J6, M6
    """It is then neither refused for good nor split. The tries of one request say nothing of the next."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    for _ in range(2):  # as a second `Queue` with the same client does
        watch_tries(client())
    error = error_of(*tries)
    assert may_be_applied(error) is maybe_applied
    assert not maybe_applied or not (is_refused_for_good(error) or is_worth_splitting(error))
    assert not may_be_applied(error_of(DENIED))
