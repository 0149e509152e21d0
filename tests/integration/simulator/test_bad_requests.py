"""The HTTP server of the SQS model, with requests that no SDK makes and clients that disconnect.

Each is refused as AWS refuses it, and the next request is answered.
"""

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.tools.simulator.http.requests import MAX_BODY_BYTES
from tarry.tools.simulator.http.server import CONTENT_TYPE
from tests.served import Served, post, served

JSON_ERRORS = "com.amazon.coral.service#"
QUEUE = "jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as here:
        yield here


@pytest.fixture(autouse=True)
def next_request_works(server: Served, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test, check that a message can be sent and received, and that the server logged no error."""
    url = server.queue(QUEUE)
    yield
    server.client.send_message(QueueUrl=url, MessageBody="after")
    [message] = server.client.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "after"
    server.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def ask(server: Served, operation: str, body: Any) -> tuple[int, Any]:
    """Make a request in the JSON protocol; return the status and the parsed answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = post(server, content, X_Amz_Target=f"AmazonSQS.{operation}")
    return status, json.loads(answer)


def raw(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)


def head(length: int | str, operation: str = "SendMessage", more: str = "") -> bytes:
    lines = ["POST / HTTP/1.1", "Host: [::1]", f"X-Amz-Target: AmazonSQS.{operation}", f"Content-Type: {CONTENT_TYPE}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", f"{more}\r\n"]).encode()


# bodies


SEND = {"QueueUrl": "http://x/123456789012/jobs", "MessageBody": "x"}
OBJECT, LIST = "Start of structure or map found where not expected.", "Start of list found where not expected"


@pytest.mark.parametrize(
    ("operation", "body", "text"),
    [
        ("ListQueues", b"{", "The request is not JSON: "),
        ("ListQueues", b"", "The request is not JSON: "),
        ("ListQueues", b'{"MaxResults": NaN}', "The request is not JSON: NaN"),
        ("ListQueues", b'"\xff"', "The request is not JSON: "),
        ("ListQueues", b"[" * 200_000, "The request is not JSON: maximum recursion depth"),
        ("ListQueues", "x", "The request is not a JSON object."),
        ("ListQueues", [], LIST),
        ("ListQueues", {"MaxResults": "1"}, "STRING_VALUE can not be converted to an Integer"),
        ("ListQueues", {"MaxResults": True}, "TRUE_VALUE can not be converted to an Integer"),
        ("ListQueues", b'{"MaxResults": 1e999}', "NUMBER_VALUE can not be converted to an Integer"),
        ("ListQueues", {"MaxResults": []}, LIST),
        ("CreateQueue", {"Attributes": {"DelaySeconds": 1}}, "NUMBER_VALUE can not be converted to a String"),
        ("CreateQueue", {"Attributes": "x"}, "Expected null"),
        ("SendMessage", {**SEND, "MessageBody": {}}, OBJECT),
        ("SendMessage", {**SEND, "MessageBody": False}, "FALSE_VALUE can not be converted to a String"),
        ("SendMessageBatch", {"QueueUrl": "x", "Entries": {}}, OBJECT),
        ("SendMessageBatch", {"QueueUrl": "x", "Entries": 7}, "Expected list or null"),
        ("SendMessageBatch", {"QueueUrl": "x", "Entries": ["x"]}, "Expected null"),
        ("SendMessage", {**SEND, "MessageAttributes": {"a": {"BinaryValue": "%"}}}, "A BinaryValue is not base64: "),
    ],
)
def test_a_body_of_wrong_types_is_refused_with_the_text_of_aws(
    server: Served, operation: str, body: Any, text: str
) -> None:
    status, answer = ask(server, operation, body)
    assert (status, answer["__type"]) == (400, f"{JSON_ERRORS}SerializationException")
    assert answer["message"].startswith(text)


@pytest.mark.parametrize(
    ("operation", "body", "text"),
    [
        ("SendMessage", {}, "QueueUrl"),
        ("SendMessage", {**SEND, "MessageBody": None}, "MessageBody"),
        (
            "SendMessageBatch",
            {**SEND, "Entries": [{"Id": "1", "MessageBody": "x"}, {}]},
            "SendMessageBatchRequestEntry.2.Id",
        ),
        ("DeleteMessageBatch", {**SEND, "Entries": [{"Id": "1"}]}, "DeleteMessageBatchRequestEntry.1.ReceiptHandle"),
    ],
)
def test_a_missing_parameter_is_named(server: Served, operation: str, body: Any, text: str) -> None:
    status, answer = ask(server, operation, body)
    assert (status, answer["__type"]) == (400, "com.amazonaws.sqs#MissingRequiredParameterException")
    assert answer["message"] == f"The request must contain the parameter {text}."


def test_nulls_and_unknown_parameters_are_ignored_at_any_depth_and_fractions_are_cut(server: Served) -> None:
    entry = {"Id": "1", "MessageBody": "x", "DelaySeconds": 0.9, "NewOf2030": 1, "MessageAttributes": None}
    status, answer = ask(server, "SendMessageBatch", {**SEND, "Entries": [entry, None], "NewOf2030": {"a": 1}})
    assert (status, [each["Id"] for each in answer["Successful"]]) == (200, ["1"])
    server.client.purge_queue(QueueUrl=server.queue(QUEUE))


def test_a_body_of_10_mb_is_refused_and_one_of_a_message_of_escapes_is_not(server: Served) -> None:
    queue = server.queue("large")
    with pytest.raises(ClientError) as raised:
        server.client.send_message(QueueUrl=queue, MessageBody="x" * 10_000_000)
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
    assert raised.value.response["Error"]["Message"] == f"HTTP content length exceeded {MAX_BODY_BYTES} bytes."
    with pytest.raises(ClientError, match="Message must be shorter than 1048576 bytes"):
        server.client.send_message(QueueUrl=queue, MessageBody="x" * 5_000_000)
    escaped = b'{"QueueUrl": "%b", "MessageBody": "%b"}' % (queue.encode(), rb"\u0041" * 1_048_576)
    assert ask(server, "SendMessage", escaped)[0] == 200
    [message] = server.client.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == "A" * 1_048_576


# headers


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("AmazonSQS.SendLetter", "There is no operation AmazonSQS.SendLetter."),
        ("DynamoDB_20120810.ListTables", "This endpoint has only SQS, not DynamoDB: set AWS_ENDPOINT_URL"),
        ("", "The request has no header X-Amz-Target"),
    ],
)
def test_an_unknown_operation_is_refused(server: Served, target: str, text: str) -> None:
    headers = {"X_Amz_Target": target} if target else {}
    status, _, answer = post(server, b"{}", **headers)
    error = json.loads(answer)
    assert (status, error["__type"]) == (400, f"{JSON_ERRORS}UnknownOperationException")
    assert error["message"].startswith(text)


@pytest.mark.parametrize("content_type", ["application/x-amz-json-1.1", "text/plain", "application/cbor"])
def test_a_content_type_that_aws_does_not_read_is_refused_with_404(server: Served, content_type: str) -> None:
    status, headers, answer = post(server, b"{}", X_Amz_Target="AmazonSQS.ListQueues", Content_Type=content_type)
    assert (status, headers["Content-Type"].partition(";")[0]) == (404, "text/xml")
    assert answer.startswith("<UnknownOperationException>")
    assert f"The Content-Type is {content_type}; a request in the JSON protocol has {CONTENT_TYPE}." in answer


# connections


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", b"400"),  # TLS
        (b"hello\r\n\r\n", b"400"),
        (head("x"), b"400"),
        (head(2, more="X: " + "x" * 20_000 + "\r\n") + b"{}", b"400"),
        (head(2, more="Content-Encoding: gzip\r\n") + b"{}", b"400"),
        (head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"zz\r\n", b"400"),
        (head(20_000_000) + b"[" * 20_000_000, b"413"),
    ],
    ids=["tls", "no-http", "length", "header", "gzip", "chunk", "20-mb"],
)
def test_what_is_not_a_request_is_refused(server: Served, sent: bytes, status: bytes) -> None:
    with raw(server) as connection:
        connection.sendall(sent)
        assert connection.recv(4096).split()[1] == status


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tasks(server: Served) -> int:
    return server.on_the_loop(lambda: len(asyncio.all_tasks()))


def until_handled(server: Served) -> None:
    """Wait until the server has read all earlier requests: it has one loop, and answers these requests after them."""
    for _ in range(3):
        server.client.list_queues()


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the open files in /proc")


@needs_proc
def test_a_connection_cut_at_any_byte_sends_at_most_once_and_leaves_nothing_open(server: Served) -> None:
    queue = server.queue("cut")
    body = json.dumps({"QueueUrl": queue, "MessageBody": "x"}).encode()
    request = head(len(body)) + body
    until_handled(server)
    before = open_files(), tasks(server)
    for length in range(0, len(request), 7):
        with raw(server) as connection:
            connection.sendall(request[:length])
    until_handled(server)
    assert server.client.receive_message(QueueUrl=queue).get("Messages") is None
    with raw(server) as connection:
        connection.sendall(request)  # complete, but its client does not wait for the answer
    until_handled(server)
    [message] = server.client.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == "x"
    assert (open_files(), tasks(server)) == before


# 1,000 clients


POLLS = 1000


@needs_proc
def test_1000_long_polls_get_a_message_each_and_those_cut_get_none(server: Served) -> None:
    queue = server.queue("crowd")
    until_handled(server)
    before = open_files(), tasks(server)
    received = asyncio.run(crowd(server, queue))
    until_handled(server)
    assert Counter(received) == dict.fromkeys(map(str, range(POLLS)), 1)
    attributes = server.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "0"
    assert attributes["ApproximateNumberOfMessagesNotVisible"] == str(POLLS)
    assert (open_files(), tasks(server)) == before


async def crowd(server: Served, queue: str) -> list[str]:
    """Start a long poll for each message, and every ten one more that is cut, then send; return the received bodies."""
    port = int(server.url.rpartition(":")[2])
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    request = head(len(body), "ReceiveMessage") + body

    async def poll() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        return reader, writer

    async def cut() -> None:
        _, writer = await poll()
        writer.close()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(text.lower().partition("content-length: ")[2].partition("\r\n")[0])
        [message] = json.loads(await reader.readexactly(length))["Messages"]
        writer.close()
        return str(message["Body"])

    def fill() -> None:
        for number in range(POLLS):
            server.sqs.call("SendMessage", {"QueueUrl": queue, "MessageBody": str(number)})

    polls = []
    for number in range(POLLS):
        polls.append(await poll())
        if number % 10 == 0:
            await cut()
    await asyncio.to_thread(until_handled, server)
    await asyncio.to_thread(server.on_the_loop, fill)
    return list(await asyncio.gather(*(receive(*each) for each in polls)))
