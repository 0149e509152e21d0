"""Random scripts: steps that a caller of SQS takes, right and wrong ones. A seed always gives the same script.

A step names queues by their role, and receipt handles by their kind: a script is data, and steps can be left out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, get_args

DEAD_LETTER_ROLES = {"orders": "dead", "ledger.fifo": "rejected.fifo", "single.fifo": "refused.fifo"}
"""By source. All messages of the queue `single.fifo` are in one group, and it is received one message at a time."""

SOURCES = tuple(DEAD_LETTER_ROLES)
ROLES = (*SOURCES, *DEAD_LETTER_ROLES.values())
MAX_RECEIVES = 2
MAXIMUM_BYTES = 1024
VISIBILITY_SECONDS = 30

GONE, NOT_MADE, OF_ANOTHER_ACCOUNT = "a queue that is gone", "a queue that never was", "a queue of another account"
WRONG_QUEUES = (GONE, NOT_MADE, OF_ANOTHER_ACCOUNT)

HandleKind = Literal[
    "current", "superseded", "superseded and expired", "expired", "gone", "of another queue", "invalid", "empty"
]
WRONG_HANDLES: tuple[HandleKind, ...] = get_args(HandleKind)[1:]


@dataclass(frozen=True)
class Handle:
    """One of the receipt handles of a kind that the queue's receives have given so far.

    ``superseded``: the message was received again. ``expired``: its visibility timeout has ended. ``gone``: it was
    deleted, purged or dead-lettered.
    """

    kind: HandleKind
    pick: int


@dataclass(frozen=True)
class Name:
    """The name of the queue in a role."""

    role: str


@dataclass(frozen=True)
class OfType:
    """The attributes of a new queue with the name of the one in a role."""

    role: str


@dataclass(frozen=True)
class Redrive:
    """The text of a redrive policy."""

    role: str
    max_receive_count: int


@dataclass(frozen=True)
class Step:
    """A request, or ``wait``, or ``renew``: delete a source and its dead-letter queue, and create others."""

    operation: str
    queue: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None
    """The caller's fault."""
    at: str = ""
    """The entry of a batch request that has the fault."""


Message = dict[str, Any]
Change = Callable[[Message], None]


def _replace(**values: Any) -> Change:
    return lambda message: message.update(values)


def _without(name: str) -> Change:
    return lambda message: message.pop(name, None) and None


def _attribute(name: str, data_type: str, value: str) -> Change:
    return _replace(MessageAttributes={name: {"DataType": data_type, "StringValue": value}})


_ELEVEN = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(11)}

MESSAGE_FAULTS: Mapping[str, tuple[Change, ...]] = {
    "an empty body": (_replace(MessageBody=""),),
    "an invalid character": tuple(_replace(MessageBody=f"x{each}") for each in "\x00\x0b\x1f\ufffe\uffff"),
    "too many characters": (_replace(MessageBody="x" * (MAXIMUM_BYTES + 1)),),
    "too many bytes": (_replace(MessageBody="é" * (MAXIMUM_BYTES // 2 + 1)),),
    "too many bytes with attributes": (
        lambda message: message.update(
            MessageBody="x" * (MAXIMUM_BYTES - 8),
            MessageAttributes={"a": {"DataType": "String", "StringValue": "bc"}},
        ),
    ),
    "an invalid attribute name": tuple(
        _attribute(name, "String", "x") for name in ("a b", "a..b", ".a", "a.", "AWS.a", "amazon.a", "n" * 257)
    ),
    "an attribute type that does not exist": (_attribute("a", "Text", "x"), _attribute("a", "string", "x")),
    "a Number that is none": (_attribute("a", "Number", "one"), _attribute("a", "Number", "0x1")),
    "an empty String value": (_attribute("a", "String", ""),),
    "an invalid character in a value": (_attribute("a", "String", "\x1f"),),
    "eleven attributes": (_replace(MessageAttributes=_ELEVEN),),
    "an invalid group id": (_replace(MessageGroupId="a b"), _replace(MessageGroupId="g" * 129)),
}
STANDARD_FAULTS: Mapping[str, tuple[Change, ...]] = {
    "a delay above 900 s": (_replace(DelaySeconds=901),),
    "a negative delay": (_replace(DelaySeconds=-1),),
    "a deduplication id on a standard queue": (_replace(MessageDeduplicationId="d"),),
}
FIFO_FAULTS: Mapping[str, tuple[Change, ...]] = {
    "a delay on FIFO": (_replace(DelaySeconds=1),),
    "no group id": (_without("MessageGroupId"),),
    "no deduplication id": (_without("MessageDeduplicationId"),),
    "an invalid deduplication id": (
        _replace(MessageDeduplicationId="a b"),
        _replace(MessageDeduplicationId="d" * 129),
    ),
}
OUT_OF_RANGE = {"DelaySeconds": "901", "MessageRetentionPeriod": "59", "VisibilityTimeout": "43201"}
OUT_OF_RANGE |= {"MaximumMessageSize": "1023"}
BATCH_FAULTS = ("no entries", "eleven entries", "two entries with one id", "an invalid entry id")
TEXTS = ("x", "é", "long " * 9, "€\t\r\n", "\U0001f600")


def is_fifo(queue: str) -> bool:
    return queue.endswith(".fifo")


class Script:
    """An endless script."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._sent = 0
        self._makers: dict[Callable[[], Step], int] = {
            self._send: 14, self._send_batch: 8, self._receive: 26, self._delete: 6, self._delete_batch: 4,
            self._change_visibility: 8, self._change_visibility_batch: 6, self._wait: 10, self._attributes: 9,
            self._set_attributes: 2, self._create: 2, self._create_again: 1, self._url: 1, self._tags: 2,
            self._purge: 2, self._renew: 5,
        }  # fmt: skip

    def __iter__(self) -> Iterator[Step]:
        makers, weights = list(self._makers), list(self._makers.values())
        while True:
            [make] = self._random.choices(makers, weights)
            yield make()

    def _chance(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def _queue(self, roles: tuple[str, ...] = ROLES) -> tuple[str, str | None]:
        """Return a queue, and the fault if it is a wrong one."""
        if self._chance(40):
            wrong = self._random.choice(WRONG_QUEUES)
            return wrong, wrong
        return self._random.choice(roles), None

    # sending

    def _message(self, queue: str) -> Message:
        """Return a message with a unique body."""
        self._sent += 1
        message: Message = {"MessageBody": f"m{self._sent} {self._random.choice(TEXTS)}"}
        if is_fifo(queue):
            group = "one" if queue == "single.fifo" else self._random.choice("abc")
            is_duplicate = self._chance(5)
            number = self._random.randint(max(1, self._sent - 9), self._sent) if is_duplicate else self._sent
            message |= {"MessageGroupId": group, "MessageDeduplicationId": f"d{number}"}
        else:
            message |= self._random.choice(({}, {}, {"DelaySeconds": self._random.choice((0, 5, 60))}))
            message |= self._random.choice(({}, {}, {}, {"MessageGroupId": "fair"}))
        if self._chance(3):
            message["MessageAttributes"] = {
                name: self._value() for name in ("one", "two.parts", "three") if self._chance(2)
            }
        return message

    def _value(self) -> dict[str, Any]:
        return self._random.choice(
            (
                {"DataType": "String", "StringValue": self._random.choice(TEXTS)},
                {"DataType": "Number.int", "StringValue": self._random.choice(("-5", "0", "1.5", "1e3"))},
                {"DataType": "Binary", "BinaryValue": self._random.randbytes(self._random.randint(1, 5))},
            )
        )

    def _spoil(self, queue: str, message: Message) -> str:
        """Give the message a fault; return its name."""
        faults = {**MESSAGE_FAULTS, **(FIFO_FAULTS if is_fifo(queue) else STANDARD_FAULTS)}
        fault = self._random.choice(list(faults))
        self._random.choice(faults[fault])(message)
        return fault

    def _send(self) -> Step:
        queue, fault = self._queue(SOURCES)
        message = self._message(queue)
        if fault is None and self._chance(8):
            fault = self._spoil(queue, message)
        return Step("SendMessage", queue, message, fault)

    def _send_batch(self) -> Step:
        queue, fault = self._queue(SOURCES)
        entries = [{"Id": f"e{place}", **self._message(queue)} for place in range(self._random.randint(1, 5))]
        at = ""
        if fault is None and self._chance(12):
            fault = "more than 1 MiB in a batch"
            entries = [{"Id": f"e{place}", **self._message(queue), "MessageBody": "x" * 350_000} for place in range(3)]
        elif fault is None and self._chance(5):
            spoiled = self._random.choice(entries)
            fault, at = self._spoil(queue, spoiled), spoiled["Id"]
        return self._batch("SendMessageBatch", queue, entries, fault, at, lambda: self._message(queue))

    def _batch(
        self,
        operation: str,
        queue: str,
        entries: list[dict[str, Any]],
        fault: str | None,
        at: str,
        another: Callable[[], dict[str, Any]],
    ) -> Step:
        """Return a batch request; one in eight has a fault of its own."""
        if fault is None and self._chance(8):
            fault = self._random.choice(BATCH_FAULTS)
            if fault == "no entries":
                entries = []
            elif fault == "eleven entries":
                entries = [{"Id": f"e{place}", **another()} for place in range(11)]
            elif fault == "two entries with one id":
                entries = [*entries, {"Id": entries[0]["Id"], **another()}]
            else:
                entries[0]["Id"] = self._random.choice(("a b", "a.b", "i" * 81, ""))
        return Step(operation, queue, {"Entries": entries}, fault, at)

    # receiving

    def _receive(self) -> Step:
        queue, fault = self._queue()
        limit = 1 if queue == "single.fifo" else self._random.choice((1, 1, 2, 5, 10))
        parameters: dict[str, Any] = {"MaxNumberOfMessages": limit, "WaitTimeSeconds": 0}
        parameters["AttributeNames"] = ["All"]
        parameters["MessageAttributeNames"] = self._random.choice((["All"], ["All"], ["one"], ["two.*"], []))
        if self._chance(2):
            parameters["VisibilityTimeout"] = self._random.choice((0, 0, 1, 10, 600))
        if fault is None and self._chance(40):
            fault, wrong = self._random.choice(
                (
                    ("a wrong number of messages", {"MaxNumberOfMessages": self._random.choice((0, 11, -1))}),
                    ("a wrong visibility timeout", {"VisibilityTimeout": self._random.choice((-1, 43_201))}),
                )
            )
            parameters |= wrong
        return Step("ReceiveMessage", queue, parameters, fault)

    # settling

    def _handle(self, kind: HandleKind = "current") -> Handle:
        return Handle(kind, self._random.randrange(1_000_000))

    def _wrong_handle(self) -> tuple[Handle, str]:
        handle = self._handle(self._random.choice(WRONG_HANDLES))
        return handle, _fault_of(handle)

    def _delete(self) -> Step:
        queue, fault = self._queue()
        handle = self._handle()
        if fault is None and self._chance(3):
            handle, fault = self._wrong_handle()
        return Step("DeleteMessage", queue, {"ReceiptHandle": handle}, fault)

    def _delete_batch(self) -> Step:
        return self._settle_batch("DeleteMessageBatch", lambda: {"ReceiptHandle": self._handle()})

    def _change_visibility(self) -> Step:
        queue, fault = self._queue()
        parameters = self._change()
        if fault is None and self._chance(3):
            fault = self._spoil_settling(parameters)
        return Step("ChangeMessageVisibility", queue, parameters, fault)

    def _change_visibility_batch(self) -> Step:
        return self._settle_batch("ChangeMessageVisibilityBatch", self._change)

    def _change(self) -> dict[str, Any]:
        seconds = self._random.choice((0, 0, 1, 10, 60, 600))
        return {"ReceiptHandle": self._handle(), "VisibilityTimeout": seconds}

    def _spoil_settling(self, entry: dict[str, Any]) -> str:
        if "VisibilityTimeout" in entry and self._chance(3):
            entry["VisibilityTimeout"] = self._random.choice((-1, 43_200, 43_201))
            return (
                "a total visibility above 12 hours"
                if entry["VisibilityTimeout"] == 43_200
                else "a wrong visibility timeout"
            )
        entry["ReceiptHandle"], fault = self._wrong_handle()
        return fault

    def _settle_batch(self, operation: str, another: Callable[[], dict[str, Any]]) -> Step:
        queue, fault = self._queue()
        entries = [{"Id": f"e{place}", **another()} for place in range(self._random.randint(1, 4))]
        at = ""
        if fault is None and self._chance(2):
            entries.append({"Id": "spoiled", **another()})
            fault, at = self._spoil_settling(entries[-1]), "spoiled"
        return self._batch(operation, queue, entries, fault, at, another)

    # queues

    def _attributes(self) -> Step:
        queue, fault = self._queue()
        if fault is None and self._chance(12):
            return Step("GetQueueAttributes", queue, {"AttributeNames": ["Colour"]}, "an attribute that does not exist")
        return Step("GetQueueAttributes", queue, {"AttributeNames": ["All"]}, fault)

    def _set_attributes(self) -> Step:
        queue, fault = self._queue(SOURCES)
        changes: tuple[tuple[dict[str, Any], str | None], ...] = (
            *[({"DelaySeconds": self._random.choice(("0", "5"))}, None)] * 5,
            *[({"VisibilityTimeout": self._random.choice(("0", "30", "60"))}, None)] * 5,
            ({"RedrivePolicy": ""}, None),
            *[({name: value}, "an attribute out of its range") for name, value in OUT_OF_RANGE.items()],
            ({"Colour": "red"}, "an attribute that does not exist"),
        )
        change, wrong = self._random.choice(changes)
        return Step("SetQueueAttributes", queue, {"Attributes": change}, fault or wrong)

    def _create(self) -> Step:
        role = self._random.choice(SOURCES)
        same = attributes_of(role)
        self._sent += 1
        other = f"other-{self._sent}"
        fault, name, attributes = self._random.choice(
            (
                (None, Name(role), same),
                (None, Name(role), {"FifoQueue": "true"} if is_fifo(role) else {}),
                ("another value for an existing queue", Name(role), {**same, "VisibilityTimeout": "31"}),
                ("an invalid queue name", f"{other}.b", {}),
                ("an invalid queue name", other + "n" * 80, {}),
                ("an attribute out of its range", other, {"DelaySeconds": "901"}),
                ("an attribute that does not exist", other, {"Colour": "red"}),
                ("FIFO without the suffix", other, {"FifoQueue": "true"}),
                ("the suffix without FIFO", other + ".fifo", {}),
            )
        )
        queue = role if isinstance(name, Name) else ""
        return Step("CreateQueue", queue, {"QueueName": name, "Attributes": attributes}, fault)

    def _create_again(self) -> Step:
        return Step(
            "CreateQueue",
            GONE,
            {"QueueName": Name(GONE), "Attributes": OfType(GONE)},
            "the name of a queue deleted within 60 s",
        )

    def _url(self) -> Step:
        role, fault = self._queue()
        return Step("GetQueueUrl", role, {"QueueName": Name(role)}, fault)

    def _tags(self) -> Step:
        queue, fault = self._queue()
        tag = self._random.choice(("team", "stage"))
        return self._random.choice(
            (
                Step("TagQueue", queue, {"Tags": {tag: self._random.choice("ab")}}, fault),
                Step("UntagQueue", queue, {"TagKeys": [tag]}, fault),
                Step("ListQueueTags", queue, {}, fault),
            )
        )

    def _purge(self) -> Step:
        queue, fault = self._queue()
        return Step("PurgeQueue", queue, {}, fault)

    def _renew(self) -> Step:
        return Step("renew", self._random.choice(SOURCES))

    def _wait(self) -> Step:
        return Step("wait", "", {"seconds": self._random.choice((1, 5, 9, 29, 30, 60, 290, 300, 600))})


def attributes_of(role: str) -> dict[str, Any]:
    """Return the attributes with which the queue in a role is created."""
    attributes: dict[str, Any] = {"FifoQueue": "true"} if is_fifo(role) else {}
    if role in DEAD_LETTER_ROLES:
        attributes["RedrivePolicy"] = Redrive(DEAD_LETTER_ROLES[role], MAX_RECEIVES)
        attributes["MaximumMessageSize"] = str(MAXIMUM_BYTES)
        attributes["VisibilityTimeout"] = str(VISIBILITY_SECONDS)
        if not is_fifo(role):
            attributes["DelaySeconds"] = "5"
    return attributes


def _fault_of(handle: Handle) -> str:
    return f"a handle that is {handle.kind}" if handle.kind != "of another queue" else f"a handle {handle.kind}"
