"""docs/reference/sqs-api.md: the parameters of SQS that the embedded SQS serves, found by making requests.

Each parameter is added to a request that is answered, or its value is changed. If the answers and the queues are the
same as without the change, the parameter is not known.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from random import Random
from typing import Any

from botocore.model import ListShape, MapShape, Shape, StructureShape

from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs, SqsError
from tarry.tools.simulator.sqs.errors import service_model

NOW = 1_800_000_000.0
OTHER_ACCOUNT = "210987654321"
STATES = ("served", "refused", "not known")
NO_OPERATION = "The simulator does not know the operation"

Request = dict[str, Any]
Result = Any
Found = dict[str, str]
"""The state of each parameter of an operation, by name; a refused one has SQS's text after a colon."""

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
TEXT, BINARY = {"DataType": "String", "StringValue": "x"}, {"DataType": "Binary", "BinaryValue": b"x"}
TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-0-0"}}
MESSAGE = {"MessageBody": "x", "MessageAttributes": {"a": TEXT}, "MessageSystemAttributes": TRACE}


class Account:
    """A model of SQS with messages in the queues ``orders``, ``orders.fifo`` and ``dead``, a dead-letter queue."""

    def __init__(self) -> None:
        self.sqs = Sqs(lambda: NOW, Random(1), History(lambda: NOW))
        self("CreateQueue", QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": self.arn("dead"), "maxReceiveCount": 1})
        for name in ("orders", "other"):
            self("CreateQueue", QueueName=name, Attributes={"RedrivePolicy": policy}, tags={"of": name})
        self("CreateQueue", QueueName="orders.fifo", Attributes=FIFO)
        self("SendMessage", QueueUrl=self.url("orders.fifo"), MessageBody="x", MessageGroupId="a")
        self._send_two()
        for _ in range(2):  # the second receive moves both messages to the dead-letter queue
            self("ReceiveMessage", QueueUrl=self.url(), MaxNumberOfMessages=10, VisibilityTimeout=0)
        self._send_two()

    def __call__(self, operation: str, **request: Any) -> dict[str, Any]:
        return self.sqs.call(operation, request)

    def url(self, queue: str = "orders") -> str:
        return self.sqs.url(queue)

    def arn(self, queue: str) -> str:
        return self.sqs.arn(queue)

    def _send_two(self) -> None:
        for _ in range(2):
            self("SendMessage", QueueUrl=self.url(), **MESSAGE)

    @cached_property
    def handles(self) -> list[str]:
        """The receipt handles of two messages of ``orders``."""
        answer = self("ReceiveMessage", QueueUrl=self.url(), MaxNumberOfMessages=2, VisibilityTimeout=60)
        return [message["ReceiptHandle"] for message in answer["Messages"]]

    def start_move(self) -> str:
        """Start to move the messages of ``dead``; return the handle of the task."""
        request = {"SourceArn": self.arn("dead"), "MaxNumberOfMessagesPerSecond": 1}
        handle: str = self("StartMessageMoveTask", **request)["TaskHandle"]
        return handle

    def result(self, operation: str, request: Request) -> Result:
        """Make a request twice; return the answers or errors, and everything that a request can change."""
        wait = self.sqs.wait_seconds(request) if operation == "ReceiveMessage" else None
        return [self.answer(operation, request) for _ in range(2)], wait, self._state()

    def answer(self, operation: str, request: Request) -> dict[str, Any] | str:
        try:
            return self(operation, **request)
        except SqsError as error:
            return error.message

    def _state(self) -> Any:
        tasks = self("ListMessageMoveTasks", SourceArn=self.arn("dead"), MaxResults=10)
        return tasks, [self._state_of(queue) for queue in self.sqs.queues()]

    def _state_of(self, queue: str) -> Any:
        asked = {"QueueUrl": self.url(queue)}
        attributes = self("GetQueueAttributes", AttributeNames=["All"], **asked)
        return attributes, self("ListQueueTags", **asked), [asdict(each) for each in self.sqs.peek(queue)]


Make = Callable[[Account], Any]


def _of_queue(account: Account, queue: str = "orders", **more: Any) -> Request:
    return {"QueueUrl": account.url(queue), **more}


def _with_handle(account: Account, **more: Any) -> Request:
    return _of_queue(account, ReceiptHandle=account.handles[0], **more)


def _with_handles(account: Account, **more: Any) -> Request:
    return _of_queue(account, Entries=[{"Id": "1", "ReceiptHandle": account.handles[0], **more}])


def _permission(account: Account) -> Request:
    return _of_queue(account, Label="a", AWSAccountIds=[OTHER_ACCOUNT], Actions=["SendMessage"])


def _after_permission(account: Account) -> Request:
    account("AddPermission", **_permission(account))
    return _of_queue(account, Label="a")


def _after_moves(account: Account) -> Request:
    account("CancelMessageMoveTask", TaskHandle=account.start_move())
    account.start_move()
    return {"SourceArn": account.arn("dead")}


REQUESTS: dict[str, Make] = {
    "AddPermission": _permission,
    "CancelMessageMoveTask": lambda account: {"TaskHandle": account.start_move()},
    "ChangeMessageVisibility": lambda account: _with_handle(account, VisibilityTimeout=7),
    "ChangeMessageVisibilityBatch": lambda account: _with_handles(account, VisibilityTimeout=7),
    "CreateQueue": lambda _: {"QueueName": "new"},
    "DeleteMessage": _with_handle,
    "DeleteMessageBatch": _with_handles,
    "DeleteQueue": _of_queue,
    "GetQueueAttributes": lambda account: _of_queue(account, AttributeNames=["QueueArn"]),
    "GetQueueUrl": lambda _: {"QueueName": "orders"},
    "ListDeadLetterSourceQueues": lambda account: _of_queue(account, "dead"),
    "ListMessageMoveTasks": _after_moves,
    "ListQueueTags": _of_queue,
    "ListQueues": lambda _: {},
    "PurgeQueue": _of_queue,
    "ReceiveMessage": _of_queue,
    "RemovePermission": _after_permission,
    "SendMessage": lambda account: _of_queue(account, MessageBody="x"),
    "SendMessageBatch": lambda account: _of_queue(account, Entries=[{"Id": "1", "MessageBody": "x"}]),
    "SetQueueAttributes": lambda account: _of_queue(account, Attributes={"DelaySeconds": "7"}),
    "StartMessageMoveTask": lambda account: {"SourceArn": account.arn("dead")},
    "TagQueue": lambda account: _of_queue(account, Tags={"a": "x"}),
    "UntagQueue": lambda account: _of_queue(account, TagKeys=["of"]),
}
"""A request of each operation that is answered."""
BEFORE: Mapping[str, Any] = {
    "ListDeadLetterSourceQueues.NextToken": {"MaxResults": 1},
    "ListQueues.NextToken": {"MaxResults": 1},
    "MessageAttributes.BinaryValue": {"MessageAttributes": {"a": BINARY}},
    "MessageAttributes.": {"MessageAttributes": {"a": TEXT}},
    "MessageSystemAttributes.": {"MessageSystemAttributes": TRACE},
    "MessageDeduplicationId": {"QueueUrl": lambda account: account.url("orders.fifo"), "MessageGroupId": "a"},
    "ReceiveRequestAttemptId": {"QueueUrl": lambda account: account.url("orders.fifo")},
}
"""The members without which some parameters have no effect. The first text that is in the parameter's name counts."""
VALUES: dict[str, Any] = {
    "AWSAccountIds": ["123456789012"],
    "Actions": ["ReceiveMessage"],
    "AttributeNames": ["All"],
    "Attributes": {"DelaySeconds": "9"},
    "BinaryListValues": [b"y"],
    "BinaryValue": b"y",
    "DataType": "String.y",
    "DelaySeconds": 9,
    "DestinationArn": lambda account: account.arn("other"),
    "Entries": [],
    "Id": "2",
    "Label": "b",
    "ListDeadLetterSourceQueues.NextToken": lambda account: account(
        "ListDeadLetterSourceQueues", QueueUrl=account.url("dead"), MaxResults=1
    )["NextToken"],
    "ListMessageMoveTasks.MaxResults": 2,
    "ListQueues.NextToken": lambda account: account("ListQueues", MaxResults=1)["NextToken"],
    "MaxNumberOfMessages": 2,
    "MaxNumberOfMessagesPerSecond": 1,
    "MaxResults": 1,
    "MessageAttributeNames": ["All"],
    "MessageAttributes": {"a": TEXT},
    "MessageBody": "y",
    "MessageDeduplicationId": "y",
    "MessageGroupId": "y",
    "MessageSystemAttributeNames": ["All"],
    "MessageSystemAttributes": TRACE,
    "QueueName": "other",
    "QueueNamePrefix": "other",
    "QueueOwnerAWSAccountId": OTHER_ACCOUNT,
    "QueueUrl": lambda account: account.url("other"),
    "ReceiptHandle": lambda account: account.handles[1],
    "ReceiveRequestAttemptId": "y",
    "SourceArn": lambda account: account.arn("other"),
    "StringListValues": ["y"],
    "StringValue": "y",
    "TagKeys": ["none"],
    "Tags": {"a": "y"},
    "TaskHandle": "y",
    "VisibilityTimeout": 9,
    "WaitTimeSeconds": 9,
    "tags": {"a": "y"},
}
"""The values to which parameters are changed, by the parameter's name or the end of it."""


def parameters(operation: str) -> dict[str, bool]:
    """Return whether each parameter is required, by its name. The members of a structure are named ``Entries.Id``."""

    def members(shape: Shape | None, prefix: str) -> Iterator[tuple[str, bool]]:
        match shape:
            case StructureShape():
                for name, member in shape.members.items():
                    yield f"{prefix}{name}", name in shape.required_members
                    yield from members(member, f"{prefix}{name}.")
            case ListShape():
                yield from members(shape.member, prefix)
            case MapShape():
                yield from members(shape.value, prefix)

    return dict(members(service_model().operation_model(operation).input_shape, ""))


def state_of_operation(operation: str) -> str:
    account = Account()
    try:
        account(operation, **_request(account, operation))
    except SqsError as error:
        return "not known" if error.message.startswith(NO_OPERATION) else f"refused: {error.message}"
    return "served"


def _request(account: Account, operation: str) -> Request:
    if operation not in REQUESTS:
        raise LookupError(f"SQS has a new operation {operation}: add it to REQUESTS in {__name__}")
    request: Request = REQUESTS[operation](account)
    return request


def state_of(operation: str, parameter: str, *, required: bool) -> str:
    """Return whether a parameter is served, refused or not known."""
    without, changed = _result(operation, parameter), _result(operation, parameter, change=True)
    if changed == without:
        return "not known"
    [first, _], *_ = changed
    return f"refused: {first}" if isinstance(first, str) and not required else "served"


def _result(operation: str, parameter: str, *, change: bool = False) -> Result:
    account = Account()
    request = _request(account, operation)
    name = f"{operation}.{parameter}"
    *path, last = parameter.split(".")
    entry = inner(request, path[:1]) if path[:1] == ["Entries"] else request
    for member, value in next((needed for text, needed in BEFORE.items() if text in name), {}).items():
        (request if member == "QueueUrl" else entry)[member] = _made(value, account)
    if change:
        value = next((VALUES[each] for each in (name, last) if each in VALUES), None)
        if value is None:
            raise LookupError(f"SQS has a new parameter {name}: add a value to VALUES in {__name__}")
        inner(request, path)[last] = _made(value, account)
    return account.result(operation, request)


def _made(value: Any, account: Account) -> Any:
    return value(account) if callable(value) else copied(value)


def copied(value: Any) -> Any:
    """Return a copy whose objects and lists can be changed."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def inner(request: Any, path: Sequence[str]) -> Any:
    """Return the structure at the path: the first of a list, the only one of a map."""
    for name in path:
        [request, *_] = request[name].values() if isinstance(request[name], dict) else request[name]
    return request


# names that are values


SETTINGS: Mapping[str, str] = {
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
    "FifoQueue": "true",
    "FifoThroughputLimit": "perMessageGroupId",
    "KmsMasterKeyId": "alias/y",
    "MaximumMessageSize": "2048",
    "Policy": '{"Version": "2012-10-17", "Statement": []}',
    "RedriveAllowPolicy": '{"redrivePermission": "denyAll"}',
    "RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 3}',
    "SqsManagedSseEnabled": "false",
    "ReceiveMessageWaitTimeSeconds": "9",
}
"""Values of attributes that are not 100."""
OF_FIFO = frozenset({"ContentBasedDeduplication", "DeduplicationScope", "FifoQueue", "FifoThroughputLimit"})


def state_of_setting(name: str) -> str:
    """Return whether CreateQueue serves an attribute."""
    request: Request = {"QueueName": "new.fifo" if name in OF_FIFO else "new", "Attributes": {}}
    if name in OF_FIFO - {"FifoQueue"}:
        request["Attributes"]["FifoQueue"] = "true"
    if name == "FifoThroughputLimit":
        request["Attributes"]["DeduplicationScope"] = "messageGroup"
    without = Account().result("CreateQueue", request)
    request["Attributes"][name] = SETTINGS.get(name, "100")
    return _compared(without, Account().result("CreateQueue", request))


def state_of_read(name: str) -> str:
    """Return whether GetQueueAttributes serves an attribute."""
    account = Account()
    kept = {name: value for name, value in SETTINGS.items() if name not in OF_FIFO}
    account("CreateQueue", QueueName="full", Attributes={**kept, "KmsDataKeyReusePeriodSeconds": "100"})
    asked = [_of_queue(account, queue, AttributeNames=[name]) for queue in ("full", "orders.fifo")]
    answers = [account.answer("GetQueueAttributes", request) for request in asked]
    return _compared([[{}, {}]], [answers])


def state_of_system_attribute(name: str) -> str:
    """Return whether ReceiveMessage serves a system attribute."""
    states = set()
    for queue in ("orders", "orders.fifo", "dead"):
        request = _of_queue(Account(), queue)
        asked = {**request, "MessageSystemAttributeNames": [name]}
        states.add(_compared(Account().result("ReceiveMessage", request), Account().result("ReceiveMessage", asked)))
    return min(states, key=lambda state: STATES.index(state.partition(":")[0]))


def _compared(without: Result, given: Result) -> str:
    if given == without:
        return "not known"
    first = given[0][0]
    return f"refused: {first}" if isinstance(first, str) else "served"


NAMES: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "`Attributes` of CreateQueue and SetQueueAttributes": ("QueueAttributeName", state_of_setting),
    "`AttributeNames` of GetQueueAttributes": ("QueueAttributeName", state_of_read),
    "`MessageSystemAttributeNames` of ReceiveMessage": ("MessageSystemAttributeName", state_of_system_attribute),
}


# the page


def parts() -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    operations = {operation: state_of_operation(operation) for operation in service_model().operation_names}
    tables = {operation: found(operation, state) for operation, state in operations.items()}
    names = {title: {name: state(name) for name in _enum(shape)} for title, (shape, state) in NAMES.items()}
    counts = [
        _count("operations", operations.values()),
        _count("parameters", [state for table in tables.values() for state in table.values()]),
        _count("names of attributes", [state for table in names.values() for state in table.values()]),
    ]
    return {
        "counts": "\n".join(
            ["| of SQS's API | all | served | refused | not known |", "|---|---|---|---|---|", *counts]
        ),
        "parameters": "\n".join(_table("operation", {f"`{name}`": table for name, table in tables.items()})),
        "names": "\n".join(_table("names in", names)),
    }


def found(operation: str, state: str) -> Found:
    """Return the state of each parameter; all are not known if the operation is not."""
    if state == "not known":
        return dict.fromkeys(parameters(operation), state)
    return {name: state_of(operation, name, required=required) for name, required in parameters(operation).items()}


def _enum(shape: str) -> list[str]:
    names: list[str] = service_model().shape_for(shape).metadata["enum"]
    return sorted(names)


def _count(what: str, states: Any) -> str:
    counted = Counter(state.partition(":")[0] for state in states)
    return f"| {what} | {counted.total()} | {' | '.join(str(counted[state]) for state in STATES)} |"


def _table(title: str, rows: Mapping[str, Found]) -> Iterator[str]:
    """Yield a row for each operation or list with members that are not served."""
    yield f"| {title} | refused, with SQS's text | not known |"
    yield "|---|---|---|"
    for name, states in rows.items():
        cells = [_cell(states, state) for state in STATES if state != "served"]
        if any(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def _cell(states: Found, state: str) -> str:
    """Return the parameters in one state; refused ones with their texts, each text once."""
    texts: dict[str, list[str]] = {}
    for name, each in states.items():
        is_state, _, text = each.partition(": ")
        if is_state == state:
            texts.setdefault(text.replace(f" {name}.", " …").replace(f" {name} ", " … "), []).append(f"`{name}`")
    return "; ".join(", ".join(names) + (f": {text}" if text else "") for text, names in texts.items())
