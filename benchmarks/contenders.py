"""The contenders: one consumer as a bare loop, with Powertools, with a backoff by hand, and with tarry.

All requests go to `ClientThatAnswers`, a boto3 client that does all its work but the network's.
"""

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from hashlib import md5
from itertools import chain, cycle, repeat
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    async_process_partial_response,
    process_partial_response,
)
from botocore.config import Config
from botocore.session import Session

from tarry import Exponential, consumer
from tarry.sqs.client import make_client

Handler = Callable[[Any, Any], Any]
"""A Lambda handler: takes an event and a context."""
Work = Callable[[], object]
"""The work of a handler for one message."""

BARE, POWERTOOLS, BY_HAND, TARRY = "bare loop", "Powertools", "by hand", "tarry"
"""The names of the contenders, in the order of the tables."""

ACCOUNT = "123456789012"
INITIAL, MULTIPLIER, MAXIMUM = 30, 3, 900
"""The backoff of all contenders that have one, in seconds."""
BACKOFF = Exponential(initial=INITIAL, multiplier=MULTIPLIER, maximum=MAXIMUM)

log = logging.getLogger("benchmark")


class BenchmarkContext:
    """The context of an invocation that has 30 seconds left, however long it runs."""

    function_name = "bench"
    aws_request_id = "1"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


# work


def nothing() -> None:
    """Do nothing, so that only the framework is measured."""


def fails() -> None:
    raise ValueError("the payment was declined")


def fails_at(share: float) -> Work:
    """Return work that fails for a share of the messages, evenly distributed."""
    if not share:
        return nothing
    if share == 1:
        return fails
    turns = cycle(chain([True], repeat(False, round(1 / share) - 1)))

    def fails_in_turn() -> None:
        if next(turns):
            fails()

    return fails_in_turn


# events


def event_of(size: int, *, queue: str = "orders", groups: int = 0) -> dict[str, Any]:
    """Return an event of messages that were received now; with ``groups``, of a FIFO queue."""
    now = str(time.time_ns() // 1_000_000)
    attributes = {
        "ApproximateReceiveCount": "1",
        "SentTimestamp": now,
        "SenderId": "AIDAIENQZJOLO23YVJ4VO",
        "ApproximateFirstReceiveTimestamp": now,
    }
    name = f"{queue}.fifo" if groups else queue
    return {
        "Records": [
            {
                "messageId": f"{index:08}-0000-0000-0000-000000000000",
                "receiptHandle": f"{index:08}{'h' * 300}",
                "body": '{"order": 1}',
                "attributes": {**attributes, "MessageGroupId": f"group-{index % groups}"} if groups else attributes,
                "messageAttributes": {},
                "md5OfBody": "8be24c42c6ffc1e7d6b4fc3d9ea1a1f0",
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}",
                "awsRegion": "us-east-1",
            }
            for index in range(size)
        ]
    }


# requests


def answer_to(operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return SQS's answer to a request that succeeds."""
    if operation == "GetQueueAttributes":
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders-dlq", "maxReceiveCount": 15}
        return {
            "Attributes": {
                "VisibilityTimeout": "180",
                "MessageRetentionPeriod": "345600",
                "MaximumMessageSize": "1048576",
                "RedrivePolicy": json.dumps(policy),
            }
        }
    if operation == "GetQueueUrl":
        return {"QueueUrl": f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/{parameters['QueueName']}"}
    entries = parameters.get("Entries", ())
    return {"Successful": [{"Id": entry["Id"], **_receipt(entry)} for entry in entries], "Failed": []}


def _receipt(entry: dict[str, Any]) -> dict[str, str]:
    if "MessageBody" not in entry:
        return {}
    digest = md5(entry["MessageBody"].encode(), usedforsecurity=False).hexdigest()
    return {"MessageId": "copy", "MD5OfMessageBody": digest}


class ClientThatAnswers:
    """Makes boto3 clients whose requests are built and parsed, but not sent: every one succeeds. It counts them."""

    def __init__(self) -> None:
        self.requests = Counter[str]()
        self._calls = threading.local()

    def sqs(self) -> Any:
        return self._answering("sqs", self._session().create_client("sqs"))

    def sqs_of_tarry(self) -> Any:
        """Make a client with the settings of tarry's own."""
        return self._answering("sqs", make_client(self._session()))

    def dynamodb(self) -> Any:
        """Make a client with the timeouts that the guide on idempotency recommends."""
        timeouts = Config(connect_timeout=1, read_timeout=1, retries={"total_max_attempts": 2, "mode": "standard"})
        return self._answering("dynamodb", self._session().create_client("dynamodb", config=timeouts))

    def _session(self) -> Session:
        session = Session()
        session.set_credentials("testing", "testing")
        session.set_config_variable("region", "us-east-1")
        return session

    def _answering(self, service: str, client: Any) -> Any:
        client.meta.events.register(f"provide-client-params.{service}.*", self._keep_parameters)
        client.meta.events.register(f"before-call.{service}", self._answer)
        return client

    def _keep_parameters(self, params: dict[str, Any], **_: Any) -> None:
        self._calls.parameters = params

    def _answer(self, model: Any, **_: Any) -> Any:
        self.requests[model.name] += 1
        return _Ok(), answer_to(model.name, self._calls.parameters)


class _Ok:
    status_code = 200


# handlers


def bare_loop(work: Work) -> Handler:
    """Return the loop that people write first. Failed messages come back after the queue's visibility timeout."""

    def handler(event: Any, _: Any) -> Any:
        failures = []
        for record in event["Records"]:
            try:
                work()
            except Exception:
                log.exception("message %s failed", record["messageId"])
                failures.append({"itemIdentifier": record["messageId"]})
        return {"batchItemFailures": failures}

    return handler


def bare_async_loop(work: Work) -> Handler:
    """Return a loop over the messages that runs all of them as tasks at once."""

    async def handle(_: Any) -> None:
        work()

    async def all_of(records: list[Any]) -> Any:
        results = await asyncio.gather(*map(handle, records), return_exceptions=True)
        failed = [record for record, result in zip(records, results, strict=True) if result is not None]
        return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in failed]}

    return lambda event, _: asyncio.run(all_of(event["Records"]))


def by_hand(work: Work, client: Callable[[], Any]) -> Handler:
    """Return the loop with a backoff that people write with boto3: one request for each failed message."""
    client = cache(client)

    def handler(event: Any, _: Any) -> Any:
        failures = []
        for record in event["Records"]:
            try:
                work()
            except Exception:
                log.exception("message %s failed", record["messageId"])
                receives = int(record["attributes"]["ApproximateReceiveCount"])
                queue = record["eventSourceARN"].rpartition(":")[2]
                client().change_message_visibility(
                    QueueUrl=f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/{queue}",
                    ReceiptHandle=record["receiptHandle"],
                    VisibilityTimeout=min(MAXIMUM, INITIAL * MULTIPLIER ** (receives - 1)),
                )
                failures.append({"itemIdentifier": record["messageId"]})
        return {"batchItemFailures": failures}

    return handler


def powertools(work: Work, **settings: Any) -> Handler:
    """Return the handler of Powertools' documentation; failed messages come back after the visibility timeout."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False, **settings)
    return _powertools(work, processor)


def powertools_fifo(work: Work) -> Handler:
    return _powertools(work, SqsFifoPartialProcessor(skip_group_on_error=True))


def _powertools(work: Work, processor: Any) -> Handler:
    def handle(record: Any) -> None:  # Powertools takes its failing path unless the parameter has this name
        work()

    def handler(event: Any, context: Any) -> Any:
        return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)

    return handler


def powertools_async(work: Work) -> Handler:
    """Return the async handler of Powertools' documentation, which runs all messages of the batch at once."""
    processor = AsyncBatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

    async def handle(record: Any) -> None:
        work()

    def handler(event: Any, context: Any) -> Any:
        return async_process_partial_response(event=event, record_handler=handle, processor=processor, context=context)

    return handler


def tarry(work: Work, **settings: Any) -> Handler:
    def handler(_: Any) -> None:
        work()

    made: Handler = consumer(backoff=BACKOFF, **settings)(handler)
    return made


def tarry_async(work: Work, **settings: Any) -> Handler:
    async def handler(_: Any) -> None:
        work()

    made: Handler = consumer(backoff=BACKOFF, **settings)(handler)
    return made
