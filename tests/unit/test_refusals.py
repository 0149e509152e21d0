"""The classification of SQS errors: one function for each question."""

import json
from collections import deque
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from tarry.sqs.client import make_client
from tarry.sqs.refusals import (
    MAYBE_SENT,
    Refused,
    doubt,
    error_code,
    failed_entries,
    has_answer,
    is_denied,
    is_no_queue,
    is_of_a_key,
    is_refused_for_good,
    is_refused_for_now,
    is_stale_handle,
    is_throttle,
    is_worth_splitting,
    may_be_applied,
    note_if_open,
    watch_tries,
)
from tests.wire import client_error, url

THROTTLES = [
    "RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled", "KMS.ThrottlingException", "SlowDown",
    "RequestLimitExceeded", "TooManyRequestsException",
]  # fmt: skip
LOST = ReadTimeoutError(endpoint_url="https://sqs")
NO_QUEUE = ["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"]


@pytest.mark.parametrize("code", THROTTLES)
def test_every_function_recognizes_a_throttled_request(code: str) -> None:  # SPEC F4, G1, M5
    error = client_error(code)
    assert is_throttle(code)
    assert is_refused_for_now(error)
    assert not is_refused_for_good(error)
    assert not is_refused_for_good(Refused(code, "too many"))
    assert not is_worth_splitting(error)
    assert not is_no_queue(code)


@pytest.mark.parametrize("code", NO_QUEUE)
def test_every_function_recognizes_a_queue_that_does_not_exist(code: str) -> None:  # SPEC F4, M1
    error = client_error(code)
    assert is_no_queue(code)
    assert is_refused_for_good(error)
    assert not is_worth_splitting(error)
    assert not is_refused_for_now(error)


@pytest.mark.parametrize("code", ["OverLimit", "AccessDenied", "InvalidParameterValue", ""])
def test_other_errors_are_neither_throttled_nor_of_a_missing_queue(code: str) -> None:  # SPEC F4
    assert not is_throttle(code)
    assert not is_no_queue(code)


WITHOUT_STATUS: Any = {"Error": {"Code": "InvalidParameterValue", "Message": "no"}}


@pytest.mark.parametrize(
    ("error", "is_worth_it"),
    [
        (client_error("InvalidParameterValue"), True),
        (client_error("BatchRequestTooLong"), True),
        (client_error("InvalidParameterValue", status=402), True),
        (client_error("InvalidParameterValue", status=404), True),
        (client_error("InvalidParameterValue", status=499), True),
        (ClientError(WITHOUT_STATUS, "AnyOperation"), True),
        (ParamValidationError(report="an entry"), True),
        (client_error("InvalidParameterValue", status=399), False),
        (client_error("InvalidParameterValue", status=401), False),
        (client_error("InvalidParameterValue", status=403), False),
        (client_error("InternalError", status=500), False),
        (client_error("SlowDown", status=503), False),
        (client_error("AccessDenied"), False),
        (client_error("KmsDeniedByPolicy"), False),
        (client_error("UnauthorizedOperation"), False),
        (client_error("OverLimit"), False),
        (client_error("ExpiredToken"), False),
        (client_error("SignatureDoesNotMatch"), False),
        (LOST, False),
        (Refused("InvalidParameterValue", "an entry"), False),
    ],
    ids=repr,
)
def test_a_refused_batch_is_split_if_one_entry_may_be_the_reason(
    error: Exception, is_worth_it: bool
) -> None:  # SPEC E6
    assert is_worth_splitting(error) is is_worth_it


@pytest.mark.parametrize(
    ("error", "is_for_good"),
    [
        (client_error("AccessDenied", status=403), True),
        (client_error("InvalidParameterValue"), True),
        (client_error("InvalidParameterValue", status=499), True),
        (Refused("InvalidParameterValue", "an entry"), True),
        (client_error("InvalidParameterValue", status=399), False),
        (client_error("OverLimit"), False),
        (client_error("RequestTimeout"), False),
        (client_error("ServiceUnavailable", status=503), False),
        (client_error("InternalError", status=500), False),
        (Refused("InternalError", "an entry", is_fault_of_sqs=True), False),
        (Refused("InvalidParameterValue", "an entry", maybe_applied=True), False),
        (ClientError(WITHOUT_STATUS, "AnyOperation"), False),
        (NoCredentialsError(), False),
    ],
    ids=repr,
)
def test_a_refusal_is_for_good_unless_a_later_try_may_succeed(error: Exception, is_for_good: bool) -> None:  # SPEC C8
    assert is_refused_for_good(error) is is_for_good


@pytest.mark.parametrize(
    ("error", "is_stale"),
    [
        (client_error("ReceiptHandleIsInvalid"), True),
        (client_error("AWS.SimpleQueueService.MessageNotInflight"), True),
        (client_error("InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid."), True),
        (Refused("ReceiptHandleIsInvalid", "the record has no receipt handle"), True),
        (client_error("InvalidParameterValue", "Total VisibilityTimeout"), False),
        (client_error("AccessDenied", "ReceiptHandle"), False),
        (ValueError("ReceiptHandle"), False),
    ],
    ids=repr,
)
def test_a_receipt_handle_is_stale_if_sqs_refuses_the_handle_itself(
    error: Exception, is_stale: bool
) -> None:  # SPEC E6
    assert is_stale_handle(error) is is_stale


def test_the_code_of_an_error_is_that_of_aws_or_its_class() -> None:
    class Odd(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError

    errors = (client_error("OverLimit"), Refused("InvalidId", "no"), OSError("no"), Odd())
    assert [error_code(error) for error in errors] == ["OverLimit", "InvalidId", "OSError", "Odd"]
    assert [has_answer(error) for error in errors[:3]] == [True, False, False]
    codes = ("KMS.AccessDeniedException", "AccessDenied", "AuthorizationError", "OverLimit")
    assert [(is_denied(code), is_of_a_key(code)) for code in codes] == [
        (True, True), (True, False), (True, False), (False, False),
    ]  # fmt: skip
    assert is_refused_for_now(client_error("ServiceUnavailable", status=503))
    assert not is_refused_for_now(client_error("OverLimit"))


def test_the_entries_that_sqs_refused_say_whose_fault_it_is() -> None:
    answer: dict[str, Any] = {"Failed": [{"Id": "0", "Code": "C", "Message": "M", "SenderFault": True}, {"Id": "1"}]}
    for status in (200, 500):
        answer["ResponseMetadata"] = {"HTTPStatusCode": status}
        errors: dict[str, Any] = failed_entries(answer)
        assert [str(error) for error in errors.values()] == ["C: M", ": "]
        assert [error.is_fault_of_sqs for error in errors.values()] == [False, True]
        assert [error.maybe_applied for error in errors.values()] == [status == 500] * 2
    assert failed_entries({"Successful": []}) == {}
    made_here = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
    assert (made_here.is_fault_of_sqs, may_be_applied(made_here)) == (False, False)


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
def test_a_send_is_confirmed_by_an_id_and_the_md5_of_the_body(receipt: dict[str, str], why: str) -> None:  # SPEC E6
    assert str(doubt("a", receipt)) == why


def test_the_error_of_a_send_that_may_be_applied_has_one_note() -> None:  # SPEC J6
    errors = [OSError("no"), client_error("AccessDenied")]
    for error in errors * 2:
        note_if_open(error)
    assert [getattr(error, "__notes__", []) for error in errors] == [[MAYBE_SENT], []]


# requests that botocore repeated


class Raw(BytesIO):
    def stream(self, *_: object) -> Iterator[bytes]:
        yield self.read()


Answer = tuple[int, str] | Exception
"""The answer to one try: a status with an error code, or what the transport raises."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client of botocore's with two tries, and no waits between them."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    return _client()


@cache
def _client() -> Any:
    return make_client(boto3.session.Session("test", "test", region_name="us-east-1"))


def error_of(client: Any, *tries: Answer) -> Exception:
    """Send two messages in a request whose tries are answered so; return the error of the first message."""
    left = deque(tries)

    def answer(**_: Any) -> AWSResponse:
        if isinstance(next_one := left.popleft(), Exception):
            raise next_one
        status, code = next_one
        entry = {"Id": "0", "Code": code, "SenderFault": False}
        confirmed = {"Id": "1", "MessageId": "m", "MD5OfMessageBody": "d"}
        body = {"__type": code} if status != 200 else {"Failed": [entry], "Successful": [confirmed]}
        return AWSResponse("https://sqs", status, HTTPHeaders(), Raw(json.dumps(body).encode()))

    client.meta.events.register("before-send.sqs", answer)
    try:
        sent = client.send_message_batch(QueueUrl=url("orders"), Entries=[{"Id": "0", "MessageBody": "a"}])
    except Exception as error:  # noqa: BLE001 what is tested
        return error
    finally:
        client.meta.events.unregister("before-send.sqs", answer)
        assert not left
    [refused] = failed_entries(sent).values()
    return refused


DENIED, THROTTLED, INTERNAL = (403, "AccessDenied"), (400, "ThrottlingException"), (500, "InternalError")


@pytest.mark.parametrize(
    "tries",
    [
        (LOST, DENIED),
        (LOST, THROTTLED),
        (LOST, (200, "ThrottlingException")),  # the entry, in an answer that confirms another one
        (LOST, (200, "InternalError")),
        (INTERNAL, DENIED),
        (INTERNAL, (200, "InternalError")),
        (INTERNAL, INTERNAL),
        (THROTTLED, INTERNAL),
        (THROTTLED, LOST),
        (LOST, LOST),
        (ConnectionResetError("closed"),),
    ],
    ids=repr,
)
def test_a_request_may_be_applied_after_a_try_without_an_answer_or_with_an_internal_error(
    client: Any, tries: tuple[Answer, ...]
) -> None:  # SPEC C8, J6, M6
    watch_tries(client)
    watch_tries(client)  # as a second `Queue` with the same client does
    error = error_of(client, *tries)
    assert may_be_applied(error)
    assert not is_refused_for_good(error)
    assert not is_worth_splitting(error)


@pytest.mark.parametrize(
    "tries",
    [(DENIED,), (THROTTLED, THROTTLED), (THROTTLED, DENIED), ((503, "SlowDown"), DENIED), ((200, "InternalError"),)],
    ids=repr,
)
def test_a_request_of_which_each_try_was_refused_or_throttled_was_not_applied(
    client: Any, tries: tuple[Answer, ...]
) -> None:  # SPEC M6
    watch_tries(client)
    assert not may_be_applied(error_of(client, *tries))


def test_a_request_that_botocore_did_not_send_was_not_applied() -> None:  # SPEC M6
    assert not may_be_applied(NoCredentialsError())
    assert may_be_applied(EndpointConnectionError(endpoint_url="https://sqs"))


def test_the_tries_of_one_request_say_nothing_of_the_next(client: Any) -> None:  # SPEC A6, M6
    watch_tries(client)
    assert may_be_applied(error_of(client, LOST, DENIED))
    assert not may_be_applied(error_of(client, DENIED))
