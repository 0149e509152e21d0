"""The HTTP server of the SQS model, called with boto3."""

import asyncio
import json
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.simulator.history import History
from tarry.tools.simulator.http.admission import admission_of
from tarry.tools.simulator.http.query import NAMESPACE
from tarry.tools.simulator.http.server import CONTENT_TYPE, PortTaken, serve
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs
from tests.served import Served, post, served
from tests.wire import ACCOUNT

ALL = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as here:
        yield here


@pytest.fixture
def queue(server: Served, request: pytest.FixtureRequest) -> str:
    """Create a queue for the test; return its URL."""
    return server.queue(f"{request.node.name}"[:80].replace("[", "-").replace("]", ""))


def receive(server: Served, url: str, most: int = 10, **more: Any) -> list[dict[str, Any]]:
    answer = server.client.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **ALL, **more)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


# messages


def test_a_message_is_sent_received_released_and_deleted(server: Served, queue: str) -> None:
    attributes = {
        "source": {"DataType": "String", "StringValue": "shop é"},
        "digest": {"DataType": "Binary.sha", "BinaryValue": bytes(range(256))},
    }
    sent = server.client.send_message(QueueUrl=queue, MessageBody="größer\n", MessageAttributes=attributes)
    [message] = receive(server, queue)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "größer\n")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert receive(server, queue) == []
    handle = message["ReceiptHandle"]
    server.client.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    [message] = receive(server, queue)
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    server.client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    attributes = server.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert [attributes[name] for name in attributes if name.startswith("ApproximateNumber")] == ["0", "0", "0"]


def test_the_trace_id_of_a_request_becomes_the_trace_header_of_its_message(server: Served, queue: str) -> None:
    # PLATFORM 25a; a client adds this header on Lambda
    body = json.dumps({"QueueUrl": queue, "MessageBody": "traced"}).encode()
    post(server, body, X_Amz_Target="AmazonSQS.SendMessage", X_Amzn_Trace_Id="Root=1-5759e988-bd862e3fe1be46a994272793")
    server.client.send_message(QueueUrl=queue, MessageBody="not traced")
    traces = {message["Body"]: message["Attributes"].get("AWSTraceHeader") for message in receive(server, queue)}
    assert traces == {"traced": "Root=1-5759e988-bd862e3fe1be46a994272793", "not traced": None}


# urls


def test_queue_urls_have_the_address_of_the_server(server: Served, queue: str) -> None:
    name = queue.rpartition("/")[2]
    assert queue == f"{server.url}/{ACCOUNT}/{name}"
    assert server.client.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert queue in server.client.list_queues()["QueueUrls"]


@pytest.mark.parametrize("host", ["https://sqs.eu-west-1.amazonaws.com", "http://localhost:9324"])
def test_a_queue_url_with_another_host_works(server: Served, host: str) -> None:
    queue = server.queue("from-elsewhere")
    server.client.send_message(QueueUrl=f"{host}/{ACCOUNT}/from-elsewhere", MessageBody="x")
    assert len(receive(server, queue)) == 1


@pytest.mark.parametrize("signature", ["", "x" * 8000, "AWS4-HMAC-SHA256 Credential=no/20260101/eu/sqs/aws4_request"])
def test_signatures_are_not_checked(server: Served, signature: str) -> None:
    headers = {"X_Amz_Target": "AmazonSQS.ListQueues", "Authorization": signature}
    assert post(server, b"{}", **headers)[0] == 200


# the query protocol


def ask_in_query_protocol(server: Served, operation: str, path: str = "/", **parameters: str) -> tuple[int, Any]:
    """Make a request as an SDK from before the end of 2023 does; return the status and its XML without a namespace."""
    form = urllib.parse.urlencode({"Action": operation, "Version": "2012-11-05", **parameters}).encode()
    status, headers, text = post(server, form, path, Content_Type="application/x-www-form-urlencoded")
    assert headers["Content-Type"].startswith("text/xml")
    return status, ET.fromstring(text.replace(f' xmlns="{NAMESPACE}"', ""))


def children(element: Any, path: str) -> list[dict[str, str]]:
    """Return the texts of the children of each element at a path."""
    return [{child.tag: child.text for child in each} for each in element.findall(path)]


def test_an_sdk_of_the_query_protocol_sends_and_receives(server: Served, queue: str) -> None:  # SPEC N1
    attribute = "SendMessageBatchRequestEntry.1.MessageAttribute.1"
    status, sent = ask_in_query_protocol(
        server,
        "SendMessageBatch",
        QueueUrl=queue,
        **{"SendMessageBatchRequestEntry.1.Id": "good", "SendMessageBatchRequestEntry.1.MessageBody": "ö <&>\r\n+%"},
        **{f"{attribute}.Name": "digest", f"{attribute}.Value.DataType": "Binary"},
        **{f"{attribute}.Value.BinaryValue": "AP8="},
        **{"SendMessageBatchRequestEntry.2.Id": "bad", "SendMessageBatchRequestEntry.2.MessageBody": "x"},
        **{"SendMessageBatchRequestEntry.2.DelaySeconds": "901"},
    )
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
    path = queue.removeprefix(server.url)
    status, _, text = post(server, form, path, Content_Type="application/x-www-form-urlencoded")
    received = ET.fromstring(text.replace(f' xmlns="{NAMESPACE}"', ""))
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
        ({"Host": "localhost:4576"}, 200),
        ({"Host": "sqs.localhost"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example:4576"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "LocalHost"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
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


def test_answers_are_dated_by_the_time_of_the_model(
    server: Served, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    """`tarry failed` takes it for the clock of SQS; `--skip-time` moves it."""
    monkeypatch.setattr(server.sqs, "now", lambda: 4_102_444_800.0)
    answer = server.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
    assert answer["ResponseMetadata"]["HTTPHeaders"]["date"] == "Fri, 01 Jan 2100 00:00:00 GMT"


# pages for the developer


def test_the_root_page_shows_the_endpoint_url(server: Served) -> None:
    with urllib.request.urlopen(f"{server.url}/") as answer:
        assert f"endpoint URL {server.url}" in answer.read().decode()


def test_the_queues_page_lists_depths_and_the_age_of_the_oldest_message(server: Served, queue: str) -> None:
    before = time.time()
    server.client.send_message(QueueUrl=queue, MessageBody="1")
    server.client.send_message(QueueUrl=queue, MessageBody="2", DelaySeconds=60)
    with urllib.request.urlopen(f"{server.url}/queues") as answer:
        [described] = [each for each in json.load(answer)["queues"] if each["url"] == queue]
    assert before - 0.1 <= described.pop("oldest") <= time.time()
    counts = {"ready": 1, "in_flight": 0, "delayed": 1, "ever": 2}
    assert described == {"name": queue.rpartition("/")[2], "url": queue, **counts, "dead_letter_queue": None}


# long polls


def test_each_of_several_long_polls_gets_a_message(server: Served, queue: str) -> None:
    with ThreadPoolExecutor() as threads:
        waits = [threads.submit(receive, server, queue, most=1, WaitTimeSeconds=10) for _ in range(3)]
        time.sleep(0.2)
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(3)]
        server.client.send_message_batch(QueueUrl=queue, Entries=entries)
        assert sorted(message["Body"] for wait in waits for message in wait.result(60)) == ["0", "1", "2"]


def poll_raw(server: Served, queue: str) -> socket.socket:
    """Start a long poll over a connection that the caller can close."""
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    head = "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
    head += f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def until_handled(server: Served) -> None:
    """Wait until the server has read all earlier requests: it has one loop, and answers these requests after them."""
    for _ in range(3):
        server.client.list_queues()


def test_no_message_is_received_for_a_client_that_has_disconnected(server: Served, queue: str) -> None:  # SPEC N1
    with poll_raw(server, queue):
        until_handled(server)
    until_handled(server)
    server.client.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(server, queue)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


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
        assert len(delayed.result(60)) == 1
        assert empty.result(60) == []
        with pytest.raises(server.client.exceptions.QueueDoesNotExist):
            deleted.result(60)


# start and stop


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
