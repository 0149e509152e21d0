"""Requests to the SQS model with any value in place of each parameter, and the fast checks of requests and answers.

Each request is answered, or refused as by SQS; the checks accept only what botocore's validator accepts.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from docs.generator.sqs_api import MESSAGE, REQUESTS, Account, copied, inner, parameters, state_of_operation
from tarry.tools.simulator.http.requests import parameters_in
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.simulator.sqs.errors import fitting, report_of, service_model

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


# the fast checks

SHAPES = [
    shape
    for name in service_model().operation_names
    for shape in (service_model().operation_model(name).input_shape, service_model().operation_model(name).output_shape)
    if shape is not None
]
STRANGE = st.sampled_from([None, True, -1, 1.5, "", "text", b"bytes", [], ["a"], {}, {"A": "b"}, (1,)])


def values_of(shape: Any) -> st.SearchStrategy[Any]:
    """Generate values that fit a shape, and some that do not."""
    fitting: st.SearchStrategy[Any]
    match shape.type_name:
        case "structure":
            required = {name: values_of(shape.members[name]) for name in shape.required_members}
            optional = {name: values_of(field) for name, field in shape.members.items() if name not in required}
            fitting = st.fixed_dictionaries(required, optional=optional)
        case "list":
            fitting = st.lists(values_of(shape.member), max_size=2)
        case "map":
            fitting = st.dictionaries(values_of(shape.key), values_of(shape.value), max_size=2)
        case "string":
            fitting = st.sampled_from(["", "a"])
        case "boolean":
            fitting = st.booleans()
        case "blob":
            fitting = st.sampled_from([b"", b"a"])
        case _:
            fitting = st.integers(-1, 1)
    hashable = shape.type_name == "string"
    return st.one_of(*[fitting] * 9, STRANGE.filter(lambda each: not hashable or isinstance(each, str)))


@given(st.sampled_from(SHAPES).flatmap(lambda shape: st.tuples(st.just(shape), values_of(shape))))
def test_the_fast_check_accepts_only_values_that_botocore_accepts(given: tuple[Any, Any]) -> None:
    shape, value = given
    if fitting(shape)(value):
        assert report_of(value, shape) == ""


def test_the_fast_check_accepts_a_common_request() -> None:
    shape = service_model().operation_model("SendMessageBatch").input_shape
    attributes = {
        "kind": {"DataType": "String", "StringValue": "order"},
        "b": {"DataType": "Binary", "BinaryValue": b"x"},
    }
    entry = {"Id": "0", "MessageBody": "a", "DelaySeconds": 5, "MessageAttributes": attributes}
    assert fitting(shape)({"QueueUrl": "u", "Entries": [entry]})
