"""The SQS model gives the same answers and errors in process and over HTTP."""

import json
import re
from random import Random
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs
from tests.served import served
from tests.wire import ACCOUNT, TestClock

SEED = 7


class Script:
    """The requests of one client, with their answers and the errors that boto3 raised."""

    def __init__(self, client: Any, endpoint: str) -> None:
        self.client = client
        self.endpoint = endpoint
        self.results: list[Any] = []

    def url(self, queue: str) -> str:
        return f"{self.endpoint}/{ACCOUNT}/{queue}"

    def ask(self, operation: str, queue: str | None = None, **parameters: Any) -> dict[str, Any]:
        if queue is not None:
            parameters["QueueUrl"] = self.url(queue)
        try:
            answer: dict[str, Any] = getattr(self.client, operation)(**parameters)
        except ClientError as error:
            answer = {"raised": type(error).__name__, "text": str(error), **error.response}
        metadata = answer.pop("ResponseMetadata")
        self.results.append((operation, metadata["HTTPStatusCode"], _without_times(answer)))
        return answer

    def lease(self, queue: str) -> str:
        """Receive the next message; return its handle."""
        asked = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        [message] = self.ask("receive_message", queue, **asked)["Messages"]
        handle: str = message["ReceiptHandle"]
        return handle


def _without_times(answer: Any) -> Any:
    text = json.dumps(answer, sort_keys=True, default=lambda value: f"bytes {value.hex()}")
    return json.loads(re.sub(r'(Timestamp": )"\d+"', r'\1"..."', text))


def make_requests(script: Script) -> None:
    ask = script.ask
    ask("create_queue", QueueName="dead")
    policy = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 2})
    ask("create_queue", QueueName="work", Attributes={"RedrivePolicy": policy}, tags={"team": "orders"})
    ask("create_queue", QueueName="work", Attributes={"VisibilityTimeout": "7"})
    ask("create_queue", QueueName="work.fifo", Attributes={"FifoQueue": "true"})
    ask("create_queue", QueueName="wrong name")
    ask("get_queue_url", QueueName="work")
    ask("get_queue_url", QueueName="nowhere")
    ask("list_queues", QueueNamePrefix="work")
    ask("list_queue_tags", "work")
    ask("list_dead_letter_source_queues", "dead")
    ask("set_queue_attributes", "work", Attributes={"VisibilityTimeout": "40"})
    ask("set_queue_attributes", "work", Attributes={"VisibilityTimeout": "50000"})
    ask("get_queue_attributes", "work", AttributeNames=["All"])
    ask("get_queue_attributes", "work", AttributeNames=["Colour"])
    ask("get_queue_attributes", "work")

    attributes = {
        "text": {"DataType": "String", "StringValue": "é\n\U0001f600"},
        "number": {"DataType": "Number.int", "StringValue": "-1"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-0-0"}}
    ask("send_message", "work", MessageBody="a", MessageAttributes=attributes, MessageSystemAttributes=trace)
    ask("send_message", "work", MessageBody="")
    ask("send_message", "work", MessageBody="\x00")
    ask("send_message", "work", MessageBody="x" * 1_048_577)
    ask("send_message", "work", MessageBody="b", DelaySeconds=901)
    ask("send_message", "work", MessageBody="b", MessageDeduplicationId="1")
    ask("send_message", "nowhere", MessageBody="b")
    ask("send_message", "work.fifo", MessageBody="1")
    for body in ("1", "2"):
        ask("send_message", "work.fifo", MessageBody=body, MessageGroupId="a", MessageDeduplicationId="same")
    entries = [{"Id": str(number), "MessageBody": "e", "DelaySeconds": 899 + number} for number in range(3)]
    ask("send_message_batch", "work", Entries=entries)
    ask("send_message_batch", "work", Entries=[])
    ask("send_message_batch", "work", Entries=[*entries, entries[0]])
    ask("send_message_batch", "work", Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(11)])
    ask("send_message_batch", "work", Entries=[{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)])

    handle = script.lease("work")
    ask("receive_message", "work")
    ask("receive_message", "work", MaxNumberOfMessages=11)
    ask("receive_message", "work", WaitTimeSeconds=21)
    ask("change_message_visibility", "work", ReceiptHandle=handle, VisibilityTimeout=43_201)
    ask("change_message_visibility", "work", ReceiptHandle="none", VisibilityTimeout=0)
    ask("change_message_visibility", "work", ReceiptHandle=handle, VisibilityTimeout=0)
    handle = script.lease("work")
    changes = [{"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 0}, {"Id": "bad", "ReceiptHandle": "none"}]
    ask("change_message_visibility_batch", "work", Entries=changes)
    ask("receive_message", "work")  # moves the message to the dead-letter queue
    handle = script.lease("dead")
    ask("delete_message_batch", "dead", Entries=[{"Id": "0", "ReceiptHandle": handle}])
    ask("delete_message", "dead", ReceiptHandle=handle)
    ask("delete_message", "dead", ReceiptHandle="none")
    ask("delete_message", "work.fifo", ReceiptHandle=script.lease("work.fifo"))

    ask("start_message_move_task", SourceArn=f"arn:aws:sqs:us-east-1:{ACCOUNT}:work")
    ask("list_message_move_tasks", SourceArn=f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead")
    ask("add_permission", "work", Label="all", AWSAccountIds=[ACCOUNT], Actions=["*"])
    ask("purge_queue", "work")
    ask("purge_queue", "work")
    ask("delete_queue", "work")
    ask("create_queue", QueueName="work")
    ask("delete_queue", "work")


def in_process(endpoint: str) -> Script:
    clock = TestClock()
    sqs = Sqs(clock.time, Random(SEED), History(clock.time))
    sqs.endpoint_url = endpoint
    return Script(SimulatedClient(sqs, clock), endpoint)


def test_model_and_server_give_the_same_answers_and_errors() -> None:
    with served(SEED) as here:
        ours, theirs = in_process(here.url), Script(here.client, here.url)
        make_requests(ours)
        make_requests(theirs)
    for of_model, of_server in zip(ours.results, theirs.results, strict=True):
        assert of_server == of_model
    assert len({answer.get("raised") for _, _, answer in ours.results}) > 10
