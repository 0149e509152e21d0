"""The SQS model over HTTP, called with aiobotocore and the AWS CLI version 1.

Both pin botocore, so `make clients` installs them in an environment of their own; without it, these tests are skipped.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.pages import PAGES, ROOT
from tests.served import PATIENCE_SECONDS, Served, served

BIN = ROOT / "build" / "clients" / "bin"
pytestmark = pytest.mark.skipif(
    not (BIN.parent / ".ready").exists(), reason="aiobotocore and the AWS CLI 1 are not installed: make clients"
)

PROGRAM = """
import asyncio, json, sys
from aiobotocore.session import get_session

async def main(url):
    settings = dict(region_name="us-east-1", aws_access_key_id="local", aws_secret_access_key="local")
    async with get_session().create_client("sqs", endpoint_url=url, **settings) as sqs:
        queue = (await sqs.create_queue(QueueName="polled"))["QueueUrl"]
        polls = [asyncio.create_task(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)) for _ in range(5)]
        entries = [{"Id": str(number), "MessageBody": f"é{number}"} for number in range(5)]
        bad = {"Id": "bad", "MessageBody": "x", "DelaySeconds": 901}
        sent = await sqs.send_message_batch(QueueUrl=queue, Entries=[*entries, bad])
        messages = [(await poll)["Messages"][0] for poll in polls]
        for message in messages:
            await sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        try:
            await sqs.get_queue_url(QueueName="nowhere")
        except sqs.exceptions.QueueDoesNotExist as error:
            code = error.response["Error"]["Code"]
        failed = [entry["Code"] for entry in sent["Failed"]]
        print(json.dumps([sorted(message["Body"] for message in messages), failed, code]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as here:
        yield here


def environment(**variables: str) -> dict[str, str]:
    """Return the variables for a program, without a developer's own settings of AWS."""
    left_out = ("AWS_", "HTTP", "NO_PROXY")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(left_out)}
    kept |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**kept, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, **variables}


def bodies_of(server: Served, queue: str) -> list[str]:
    return server.on_the_loop(lambda: [message.body for message in server.sqs.peek(queue)])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    words, limit = list(map(str, command)), PATIENCE_SECONDS
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=limit, check=False)


def test_aiobotocore_sends_polls_and_deletes_and_the_program_of_the_guide_sends_an_order(server: Served) -> None:
    server.queue("orders")
    (page,) = (each for each in PAGES if each.name == "docs/guides/local.md")
    (program,) = (block.text for block in page.blocks if "aiobotocore" in block.text)
    result = run(BIN / "python", "-c", f"{program.replace('http://127.0.0.1:4576', server.url)}\n{PROGRAM}", server.url)
    assert result.returncode == 0, result.stderr
    bodies = [f"é{number}" for number in range(5)]
    shown = json.loads(result.stdout.splitlines()[-1])
    assert shown == [bodies, ["InvalidParameterValue"], "AWS.SimpleQueueService.NonExistentQueue"]
    assert bodies_of(server, "polled") == []
    assert bodies_of(server, "orders") == ['{"id": 1}']


def test_the_aws_cli_1_uses_the_endpoint_url_of_its_option(server: Served) -> None:
    queue = server.queue("of-the-cli")
    ask = (BIN / "aws", "sqs", "--endpoint-url", server.url, "--output", "json")
    server.client.send_message(QueueUrl=queue, MessageBody="größer")
    received = run(*ask, "receive-message", "--queue-url", queue, "--attribute-names", "All")
    [message] = json.loads(received.stdout)["Messages"]
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("größer", "1")
    refused = run(*ask, "get-queue-url", "--queue-name", "nowhere")
    assert "(AWS.SimpleQueueService.NonExistentQueue) when calling the GetQueueUrl operation" in refused.stderr


def test_the_aws_cli_1_goes_to_aws_without_the_option_as_the_guide_says(server: Served) -> None:
    """Its proxy is a socket of this test, which shows where the request goes and lets nothing through."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(PATIENCE_SECONDS)
        variables = {"AWS_ENDPOINT_URL": server.url, "AWS_ENDPOINT_URL_SQS": server.url, "AWS_MAX_ATTEMPTS": "1"}
        variables["HTTPS_PROXY"] = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        command = [BIN / "aws", "sqs", "send-message", "--queue-url", f"{server.url}/123456789012/x"]
        command += ["--message-body", "x"]
        with subprocess.Popen(command, env=environment(**variables), stderr=subprocess.DEVNULL) as asked:
            try:
                connection, _ = proxy.accept()
                with connection:
                    assert connection.recv(4096).startswith(b"CONNECT queue.amazonaws.com:443 ")
            finally:
                asked.kill()
