"""The classification of SQS errors: one function for each question."""

import pytest

from tarry.sqs.refusals import (
    Refused,
    is_no_queue,
    is_refused_for_good,
    is_refused_for_now,
    is_throttle,
    is_worth_splitting,
)
from tests.wire import client_error

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
