"""Requests that the SQS model refuses, with the code and the text of SQS; a refused request changes nothing."""

import json
from typing import Any

import pytest

from tests.unit.simulator.account import Account, refused, text

MIB = 1_048_576
ARN = "arn:aws:sqs:us-east-1:123456789012:"
PREFIX = "AWS.SimpleQueueService."
INVALID, GONE = "InvalidParameterValue", f"{PREFIX}NonExistentQueue"

Request = tuple[str, str, dict[str, Any]]
"""The operation, the name of the queue whose URL is a parameter, and the other parameters."""


def send(body: str = "body", queue: str = "orders", **more: Any) -> Request:
    return "SendMessage", queue, {"MessageBody": body, **more}


def with_attribute(name: str = "a", value: Any = None, **more: Any) -> Request:
    return send(MessageAttributes={name: {**text("x"), **(value or {}), **more}})


def with_trace(**value: Any) -> Request:
    return send(MessageSystemAttributes={"AWSTraceHeader": {**text("x"), **value}})


def batch(*entries: dict[str, Any], queue: str = "orders") -> Request:
    return "SendMessageBatch", queue, {"Entries": list(entries)}


def entry(entry_id: str = "0", body: str = "x", **more: Any) -> dict[str, Any]:
    return {"Id": entry_id, "MessageBody": body, **more}


def create(name: str = "new", **attributes: str) -> Request:
    return "CreateQueue", "", {"QueueName": name, "Attributes": attributes}


def change(queue: str = "orders", **attributes: str) -> Request:
    return "SetQueueAttributes", queue, {"Attributes": attributes}


def redrive(to: str, count: object = 3) -> str:
    return json.dumps({"deadLetterTargetArn": f"{ARN}{to}", "maxReceiveCount": count})


def receive(**more: Any) -> Request:
    return "ReceiveMessage", "orders", more


def permit(label: str, account: str = "111111111111", *actions: str) -> Request:
    return "AddPermission", "orders", {"Label": label, "AWSAccountIds": [account], "Actions": actions or ["*"]}


def move(source: str = "dead", to: str | None = None, **more: Any) -> Request:
    destination = {} if to is None else {"DestinationArn": f"{ARN}{to}"}
    return "StartMessageMoveTask", "", {"SourceArn": f"{ARN}{source}", **destination, **more}


def wrong(parameter: str, value: object) -> str:
    return f"Value {value} for parameter {parameter} is invalid."


def handle(operation: str, text: str, **more: Any) -> Request:
    return operation, "orders", {"ReceiptHandle": text, **more}


NO_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80"
NO_ENTRY_ID = "can only contain alphanumeric characters, hyphens and underscores"
NO_DEDUPLICATION_ID = "The queue should either have ContentBasedDeduplication enabled or Message"
TYPES = "supported type prefixes: Binary, Number, String."
BATCHES = {"SendMessageBatch": "MessageBody", "DeleteMessageBatch": "ReceiptHandle"}
BATCHES["ChangeMessageVisibilityBatch"] = "ReceiptHandle"

HALVES = [entry(str(number), "x" * (MIB // 2)) for number in (0, 1)]
BAD = "\x00\x0b\ufffe\ud800"
NO_NUMBER = "Can't cast the value of message (user) attribute 'a' to a number."
EMPTY, NO_TRACE = (
    "must contain a non-empty value of type '{}'.",
    "'AWSTraceHeader' must contain a non-empty value of type",
)
NO_DELAY = "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid"
EMPTY_ID = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."
OTHER_VALUE = "A queue already exists with the same name and a different value for attribute DelaySeconds"
NO_FIFO_NAMES = (create("a.fifo"), create("a", FifoQueue="true"))
RANGES = {"VisibilityTimeout": ["43201"], "DelaySeconds": ["901"], "MessageRetentionPeriod": ["59"]}
RANGES |= {"MaximumMessageSize": ["1048577", "many"], "SqsManagedSseEnabled": ["yes"]}
RANGES |= {"ReceiveMessageWaitTimeSeconds": ["21"], "KmsDataKeyReusePeriodSeconds": ["59", "86401"]}
RANGES |= {"Policy": ["x", "[]", '"x"', "{"]}
OF_FIFO = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
NOT_ALLOWED = "You can use one type of server-side encryption (SSE) at one time."
LISTS = ({"StringListValues": ["x"]}, {"BinaryListValues": [b"x"]})
MOST = [("ListQueues", ""), ("ListDeadLetterSourceQueues", "orders")]

REFUSED: dict[str, list[tuple[Request, str]]] = {
    INVALID: [
        (send("x" * (MIB + 1)), f"Reason: Message must be shorter than {MIB} bytes."),  # PLATFORM 17
        *[(with_attribute(**text(f"a{each}")), "Invalid characters found.") for each in BAD],
        (send(MessageAttributes={f"a{number}": text("x") for number in range(11)}),
            "Number of message attributes [11] exceeds the allowed maximum [10]."),  # PLATFORM 18
        *[(with_attribute(name), f"The message attribute name '{name}' is invalid.")
            for name in ("", "a b", ".a", "a.", "a..b", "AWS.a", "amazon.a", "a!", "§", "a(", "٣", "x" * 257)],
        (with_attribute(StringValue=""), f"attribute 'a' {EMPTY.format('String')}"),
        (with_attribute(DataType="Binary"), f"attribute 'a' {EMPTY.format('Binary')}"),
        *[(with_attribute(DataType=each), TYPES) for each in ("", "string", "Text", "String.", "List.String")],
        (with_attribute(**text("one", "Number")), NO_NUMBER),
        (send(MessageSystemAttributes={"SenderId": text("me")}), "SenderId"),
        *[(send(MessageSystemAttributes={"AWSTraceHeader": each}), f"'AWSTraceHeader' {EMPTY.format('String')}")
            for each in ({"DataType": "Binary", "BinaryValue": b"x"}, text(""))],
        *[(send(DelaySeconds=each), wrong("DelaySeconds", each)[:-1]) for each in (-1, 901)],  # PLATFORM 3
        (send(MessageDeduplicationId="1"), "not valid for this queue type"),
        (send(queue="ledger.fifo", MessageGroupId="a", DelaySeconds=2), NO_DELAY),
        (send(queue="plain.fifo", MessageGroupId="a"), NO_DEDUPLICATION_ID),  # PLATFORM 20
        *[(send(queue=queue, MessageGroupId="a", MessageDeduplicationId=""), EMPTY_ID)
            for queue in ("ledger.fifo", "plain.fifo")],
        (batch(entry(MessageDeduplicationId="d"), queue="plain.fifo"),
            "The request must contain the parameter MessageGroupId."),
        (batch(entry(MessageGroupId="g"), queue="plain.fifo"), NO_DEDUPLICATION_ID[:63]),
        *[(receive(MaxNumberOfMessages=each), f"{wrong('MaxNumberOfMessages', each)} Reason: Must")
            for each in (0, 11)],
        (receive(WaitTimeSeconds=21), "Value 21 for parameter WaitTimeSeconds is invalid"),
        (receive(VisibilityTimeout=43_201), "Value 43201 for parameter VisibilityTimeout is invalid"),
        *[(create(each), NO_NAME) for each in ("", "a b", "a.b", "x" * 81)],
        (create("x" * 76 + ".fifo", FifoQueue="true"), NO_NAME),
        *[(each, "end with .fifo suffix") for each in NO_FIFO_NAMES],
        *[((*each, {"MaxResults": most}), wrong("MaxResults", most)) for each in MOST for most in (0, 1_001)],
        (permit("one"), "Value one for parameter Label is invalid. Reason: Already exists."),
        (("RemovePermission", "orders", {"Label": "two"}),
            "Value two for parameter Label is invalid. Reason: can't find label."),
        (permit("two", "111111111111", "Eat"), "Value SQS:Eat for parameter ActionName is invalid."),
        (permit("two", "bob"), "for parameter PrincipalId is invalid. Reason: Unable to verify."),
        (permit("a b"), "Value a b for parameter Label is invalid."),
        # redrive policies: PLATFORM 23
        (create(RedrivePolicy=redrive("deadx")), "Dead letter target does not exist."),
        (create("new.fifo", FifoQueue="true", RedrivePolicy=redrive("dead")),
            "Dead-letter queue must be same type of queue as the source."),
        *[(create(RedrivePolicy=redrive("dead", count)),
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to")
            for count in (0, 1001, "many", 3.5, True, "3.0", " 3", "9" * 5_000)],
        (create(RedrivePolicy="{}"), "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
        (create(RedrivePolicy='{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}'),
            "Invalid value for deadLetterTargetArn."),
        (create(RedrivePolicy=redrive("private")), "does not permit this source queue"),
        *[(create(RedriveAllowPolicy=json.dumps({"redrivePermission": each, "sourceQueueArns": [f"{ARN}orders"]})),
            "sourceQueueArns may be given only if redrivePermission is byQueue.")
            for each in ("allowAll", "denyAll")],
        # message move tasks: PLATFORM 24
        (move("orders"), "Source queue must be configured as a Dead Letter Queue."),
        *[(move(to=each), "Source queue and destination queue must") for each in ("ledger.fifo", "dead")],
        *[(move(MaxNumberOfMessagesPerSecond=each), wrong("MaxNumberOfMessagesPerSecond", each)) for each in (0, 501)],
    ],
    "MissingParameter": [
        (send(""), "MessageBody"),
        (send(queue="ledger.fifo"), "The request must contain the parameter MessageGroupId."),
        (handle("DeleteMessage", ""), "contain the parameter ReceiptHandle"),
        (handle("ChangeMessageVisibility", "", VisibilityTimeout=1), "contain the parameter ReceiptHandle"),
    ],
    "InvalidMessageContents": [(send(f"a{each}b"), "Invalid characters found.") for each in BAD],
    f"{PREFIX}UnsupportedOperation": [(made(**lists), "list values in SendMessage operation are not")
        for made in (with_attribute, with_trace) for lists in LISTS],
    "SerializationException": [(("SendMessage", "orders", {}), 'Missing required parameter in input: "MessageBody"')],
    GONE: [
        (send(queue="others"), "The specified queue does not exist."),
        (("GetQueueUrl", "", {"QueueName": "others"}), "The specified queue does not exist."),
        (("GetQueueUrl", "", {"QueueName": "orders", "QueueOwnerAWSAccountId": "210987654321"}),
            "The specified queue does not exist or you do not have access to it."),
    ],
    # batches: PLATFORM 16, 17
    f"{PREFIX}EmptyBatchRequest": [((each, "orders", {"Entries": []}), f"at least one {each}RequestEntry in the req")
        for each in BATCHES],
    f"{PREFIX}TooManyEntriesInBatchRequest": [
        ((each, "orders", {"Entries": [{"Id": str(number), parameter: "x"} for number in range(11)]}),
            "Maximum number of entries per request are 10. You have sent 11.")
        for each, parameter in BATCHES.items()
    ],
    f"{PREFIX}InvalidBatchEntryId": [(batch(entry(each)), NO_ENTRY_ID) for each in ("", "a.b", "x" * 81, "ä")],
    f"{PREFIX}BatchEntryIdsNotDistinct": [(batch(entry(), entry()), "Id 0 repeated.")],
    f"{PREFIX}BatchRequestTooLong": [
        (batch({**HALVES[0], "MessageAttributes": {"a": text("1")}}, HALVES[1]),
            "longer than 1048576 bytes. You have sent 1048584 bytes."),
    ],
    "ReceiptHandleIsInvalid": [(handle("DeleteMessage", each), "is not a valid receipt handl")
        for each in ("nonsense", "bm9uc2Vuc2U=")],
    "QueueAlreadyExists": [(create("orders", DelaySeconds="1"), OTHER_VALUE)],
    "InvalidAttributeValue": [
        *[(change(**{name: value}), f"Invalid value for the parameter {name}.") for name, values in RANGES.items()
            for value in values],
        (change("ledger.fifo", FifoQueue="false"), "Modifying queue type is not supported."),
        *[(each, "Invalid value for the parameter FifoThroughputLimit.")
            for each in (create("new.fifo", FifoQueue="true", FifoThroughputLimit="perMessageGroupId"),
                         change("fast.fifo", DeduplicationScope="queue"))],
    ],
    "InvalidAttributeName": [
        (receive(AttributeNames=["Foo"]), "Unknown Attribute Foo."),
        (("GetQueueAttributes", "orders", {"AttributeNames": ["Foo"]}), "Unknown Attribute Foo."),
        *[(change(**{name: "true"}), f"Unknown Attribute {name}.")
            for name in ("Foo", "ContentBasedDeduplication", "FifoQueue")],
        *[(made(**{name: value}), f"You can specify the {name} only when FifoQueue is set to true.")
            for made in (change, create) for name, value in OF_FIFO.items()],
        (change(KmsMasterKeyId="key", SqsManagedSseEnabled="true"), NOT_ALLOWED),
    ],
    "OverLimit": [
        (permit("two", "111111111111", *["*"] * 8), "8 Actions were found, maximum allowed is 7."),
    ],
    "ResourceNotFoundException": [(move("deadx"), "SourceArn"), (move(to="deadx"), "DestinationArn")],
}  # fmt: skip


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("dead")
    account.queue("orders", dead_letter="dead")
    account.queue("ledger.fifo")
    account.queue("plain.fifo", ContentBasedDeduplication="false")
    account.queue("fast.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [account.sqs.arn("orders")]}
    account.queue("private", RedriveAllowPolicy=json.dumps(allowed))
    account.call("AddPermission", "orders", Label="one", AWSAccountIds=["111111111111"], Actions=["*"])
    account.send("orders")
    return account


def contents(account: Account) -> list[Any]:
    return [(name, account.attributes(name), list(account.sqs.peek(name))) for name in account.sqs.queues()]


def call(account: Account, request: Request) -> dict[str, Any]:
    operation, queue, parameters = request
    return account.sqs.call(operation, {**({"QueueUrl": account.sqs.url(queue)} if queue else {}), **parameters})


ROWS = [(code, *row) for code, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("code", "request_", "words"), ROWS, ids=[f"{n} {row[1][0]}" for n, row in enumerate(ROWS)])
def test_a_request_is_refused_as_by_sqs_and_changes_nothing(
    account: Account, code: str, request_: Request, words: str
) -> None:
    before = contents(account)
    with refused(code, words):
        call(account, request_)
    assert contents(account) == before


ACCEPTED: list[Request] = [
    send("x" * MIB),
    send(MessageAttributes={f"a{number}": text("x") for number in range(10)}),
    send(MessageAttributes={"a": text("x", "String.label"), "n": text("-1.5e3", "Number.float")}),
    send(queue="ledger.fifo", MessageGroupId="a", DelaySeconds=0),
    batch(*HALVES),
    change(RedrivePolicy=redrive("private")),
    change("ledger.fifo", FifoQueue="true"),
    change("fast.fifo", DeduplicationScope="queue", FifoThroughputLimit="perQueue"),
    create(RedrivePolicy=redrive("dead", "42")),
    create("orders", VisibilityTimeout="30"),
    ("GetQueueUrl", "", {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}),
]


@pytest.mark.parametrize("request_", ACCEPTED, ids=[f"{n} {row[0]}" for n, row in enumerate(ACCEPTED)])
def test_a_request_at_the_limit_is_accepted(account: Account, request_: Request) -> None:
    operation, queue, parameters = request_
    assert "Failed" not in call(account, request_)
    if operation.startswith("Send"):
        assert account.receive(queue)
    for name, value in parameters.get("Attributes", {}).items():
        assert account.attributes(queue or parameters["QueueName"])[name] == value
