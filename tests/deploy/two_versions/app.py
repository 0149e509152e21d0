"""A consumer whose messages are deferred, retried, sent again and dead-lettered, and that records each run."""

import os
import time

import boto3
from botocore.exceptions import ClientError

from tarry import DeadLetter, Fixed, Message, RetryInPlace, SendAgain, consumer

TABLE = os.environ["RUNS_TABLE"]

dynamodb = boto3.client("dynamodb")


@consumer(
    max_attempts=2,
    backoff=Fixed(1),
    on_failure=[RetryInPlace(), SendAgain("again", times=2, delay=1), DeadLetter()],
)
def handler(message: Message) -> None:
    """Fail at the first attempts, as many as the body says; before that, defer each message once."""
    is_first = record(message, f"{message.id} {message.attempt}")
    if is_first and message.attempt == 1:
        message.defer(1)
        return
    if message.attempt == 1:
        record(message, f"{message.id} 1 after the deferral")
    if message.attempt <= message.json()["failures"]:
        raise ValueError(f"attempt {message.attempt} fails")


def record(message: Message, key: str) -> bool:
    """Write a run to the table; return whether it is the first with this key."""
    failed = message.failure.attempts if message.failure else 0
    item = {
        "run": {"S": key},
        "message": {"S": message.id},
        "attempt": {"N": str(message.attempt)},
        "failed": {"N": str(failed)},
        "version": {"S": os.environ["VERSION"]},
        "at": {"N": str(time.time_ns())},
    }
    try:
        dynamodb.put_item(TableName=TABLE, Item=item, ConditionExpression="attribute_not_exists(run)")
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return False
    return True
