"""The client of a simulation: as boto3's, with the retries of production."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from random import Random
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ParamValidationError, ReadTimeoutError

from tarry.simulator.client import Distance, SimulatedClient
from tarry.simulator.history import History
from tarry.simulator.sqs import Sqs, SqsError
from tarry.sqs.refusals import error_code, is_denied, is_stale_handle, is_worth_splitting
from tests.wire import TestClock

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
Answer = dict[str, Any]


class Way:
    """A transport that fails as often as it is told to, before or after the request has arrived."""

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


class Site:
    """A clock, the model, and clients of it."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.history = History(self.clock.time)
        self.sqs = Sqs(self.clock.time, Random(1), self.history)
        self.client = self.client_by(Distance(self.clock, 0))
        self.url: str = self.client.create_queue(QueueName="orders")["QueueUrl"]

    def client_by(self, way: Any) -> SimulatedClient:
        return SimulatedClient(self.sqs, self.clock, way)


@pytest.fixture
def site() -> Site:
    return Site()


def throttle() -> SqsError:
    return SqsError("RequestThrottled", "Slow down.")


def no_answer() -> ReadTimeoutError:
    return ReadTimeoutError(endpoint_url="https://sqs")


# the interface


def test_it_has_the_methods_of_the_boto3_client(site: Site) -> None:
    site.client.send_message(QueueUrl=site.url, MessageBody="hello")
    [message] = site.client.receive_message(QueueUrl=site.url)["Messages"]
    site.client.delete_message(QueueUrl=site.url, ReceiptHandle=message["ReceiptHandle"])
    with pytest.raises(AttributeError, match="send_messages"):
        site.client.send_messages  # noqa: B018


def test_it_says_where_its_sqs_is(site: Site) -> None:
    assert site.client.meta.endpoint_url == "https://sqs.us-east-1.amazonaws.com"
    assert site.client.meta.region_name == "us-east-1"


def test_an_answer_carries_what_boto3_adds(site: Site) -> None:
    metadata = site.client.get_queue_url(QueueName="orders")["ResponseMetadata"]
    assert metadata["HTTPStatusCode"] == 200
    assert metadata["RetryAttempts"] == 0


def test_wrong_parameters_are_refused_before_anything_is_sent(site: Site) -> None:
    way = Way()
    with pytest.raises(ParamValidationError, match='Unknown parameter in input: "Body"'):
        site.client_by(way).send_message(QueueUrl=site.url, Body="hello")
    assert way.tries == 0


def test_a_request_takes_its_time_each_way(site: Site) -> None:
    began = site.clock.now
    site.client_by(Distance(site.clock, 0.25)).send_message(QueueUrl=site.url, MessageBody="hello")
    assert site.sqs.peek("orders")[0].sent_at == began + 0.25
    assert site.clock.now == began + 0.5


# errors


def from_aws(error: SqsError) -> ClientError:
    """What boto3 makes of this error when SQS answers with it."""
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
def test_an_error_is_the_one_that_boto3_raises(site: Site, error: SqsError) -> None:
    with pytest.raises(ClientError) as caught:
        site.client_by(Way(error)).delete_queue(QueueUrl=site.url)
    ours, real = caught.value, from_aws(error)
    assert type(ours).__name__ == type(real).__name__
    assert str(ours) == str(real)
    assert ours.response["Error"] == real.response["Error"]
    status = [each.response["ResponseMetadata"]["HTTPStatusCode"] for each in (ours, real)]
    assert status == [error.status] * 2


def test_errors_can_be_caught_by_the_client_s_exceptions(site: Site) -> None:
    with pytest.raises(site.client.exceptions.QueueDoesNotExist):
        site.client.get_queue_url(QueueName="others")


def test_the_runtime_understands_the_errors(site: Site) -> None:
    with pytest.raises(ClientError) as no_queue:
        site.client.get_queue_url(QueueName="others")
    assert error_code(no_queue.value) == NO_QUEUE
    assert not is_worth_splitting(no_queue.value)
    with pytest.raises(ClientError) as no_handle:
        site.client.delete_message(QueueUrl=site.url, ReceiptHandle="x")
    assert is_stale_handle(no_handle.value)
    with pytest.raises(ClientError) as denied:
        site.client_by(Way(SqsError("AccessDenied", "no", status=403))).delete_queue(QueueUrl=site.url)
    assert is_denied(error_code(denied.value))


# retries


@pytest.mark.parametrize(
    "failure",
    [throttle(), no_answer(), SqsError("InternalError", "sorry", sender_fault=False)],
    ids=["throttle", "timeout", "5xx"],
)
def test_what_may_pass_is_tried_twice_after_a_wait(site: Site, failure: Exception) -> None:
    way, began = Way(failure), site.clock.now
    answer = site.client_by(way).send_message(QueueUrl=site.url, MessageBody="hello")
    assert way.tries == 2
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert 0 < site.clock.now - began < 1


def test_after_two_tries_the_last_error_is_raised(site: Site) -> None:
    way = Way(throttle(), no_answer(), throttle())
    with pytest.raises(ReadTimeoutError):
        site.client_by(way).send_message(QueueUrl=site.url, MessageBody="hello")
    assert way.tries == 2


def test_what_will_not_pass_is_not_tried_again(site: Site) -> None:
    for failure in (SqsError("AccessDenied", "no", status=403), ValueError("a bug")):
        way = Way(failure)
        with pytest.raises((ClientError, ValueError)):
            site.client_by(way).send_message(QueueUrl=site.url, MessageBody="hello")
        assert way.tries == 1


def test_a_send_whose_answer_is_lost_is_sent_twice(site: Site) -> None:  # PLATFORM 21
    site.client_by(Way(no_answer(), answer_lost=True)).send_message(QueueUrl=site.url, MessageBody="hello")
    assert [message.body for message in site.sqs.peek("orders")] == ["hello", "hello"]


def test_a_client_that_fails_again_and_again_runs_out_of_second_tries(site: Site) -> None:
    way = Way(*(throttle() for _ in range(1000)))
    client = site.client_by(way)
    for _ in range(200):
        with pytest.raises(ClientError):
            client.send_message(QueueUrl=site.url, MessageBody="hello")
    assert 200 < way.tries < 400


def test_each_try_is_recorded(site: Site) -> None:
    site.client_by(Way(throttle())).send_message(QueueUrl=site.url, MessageBody="hello")
    tries = [event.fields for event in site.history.events if event.fields.get("operation") == "SendMessage"]
    assert [(fields["queue"], fields["number"]) for fields in tries] == [("orders", 1), ("orders", 2)]


# hooks


def test_hooks_are_called_before_each_try_and_can_stop_it(site: Site) -> None:
    called: list[str] = []
    way = Way(throttle(), throttle())
    client = site.client_by(way)

    def before(event_name: str, **_: Any) -> None:
        called.append(event_name)
        if len(called) == 2:
            raise TimeoutError("too late")

    client.meta.events.register("before-send.sqs", before)
    client.meta.events.register("before-send.sqs.ReceiveMessage", before)
    client.meta.events.register("after-call.sqs", before)
    with pytest.raises(TimeoutError):
        client.send_message(QueueUrl=site.url, MessageBody="hello")
    assert called == ["before-send.sqs.SendMessage"] * 2
    assert way.tries == 1


# waiting


def test_a_receive_that_waits_comes_back_with_the_first_message_that_is_shown(site: Site) -> None:
    began = site.clock.now
    site.client.send_message(QueueUrl=site.url, MessageBody="hello", DelaySeconds=7)
    assert len(site.client.receive_message(QueueUrl=site.url, WaitTimeSeconds=20)["Messages"]) == 1
    assert site.clock.now == pytest.approx(began + 7)


def test_a_receive_that_waits_for_nothing_waits_to_the_end(site: Site) -> None:
    began = site.clock.now
    assert "Messages" not in site.client.receive_message(QueueUrl=site.url, WaitTimeSeconds=20)
    assert site.clock.now == pytest.approx(began + 20)


def test_a_receive_waits_as_long_as_the_queue_says_unless_it_says_otherwise(site: Site) -> None:
    attributes = {"ReceiveMessageWaitTimeSeconds": "3"}
    site.client.set_queue_attributes(QueueUrl=site.url, Attributes=attributes)
    began = site.clock.now
    site.client.receive_message(QueueUrl=site.url)
    assert site.clock.now == pytest.approx(began + 3)
    site.client.receive_message(QueueUrl=site.url, WaitTimeSeconds=0)
    assert site.clock.now == pytest.approx(began + 3)
