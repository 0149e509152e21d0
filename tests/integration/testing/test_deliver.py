"""`tarry.testing.deliver`: one batch of a queue in moto through a Lambda handler."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes import SQSEvent, event_source
from moto import mock_aws

from tarry import Fixed, LogOptions, Message, batch_consumer, consumer
from tarry.testing import deliver
from tarry.tools.simulator.mapping import MAX_EVENT_BYTES
from tests.served import served

ACCOUNT, REGION = "123456789012", "us-east-1"


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield boto3.client("sqs")


def queue(sqs: Any, name: str = "orders", *bodies: Any, **attributes: str) -> str:
    """Make a queue with a dead-letter queue and messages; return its URL."""
    kind, dot, suffix = name.partition(".")
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    sqs.create_queue(QueueName=f"{kind}-dlq{dot}{suffix}", Attributes=fifo)
    target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{kind}-dlq{dot}{suffix}"
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 15})}
    url: str = sqs.create_queue(QueueName=name, Attributes={**redrive, **fifo, **attributes})["QueueUrl"]
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body if isinstance(body, str) else json.dumps(body))
    return url


def depth(sqs: Any, name: str = "orders") -> tuple[int, int]:
    """Return the numbers of visible and of invisible messages."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


@consumer(max_attempts=2, backoff=Fixed(25))
def handler(message: Message) -> None:
    match message.body:
        case "retry":
            raise TimeoutError("the gateway does not answer")
        case "reject":
            message.reject("no lines")
        case "discard":
            message.discard("old")
        case "defer":
            message.defer(90)


def test_the_result_has_the_state_of_each_message_and_the_queue_what_is_left(sqs: Any) -> None:
    url = queue(sqs, "orders", "ok", "retry", "reject", "discard", "defer")
    result = deliver(handler, url, sqs)
    ok, retry, reject, *_ = result.messages
    assert result.states == ["COMMITTED", "WAITING_RETRY", "DEAD_LETTERED", "DISCARDED", "DEFERRED"]
    assert (result.state(ok.id), result.count("DEAD_LETTERED")) == ("COMMITTED", 1)
    assert (retry.attempt, retry.delay, retry.why) == (1, 25, "TimeoutError: the gateway does not answer")
    assert (result.response, result.error) == ({"batchItemFailures": [{"itemIdentifier": retry.delivery_id}]}, None)
    [dead_letter] = result.dead_letters
    assert (dead_letter.id, dead_letter.body, dead_letter.queue) == (reject.id, "reject", "orders-dlq")
    assert dead_letter.failure is not None
    assert dead_letter.failure.reason == "rejected"
    assert depth(sqs) == (0, 1)
    assert depth(sqs, "orders-dlq") == (1, 0)
    assert repr(result) == (
        "<DeliveredBatch of orders: 1 COMMITTED, 1 WAITING_RETRY (for 25 s: TimeoutError: the gateway does not "
        "answer), 1 DEAD_LETTERED (rejected: no lines), 1 DISCARDED (old), 1 DEFERRED (for 1 min 30 s)>"
    )
    assert repr(retry).endswith("does not answer), attempt 1: retry>")
    with pytest.raises(KeyError, match="no message 'other' in the batch; it has "):
        result.state("other")


def test_a_retry_is_received_again_as_the_next_attempt_once_it_is_visible(sqs: Any) -> None:
    url = queue(sqs, "orders", "retry")
    at_once = handler.replace(backoff=Fixed(0))
    results = [deliver(at_once, url, sqs) for _ in range(3)]
    assert [result.states for result in results] == [["WAITING_RETRY"], ["DEAD_LETTERED"], []]
    assert [message.attempt for result in results for message in result.messages] == [1, 2]
    [dead_letter] = results[1].dead_letters
    assert dead_letter.failure is not None
    assert (dead_letter.failure.reason, dead_letter.failure.attempts) == ("exhausted", 2)
    sqs.send_message(QueueUrl=url, MessageBody="retry")
    [waiting] = deliver(handler, url, sqs).messages
    assert repr(deliver(handler, url, sqs)) == "<DeliveredBatch of orders: no messages to receive, 1 invisible>"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=waiting.receipt_handle, VisibilityTimeout=0)
    assert deliver(handler, url, sqs).states == ["DEAD_LETTERED"]


def test_the_event_is_that_of_lambda(sqs: Any) -> None:
    """As in the AWS documentation; binary values are base64 text, and the region is that of the queue."""
    events: list[Any] = []
    url = queue(sqs)
    attributes = {
        "tenant": {"DataType": "String", "StringValue": "acme"},
        "key": {"DataType": "Binary", "BinaryValue": b"\xff\0"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=attributes)
    result = deliver(lambda *given: events.append(given), url, sqs)
    [(event, context)] = events
    [record] = event["Records"]
    assert result.states == ["COMMITTED"]
    common: dict[str, Any] = {"stringListValues": [], "binaryListValues": []}
    system = record.pop("attributes")
    assert record == {
        "messageId": sent["MessageId"],
        "body": "{}",
        "messageAttributes": {
            "tenant": {"stringValue": "acme", "dataType": "String", **common},
            "key": {"binaryValue": base64.b64encode(b"\xff\0").decode(), "dataType": "Binary", **common},
        },
        "md5OfBody": sent["MD5OfMessageBody"],
        "md5OfMessageAttributes": sent["MD5OfMessageAttributes"],
        "eventSource": "aws:sqs",
        "awsRegion": REGION,
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders",
        "receiptHandle": result.messages[0].receipt_handle,
    }
    assert system["ApproximateReceiveCount"] == "1"
    assert {"SenderId", "SentTimestamp", "ApproximateFirstReceiveTimestamp"} <= set(system)
    assert 29_000 < context.get_remaining_time_in_millis() <= 30_000


def test_if_the_handler_raises_all_messages_stay_and_the_traceback_is_on_stderr(
    sqs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(event: Any, context: Any) -> None:
        raise ValueError("no such customer")

    result = deliver(raises, queue(sqs, "orders", "a", "b"), sqs)
    assert isinstance(result.error, ValueError)
    assert (result.response, result.count("WAITING_RETRY")) == (None, 2)
    assert depth(sqs) == (0, 2)
    assert repr(result) == "<DeliveredBatch of orders: 2 WAITING_RETRY (ValueError: no such customer)>"
    written = capsys.readouterr().err
    assert 'raise ValueError("no such customer")' in written
    assert "delivering.py" not in written


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ({"batchItemFailures": [{"itemIdentifier": "other"}]}, "an itemIdentifier is not the id of a message"),
        ("done", "the response is not an object: 'done'"),
        (object(), "Unable to marshal response"),
    ],
)
def test_after_an_invalid_response_no_message_is_deleted(sqs: Any, response: Any, why: str) -> None:
    result = deliver(lambda event, context: response, queue(sqs, "orders", "a", "b"), sqs)
    assert why in str(result.error)
    assert result.count("WAITING_RETRY") == 2
    assert depth(sqs) == (0, 2)


def test_the_messages_that_powertools_reports_as_failed_are_left(sqs: Any) -> None:
    processor = BatchProcessor(event_type=EventType.SQS)

    def process(record: Any) -> None:
        if record.body == "bad":
            raise ValueError(record.body)

    def lambda_handler(event: Any, context: Any) -> Any:
        return process_partial_response(event=event, record_handler=process, processor=processor, context=context)

    url = queue(sqs, "orders", "good", "bad")
    result = deliver(lambda_handler, url, sqs)
    assert result.states == ["COMMITTED", "WAITING_RETRY"]
    assert result.messages[1].why == "reported as failed"
    assert depth(sqs) == (0, 1)
    sqs.send_message(QueueUrl=url, MessageBody="bad")
    alone = deliver(lambda_handler, url, sqs)
    assert type(alone.error).__name__ == "BatchProcessingError"  # Powertools raises if the whole batch has failed
    assert depth(sqs) == (0, 2)


def test_a_message_that_the_handler_deletes_itself_is_committed(sqs: Any) -> None:
    url = queue(sqs, "orders", "a")

    def deletes(event: Any, context: Any) -> None:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=event["Records"][0]["receiptHandle"])

    assert deliver(deletes, url, sqs).states == ["COMMITTED"]


def test_a_message_that_sqs_refuses_to_delete_stays(sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**request: Any) -> Any:
        return {"Failed": [{"Id": "1", "Code": "InternalError", "Message": "try again", "SenderFault": False}]}

    monkeypatch.setattr(sqs, "delete_message_batch", refuse)
    result = deliver(lambda event, context: None, queue(sqs, "orders", "a", "b"), sqs)
    assert result.states == ["COMMITTED", "WAITING_RETRY"]
    assert result.messages[1].why == "not deleted: InternalError: try again"


def test_a_batch_has_at_most_batch_size_messages_and_may_need_several_receives(sqs: Any) -> None:
    sizes: list[int] = []
    count = batch_consumer(lambda batch: sizes.append(len(batch)))
    url = queue(sqs, "orders", *({"id": number} for number in range(30)))
    results = [deliver(count, url, sqs, batch_size=size) for size in (25, 3, 10_000, 1)]
    assert sizes == [25, 3, 2]
    assert [len(result.messages) for result in results] == [25, 3, 2, 0]
    assert [message.json()["id"] for message in results[0].messages] == list(range(25))
    assert depth(sqs) == (0, 0)


def test_on_fifo_the_messages_behind_a_failed_one_of_their_group_are_left(sqs: Any) -> None:
    @consumer(backoff=Fixed(0))
    def fails_once(message: Message) -> None:
        if message.body == "a1" and message.attempt == 1:
            raise TimeoutError

    url = queue(sqs, "ledger.fifo")
    for body in ("a1", "a2", "b1"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0])
    first, second = deliver(fails_once, url, sqs), deliver(fails_once, url, sqs)
    states = {message.body: message.state for message in first.messages}
    assert states == {"a1": "WAITING_RETRY", "a2": "READY", "b1": "COMMITTED"}
    # a2 has not run before
    assert [(message.body, message.attempt) for message in second.messages] == [("a1", 2), ("a2", 1)]
    assert second.count("COMMITTED") == 2


def test_by_default_the_client_is_that_of_tarry_and_each_call_sees_changes_of_the_queue(sqs: Any) -> None:
    url = queue(sqs, "orders", "reject")
    other = sqs.create_queue(QueueName="other-dlq")["QueueUrl"]
    assert [each.queue for each in deliver(handler, url).dead_letters] == ["orders-dlq"]
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:other-dlq", "maxReceiveCount": 15}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    sqs.send_message(QueueUrl=url, MessageBody="reject")
    assert [each.queue for each in deliver(handler, url).dead_letters] == ["other-dlq"]
    assert len(sqs.receive_message(QueueUrl=other)["Messages"]) == 1


def test_the_states_are_those_of_a_consumer_below_a_decorator(sqs: Any) -> None:
    @event_source(data_class=SQSEvent)
    def decorated(event: SQSEvent, context: Any) -> Any:
        return handler(event.raw_event, context)

    assert deliver(decorated, queue(sqs, "orders", "reject"), sqs).states == ["DEAD_LETTERED"]


def test_without_log_fields_a_message_is_committed_or_left(sqs: Any) -> None:
    silent = handler.replace(log=LogOptions(redact=lambda fields: {}))
    result = deliver(silent, queue(sqs, "orders", "retry", "reject"), sqs)
    assert result.states == ["WAITING_RETRY", "COMMITTED"]
    assert [dead_letter.body for dead_letter in result.dead_letters] == ["reject"]


def test_it_works_with_the_sqs_of_tarry_local() -> None:
    with served() as local:
        local.queue("orders-dlq")
        target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders-dlq"
        url = local.queue("orders", RedrivePolicy=json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 15}))
        for body in ("ok", "reject"):
            local.client.send_message(QueueUrl=url, MessageBody=body)
        result = deliver(handler, url, local.client)
    assert sorted(result.states) == ["COMMITTED", "DEAD_LETTERED"]


def test_a_batch_that_is_larger_than_an_event_is_refused_and_visible_again(sqs: Any) -> None:
    url = queue(sqs, "orders", *["x" * (MAX_EVENT_BYTES // 6)] * 6)
    with pytest.raises(ValueError, match=r"the batch of 6 messages has 6,\d+,\d+ bytes, and .*: give a smaller batch"):
        deliver(handler, url, sqs)
    assert depth(sqs) == (6, 0)
    assert deliver(handler, url, sqs, batch_size=5).count("COMMITTED") == 5


def test_bad_input_is_refused_with_one_clear_error(sqs: Any) -> None:
    url, fifo = queue(sqs), queue(sqs, "ledger.fifo")
    takes: Any = deliver
    for arguments, error, text in (
        (("handler", url), TypeError, "deliver takes a handler, got 'handler': a consumer, or a function of"),
        (
            (lambda message: None, url),
            TypeError,
            "deliver takes a handler of (event, context), and <lambda> is not one",
        ),
        ((handler, "orders"), ValueError, "deliver takes the URL of a queue, got 'orders': create_queue() and"),
        ((handler, None), ValueError, "deliver takes the URL of a queue, got None"),
        ((handler, url + "s"), ValueError, "has no queue 'orderss': make it with the same client"),
        ((handler, url, sqs, 0), ValueError, "batch_size must be a whole number from 1 to 10,000, got 0"),
        ((handler, url, sqs, 10_001), ValueError, "from 1 to 10,000, got 10001"),
        ((handler, url, sqs, "5"), ValueError, "got '5'"),
        ((handler, fifo, sqs, 11), ValueError, "from 1 to 10 on a FIFO queue, got 11"),
        ((handler, url, boto3.resource("sqs")), TypeError, 'sqs takes an SQS client, boto3.client("sqs"), got sqs.'),
    ):
        with pytest.raises(error) as raised:
            takes(*arguments)
        assert text in str(raised.value)
