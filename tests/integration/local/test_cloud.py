"""`tarry local` as it is used: a process that serves SQS and runs functions, driven by boto3 from outside.  # SPEC N1

One cloud serves all of these tests, which wait at the same time; in the end it is told to end, and nothing is left.
"""

import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .process import SOON_SECONDS, Local

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")

FUNCTIONS = {
    "Plain": (
        "import json\n"
        "def handler(event, context):\n"
        "    failed = [r for r in event['Records']\n"
        "              if int(r['body']) >= int(r['attributes']['ApproximateReceiveCount'])]\n"
        "    return {'batchItemFailures': [{'itemIdentifier': r['messageId']} for r in failed]}\n"
    ),
    "Delaying": (
        "from tarry import consumer\n"
        "@consumer\n"
        "def handler(message):\n"
        "    if message.attempt == 1:\n"
        "        message.retry(delay=2)\n"
    ),
    "Ordered": (
        "from tarry import Fixed, consumer\n"
        "@consumer(backoff=Fixed(1), max_attempts=2)\n"
        "def handler(message):\n"
        "    print('applies', message.body)\n"
        "    if message.body == 'bad' or message.body == 'first' and message.attempt == 1:\n"
        "        raise ValueError(message.body)\n"
    ),
    "Crashing": (
        "import os, signal, subprocess\n"
        "def handler(event, context):\n"
        "    if event['Records'][0]['attributes']['ApproximateReceiveCount'] == '1':\n"
        "        subprocess.Popen(['sleep', '600'])\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    ),
    "Slow": (
        "import time\n"
        "def handler(event, context):\n"
        "    if event['Records'][0]['attributes']['ApproximateReceiveCount'] == '1':\n"
        "        print('sleeps')\n"
        "        time.sleep(600)\n"
    ),
    "Watched": "def handler(event, context):\n    print('the old code')\n",
}


TIMEOUTS = {"Plain": 2, "Delaying": 10, "Ordered": 10, "Crashing": 2, "Slow": 2, "Watched": 2}
"""In seconds, of a function; its queue's visibility timeout is more than that, but where a test waits for it."""


def template() -> str:
    """Each function with a queue of its own name in small letters, and one for the dead."""
    parts = ["Transform: AWS::Serverless-2016-10-31", "Resources:"]
    for name, timeout in TIMEOUTS.items():
        suffix, kind = (
            (".fifo", "FifoQueue: true, ContentBasedDeduplication: true, ") if name == "Ordered" else ("", "")
        )
        redrive = f"{{deadLetterTargetArn: !GetAtt {name}Dead.Arn, maxReceiveCount: {2 if name == 'Plain' else 9}}}"
        visibility = 2 if name == "Plain" else timeout + 2
        event = f"{{Queue: !GetAtt {name}Queue.Arn, BatchSize: 5, FunctionResponseTypes: [ReportBatchItemFailures]}}"
        parts += [
            f"  {name}Dead: {{Type: AWS::SQS::Queue, Properties: {{{kind}QueueName: {name.lower()}-dead{suffix}}}}}",
            f"  {name}Queue:",
            "    Type: AWS::SQS::Queue",
            f"    Properties: {{{kind}QueueName: {name.lower()}{suffix}, VisibilityTimeout: {visibility},",
            f"      RedrivePolicy: {redrive}}}",
            f"  {name}:",
            "    Type: AWS::Serverless::Function",
            "    Properties:",
            f"      {{CodeUri: {name.lower()}, Handler: app.handler, Runtime: python3.13, Timeout: {timeout},",
            f"       Events: {{Fed: {{Type: SQS, Properties: {event}}}}}}}",
        ]
    return "\n".join(parts)


class Sent:
    """What was sent, by what is to become of it."""

    def __init__(self, local: Local) -> None:
        self.at = time.time()
        self.once = local.send("plain", "0")
        self.again = local.send("plain", "1")
        self.dead = local.send("plain", "9")
        self.later = local.send("plain", "0", DelaySeconds=2)
        self.delayed = local.send("delaying", "{}")
        self.ordered = [
            local.send("ordered.fifo", body, MessageGroupId=group)
            for body, group in (("first", "a"), ("second", "a"), ("bad", "b"), ("other", "c"))
        ]
        self.crashed = local.send("crashing", "{}")
        self.overran = local.send("slow", "{}")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    folder = tmp_path_factory.mktemp("cloud")
    (folder / "template.yaml").write_text(template())
    for name, code in FUNCTIONS.items():
        (folder / name.lower()).mkdir()
        (folder / name.lower() / "app.py").write_text(code)
    with Local(folder, "--watch") as local:
        local.wait("SQS is at ")
        yield local


@pytest.fixture(scope="module")
def sent(local: Local) -> Sent:
    return Sent(local)


@pytest.fixture(scope="module", autouse=True)
def watched(local: Local, sent: Sent) -> None:
    """A function whose code changes while the others are at work."""
    local.send("watched", "{}")
    local.wait("Watched: the old code")
    (local.folder / "watched/app.py").write_text("def handler(event, context):\n    print('the new code')\n")
    local.wait("Watched: app.py changed: it is loaded anew")
    local.send("watched", "{}")


def test_a_failed_message_is_retried_alone(local: Local, sent: Sent) -> None:
    local.until(lambda: local.story(sent.again)[-1:] == ["COMMITTED"], "a retry")
    assert local.story(sent.once) == ["READY", "IN_FLIGHT 1", "COMMITTED"]
    assert local.states(sent.again) == [
        "READY",
        "IN_FLIGHT 1",
        "WAITING_RETRY  (reported as failed)",
        "IN_FLIGHT 2",
        "COMMITTED",
    ]


def test_sqs_moves_what_was_received_too_often(local: Local, sent: Sent) -> None:
    local.until(lambda: local.depth("plain-dead") == 1, "a dead letter")
    local.wait(rf"{sent.dead[:8]} plain  DEAD_LETTERED  \(by SQS itself, after 2 receives\)")


def test_a_delay_is_kept_that_the_sender_asked_for(local: Local, sent: Sent) -> None:
    local.until(lambda: local.story(sent.later)[-1:] == ["COMMITTED"], "a delayed message")
    assert local.states(sent.later) == ["READY", "IN_FLIGHT 1", "COMMITTED"]


def test_a_delay_is_kept_that_the_handler_asked_for(local: Local, sent: Sent) -> None:
    local.until(lambda: local.story(sent.delayed)[-1:] == ["COMMITTED"], "a retried message")
    assert local.states(sent.delayed)[1:3] == ["IN_FLIGHT 1", "WAITING_RETRY  (the handler asked for it)"]


def test_a_fifo_group_keeps_its_order_and_its_dead_letter_says_why(local: Local, sent: Sent) -> None:
    stories = lambda: [local.story(each)[-1:] for each in sent.ordered]  # noqa: E731
    local.until(
        lambda: all("COMMITTED" in str(each) or "DEAD_LETTERED" in str(each) for each in stories()), "the groups"
    )
    applied = re.findall(r"Ordered: applies (\w+)", local.text)
    assert [each for each in applied if each in ("first", "second")] == ["first", "first", "second"]
    assert local.story(sent.ordered[2])[-1] == "DEAD_LETTERED  (exhausted: ValueError: bad)"
    assert local.depth("ordered-dead.fifo") == 1
    assert "ValueError: bad" in local.text
    assert 'ordered/app.py", line 6, in handler' in local.text


def test_the_message_of_a_handler_that_crashes_comes_back(local: Local, sent: Sent) -> None:
    local.until(lambda: local.story(sent.crashed)[-1:] == ["COMMITTED"], "the crashed message")
    assert local.states(sent.crashed)[2] == "WAITING_RETRY  (Runtime exited with error: signal: killed)"
    assert local.story(sent.crashed)[3:] == ["IN_FLIGHT 2", "COMMITTED"]


def test_a_handler_that_overruns_its_timeout_is_killed(local: Local, sent: Sent) -> None:
    local.until(lambda: local.story(sent.overran)[-1:] == ["COMMITTED"], "the overrun message")
    assert "Slow: Task timed out after 2.00 seconds" in local.text
    assert re.search(r"^Slow: 1 message in ([2-9]\d{3}|\d{5,}) ms \(timeout\)$", local.text, re.MULTILINE)


def test_a_function_whose_code_changed_is_loaded_anew(local: Local) -> None:
    local.wait("Watched: the new code")


def test_another_cloud_at_the_same_port_is_refused(local: Local, tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(template())
    for name, code in FUNCTIONS.items():
        (tmp_path / name.lower()).mkdir()
        (tmp_path / name.lower() / "app.py").write_text(code)
    other = Local(tmp_path, "--port", str(local.port))
    assert other.process.wait(SOON_SECONDS) == 2
    assert f"tarry: cannot listen at port {local.port} of 127.0.0.1" in other.text
    assert "--port takes another port" in other.text


def test_it_ends_when_it_is_told_to_and_nothing_is_left(local: Local, sent: Sent) -> None:
    """The last one: a handler is at work, and what a crashed one had started would still sleep."""
    local.send("slow", "{}")
    local.wait("Slow: sleeps", times=2)
    assert local.left()
    assert local.end(signal.SIGTERM) == 0
    assert local.left() == []
    with socket.create_server(("127.0.0.1", local.port)):
        pass
    assert "Traceback" not in local.text.rpartition("Slow: sleeps")[2]
