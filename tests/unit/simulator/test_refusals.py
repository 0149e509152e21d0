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


NO_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80"
NO_ENTRY_ID = "can only contain alphanumeric characters, hyphens and underscores"
NO_DEDUPLICATION_ID = "The queue should either have ContentBasedDeduplication enabled or Message"
TYPES = "supported type prefixes: Binary, Number, String."
ONLY_FIFO = "You can specify the {} only when FifoQueue is set to true."
BATCHES = {"SendMessageBatch": "MessageBody", "DeleteMessageBatch": "ReceiptHandle"}
BATCHES["ChangeMessageVisibilityBatch"] = "ReceiptHandle"

MESSAGES: list[tuple[Request, str, str]] = [
    (send("x" * (MIB + 1)), INVALID, f"Reason: Message must be shorter than {MIB} bytes."),  # PLATFORM 17
    (send(""), "MissingParameter", "MessageBody"),
    *[(send(f"a{each}b"), "InvalidMessageContents", "Invalid characters found.") for each in "\x00\x0b\ufffe\ud800"],
    *[(with_attribute(**text(f"a{each}")), INVALID, "Invalid characters found.") for each in "\x00\x0b\ufffe\ud800"],
    (
        send(MessageAttributes={f"a{number}": text("x") for number in range(11)}),
        INVALID,
        "Number of message attributes [11] exceeds the allowed maximum [10].",
    ),  # PLATFORM 18
    *[
        (with_attribute(name), INVALID, f"The message attribute name '{name}' is invalid.")
        for name in ("", "a b", ".a", "a.", "a..b", "AWS.a", "amazon.a", "a!", "§", "a(", "٣", "x" * 257)
    ],
    (with_attribute(StringValue=""), INVALID, "attribute 'a' must contain a non-empty value of type 'String'."),
    (with_attribute(DataType="Binary"), INVALID, "attribute 'a' must contain a non-empty value of type 'Binary'."),
    *[(with_attribute(DataType=each), INVALID, TYPES) for each in ("", "string", "Text", "String.", "List.String")],
    (
        with_attribute(**text("one", "Number")),
        INVALID,
        "Can't cast the value of message (user) attribute 'a' to a number.",
    ),
    (send(MessageSystemAttributes={"SenderId": text("me")}), INVALID, "SenderId"),
    *[
        (
            send(MessageSystemAttributes={"AWSTraceHeader": value}),
            INVALID,
            "'AWSTraceHeader' must contain a non-empty value of type 'String'.",
        )
        for value in ({"DataType": "Binary", "BinaryValue": b"x"}, text(""))
    ],
    *[
        (made(**lists), f"{PREFIX}UnsupportedOperation", "list values in SendMessage operation are not")
        for made in (with_attribute, with_trace)
        for lists in ({"StringListValues": ["x"]}, {"BinaryListValues": [b"x"]})
    ],
    *[(send(DelaySeconds=each), INVALID, wrong("DelaySeconds", each)[:-1]) for each in (-1, 901)],  # PLATFORM 3
    (send(MessageDeduplicationId="1"), INVALID, "not valid for this queue type"),
    (
        send(queue="ledger.fifo", MessageGroupId="a", DelaySeconds=2),
        INVALID,
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid",
    ),
    (send(queue="ledger.fifo"), "MissingParameter", "The request must contain the parameter MessageGroupId."),
    (send(queue="plain.fifo", MessageGroupId="a"), INVALID, NO_DEDUPLICATION_ID),  # PLATFORM 20
    *[
        (
            send(queue=queue, MessageGroupId="a", MessageDeduplicationId=""),
            INVALID,
            "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
        for queue in ("ledger.fifo", "plain.fifo")
    ],
    (("SendMessage", "orders", {}), "SerializationException", 'Missing required parameter in input: "MessageBody"'),
    (send(queue="others"), GONE, "The specified queue does not exist."),
    # batches: PLATFORM 16
    *[
        ((each, "orders", {"Entries": []}), f"{PREFIX}EmptyBatchRequest", f"at least one {each}RequestEntry in the req")
        for each in BATCHES
    ],
    *[
        (
            (each, "orders", {"Entries": [{"Id": str(number), parameter: "x"} for number in range(11)]}),
            f"{PREFIX}TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10. You have sent 11.",
        )
        for each, parameter in BATCHES.items()
    ],
    *[(batch(entry(each)), f"{PREFIX}InvalidBatchEntryId", NO_ENTRY_ID) for each in ("", "a.b", "x" * 81, "ä")],
    (batch(entry(), entry()), f"{PREFIX}BatchEntryIdsNotDistinct", "Id 0 repeated."),
    (
        batch(entry("0", "x" * 524_288, MessageAttributes={"a": text("1")}), entry("1", "x" * 524_288)),
        f"{PREFIX}BatchRequestTooLong",
        "longer than 1048576 bytes. You have sent 1048584 bytes.",
    ),  # PLATFORM 17
    (
        batch(entry(MessageDeduplicationId="d"), queue="plain.fifo"),
        INVALID,
        "The request must contain the parameter MessageGroupId.",
    ),
    (batch(entry(MessageGroupId="g"), queue="plain.fifo"), INVALID, NO_DEDUPLICATION_ID[:63]),
    # receives and handles
    *[
        (receive(MaxNumberOfMessages=each), INVALID, f"{wrong('MaxNumberOfMessages', each)} Reason: Must")
        for each in (0, 11)
    ],
    (receive(WaitTimeSeconds=21), INVALID, "Value 21 for parameter WaitTimeSeconds is invalid"),
    (receive(VisibilityTimeout=43_201), INVALID, "Value 43201 for parameter VisibilityTimeout is invalid"),
    (receive(AttributeNames=["Foo"]), "InvalidAttributeName", "Unknown Attribute Foo."),
    *[
        (("DeleteMessage", "orders", {"ReceiptHandle": each}), "ReceiptHandleIsInvalid", "is not a valid receipt handl")
        for each in ("nonsense", "bm9uc2Vuc2U=")
    ],
    *[
        ((each, "orders", {"ReceiptHandle": "", **more}), "MissingParameter", "contain the parameter ReceiptHandle")
        for each, more in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 1}))
    ],
]
QUEUES: list[tuple[Request, str, str]] = [
    (("GetQueueUrl", "", {"QueueName": "others"}), GONE, "The specified queue does not exist."),
    (
        ("GetQueueUrl", "", {"QueueName": "orders", "QueueOwnerAWSAccountId": "210987654321"}),
        GONE,
        "The specified queue does not exist or you do not have access to it.",
    ),
    *[(create(each), INVALID, NO_NAME) for each in ("", "a b", "a.b", "x" * 81)],
    (create("x" * 76 + ".fifo", FifoQueue="true"), INVALID, NO_NAME),
    (create("a.fifo"), INVALID, "end with .fifo suffix"),
    (create("a", FifoQueue="true"), INVALID, "end with .fifo suffix"),
    (
        create("orders", DelaySeconds="1"),
        "QueueAlreadyExists",
        "A queue already exists with the same name and a different value for attribute DelaySeconds",
    ),
    *[
        (change(**{name: value}), "InvalidAttributeValue", f"Invalid value for the parameter {name}.")
        for name, value in (
            ("VisibilityTimeout", "43201"),
            ("DelaySeconds", "901"),
            ("MessageRetentionPeriod", "59"),
            ("MaximumMessageSize", "1048577"),
            ("MaximumMessageSize", "many"),
            ("SqsManagedSseEnabled", "yes"),
            *(("Policy", each) for each in ("x", "[]", '"x"', "{")),
        )
    ],
    (change(Foo="1"), "InvalidAttributeName", "Unknown Attribute Foo."),
    (("GetQueueAttributes", "orders", {"AttributeNames": ["Foo"]}), "InvalidAttributeName", "Unknown Attribute Foo."),
    (change(ContentBasedDeduplication="true"), "InvalidAttributeName", "Unknown Attribute ContentBasedDeduplication."),
    (change(FifoQueue="true"), "InvalidAttributeName", "Unknown Attribute FifoQueue."),
    (change("ledger.fifo", FifoQueue="false"), "InvalidAttributeValue", "Modifying queue type is not supported."),
    *[
        (made(**{name: value}), "InvalidAttributeName", ONLY_FIFO.format(name))
        for made in (change, create)
        for name, value in (("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue"))
    ],
    (
        change(KmsMasterKeyId="key", SqsManagedSseEnabled="true"),
        "InvalidAttributeName",
        "You can use one type of server-side encryption (SSE) at one time.",
    ),
    *[
        (each, "InvalidAttributeValue", "Invalid value for the parameter FifoThroughputLimit.")
        for each in (
            create("new.fifo", FifoQueue="true", FifoThroughputLimit="perMessageGroupId"),
            change("fast.fifo", DeduplicationScope="queue"),
        )
    ],
    *[
        (each, INVALID, wrong("MaxResults", most))
        for most in (0, 1_001)
        for each in (
            ("ListQueues", "", {"MaxResults": most}),
            ("ListDeadLetterSourceQueues", "orders", {"MaxResults": most}),
        )
    ],
    (permit("one"), INVALID, "Value one for parameter Label is invalid. Reason: Already exists."),
    (
        ("RemovePermission", "orders", {"Label": "two"}),
        INVALID,
        "Value two for parameter Label is invalid. Reason: can't find label.",
    ),
    (permit("two", "111111111111", "Eat"), INVALID, "Value SQS:Eat for parameter ActionName is invalid."),
    (permit("two", "bob"), INVALID, "for parameter PrincipalId is invalid. Reason: Unable to verify."),
    (permit("a b"), INVALID, "Value a b for parameter Label is invalid."),
    (permit("two", "111111111111", *["*"] * 8), "OverLimit", "8 Actions were found, maximum allowed is 7."),
    # redrive policies: PLATFORM 23
    (create(RedrivePolicy=redrive("deadx")), INVALID, "Dead letter target does not exist."),
    (
        create("new.fifo", FifoQueue="true", RedrivePolicy=redrive("dead")),
        INVALID,
        "Dead-letter queue must be same type of queue as the source.",
    ),
    *[
        (
            create(RedrivePolicy=redrive("dead", count)),
            INVALID,
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to",
        )
        for count in (0, 1001, "many", 3.5, True, "3.0", " 3", "9" * 5_000)
    ],
    (create(RedrivePolicy="{}"), INVALID, "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
    (
        create(RedrivePolicy='{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}'),
        INVALID,
        "Invalid value for deadLetterTargetArn.",
    ),
    (create(RedrivePolicy=redrive("private")), INVALID, "does not permit this source queue"),
    *[
        (
            create(RedriveAllowPolicy=json.dumps({"redrivePermission": each, "sourceQueueArns": [f"{ARN}orders"]})),
            INVALID,
            "sourceQueueArns may be given only if redrivePermission is byQueue.",
        )
        for each in ("allowAll", "denyAll")
    ],
    # message move tasks: PLATFORM 24
    (move("orders"), INVALID, "Source queue must be configured as a Dead Letter Queue."),
    (move("deadx"), "ResourceNotFoundException", "SourceArn"),
    (move(to="deadx"), "ResourceNotFoundException", "DestinationArn"),
    *[(move(to=each), INVALID, "Source queue and destination queue must") for each in ("ledger.fifo", "dead")],
    *[
        (move(MaxNumberOfMessagesPerSecond=each), INVALID, wrong("MaxNumberOfMessagesPerSecond", each))
        for each in (0, 501)
    ],
]


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


ROWS = MESSAGES + QUEUES


@pytest.mark.parametrize(("request_", "code", "words"), ROWS, ids=[f"{n} {row[0][0]}" for n, row in enumerate(ROWS)])
def test_a_request_is_refused_as_by_sqs_and_changes_nothing(
    account: Account, request_: Request, code: str, words: str
) -> None:
    operation, queue, parameters = request_
    before = contents(account)
    with refused(code, words):
        account.sqs.call(operation, {**({"QueueUrl": account.sqs.url(queue)} if queue else {}), **parameters})
    assert contents(account) == before


ACCEPTED: list[Request] = [
    send("x" * MIB),
    send(MessageAttributes={f"a{number}": text("x") for number in range(10)}),
    send(MessageAttributes={"a": text("x", "String.label"), "n": text("-1.5e3", "Number.float")}),
    send(queue="ledger.fifo", MessageGroupId="a", DelaySeconds=0),
    batch(entry("0", "x" * 524_288), entry("1", "x" * 524_288)),
    change(RedrivePolicy=redrive("private")),
    change("fast.fifo", DeduplicationScope="queue", FifoThroughputLimit="perQueue"),
    create(RedrivePolicy=redrive("dead", "42")),
    create("orders", VisibilityTimeout="30"),
    ("GetQueueUrl", "", {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}),
]


@pytest.mark.parametrize("request_", ACCEPTED, ids=[f"{n} {row[0]}" for n, row in enumerate(ACCEPTED)])
def test_a_request_at_the_limit_is_accepted(account: Account, request_: Request) -> None:
    operation, queue, parameters = request_
    answer = account.sqs.call(operation, {**({"QueueUrl": account.sqs.url(queue)} if queue else {}), **parameters})
    assert "Failed" not in answer
    if operation.startswith("Send"):
        assert account.receive(queue)
    for name, value in parameters.get("Attributes", {}).items():
        assert account.attributes(queue or parameters["QueueName"])[name] == value
