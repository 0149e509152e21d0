"""`tarry local` as a process that serves SQS and runs functions, used through boto3 from outside.  # SPEC N1

All tests share one cloud, so that they wait at the same time. The last test stops it and checks for leftovers.
"""

import asyncio
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tarry.guard.decision import Note, Setting
from tarry.guard.operations import TAG
from tarry.tools.console.access import WatchedQueue
from tarry.tools.local.aws.client import client_at
from tarry.tools.local.samples import read_samples
from tarry.tools.local.stories import last_run
from tests.consoles import console_at, visiting

from .conftest import tarry
from .process import LocalProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leftover processes are found in /proc")

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
}


TIMEOUTS = {"Plain": 2, "Delaying": 10, "Ordered": 10, "Crashing": 2, "Slow": 2}
"""Function timeouts in seconds. Visibility timeouts are longer, except where a test waits for one."""


def template() -> str:
    """Return a template in which each function has a queue with its lower-case name, and a dead-letter queue."""
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


class SentMessages:
    """The ids of messages, by their expected outcome."""

    def __init__(self, local: LocalProcess) -> None:
        self.at = time.time()
        self.dead_lettered = local.send("plain", "9")
        self.later = local.send("plain", "0", DelaySeconds=2)
        self.delayed = local.send("delaying", "{}")
        self.ordered = [
            local.send("ordered.fifo", body, MessageGroupId=group)
            for body, group in (("first", "a"), ("second", "a"), ("bad", "b"), ("other", "c"))
        ]
        self.crashed = local.send("crashing", "{}")
        self.overran = local.send("slow", "{}")


def story(local: LocalProcess, message_id: str) -> dict[str, Any]:
    """Return the story of a message, as the cloud tells it to the command."""
    result = tarry("story", message_id, "--endpoint-url", local.endpoint, "--json")
    assert result.stderr == f"local 127.0.0.1:{local.port}\n"
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcess]:
    folder = tmp_path_factory.mktemp("cloud")
    (folder / "template.yaml").write_text(template())
    for name, code in FUNCTIONS.items():
        (folder / name.lower()).mkdir()
        (folder / name.lower() / "app.py").write_text(code)
    with LocalProcess(folder, "--watch", "--keep", "kept.json") as local:
        local.wait("SQS is running at ")
        yield local


@pytest.fixture(scope="module")
def sent(local: LocalProcess) -> SentMessages:
    return SentMessages(local)


class PlainMapping:
    """The mapping of the function Plain, which Lambda is not changing."""

    def __init__(self, local: LocalProcess) -> None:
        self.client: Any = client_at(local.endpoint, "lambda")
        [found] = self.client.list_event_source_mappings(FunctionName="Plain")["EventSourceMappings"]
        self.uuid, self.arn = found["UUID"], found["EventSourceMappingArn"]
        local.until(lambda: self.now()["State"] == "Enabled", "a mapping that is not changed")

    def now(self) -> Any:
        return self.client.get_event_source_mapping(UUID=self.uuid)

    def scale(self, **scaling: int) -> Any:
        return self.client.update_event_source_mapping(UUID=self.uuid, ScalingConfig=scaling)


@pytest.fixture
def plain(local: LocalProcess) -> PlainMapping:
    return PlainMapping(local)


@pytest.mark.usefixtures("plain")
def test_a_paused_function_gets_no_messages_until_it_is_resumed(local: LocalProcess) -> None:
    def said(command: str, *target: str) -> str:
        where = ("--endpoint-url", local.endpoint, "--audit", str(local.folder / "audit.jsonl"))
        return tarry(command, *target, *where).stdout

    assert said("pause", "--queue", "plain") == "plain -> Plain: Enabled -> Disabled\n"
    paused = local.send("plain", "0")
    local.wait("plain -> Plain: Disabled")
    assert said("pause", "Plain") == "plain -> Plain: Disabled (unchanged)\n"
    local.until(lambda: local.timeline(paused) == ["READY"], "a message that waits")
    assert said("resume", "Plain") == "plain -> Plain: Disabled -> Enabled\n"
    local.wait("plain -> Plain: Enabled")
    local.committed(paused)


def test_a_mapping_is_described_scaled_and_tagged_over_http(local: LocalProcess, plain: PlainMapping) -> None:
    changed = plain.scale(MaximumConcurrency=2)
    assert (changed["State"], changed["ScalingConfig"]) == ("Updating", {"MaximumConcurrency": 2})
    plain.client.tag_resource(Resource=plain.arn, Tags={"team": "shop", "stage": "test"})
    plain.client.untag_resource(Resource=plain.arn, TagKeys=["stage", "other"])
    assert plain.client.list_tags(Resource=plain.arn)["Tags"] == {"team": "shop"}
    with pytest.raises(plain.client.exceptions.ResourceNotFoundException):
        plain.client.get_event_source_mapping(UUID="0" * 36)
    local.until(lambda: plain.now()["State"] == "Enabled", "the change")
    plain.scale()


def test_a_suspension_is_shown_and_resumed_as_on_aws(local: LocalProcess, plain: PlainMapping) -> None:
    note = Note("probing", 0, 0, None, Setting(True, 2), Setting(True, 2), ended=240, failed=230)
    plain.scale(MaximumConcurrency=2)
    plain.client.tag_resource(Resource=plain.arn, Tags={TAG: note.text()})
    where = ("--endpoint-url", local.endpoint)
    line = "plain: suspended since 00:00 UTC: 96% of 240 runs failed; a probe runs"
    assert tarry("queues", "plain", *where).stdout.splitlines()[-1] == line
    result = tarry("resume", "Plain", *where, "--audit", str(local.folder / "audit.jsonl")).stdout
    assert result.endswith("the guard's suspension has ended: enabled with MaximumConcurrency unset\n")
    assert plain.client.list_tags(Resource=plain.arn)["Tags"].get(TAG) is None
    assert (plain.now()["State"], "ScalingConfig" in plain.now()) == ("Enabled", False)


def test_sqs_moves_a_message_that_was_received_too_often(local: LocalProcess, sent: SentMessages) -> None:
    local.until(lambda: local.depth("plain-dead") == 1, "a dead letter")
    local.wait(rf"{sent.dead_lettered[:8]} plain  DEAD_LETTERED  \(by SQS itself, after 2 receives\)")


def test_the_delay_of_a_sender_or_a_handler_is_kept(local: LocalProcess, sent: SentMessages) -> None:
    local.committed(sent.later)
    assert local.states(sent.later) == ["READY", "IN_FLIGHT 1", "COMMITTED"]
    local.committed(sent.delayed)
    assert local.states(sent.delayed)[1:3] == ["IN_FLIGHT 1", "WAITING_RETRY  (the handler asked for it)"]


def test_a_fifo_group_keeps_its_order_and_its_dead_letter_has_the_reason(
    local: LocalProcess, sent: SentMessages
) -> None:
    local.ended(*sent.ordered)
    applied = re.findall(r"Ordered: applies (\w+)", local.text)
    assert [each for each in applied if each in ("first", "second")] == ["first", "first", "second"]
    assert local.timeline(sent.ordered[2])[-1] == "DEAD_LETTERED  (exhausted: ValueError: bad)"
    assert local.depth("ordered-dead.fifo") == 1
    assert "ValueError: bad" in local.text
    assert 'ordered/app.py", line 6, in handler' in local.text


def test_the_story_of_a_message_is_shown_while_it_runs(  # SPEC L6
    local: LocalProcess, sent: SentMessages
) -> None:
    local.ended(sent.ordered[2])
    found = story(local, sent.ordered[2])
    last = found["events"][-1]
    assert found["source"] == f"tarry local at {local.endpoint}"
    assert (last["state"], last["sent_to"], last["reason"]) == ("DEAD_LETTERED", "ordered-dead.fifo", "exhausted")
    assert last["error"] == "ValueError: bad"
    assert last["function"].endswith("Ordered")
    assert story(local, sent.ordered[2][:20])["events"] == found["events"]
    unknown = tarry("story", "0" * 36, "--endpoint-url", local.endpoint, exits=1)
    assert f"tarry local at {local.endpoint} does not know it" in unknown.stderr


def test_a_console_in_another_process_names_the_latest_error(local: LocalProcess, sent: SentMessages) -> None:
    local.ended(sent.ordered[2])
    console = console_at(local.endpoint, [WatchedQueue("ordered.fifo", "ordered-dead.fifo")])

    async def overview() -> str:
        async with visiting(console) as visitor:
            while "Reading the queues." in (text := (await visitor.get("/")).text):
                pass
            return text

    assert "The latest: exhausted: ValueError: bad" in asyncio.run(overview())


def test_the_message_of_a_handler_that_crashes_is_redelivered(local: LocalProcess, sent: SentMessages) -> None:
    local.committed(sent.crashed)
    assert local.states(sent.crashed)[2] == "WAITING_RETRY  (Runtime exited with error: signal: killed)"
    assert local.timeline(sent.crashed)[3:] == ["IN_FLIGHT 2", "COMMITTED"]


def test_a_handler_that_exceeds_its_timeout_is_killed(local: LocalProcess, sent: SentMessages) -> None:
    local.committed(sent.overran)
    assert "Slow: Task timed out after 2.00 seconds" in local.text
    assert re.search(r"^Slow: 1 message in ([2-9]\d{3}|\d{5,}) ms \(timeout\)$", local.text, re.MULTILINE)


def test_another_cloud_at_the_same_port_is_refused(local: LocalProcess) -> None:
    template = str(local.folder / "template.yaml")
    refused = tarry("local", "--template", template, "--port", str(local.port), exits=2).stderr
    assert f"tarry: cannot listen at port {local.port} of 127.0.0.1" in refused
    assert "Use --port for another port" in refused


@pytest.mark.last_of_its_module
def test_on_sigterm_it_stops_and_leaves_nothing_behind(local: LocalProcess, sent: SentMessages) -> None:
    """A handler runs, and a process that a crashed handler started would still sleep."""
    local.send("slow", "{}")
    local.wait("Slow: sleeps", times=2)
    local.until(lambda: local.depth("plain-dead") == local.depth("ordered-dead.fifo") == 1, "the dead letters")
    assert local.left()
    assert local.end(signal.SIGTERM) == 0
    assert local.left() == []
    with socket.create_server(("127.0.0.1", local.port)):
        pass
    last = local.text.rpartition("Slow: sleeps")[2]
    assert "Traceback" not in last
    assert re.search(r"^Messages finished: \d+ committed, 2 dead-lettered\.$", last, re.MULTILINE)
    assert re.search(
        r"^Wrote \d+ messages \(.*1 in plain-dead, 1 in ordered-dead\.fifo\) to kept\.json\. ", last, re.MULTILINE
    )
    record = last_run(local.folder / "template.yaml")
    assert record is not None
    assert {sent.ordered[2], sent.dead_lettered} <= {story.id for story in record.stories}
    path = local.folder / "kept.json"
    kept = {record["leftIn"]: record for record in json.loads(path.read_text())["Records"]}
    assert "slow" in kept, "the message of the handler that was killed"
    moved, failed = kept["plain-dead"], kept["ordered-dead.fifo"]
    assert {"slow", "plain", "ordered.fifo"} <= {sample.queue for sample in read_samples(path)}
    assert (moved["body"], moved["failure"]) == ("9", None)
    assert (failed["failure"]["reason"], failed["failure"]["type"]) == ("exhausted", "ValueError")
    assert "line 6, in handler" in failed["failure"]["traceback"]
