"""SQS at the wire: a real boto3 client whose requests are checked by botocore, recorded, and answered by the test.

    wire = Wire(orders=Queue(dead_letter="orders-dlq", max_receive_count=15))
    with wire:
        handler(event("a", "b"), context())
    assert wire.sent("ChangeMessageVisibilityBatch") == [...]

By default every request succeeds. `wire.fails` makes requests fail, `wire.refuses` refuses single entries.
"""

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any, cast

import boto3
from botocore.awsrequest import AWSResponse
from botocore.client import ClientMeta
from botocore.compat import HTTPHeaders
from botocore.exceptions import ClientError
from botocore.session import Session

from tarry.world import RealThreads, World, use

ACCOUNT = "123456789012"


def arn(queue: str) -> str:
    return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"


def url(queue: str) -> str:
    return f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/{queue}"


def client_error(code: str, text: str = "", status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "AnyOperation")


def session() -> Session:
    """Return a session of botocore that reads no credentials and no region from the environment."""
    made = Session()
    made.set_credentials("test", "test")
    made.set_config_variable("region", "us-east-1")
    return made


@dataclass
class Queue:
    """The answer of GetQueueAttributes for a queue."""

    dead_letter: str | None = None
    max_receive_count: int = 15
    visibility_timeout: int = 180
    maximum_message_size: int = 1_048_576
    retention: int = 345_600

    def attributes(self, names: list[str]) -> dict[str, str]:
        all_attributes = {
            "VisibilityTimeout": str(self.visibility_timeout),
            "MessageRetentionPeriod": str(self.retention),
            "MaximumMessageSize": str(self.maximum_message_size),
        }
        if self.dead_letter:
            policy = {"deadLetterTargetArn": arn(self.dead_letter), "maxReceiveCount": self.max_receive_count}
            all_attributes["RedrivePolicy"] = json.dumps(policy)
        return {name: value for name, value in all_attributes.items() if name in names}


class TestClock:
    """A clock that only moves when a test moves it. It starts at the time the records of `records.py` were received."""

    __test__ = False

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - 1_700_000_000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.now += seconds


class RunningClock(TestClock):
    """A clock that runs in real time, for tests about waiting.

    It starts once ``begins`` returns true: however long a busy machine prepares a test, the clock stands still.
    """

    def __init__(self, begins: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._begins = begins
        self._began: float | None = None

    def time(self) -> float:
        return super().time() + self._elapsed()

    def monotonic(self) -> float:
        return super().monotonic() + self._elapsed()

    def _elapsed(self) -> float:
        if self._began is None and self._begins():
            self._began = time.monotonic()
        return 0.0 if self._began is None else time.monotonic() - self._began


class NoThreads(RealThreads):
    """The threads of a process that may have no more."""

    def start(self, work: Callable[[], None]) -> Any:
        raise RuntimeError("can't start new thread")


@dataclass(frozen=True)
class Request:
    """A request as it was sent."""

    operation: str
    parameters: dict[str, Any]

    @property
    def entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.parameters["Entries"]
        return entries

    @property
    def queue(self) -> str:
        url: str = self.parameters["QueueUrl"]
        return url.rpartition("/")[2]


Refusal = tuple[str, str]

SERVICE_FAULTS = frozenset({"ServiceUnavailable", "RequestTimeout"})


@dataclass
class Wire:
    """A world whose SQS is this object."""

    queues: dict[str, Queue] = field(default_factory=dict)
    fails: dict[str, Exception | Callable[[Request], Exception | None]] = field(default_factory=dict)
    """By operation: the error that the request raises, or a function that returns it."""
    refuses: dict[str, Callable[[Request, dict[str, Any]], Refusal | None]] = field(default_factory=dict)
    """By operation: a function that returns (code, text) for an entry to refuse, in an answer of status 200. The sender
    is at fault unless the code is one of `SERVICE_FAULTS`."""
    receipts: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None] = lambda _, receipt: receipt
    """A function of an entry that was sent and its receipt; returns the receipt to answer with, or None to lose it."""
    accepted: list[tuple[Request, dict[str, Any]]] = field(default_factory=list)
    """The entries that SQS carried out, each with its request."""
    requests: list[Request] = field(default_factory=list)
    clock: TestClock = field(default_factory=TestClock)
    wrong_md5: bool = False
    random: Any = None

    def __post_init__(self) -> None:
        self.world = World(clock=self.clock, client_factory=self._client, random=self.random)
        self._open = ExitStack()
        self._calls = threading.local()

    def __enter__(self) -> "Wire":
        self._open.enter_context(use(self.world))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def sent(self, operation: str) -> list[Request]:
        return [request for request in self.requests if request.operation == operation]

    @property
    def acts(self) -> list[str]:
        """The operations of the requests, without the look-ups of queues."""
        return [operation for operation in self.operations if operation != "GetQueueAttributes"]

    @property
    def operations(self) -> list[str]:
        return [request.operation for request in self.requests]

    def visibilities(self) -> dict[str, int]:
        """Return the visibility timeout last requested, by receipt handle."""
        entries = [entry for request in self.sent("ChangeMessageVisibilityBatch") for entry in request.entries]
        return {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in entries}

    def rounded_visibilities(self) -> dict[str, int]:
        """Return `visibilities`, rounded up to whole minutes: a delay counts from the failure, some seconds ago."""
        return {handle: -(-seconds // 60) * 60 for handle, seconds in self.visibilities().items()}

    def sent_entries(self) -> list[dict[str, Any]]:
        """Return the entries of all SendMessageBatch requests."""
        return [entry for request in self.sent("SendMessageBatch") for entry in request.entries]

    def envelopes(self) -> list[dict[str, Any]]:
        """Return the `Tarry` attributes of all SendMessageBatch requests."""
        return [json.loads(entry["MessageAttributes"]["Tarry"]["StringValue"]) for entry in self.sent_entries()]

    def _client(self) -> Any:
        client = new_client()
        client.meta.events.register("provide-client-params.sqs.*", self._keep_parameters)
        client.meta.events.register("before-call.sqs", self._answer)
        return client

    def _keep_parameters(self, params: dict[str, Any], **_: Any) -> None:
        self._calls.parameters = params

    def _answer(self, model: Any, **_: Any) -> Any:
        request = Request(model.name, self._calls.parameters)
        self.requests.append(request)
        failure = self.fails.get(model.name)
        if callable(failure):
            failure = failure(request)
        if failure is not None:
            raise failure
        return _OkResponse(), self._success(request)

    def _success(self, request: Request) -> dict[str, Any]:
        if request.operation == "GetQueueAttributes":
            queue = self.queues.get(request.queue, Queue())
            return {"Attributes": queue.attributes(request.parameters["AttributeNames"])}
        if request.operation == "GetQueueUrl":
            return {"QueueUrl": url(request.parameters["QueueName"])}
        if request.operation == "SendMessage":
            self.accepted.append((request, request.parameters))
            return self._receipt(request.parameters, f"sent-{len(self.accepted)}") or {}
        refuse = self.refuses.get(request.operation, _accepts)
        successful, failed = [], []
        for entry in request.entries:
            if (refusal := refuse(request, entry)) is not None:
                fault = refusal[0] not in SERVICE_FAULTS
                failed.append({"Id": entry["Id"], "SenderFault": fault, "Code": refusal[0], "Message": refusal[1]})
            else:
                self.accepted.append((request, entry))
                receipt = self._receipt(entry, f"copy-of-{entry['Id']}") if "MessageBody" in entry else {}
                if receipt is not None:
                    successful.append({"Id": entry["Id"], **receipt})
        return {key: entries for key, entries in (("Successful", successful), ("Failed", failed)) if entries}

    def _receipt(self, entry: dict[str, Any], message_id: str) -> dict[str, Any] | None:
        body = "another body" if self.wrong_md5 else entry["MessageBody"]
        md5 = hashlib.md5(body.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
        return self.receipts(entry, {"MessageId": message_id, "MD5OfMessageBody": md5})


@cache
def _first_client() -> Any:
    return boto3.client("sqs", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


def new_client() -> Any:
    """Return a client with event handlers of its own. It shares all else with the others: making one takes 2 ms."""
    first = _first_client()
    client = object.__new__(type(first))
    meta, new_meta = first.meta, cast("Any", ClientMeta)
    client.__dict__.update(first.__dict__)
    client.meta = new_meta(
        copy.copy(meta.events),
        meta.config,
        meta.endpoint_url,
        meta.service_model,
        meta.method_to_api_mapping,
        meta.partition,
    )
    return client


def _accepts(*_: object) -> None:
    """Refuse no entry."""


class _OkResponse:
    status_code = 200


class _Raw(BytesIO):
    def stream(self, *_: object) -> Iterator[bytes]:
        yield self.read()


def http_answer(status: int, body: Any) -> AWSResponse:
    """Return the answer to a try of a request, for a handler of botocore's ``before-send``."""
    raw: Any = _Raw(json.dumps(body).encode())
    return AWSResponse("https://sqs", status, HTTPHeaders(), raw)


def size_of(entry: dict[str, Any]) -> int:
    """Return the bytes of a sent entry as SQS counts them: the body, and the attributes with names and types."""
    attributes: dict[str, dict[str, Any]] = entry.get("MessageAttributes", {})
    texts = [entry["MessageBody"], *attributes, *(each["DataType"] for each in attributes.values())]
    values = [each.get("BinaryValue") or each["StringValue"].encode() for each in attributes.values()]
    return sum(len(text.encode()) for text in texts) + sum(map(len, values))
