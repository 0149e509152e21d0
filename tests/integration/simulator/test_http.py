"""The model of SQS over HTTP, driven by boto3 from outside."""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.simulator.history import History
from tarry.simulator.http import PortTaken, serve
from tarry.simulator.sqs import Sqs
from tarry.simulator.wall import LoopTimeline
from tests.served import Served, served
from tests.wire import ACCOUNT

ALL = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    with served() as here:
        yield here


@pytest.fixture
def queue(site: Served, request: pytest.FixtureRequest) -> str:
    """The URL of a queue of the test's own."""
    return site.queue(f"{request.node.name}"[:80].replace("[", "-").replace("]", ""))


def receive(site: Served, url: str, most: int = 10, **more: Any) -> list[dict[str, Any]]:
    answer = site.client.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **ALL, **more)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def post(site: Served, body: bytes, **headers: str) -> tuple[int, dict[str, str], str]:
    """A request as no SDK makes it."""
    request = urllib.request.Request(f"{site.url}/", body, {name.replace("_", "-"): headers[name] for name in headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


# a message's way


def test_a_message_is_sent_received_hidden_shown_and_deleted(site: Served, queue: str) -> None:
    attributes = {
        "source": {"DataType": "String", "StringValue": "shop é"},
        "digest": {"DataType": "Binary.sha", "BinaryValue": bytes(range(256))},
    }
    sent = site.client.send_message(QueueUrl=queue, MessageBody="größer\n", MessageAttributes=attributes)
    [message] = receive(site, queue)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "größer\n")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert receive(site, queue) == []
    handle = message["ReceiptHandle"]
    site.client.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    [message] = receive(site, queue)
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    site.client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    told = site.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert [told[name] for name in told if name.startswith("ApproximateNumber")] == ["0", "0", "0"]


def test_a_batch_says_which_entries_were_refused(site: Served, queue: str) -> None:
    entries = [{"Id": "good", "MessageBody": "1"}, {"Id": "bad", "MessageBody": "2", "DelaySeconds": 901}]
    answer = site.client.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidParameterValue", True)


def test_a_fifo_queue_keeps_a_groups_order(site: Served) -> None:
    queue = site.queue("ordered.fifo", ContentBasedDeduplication="true")
    for body in ("1", "2", "2"):
        site.client.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="a")
    assert [message["Body"] for message in receive(site, queue)] == ["1", "2"]


def test_what_was_received_too_often_goes_to_the_dead_letter_queue(site: Served) -> None:
    dead = site.queue("jobs-dead")
    target = site.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 1})
    jobs = site.queue("jobs", RedrivePolicy=policy, VisibilityTimeout="0")
    site.client.send_message(QueueUrl=jobs, MessageBody="poison")
    assert len(receive(site, jobs)) == 1
    assert receive(site, jobs) == []
    [letter] = receive(site, dead, WaitTimeSeconds=1)
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(":jobs")


def test_a_mebibyte_passes_whatever_it_is_in_json(site: Served, queue: str) -> None:
    body = "é\n" * (1_048_576 // 3)
    site.client.send_message(QueueUrl=queue, MessageBody=body)
    [message] = receive(site, queue)
    assert message["Body"] == body


# urls


def test_answers_name_the_address_that_is_served(site: Served, queue: str) -> None:
    name = queue.rpartition("/")[2]
    assert queue == f"{site.url}/{ACCOUNT}/{name}"
    assert site.client.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert queue in site.client.list_queues()["QueueUrls"]


@pytest.mark.parametrize("host", ["https://sqs.eu-west-1.amazonaws.com", "http://localhost:9324"])
def test_a_queue_url_from_elsewhere_counts_by_its_path(site: Served, host: str) -> None:
    queue = site.queue("from-elsewhere")
    site.client.send_message(QueueUrl=f"{host}/{ACCOUNT}/from-elsewhere", MessageBody="x")
    assert len(receive(site, queue)) == 1


# errors


def test_an_error_has_the_code_that_boto3_gives_of_sqs(site: Served) -> None:
    with pytest.raises(site.client.exceptions.QueueDoesNotExist) as raised:
        site.client.get_queue_url(QueueName="nowhere")
    error = raised.value.response["Error"]
    assert error == {
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "Message": "The specified queue does not exist.",
        "QueryErrorCode": "QueueDoesNotExist",
        "Type": "Sender",
    }


def test_an_error_that_is_not_of_sqss_model_has_its_code_too(site: Served, queue: str) -> None:
    with pytest.raises(ClientError) as raised:
        site.client.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=901)
    assert raised.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize(
    ("target", "body", "name", "text"),
    [
        ("AmazonSQS.SendLetter", b"{}", "UnknownOperationException", "There is no operation AmazonSQS.SendLetter."),
        ("DynamoDB_20120810.ListTables", b"{}", "UnknownOperationException", "There is no operation DynamoDB_2012081"),
        ("AmazonSQS.ListQueues", b"{", "SerializationException", "The request is no JSON: "),
        ("AmazonSQS.ListQueues", b"[]", "SerializationException", "The request is no JSON object."),
        ("AmazonSQS.ListQueues", b'{"MaxResults": "1"}', "SerializationException", "MaxResults"),
        ("AmazonSQS.SendMessage", b"{}", "MissingRequiredParameterException", "must contain the parameter QueueUrl."),
    ],
)
def test_what_no_sdk_sends_is_refused(site: Served, target: str, body: bytes, name: str, text: str) -> None:
    status, _, answer = post(site, body, X_Amz_Target=target)
    assert status == 400
    told = json.loads(answer)
    assert told["__type"] == f"com.amazonaws.sqs#{name}"
    assert text in told["message"]


def test_binary_values_are_base64(site: Served, queue: str) -> None:
    attributes = {"a": {"DataType": "Binary", "BinaryValue": "%"}}
    body = {"QueueUrl": queue, "MessageBody": "x", "MessageAttributes": attributes}
    _, _, answer = post(site, json.dumps(body).encode(), X_Amz_Target="AmazonSQS.SendMessage")
    assert "A BinaryValue is no base64" in json.loads(answer)["message"]


def test_nulls_and_what_newer_sdks_may_send_count_for_nothing(site: Served, queue: str) -> None:
    body = {"QueueUrl": queue, "MessageBody": "x", "DelaySeconds": None, "NewOf2030": {"a": 1}}
    status, _, _ = post(site, json.dumps(body).encode(), X_Amz_Target="AmazonSQS.SendMessage")
    assert status == 200
    assert len(receive(site, queue)) == 1


def test_an_sdk_of_the_old_protocol_is_told_in_its_own_form(site: Served) -> None:
    status, headers, answer = post(site, b"Action=ListQueues")
    assert (status, headers["Content-Type"].partition(";")[0]) == (400, "text/xml")
    assert "<Code>InvalidAction</Code>" in answer
    assert "JSON protocol" in answer


# what a developer may look at


def test_the_root_says_what_this_is(site: Served) -> None:
    with urllib.request.urlopen(f"{site.url}/") as answer:
        assert f"endpoint URL {site.url}" in answer.read().decode()


def test_the_queues_are_told_with_the_age_of_their_oldest_message(site: Served, queue: str) -> None:
    before = time.time()
    site.client.send_message(QueueUrl=queue, MessageBody="1")
    site.client.send_message(QueueUrl=queue, MessageBody="2", DelaySeconds=60)
    with urllib.request.urlopen(f"{site.url}/queues") as answer:
        [told] = [each for each in json.load(answer)["queues"] if each["url"] == queue]
    assert before - 0.1 <= told.pop("oldest") <= time.time()
    counts = {"ready": 1, "in_flight": 0, "delayed": 1}
    assert told == {"name": queue.rpartition("/")[2], "url": queue, **counts, "dead_letter_queue": None}


# long polls


def test_a_long_poll_is_answered_as_soon_as_a_message_is_sent(site: Served, queue: str) -> None:
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(receive, site, queue, WaitTimeSeconds=20)
        time.sleep(0.1)
        began = time.monotonic()
        site.client.send_message(QueueUrl=queue, MessageBody="x")
        assert len(waits.result()) == 1
    assert time.monotonic() - began < 18  # of 20


def test_a_long_poll_is_answered_when_a_delay_ends(site: Served, queue: str) -> None:
    began = time.monotonic()
    site.client.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=1)
    assert len(receive(site, queue, WaitTimeSeconds=20)) == 1
    assert 0.9 <= time.monotonic() - began < 18


def test_a_long_poll_without_a_message_ends_in_time(site: Served) -> None:
    queue = site.queue("idle", ReceiveMessageWaitTimeSeconds="1")  # the queue's own wait
    began = time.monotonic()
    assert receive(site, queue) == []
    assert time.monotonic() - began >= 0.9


def test_each_of_several_that_wait_gets_a_message(site: Served, queue: str) -> None:
    with ThreadPoolExecutor() as threads:
        waits = [threads.submit(receive, site, queue, most=1, WaitTimeSeconds=10) for _ in range(3)]
        time.sleep(0.2)
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(3)]
        site.client.send_message_batch(QueueUrl=queue, Entries=entries)
        assert sorted(message["Body"] for wait in waits for message in wait.result(60)) == ["0", "1", "2"]


def poll_raw(site: Served, queue: str) -> socket.socket:
    """A long poll whose connection is in the caller's hand."""
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    connection = socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2])))
    head = (
        f"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def until_handled(site: Served) -> None:
    """Return when the server has seen all that it got before: it is on one loop, and answers some more requests."""
    for _ in range(3):
        site.client.list_queues()


def test_nothing_is_received_for_a_client_that_has_gone(site: Served, queue: str) -> None:  # SPEC N1
    with poll_raw(site, queue):
        until_handled(site)
    until_handled(site)
    site.client.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(site, queue)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_queue_that_is_deleted_while_somebody_waits_is_gone_for_them(site: Served, queue: str) -> None:
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(receive, site, queue, WaitTimeSeconds=1)
        time.sleep(0.1)
        site.client.delete_queue(QueueUrl=queue)
        with pytest.raises(site.client.exceptions.QueueDoesNotExist):
            waits.result(60)


# beginning and end


def test_the_end_of_the_server_ends_those_who_wait() -> None:
    """They get an answer, where a server that is gone would only break their connections."""
    with ThreadPoolExecutor() as threads:
        before = {thread for thread in threading.enumerate() if thread.name.startswith("asyncio")}
        with served() as here:
            queue = here.queue("orders")
            waits = threads.submit(receive, here, queue, WaitTimeSeconds=20)
            time.sleep(0.1)
        assert waits.result(60) == []
    assert {thread for thread in threading.enumerate() if thread.name.startswith("asyncio")} <= before


def test_a_port_that_is_taken_is_said() -> None:
    async def serve_twice() -> None:
        timeline = LoopTimeline()
        sqs = Sqs(lambda: timeline.now, Random(1), History(lambda: timeline.now))
        async with serve(sqs, timeline) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(PortTaken, match=f"^port {port} of 127.0.0.1 cannot be listened at: "):
                async with serve(sqs, timeline, port=port):
                    pass
        async with serve(sqs, timeline, port=port):  # which is free again
            pass

    asyncio.run(serve_twice())


# speed


def test_requests_are_fast_with_10000_messages_waiting(site: Served, queue: str) -> None:
    def fill() -> None:
        for number in range(10_000):
            site.sqs.call("SendMessage", {"QueueUrl": queue, "MessageBody": str(number)})

    site.on_the_loop(fill)
    began = time.process_time()
    for _ in range(50):
        handles = [message["ReceiptHandle"] for message in receive(site, queue)]
        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
        site.client.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert time.process_time() - began < 5, "it is about 0.3, of which boto3 in the same process is most"
