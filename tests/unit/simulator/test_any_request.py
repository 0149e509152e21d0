"""Requests to the SQS model with any value in place of each parameter: each is answered, or refused as by SQS."""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from docs.generator.sqs_api import MESSAGE, REQUESTS, Account, copied, inner, parameters, state_of_operation
from tarry.tools.simulator.http.requests import parameters_in
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.simulator.sqs.errors import service_model

ATTRIBUTES = service_model().shape_for("QueueAttributeName").metadata["enum"]
TEXTS = [
    "",
    "x",
    "All",
    ".*",
    "true",
    "0",
    "-1",
    "\0",
    "\ud800",
    "9" * 5000,
    "{}",
    "[]",
    "Number",
    "Binary",
    "//[",
    "MQ==",
]
TEXTS += ['{"deadLetterTargetArn": 5, "maxReceiveCount": []}', '{"redrivePermission": [], "sourceQueueArns": {}}']
TEXTS += [f"arn:aws:sqs:us-east-1:123456789012:{name}" for name in ("orders", "dead", "nowhere")]
TEXTS += [f'{{"deadLetterTargetArn": "{TEXTS[-1]}", "maxReceiveCount": {count}}}' for count in ("1.5", '"1"', '"x"')]
TEXTS += [f"http://x/123456789012/{name}" for name in ("orders.fifo", "dead", "nowhere", "")]
NUMBERS = [-1, 0, 1, 10, 11, 20, 21, 901, 43_201, 10**30, 1.5, 1e308]
LISTS: list[Any] = [[], [None], [[]], [{}], ["x"] * 11, [{"Id": "1"}, {"Id": "1"}]]
OBJECTS: list[Any] = [{}, {"a": {}}, {"a": "x"}, *({name: {"DataType": "String"}} for name in ("AWSTraceHeader", ""))]
VALUES = [None, True, *TEXTS, *NUMBERS, *LISTS, *OBJECTS, *({name: text} for name in ATTRIBUTES for text in TEXTS)]
"""Values for a parameter; None leaves it out."""


def requests(operation: str, account: Account) -> Iterator[dict[str, Any]]:
    """Yield requests that are answered, but for one parameter each."""
    if state_of_operation(operation) == "not known":
        return
    request = REQUESTS[operation](account)
    sent = request["Entries"][0] if operation == "SendMessageBatch" else request
    if operation.startswith("SendMessage"):
        sent |= copied(MESSAGE)
    for parameter in parameters(operation):
        *path, last = parameter.split(".")
        for value in VALUES if last == "Attributes" else VALUES[: -len(ATTRIBUTES) * len(TEXTS)]:
            changed = copied(request)
            inner(changed, path)[last] = value
            yield changed


def test_no_request_is_a_bug_of_the_simulator() -> None:
    failed = []
    for operation in service_model().operation_names:
        account = Account()
        for request in requests(operation, account):
            body = json.dumps(request, default=lambda value: b64encode(value).decode())
            try:
                account.sqs.call(operation, parameters_in(operation, body.encode()))
            except SqsError:
                continue
            except Exception as error:  # noqa: BLE001 any other error is a bug
                failed.append((operation, request, repr(error)))
    assert failed == []
