"""The function for the mapping probes: it follows the orders in its messages, and reports to the journal queue.

The body of a message has orders by receive count (``ApproximateReceiveCount``); without orders the message succeeds:

    {"1": {"fail": true, "visibility": 40}, "2": {"raise": "an error"}}

- ``delete``: delete the message
- ``visibility``: set its visibility timeout, in seconds
- ``resend``: send its body to its queue again
- ``sleep``: sleep for seconds
- ``exit``: exit the process
- ``raise``: raise an error with this text
- ``fail``: report the message as failed
- ``answer``: return this value instead of the failures, with ``$id`` replaced by the message's id
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

JOURNAL_BODY_CHARACTERS = 500

_sqs: Any = None


def handler(event: dict[str, Any], context: Any) -> Any:
    """Handle an event in Lambda."""
    global _sqs  # noqa: PLW0603 one client per environment
    if _sqs is None:
        import boto3

        _sqs = boto3.client("sqs")
    return ScriptedFunction(_sqs, os.environ["JOURNAL_URL"], time.time, time.sleep).handle(event, context)


class ScriptedFunction:
    """The handler with its dependencies."""

    def __init__(self, sqs: Any, journal_url: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._sqs = sqs
        self._journal_url = journal_url
        self._clock = clock
        self._sleep = sleep

    def handle(self, event: dict[str, Any], context: Any) -> Any:
        entry = {
            "request": context.aws_request_id,
            "began": self._clock(),
            "left_ms": context.get_remaining_time_in_millis(),
            "records": [{**each, "body": each["body"][:JOURNAL_BODY_CHARACTERS]} for each in event["Records"]],
        }
        self._report(entry)
        try:
            return self._follow_orders(event["Records"])
        finally:
            self._report({**entry, "ended": self._clock()})

    def _report(self, entry: dict[str, Any]) -> None:
        self._sqs.send_message(QueueUrl=self._journal_url, MessageBody=json.dumps(entry))

    def _follow_orders(self, records: list[dict[str, Any]]) -> Any:
        failed, answers = [], []
        for record in records:
            orders = json.loads(record["body"]).get(record["attributes"]["ApproximateReceiveCount"], {})
            self._act(record, orders)
            if orders.get("fail"):
                failed.append({"itemIdentifier": record["messageId"]})
            if "answer" in orders:
                answers.append(_with_id(orders["answer"], record["messageId"]))
        return answers[-1] if answers else {"batchItemFailures": failed}

    def _act(self, record: dict[str, Any], orders: dict[str, Any]) -> None:
        message = {"QueueUrl": self._url(record["eventSourceARN"]), "ReceiptHandle": record["receiptHandle"]}
        if orders.get("delete"):
            self._sqs.delete_message(**message)
        if "visibility" in orders:
            self._sqs.change_message_visibility(**message, VisibilityTimeout=orders["visibility"])
        if orders.get("resend"):
            self._sqs.send_message(QueueUrl=message["QueueUrl"], MessageBody=record["body"])
        if "sleep" in orders:
            self._sleep(orders["sleep"])
        if orders.get("exit"):
            os._exit(1)
        if "raise" in orders:
            raise RuntimeError(orders["raise"])

    def _url(self, arn: str) -> str:
        account, name = arn.split(":")[-2:]
        return f"{self._sqs.meta.endpoint_url}/{account}/{name}"


def _with_id(value: Any, message_id: str) -> Any:
    """Return the value with ``$id`` in its texts replaced by the message's id."""
    if isinstance(value, str):
        return value.replace("$id", message_id)
    if isinstance(value, list):
        return [_with_id(each, message_id) for each in value]
    if isinstance(value, dict):
        return {key: _with_id(each, message_id) for key, each in value.items()}
    return value
