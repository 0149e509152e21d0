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
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from tarry.sqs.client import make_client
from tarry.sqs.refusals import (
    Refused,
    failed_entries,
    is_no_queue,
    is_refused_for_good,
    is_refused_for_now,
    is_throttle,
    is_worth_splitting,
    may_be_applied,
    watch_tries,
)
from tests.wire import client_error, url

THROTTLES = [
    "RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled", "KMS.ThrottlingException", "SlowDown",
    "RequestLimitExceeded", "TooManyRequestsException",
]  # fmt: skip
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


# requests that botocore repeated


class Raw(BytesIO):
    def stream(self, *_: object) -> Iterator[bytes]:
        yield self.read()


LOST = ReadTimeoutError(endpoint_url="https://sqs")
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
