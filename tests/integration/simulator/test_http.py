"""The HTTP server of the SQS model: both protocols, its callers, long polls, and requests that no SDK makes.

Each bad request is refused as AWS refuses it, and the next request is answered.
"""

import asyncio
import json
import logging
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import ClientError

from tarry.failed.usage import UsageError
from tarry.tools.simulator.history import History
from tarry.tools.simulator.http.admission import admission_of
from tarry.tools.simulator.http.query import NAMESPACE
from tarry.tools.simulator.http.requests import MAX_BODY_BYTES
from tarry.tools.simulator.http.server import CONTENT_TYPE, PortTaken, serve
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs
from tests.served import Served, post, served

JSON_ERRORS = "com.amazon.coral.service#"
QUEUE = "jobs"
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


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


@pytest.fixture
def queue(server: Served, request: pytest.FixtureRequest) -> str:
    """Create a queue for the test; return its URL."""
    return server.queue(f"{request.node.name}"[:80].replace("[", "-").replace("]", ""))


def receive(server: Served, url: str, **more: Any) -> list[dict[str, Any]]:
    asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], **more}
    messages: list[dict[str, Any]] = server.client.receive_message(QueueUrl=url, **asked).get("Messages", [])
    return messages


def ask(server: Served, operation: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Make a request in the JSON protocol; return the status and the parsed answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = post(server, content, X_Amz_Target=f"AmazonSQS.{operation}", **headers)
    return status, json.loads(answer)


def raw(server: Served, sent: bytes) -> socket.socket:
    """Send bytes over a connection that the caller closes."""
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)
    connection.sendall(sent)
    return connection


def head(length: int | str, operation: str = "SendMessage", more: str = "") -> bytes:
    lines = ["POST / HTTP/1.1", "Host: [::1]", f"X-Amz-Target: AmazonSQS.{operation}", f"Content-Type: {CONTENT_TYPE}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", f"{more}\r\n"]).encode()


@pytest.mark.parametrize("signature", ["", "x" * 8000, "AWS4-HMAC-SHA256 Credential=no/20260101/eu/sqs/aws4_request"])
def test_signatures_are_not_checked_and_the_trace_id_becomes_the_trace_header_of_the_message(
    server: Served, queue: str, signature: str
) -> None:
    # PLATFORM 25a; a client adds this header on Lambda
    sent = {"QueueUrl": queue, "MessageBody": "traced"}
    assert ask(server, "SendMessage", sent, X_Amzn_Trace_Id=TRACE, Authorization=signature)[0] == 200
    server.client.send_message(QueueUrl=queue, MessageBody="not traced")
    traces = {message["Body"]: message["Attributes"].get("AWSTraceHeader") for message in receive(server, queue)}
    assert traces == {"traced": TRACE, "not traced": None}


def test_answers_are_dated_by_the_time_of_the_model(
    server: Served, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    """`tarry failed` takes it for the clock of SQS; `--skip-time` moves it."""
    monkeypatch.setattr(server.sqs, "now", lambda: 4_102_444_800.0)
    answer = server.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
    assert answer["ResponseMetadata"]["HTTPHeaders"]["date"] == "Fri, 01 Jan 2100 00:00:00 GMT"


def test_the_pages_show_the_endpoint_url_the_depths_of_queues_and_the_age_of_the_oldest_message(
    server: Served, queue: str
) -> None:
    before = time.time()
    server.client.send_message(QueueUrl=queue, MessageBody="1")
    server.client.send_message(QueueUrl=queue, MessageBody="2", DelaySeconds=60)
    with urllib.request.urlopen(f"{server.url}/") as answer:
        assert f"endpoint URL {server.url}" in answer.read().decode()
    with urllib.request.urlopen(f"{server.url}/queues") as answer:
        [described] = [each for each in json.load(answer)["queues"] if each["url"] == queue]
    assert before - 0.1 <= described.pop("oldest") <= time.time()
    counts = {"ready": 1, "in_flight": 0, "delayed": 1, "ever": 2}
    assert described == {"name": queue.rpartition("/")[2], "url": queue, **counts, "dead_letter_queue": None}


# the query protocol


def ask_in_query_protocol(server: Served, operation: str, path: str = "/", **parameters: str) -> tuple[int, Any]:
    """Make a request as an SDK from before the end of 2023 does; return the status and its XML without a namespace."""
    form = urllib.parse.urlencode({"Action": operation, "Version": "2012-11-05", **parameters}).encode()
    return posted(server, path, form)


def posted(server: Served, path: str, form: bytes) -> tuple[int, Any]:
    status, headers, text = post(server, form, path, Content_Type="application/x-www-form-urlencoded")
    assert headers["Content-Type"].startswith("text/xml")
    return status, ET.fromstring(text.replace(f' xmlns="{NAMESPACE}"', ""))


def children(element: Any, path: str) -> list[dict[str, str]]:
    """Return the texts of the children of each element at a path."""
    return [{child.tag: child.text for child in each} for each in element.findall(path)]


def test_an_sdk_of_the_query_protocol_sends_and_receives(server: Served, queue: str) -> None:  # SPEC N1
    attribute = "SendMessageBatchRequestEntry.1.MessageAttribute.1"
    one, two = (f"SendMessageBatchRequestEntry.{number}" for number in (1, 2))
    entries = {f"{one}.Id": "good", f"{one}.MessageBody": "ö <&>\r\n+%", f"{two}.Id": "bad", f"{two}.MessageBody": "x"}
    entries |= {f"{attribute}.Name": "digest", f"{attribute}.Value.DataType": "Binary", f"{two}.DelaySeconds": "901"}
    entries |= {f"{attribute}.Value.BinaryValue": "AP8="}
    status, sent = ask_in_query_protocol(server, "SendMessageBatch", QueueUrl=queue, **entries)
    [good] = children(sent, "SendMessageBatchResult/SendMessageBatchResultEntry")
    [bad] = children(sent, "SendMessageBatchResult/BatchResultErrorEntry")
    assert (status, good["Id"], bad["Id"], bad["SenderFault"]) == (200, "good", "bad", "true")
    names = {"AttributeName.1": "ApproximateReceiveCount", "MessageAttributeName.1": "All"}
    path = queue.removeprefix(server.url)  # some SDKs name the queue by the address alone
    status, received = ask_in_query_protocol(server, "ReceiveMessage", path, WaitTimeSeconds="1", **names)
    [message] = children(received, "ReceiveMessageResult/Message")
    assert (status, message["MessageId"], message["Body"]) == (200, good["MessageId"], "ö <&>\r\n+%")
    assert message["MD5OfMessageAttributes"] == good["MD5OfMessageAttributes"]
    assert children(received, ".//Message/Attribute") == [{"Name": "ApproximateReceiveCount", "Value": "1"}]
    assert children(received, ".//Message/MessageAttribute/Value") == [{"BinaryValue": "AP8=", "DataType": "Binary"}]
    status, deleted = ask_in_query_protocol(
        server, "DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"]
    )
    assert (status, [each.tag for each in deleted]) == (200, ["ResponseMetadata"])


def test_a_receive_as_kombu_5_3_makes_it_names_its_queue_by_the_address_and_no_version(
    server: Served, queue: str
) -> None:  # SPEC N1
    """Recorded from its asynchronous client, which speaks this protocol until version 5.3.7."""
    server.client.send_message(QueueUrl=queue, MessageBody="größer")
    form = b"MaxNumberOfMessages=10&AttributeName.1=ApproximateReceiveCount&WaitTimeSeconds=1&Action=ReceiveMessage"
    status, received = posted(server, queue.removeprefix(server.url), form)
    assert (status, received.findtext(".//Message/Body")) == (200, "größer")


def test_lists_and_maps_of_the_query_protocol(server: Served) -> None:
    attributes = {"Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "3", "Tag.1.Key": "a", "Tag.1.Value": ""}
    _, created = ask_in_query_protocol(server, "CreateQueue", QueueName="older", **attributes)
    url = created.findtext("CreateQueueResult/QueueUrl")
    _, tags = ask_in_query_protocol(server, "ListQueueTags", QueueUrl=url)
    assert children(tags, "ListQueueTagsResult/Tag") == [{"Key": "a", "Value": None}]
    _, shown = ask_in_query_protocol(server, "GetQueueAttributes", QueueUrl=url, **{"AttributeName.1": "DelaySeconds"})
    assert children(shown, "GetQueueAttributesResult/Attribute") == [{"Name": "DelaySeconds", "Value": "3"}]
    _, listed = ask_in_query_protocol(server, "ListQueues", QueueNamePrefix="older")
    assert [each.text for each in listed.findall("ListQueuesResult/QueueUrl")] == [url]


@pytest.mark.parametrize(
    ("operation", "parameters", "code", "text"),
    [
        ("GetQueueUrl", {"QueueName": "nowhere"}, "AWS.SimpleQueueService.NonExistentQueue", "does not exist"),
        ("GetQueueUrl", {}, "MissingParameter", "The request must contain the parameter QueueName."),
        ("SendMessageBatch", {"QueueUrl": "of-batches"}, "AWS.SimpleQueueService.EmptyBatchRequest", "at least one"),
        ("ListQueues", {"MaxResults": "many"}, "MalformedInput", "Value many for parameter MaxResults is invalid."),
        ("ListQueues", {"MaxResults.1": "1"}, "MalformedInput", "parameter MaxResults is invalid"),
        ("SendMessage", {"MessageAttribute": "1"}, "MalformedInput", "parameter MessageAttributes is invalid"),
        ("SendLetter", {}, "InvalidAction", "The action SendLetter is not valid for this endpoint."),
        ("", {}, "MissingAction", "neither the parameter Action nor the header X-Amz-Target"),
    ],
)
def test_an_error_of_the_query_protocol_is_read_by_its_sdks(
    server: Served, operation: str, parameters: dict[str, str], code: str, text: str
) -> None:
    server.queue("of-batches")
    status, answer = ask_in_query_protocol(server, operation, **parameters)
    [error] = children(answer, "Error")
    assert (status, answer.tag, error["Type"], error["Code"]) == (400, "ErrorResponse", "Sender", code)
    assert text in str(error["Message"])


# callers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *[({"Host": host}, 200) for host in ("localhost:4576", "sqs.localhost", "[::1]:80", "LocalHost")],
        *[({"Host": f"{host}evil.example:4576"}, 403) for host in ("", "127.0.0.1.", "localhost.")],
        *[({"Origin": origin}, 403) for origin in ("https://evil.example", "null")],
        ({"Origin": "http://localhost:4576", "Host": "localhost:4576"}, 200),
        ({"Origin": "http://localhost:3000", "Host": "localhost:4576"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_only_callers_of_this_machine_that_are_not_web_pages_are_answered(
    server: Served, headers: dict[str, str], status: int
) -> None:  # SPEC N1
    queues = server.on_the_loop(server.sqs.queues)
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    body = json.dumps({"QueueName": "made-by-a-page"}).encode()
    answered, got, text = post(server, body, X_Amz_Target="AmazonSQS.CreateQueue", **named)
    assert answered == status
    assert not [name for name in got if name.lower().startswith("access-control")]
    if status == 403:
        assert server.on_the_loop(server.sqs.queues) == queues
        assert json.loads(text)["message"].startswith("tarry local does not answer to ")


def test_more_hosts_and_the_pages_of_an_origin_are_let_in_by_name() -> None:  # SPEC N1
    admitted = admission_of(["Host.Docker.internal"], ["http://localhost:3000"])
    page = {"Host": "host.docker.internal:4576", "Origin": "http://localhost:3000"}
    assert admitted.refusal(page) is None
    assert admitted.cors(page)["Access-Control-Allow-Origin"] == "http://localhost:3000"
    other = {"Host": "host.docker.internal:4576", "Origin": "http://localhost:3001"}
    assert "comes from http://localhost:3001" in str(admitted.refusal(other))
    assert admitted.cors(other) == {}
    assert "--allow-host sqs.test" in str(admitted.refusal({"Host": "sqs.test:80"}))
    for hosts, origins in ((["http://x"], []), (["x:80"], []), ([""], []), ([], ["*"]), ([], ["localhost:3000"])):
        with pytest.raises(UsageError, match="must be a"):
            admission_of(hosts, origins)


# long polls


def test_long_polls_end_with_a_delay_in_time_or_with_their_queue(server: Served, queue: str) -> None:
    idle = server.queue("idle", ReceiveMessageWaitTimeSeconds="1")  # the queue's own wait
    gone = server.queue("gone")
    server.client.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=1)
    with ThreadPoolExecutor() as threads:
        delayed = threads.submit(receive, server, queue, WaitTimeSeconds=20)
        empty = threads.submit(receive, server, idle)
        deleted = threads.submit(receive, server, gone, WaitTimeSeconds=1)
        time.sleep(0.1)
        server.client.delete_queue(QueueUrl=gone)
        assert (len(delayed.result(60)), empty.result(60)) == (1, [])
        with pytest.raises(server.client.exceptions.QueueDoesNotExist):
            deleted.result(60)


def test_stopping_the_server_ends_the_long_polls() -> None:
    """They get an empty answer instead of a broken connection."""
    with ThreadPoolExecutor() as threads:
        before = {thread for thread in threading.enumerate() if thread.name.startswith("asyncio")}
        with served() as here:
            queue = here.queue("orders")
            waits = threads.submit(receive, here, queue, WaitTimeSeconds=20)
            time.sleep(0.1)
        assert waits.result(60) == []
    assert {thread for thread in threading.enumerate() if thread.name.startswith("asyncio")} <= before


def test_a_port_in_use_is_an_error() -> None:
    async def serve_twice() -> None:
        scheduler = AsyncioScheduler()
        sqs = Sqs(lambda: scheduler.now, Random(1), History(lambda: scheduler.now))
        async with serve(sqs, scheduler) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(PortTaken, match=f"^cannot listen at port {port} of 127.0.0.1: "):
                async with serve(sqs, scheduler, port=port):
                    pass
        async with serve(sqs, scheduler, port=port):  # the port is free now
            pass

    asyncio.run(serve_twice())


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
        ("ListQueues", b"[" * 200_000, "The request is not JSON: "),
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
    with raw(server, sent) as connection:
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
        raw(server, request[:length]).close()
    until_handled(server)
    assert server.client.receive_message(QueueUrl=queue).get("Messages") is None
    raw(server, request).close()  # complete, but its client does not wait for the answer
    until_handled(server)
    [message] = server.client.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == "x"
    assert (open_files(), tasks(server)) == before


# many clients


POLLS = 500


@needs_proc
def test_500_long_polls_get_a_message_each_and_those_cut_get_none(server: Served) -> None:
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
