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
THROTTLE, DENIED = SqsError("RequestThrottled", "Slow down."), SqsError("AccessDenied", "not allowed", status=403)
NO_ANSWER = ReadTimeoutError(endpoint_url="https://sqs")
Answer = dict[str, Any]


class ClientRig:
    """A clock, the SQS model, and clients of it."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.history = History(self.clock.time)
        self.sqs = Sqs(self.clock.time, Random(1), self.history)
        self.client = SimulatedClient(self.sqs, self.clock, LatencyTransport(self.clock, 0))
        self.url: str = self.client.create_queue(QueueName="orders")["QueueUrl"]
        self.tries = 0

    def failing(self, *failures: Exception, answer_lost: bool = False) -> SimulatedClient:
        """Return a client whose first requests fail, before or after they arrive. Their tries are counted."""
        left = list(failures)
        self.tries = 0

        def transport(operation: str, parameters: Mapping[str, Any], apply: Callable[[], Answer]) -> Answer:
            self.tries += 1
            if not left:
                return apply()
            if answer_lost:
                apply()
            raise left.pop(0)

        return SimulatedClient(self.sqs, self.clock, transport)

    def send(self, client: SimulatedClient, **parameters: Any) -> Answer:
        return client.send_message(**{"QueueUrl": self.url, "MessageBody": "hello", **parameters})


@pytest.fixture
def rig() -> ClientRig:
    return ClientRig()


# the interface


def test_the_client_has_the_interface_of_the_boto3_client(rig: ClientRig) -> None:
    metadata = rig.send(rig.client)["ResponseMetadata"]
    assert (metadata["HTTPStatusCode"], metadata["RetryAttempts"]) == (200, 0)
    [message] = rig.client.receive_message(QueueUrl=rig.url)["Messages"]
    rig.client.delete_message(QueueUrl=rig.url, ReceiptHandle=message["ReceiptHandle"])
    with pytest.raises(AttributeError, match="send_messages"):
        rig.client.send_messages  # noqa: B018
    with pytest.raises(rig.client.exceptions.QueueDoesNotExist):
        rig.client.get_queue_url(QueueName="others")
    endpoint = (rig.client.meta.endpoint_url, rig.client.meta.region_name)
    assert endpoint == ("https://sqs.us-east-1.amazonaws.com", "us-east-1")
    with pytest.raises(ParamValidationError, match='Unknown parameter in input: "Body"'):
        rig.send(rig.failing(), Body="hello")
    assert rig.tries == 0


def test_a_request_takes_time_in_each_direction(rig: ClientRig) -> None:
    began = rig.clock.now
    rig.send(SimulatedClient(rig.sqs, rig.clock, LatencyTransport(rig.clock, 0.25)))
    assert (rig.sqs.peek("orders")[0].sent_at, rig.clock.now) == (began + 0.25, began + 0.5)


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
        DENIED,
    ],
    ids=lambda error: error.code,
)
def test_an_error_equals_the_one_that_boto3_raises(rig: ClientRig, error: SqsError) -> None:
    with pytest.raises(ClientError) as caught:
        rig.failing(error).delete_queue(QueueUrl=rig.url)
    ours, real = (
        (type(each).__name__, str(each), each.response["Error"], each.response["ResponseMetadata"]["HTTPStatusCode"])
        for each in (caught.value, from_aws(error))
    )
    assert ours == real
    assert ours[-1] == error.status


def test_the_runtime_understands_the_errors(rig: ClientRig) -> None:
    with pytest.raises(ClientError) as no_queue:
        rig.client.get_queue_url(QueueName="others")
    assert error_code(no_queue.value) == NO_QUEUE
    assert not is_worth_splitting(no_queue.value)
    with pytest.raises(ClientError) as no_handle:
        rig.client.delete_message(QueueUrl=rig.url, ReceiptHandle="x")
    assert is_stale_handle(no_handle.value)
    with pytest.raises(ClientError) as denied:
        rig.send(rig.failing(DENIED))
    assert is_denied(error_code(denied.value))


# retries


@pytest.mark.parametrize(
    "failure",
    [THROTTLE, NO_ANSWER, SqsError("InternalError", "sorry", sender_fault=False)],
    ids=["throttle", "timeout", "5xx"],
)
def test_a_transient_error_is_retried_once_after_a_wait_and_each_try_recorded(
    rig: ClientRig, failure: Exception
) -> None:
    began = rig.clock.now
    answer = rig.send(rig.failing(failure))
    assert (rig.tries, answer["ResponseMetadata"]["RetryAttempts"], 0 < rig.clock.now - began < 1) == (2, 1, True)
    tries = [event.fields for event in rig.history.events if event.fields.get("operation") == "SendMessage"]
    assert [(fields["queue"], fields["number"]) for fields in tries] == [("orders", 1), ("orders", 2)]


@pytest.mark.parametrize(
    ("failures", "raised", "tries"),
    [
        ((THROTTLE, NO_ANSWER, THROTTLE), ReadTimeoutError, 2),
        ((DENIED,), ClientError, 1),
        ((ValueError(),), ValueError, 1),
    ],
)
def test_after_two_tries_or_a_permanent_error_the_last_error_is_raised(
    rig: ClientRig, failures: tuple[Exception, ...], raised: type[Exception], tries: int
) -> None:
    client = rig.failing(*failures)
    with pytest.raises(raised):
        rig.send(client)
    assert rig.tries == tries


def test_a_send_whose_answer_is_lost_is_made_twice(rig: ClientRig) -> None:  # PLATFORM 21
    rig.send(rig.failing(NO_ANSWER, answer_lost=True))
    assert [message.body for message in rig.sqs.peek("orders")] == ["hello", "hello"]


def test_a_client_whose_requests_keep_failing_runs_out_of_retries(rig: ClientRig) -> None:
    client = rig.failing(*[THROTTLE] * 1000)
    for _ in range(200):
        with pytest.raises(ClientError):
            rig.send(client)
    assert 200 < rig.tries < 400


def test_hooks_are_called_before_each_try_and_can_prevent_it(rig: ClientRig) -> None:
    called: list[str] = []
    client = rig.failing(THROTTLE, THROTTLE)

    def before(event_name: str, **_: Any) -> None:
        called.append(event_name)
        if len(called) == 2:
            raise TimeoutError("too late")

    for hook in ("before-send.sqs", "before-send.sqs.ReceiveMessage", "after-call.sqs"):
        client.meta.events.register(hook, before)
    with pytest.raises(TimeoutError):
        rig.send(client)
    assert (called, rig.tries) == (["before-send.sqs.SendMessage"] * 2, 1)


# waiting


@pytest.mark.parametrize(
    ("of_queue", "asked", "delay", "waited"), [(0, 20, 7, 7), (3, None, None, 3), (3, 0, None, 0), (3, 0, 9, 0)]
)
def test_a_receive_waits_for_the_first_message_as_long_as_it_says_or_else_its_queue(
    rig: ClientRig, of_queue: int, asked: int | None, delay: int | None, waited: float
) -> None:
    rig.client.set_queue_attributes(QueueUrl=rig.url, Attributes={"ReceiveMessageWaitTimeSeconds": str(of_queue)})
    if delay is not None:
        rig.send(rig.client, DelaySeconds=delay)
    began = rig.clock.now
    answer = rig.client.receive_message(QueueUrl=rig.url, **({} if asked is None else {"WaitTimeSeconds": asked}))
    assert (len(answer.get("Messages", [])), rig.clock.now) == (delay == waited, pytest.approx(began + waited))
