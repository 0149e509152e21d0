"""The SQS client of a simulation: the interface and the errors of boto3, with the retries of production."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from random import Random
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ParamValidationError, ReadTimeoutError

from tarry.sqs.refusals import error_code, is_denied, is_stale_handle, is_worth_splitting
from tarry.tools.simulator.client import LatencyTransport, SimulatedClient
from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs, SqsError
from tests.wire import TestClock

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
Answer = dict[str, Any]


class FailingTransport:
    """A transport that fails the first requests, before or after they arrive."""

    def __init__(self, *failures: Exception, answer_lost: bool = False) -> None:
        self.failures = list(failures)
        self.answer_lost = answer_lost
        self.tries = 0

    def __call__(self, operation: str, parameters: Mapping[str, Any], apply: Callable[[], Answer]) -> Answer:
        self.tries += 1
        if not self.failures:
            return apply()
        if self.answer_lost:
            apply()
        raise self.failures.pop(0)


class ClientRig:
    """A clock, the SQS model, and clients of it."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.history = History(self.clock.time)
        self.sqs = Sqs(self.clock.time, Random(1), self.history)
        self.client = self.client_with(LatencyTransport(self.clock, 0))
        self.url: str = self.client.create_queue(QueueName="orders")["QueueUrl"]

    def client_with(self, transport: Any) -> SimulatedClient:
        return SimulatedClient(self.sqs, self.clock, transport)


@pytest.fixture
def rig() -> ClientRig:
    return ClientRig()


def throttle() -> SqsError:
    return SqsError("RequestThrottled", "Slow down.")


def no_answer() -> ReadTimeoutError:
    return ReadTimeoutError(endpoint_url="https://sqs")


# the interface


def test_the_client_has_the_interface_of_the_boto3_client(rig: ClientRig) -> None:
    metadata = rig.client.send_message(QueueUrl=rig.url, MessageBody="hello")["ResponseMetadata"]
    assert (metadata["HTTPStatusCode"], metadata["RetryAttempts"]) == (200, 0)
    [message] = rig.client.receive_message(QueueUrl=rig.url)["Messages"]
    rig.client.delete_message(QueueUrl=rig.url, ReceiptHandle=message["ReceiptHandle"])
    with pytest.raises(AttributeError, match="send_messages"):
        rig.client.send_messages  # noqa: B018
    with pytest.raises(rig.client.exceptions.QueueDoesNotExist):
        rig.client.get_queue_url(QueueName="others")
    assert rig.client.meta.endpoint_url == "https://sqs.us-east-1.amazonaws.com"
    assert rig.client.meta.region_name == "us-east-1"


def test_invalid_parameters_are_refused_before_a_request_is_sent(rig: ClientRig) -> None:
    transport = FailingTransport()
    with pytest.raises(ParamValidationError, match='Unknown parameter in input: "Body"'):
        rig.client_with(transport).send_message(QueueUrl=rig.url, Body="hello")
    assert transport.tries == 0


def test_a_request_takes_time_in_each_direction(rig: ClientRig) -> None:
    began = rig.clock.now
    rig.client_with(LatencyTransport(rig.clock, 0.25)).send_message(QueueUrl=rig.url, MessageBody="hello")
    assert rig.sqs.peek("orders")[0].sent_at == began + 0.25
    assert rig.clock.now == began + 0.5


# errors


def from_aws(error: SqsError) -> ClientError:
    """Return the exception that boto3 raises when SQS answers with this error."""
    client = boto3.client("sqs", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    headers = {"x-amzn-query-error": f"{error.code};Sender", "content-type": "application/x-amz-json-1.0"}
    body = json.dumps({"__type": f"com.amazonaws.sqs#{error.name}", "message": error.message})

    class Raw(BytesIO):
        def stream(self, *_: object) -> Any:
            yield self.read()

    def answer(**_: Any) -> AWSResponse:
        return AWSResponse("https://sqs", error.status, headers, Raw(body.encode()))

    client.meta.events.register("before-send.sqs", answer)
    with pytest.raises(ClientError) as caught:
        client.delete_queue(QueueUrl="https://sqs.us-east-1.amazonaws.com/123456789012/orders")
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        SqsError(NO_QUEUE, "The specified queue does not exist."),
        SqsError("InvalidParameterValue", "Value x for parameter y is invalid."),
        SqsError("ReceiptHandleIsInvalid", "no handle"),
        SqsError("AWS.SimpleQueueService.BatchRequestTooLong", "too long"),
        SqsError("OverLimit", "too many"),
        SqsError("QueueAlreadyExists", "another"),
        SqsError("AccessDenied", "not allowed", status=403),
    ],
    ids=lambda error: error.code,
)
def test_an_error_equals_the_one_that_boto3_raises(rig: ClientRig, error: SqsError) -> None:
    with pytest.raises(ClientError) as caught:
        rig.client_with(FailingTransport(error)).delete_queue(QueueUrl=rig.url)
    ours, real = caught.value, from_aws(error)
    assert type(ours).__name__ == type(real).__name__
    assert str(ours) == str(real)
    assert ours.response["Error"] == real.response["Error"]
    status = [each.response["ResponseMetadata"]["HTTPStatusCode"] for each in (ours, real)]
    assert status == [error.status] * 2


def test_the_runtime_understands_the_errors(rig: ClientRig) -> None:
    with pytest.raises(ClientError) as no_queue:
        rig.client.get_queue_url(QueueName="others")
    assert error_code(no_queue.value) == NO_QUEUE
    assert not is_worth_splitting(no_queue.value)
    with pytest.raises(ClientError) as no_handle:
        rig.client.delete_message(QueueUrl=rig.url, ReceiptHandle="x")
    assert is_stale_handle(no_handle.value)
    with pytest.raises(ClientError) as denied:
        rig.client_with(FailingTransport(SqsError("AccessDenied", "no", status=403))).delete_queue(QueueUrl=rig.url)
    assert is_denied(error_code(denied.value))


# retries


@pytest.mark.parametrize(
    "failure",
    [throttle(), no_answer(), SqsError("InternalError", "sorry", sender_fault=False)],
    ids=["throttle", "timeout", "5xx"],
)
def test_a_transient_error_is_retried_once_after_a_wait(rig: ClientRig, failure: Exception) -> None:
    transport, began = FailingTransport(failure), rig.clock.now
    answer = rig.client_with(transport).send_message(QueueUrl=rig.url, MessageBody="hello")
    assert transport.tries == 2
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert 0 < rig.clock.now - began < 1


def test_after_two_tries_the_last_error_is_raised(rig: ClientRig) -> None:
    transport = FailingTransport(throttle(), no_answer(), throttle())
    with pytest.raises(ReadTimeoutError):
        rig.client_with(transport).send_message(QueueUrl=rig.url, MessageBody="hello")
    assert transport.tries == 2


def test_a_permanent_error_is_not_retried(rig: ClientRig) -> None:
    for failure in (SqsError("AccessDenied", "no", status=403), ValueError("a bug")):
        transport = FailingTransport(failure)
        with pytest.raises((ClientError, ValueError)):
            rig.client_with(transport).send_message(QueueUrl=rig.url, MessageBody="hello")
        assert transport.tries == 1


def test_a_send_whose_answer_is_lost_is_made_twice(rig: ClientRig) -> None:  # PLATFORM 21
    rig.client_with(FailingTransport(no_answer(), answer_lost=True)).send_message(QueueUrl=rig.url, MessageBody="hello")
    assert [message.body for message in rig.sqs.peek("orders")] == ["hello", "hello"]


def test_a_client_whose_requests_keep_failing_runs_out_of_retries(rig: ClientRig) -> None:
    transport = FailingTransport(*(throttle() for _ in range(1000)))
    client = rig.client_with(transport)
    for _ in range(200):
        with pytest.raises(ClientError):
            client.send_message(QueueUrl=rig.url, MessageBody="hello")
    assert 200 < transport.tries < 400


def test_each_try_is_recorded(rig: ClientRig) -> None:
    rig.client_with(FailingTransport(throttle())).send_message(QueueUrl=rig.url, MessageBody="hello")
    tries = [event.fields for event in rig.history.events if event.fields.get("operation") == "SendMessage"]
    assert [(fields["queue"], fields["number"]) for fields in tries] == [("orders", 1), ("orders", 2)]


# hooks


def test_hooks_are_called_before_each_try_and_can_prevent_it(rig: ClientRig) -> None:
    called: list[str] = []
    transport = FailingTransport(throttle(), throttle())
    client = rig.client_with(transport)

    def before(event_name: str, **_: Any) -> None:
        called.append(event_name)
        if len(called) == 2:
            raise TimeoutError("too late")

    client.meta.events.register("before-send.sqs", before)
    client.meta.events.register("before-send.sqs.ReceiveMessage", before)
    client.meta.events.register("after-call.sqs", before)
    with pytest.raises(TimeoutError):
        client.send_message(QueueUrl=rig.url, MessageBody="hello")
    assert called == ["before-send.sqs.SendMessage"] * 2
    assert transport.tries == 1


# waiting


def test_a_long_poll_returns_the_first_message_that_becomes_visible(rig: ClientRig) -> None:
    began = rig.clock.now
    rig.client.send_message(QueueUrl=rig.url, MessageBody="hello", DelaySeconds=7)
    assert len(rig.client.receive_message(QueueUrl=rig.url, WaitTimeSeconds=20)["Messages"]) == 1
    assert rig.clock.now == pytest.approx(began + 7)


def test_a_receive_waits_for_the_wait_time_of_the_queue_unless_it_has_its_own(rig: ClientRig) -> None:
    attributes = {"ReceiveMessageWaitTimeSeconds": "3"}
    rig.client.set_queue_attributes(QueueUrl=rig.url, Attributes=attributes)
    began = rig.clock.now
    assert "Messages" not in rig.client.receive_message(QueueUrl=rig.url)
    assert rig.clock.now == pytest.approx(began + 3)
    rig.client.receive_message(QueueUrl=rig.url, WaitTimeSeconds=0)
    assert rig.clock.now == pytest.approx(began + 3)
