"""`tarry local --skip-time`: a run in virtual time, and the record that it leaves for `tarry story`."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import boto3
import pytest
from botocore.session import Session

from tarry.message.outcomes import State
from tarry.tools.local.instances import directory
from tarry.tools.local.stories import MOST_STORIES, keep_stories, last_run
from tarry.tools.story.events import Story, StoryEvent
from tests.command import rest_of, running

from .conftest import Project, tarry, timelines

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def project(project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project with visibility timeouts that AWS accepts, and a backoff of 1.5 hours."""
    for rest in ("\n      Redrive", "}"):
        project.edit("template.yaml", f"VisibilityTimeout: 2{rest}", f"VisibilityTimeout: 30{rest}")
    project.edit("ordered/app.py", "Fixed(1)", "Fixed(5400)")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    return project


def test_hours_of_retries_take_no_real_time_and_all_output_has_its_virtual_time(project: Project) -> None:  # SPEC N3
    project.send("Entries.fifo", group="a", fail=3)
    project.send(fail=1)
    began = time.monotonic()
    result = project.run("--skip-time")
    assert time.monotonic() - began < 1.5 * 3600  # a single wait
    waits = " -> ".join(f"IN_FLIGHT {attempt} -> WAITING_RETRY 1 h 30 min" for attempt in (1, 2, 3))
    assert timelines(result) == {
        "1": f"{waits} -> IN_FLIGHT 4 -> COMMITTED",
        "2": "IN_FLIGHT 1 -> WAITING_RETRY 30 s -> IN_FLIGHT 2 -> COMMITTED",
    }
    assert "2 messages to Entries.fifo, jobs; no wait takes real time." in result.stdout
    assert "+1 h 30 min  #1 Entries.fifo  IN_FLIGHT 2\n" in result.stdout
    assert "+4 h 30 min  #1 Entries.fifo  COMMITTED\n" in result.stdout
    summary = r"^2 messages settled in 4 h 30 min of virtual time \([\d.]+ s\): 2 committed; none lost\.$"
    assert re.search(summary, result.stdout, re.MULTILINE)
    lines = [re.sub(r"  +", "  ", line.strip()) for line in result.output.splitlines()]
    printed = "Plain: handled by plain Plain https://sqs.us-east-1.amazonaws.com/123456789012/jobs"
    first = lines.index(f"+0 s  {printed}")
    assert "+0 s  #2 jobs  IN_FLIGHT 1" in lines[:first]
    assert lines.index("+0 s  #2 jobs  WAITING_RETRY 30 s  (reported as failed)") > first
    assert lines.count(f"+30 s  {printed}") == 1
    assert "handled by" not in result.stdout
    # The first traceback of each error is shown, also without --verbose.
    assert result.stderr.count("Traceback") == result.stderr.count("ValueError: ordered says no") == 1
    assert re.search(r"\+0 s  Ordered: WAITING_RETRY \w{8}, attempt 1:$", result.stderr, re.MULTILINE)
    assert 'ordered/app.py", line 10, in handler' in result.stderr


def test_an_exception_is_printed_with_the_traceback_of_the_function(project: Project) -> None:
    project.send(boom="\x1b[31mboom")
    result = project.run("--skip-time")
    assert "WAITING_RETRY 30 s  (RuntimeError: \\x1b[31mboom)" in result.stdout
    assert 'app.py", line 12, in handler' in result.stderr
    assert "tarry/" not in result.stderr
    assert "\x1b" not in result.output
    assert result.stderr.count("Traceback") == 1
    assert "+30 s  Plain: RuntimeError: \\x1b[31mboom (traceback above)" in result.stderr


def test_the_messages_that_are_left_can_be_sent_again(project: Project) -> None:
    project.send(fail=9)
    kept, left = project.folder / "kept.json", project.folder / "left.json"
    result = project.run("--skip-time", "--keep", str(kept))
    again = f"To send them again: tarry local --event {kept}"
    assert result.stderr.splitlines()[-1] == f"Wrote 1 message (1 in Dead) to {kept}. {again}"
    project.write("plain/app.py", "def handler(event, context):\n    assert len(event['Records']) == 1\n")
    result = project.invoke("--event", str(kept), "--skip-time", "--expect", "committed=1", "--keep", str(left))
    assert result.stderr.splitlines()[-1] == f"Wrote {left}: no message was left."
    assert json.loads(left.read_text()) == {"Records": []}


SLEEPY = """
import asyncio, time
from threading import Event
from time import sleep
import boto3

def asynchronous():
    asyncio.run(asyncio.sleep(60))

def retries():
    try:
        boto3.client("dynamodb", endpoint_url="http://127.0.0.1:9").list_tables()
    except Exception as error:
        assert "Could not connect" in str(error)

def handler(event, context):
    for wait in (lambda: time.sleep(60), lambda: sleep(60), lambda: Event().wait(60), asynchronous, retries):
        left = context.get_remaining_time_in_millis()
        wait()
        took = (left - context.get_remaining_time_in_millis()) / 1000
        print("waited", took if took >= 60 else took > 0)
"""


def test_the_waits_of_a_function_pass_virtual_time(project: Project) -> None:  # SPEC N3
    project.edit("template.yaml", "Timeout: 2\nResources", "Timeout: 900\nResources")
    project.edit("template.yaml", "VisibilityTimeout: 30", "VisibilityTimeout: 900")
    project.write("plain/app.py", SLEEPY)
    project.send()
    result = project.run("--skip-time", "--expect", "committed=1")
    waits = [line.partition(" waited ")[2] for line in result.stderr.splitlines() if " waited " in line]
    assert waits == ["60.0", "60.0", "60.0", "60.0", "True"]
    assert re.search(r"^ *\+4 min \d+ s +#1 +COMMITTED$", result.stdout, re.MULTILINE)


def test_a_function_that_sleeps_beyond_its_timeout_is_killed(project: Project) -> None:  # SPEC N3
    project.write("plain/app.py", "import time\ndef handler(event, context):\n    time.sleep(3)\n    print('woken')\n")
    project.edit("template.yaml", "maxReceiveCount: 3", "maxReceiveCount: 1")
    project.send()
    result = project.run("--skip-time", "--expect", "dead_lettered=1")
    assert "Task timed out after 2.00 seconds" in result.stdout
    assert "(by SQS itself, after 1 receive)" in result.stdout
    assert "woken" not in result.output


LEAVES_VIRTUAL_TIME = """
import concurrent.futures, tarry.world
def handler(event, context):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(tarry.world.current().clock.sleep, 1)
"""


def test_a_function_that_leaves_virtual_time_is_reported(project: Project) -> None:
    project.write("plain/app.py", LEAVES_VIRTUAL_TIME)
    project.send()
    result = project.run("--skip-time", exits=1)
    assert result.stderr.splitlines()[-1] == "To run in real time, leave out --skip-time."
    assert "#1  IN_FLIGHT 1" in result.stdout


SENDS_ON = """
import boto3
sqs = boto3.client('sqs')
def handler(event, context):
    url = sqs.get_queue_url(QueueName='Entries.fifo')['QueueUrl']
    sqs.send_message(QueueUrl=url, MessageBody='{}', MessageGroupId='a', MessageDeduplicationId='1')
"""


def test_a_function_is_imported_for_its_first_message_also_of_another_function(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.send()
    ordered = (project.folder / "ordered/app.py").read_text()
    project.write("ordered/app.py", "import no_such_library")
    project.run("--skip-time")
    project.write("plain/app.py", SENDS_ON)
    assert project.refusal("--skip-time").endswith("ModuleNotFoundError: No module named 'no_such_library'")
    project.write("ordered/app.py", ordered)
    monkeypatch.delenv("AWS_PROFILE")
    session = boto3.Session(region_name="eu-west-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
    before = dict(os.environ), Session.create_client, list(sys.path)
    result = project.run("--skip-time", "--expect", "committed=2")
    assert re.search(r"^ +\w{8} Entries\.fifo  READY -> IN_FLIGHT 1 -> COMMITTED$", result.stdout, re.MULTILINE)
    assert (dict(os.environ), Session.create_client, list(sys.path)) == before, "the state of the process is restored"
    assert boto3.DEFAULT_SESSION is session


def test_a_function_with_an_unresolved_variable_is_left_out_if_the_event_does_not_need_it(project: Project) -> None:
    variables = "Environment: {Variables: {ARN: !GetAtt PlainRole.Arn}}"
    project.edit("template.yaml", "      CodeUri: ordered\n", f"      CodeUri: ordered\n      {variables}\n")
    project.send()
    result = project.run("--skip-time", "--strict-parameters")
    assert "Ordered is left out: Ordered.Environment.Variables.ARN: GetAtt PlainRole.Arn" in result.stderr


def test_a_message_that_expires_is_lost(project: Project) -> None:
    redrive = "RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}"
    project.edit("template.yaml", redrive, "MessageRetentionPeriod: 60")
    project.send(fail=9)
    result = project.run("--skip-time", exits=1)
    assert "LOST  (it expired: it was not settled within the retention of its queue)" in result.stdout
    assert "1 of 1 message LOST." in result.stdout


def test_after_give_up_the_messages_that_did_not_settle_are_reported(project: Project) -> None:
    project.send("Entries.fifo", group="a", fail=1)
    assert (
        "1 of 1 message did not settle, the last is due after 1 h 30 min (--give-up 5420 waits for it). "
        "The run took 1 h of virtual time ("
    ) in project.run("--skip-time", "--give-up", "3600", exits=1).stdout


def test_unexpected_states_fail_with_expected_and_actual_numbers(project: Project) -> None:  # SPEC N2
    project.send()
    project.send()
    result = project.run("--expect", "committed=1, dead_lettered=0", "--skip-time", exits=1)
    assert result.stdout.endswith(": 2 committed; none lost.\n")
    last = result.stderr.splitlines()[-1]
    assert last == "tarry: expected 1 COMMITTED, 0 DEAD_LETTERED, got 2 COMMITTED, 0 DEAD_LETTERED"


LOUD = """
import logging
logging.getLogger().setLevel("INFO")
def handler(message): logging.getLogger().info("loud")
"""


def test_a_function_does_not_get_the_log_level_that_another_has_set(project: Project) -> None:
    project.write("ordered/app.py", f"from tarry import consumer\n{LOUD}handler = consumer(handler)\n")
    project.edit(
        "plain/app.py",
        "    failed = []\n",
        "    import logging; logging.getLogger('x').info('at work')\n    failed = []\n",
    )
    project.send("Entries.fifo", group="a")
    project.send(fail=1)
    result = project.run("--skip-time", "--expect", "committed=2")
    assert "INFO root: loud" in result.stderr
    assert "at work" not in result.stderr


def test_ctrl_c_ends_it_with_the_timeline_so_far(project: Project) -> None:
    hangs = "import os\ndef handler(event, context):\n    open('now', 'w').close()\n    os.read(os.pipe()[0], 1)\n"
    project.write("plain/app.py", hangs)
    project.send()
    with running("local", "--skip-time", "-e", str(project.event()), folder=project.folder) as process:
        while not (project.folder / "now").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed = "".join(rest_of(process))
    assert process.returncode == 130
    assert "1 of 1 message did not settle; interrupted." in printed
    assert "Traceback" not in printed


ENDS = {"ledger": (5, 1), "digest": (5, 2), "undecodable": (1, 3), "webhooks": (0, 7)}
"""How many messages of a shipped event are committed, and how many dead-lettered."""


def test_the_shipped_events_end_in_the_expected_states_and_the_readme_shows_the_output_of_the_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    records = [(name, each) for name in ENDS for each in json.loads(Path(f"events/{name}.json").read_text())["Records"]]
    event = tmp_path / "all.json"
    event.write_text(json.dumps({"Records": [record for _, record in records]}))
    found = timelines(tarry("local", "--event", str(event), "--skip-time"))
    ended = Counter(
        (name, found[str(number)].split("  ")[0].split()[-1]) for number, (name, _) in enumerate(records, 1)
    )
    assert {name: (ended[name, "COMMITTED"], ended[name, "DEAD_LETTERED"]) for name in ENDS} == ENDS
    assert len(records) == sum(map(sum, ENDS.values()))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    result = tarry("local", "--event", "events/orders.json", "--skip-time", "--expect", "committed=8,dead_lettered=2")
    seen = re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", result.stdout), flags=re.MULTILINE)
    [shown] = re.findall(
        r"^<!-- shown -->\n```text\n(.*?)```$", Path("README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    for part in shown.split("...\n"):
        assert re.sub(r"\(\d+\.\d s\)", "", part) in re.sub(r"\(\d+\.\d s\)", "", seen)


# the record of the last run; a running `tarry local` is asked in test_cloud.py


def test_the_record_of_the_last_run_tells_the_story_of_each_message(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC L6
    monkeypatch.chdir(project.folder)
    project.send(fail=1)
    project.send(fail=9)
    project.send("Entries.fifo", group="a", fail=1)
    project.send("Entries.fifo", group="b", discard=True)
    project.run("--skip-time")
    record = last_run(Path("template.yaml"))
    assert record is not None
    found = [json.loads(tarry("story", story.id, "--json").stdout) for story in record.stories]
    states = {story["events"][-1]["state"]: [event["state"] for event in story["events"]] for story in found}
    assert set(states) == {"COMMITTED", "DEAD_LETTERED", "DISCARDED"}
    assert states["DEAD_LETTERED"] == ["READY", *["IN_FLIGHT", "WAITING_RETRY"] * 3, "DEAD_LETTERED"]
    [failed] = [story for story in found for event in story["events"] if event.get("event") == "waiting_retry"]
    shown = tarry("story", failed["id"][:12], "--svg", "story.svg", env={"COLUMNS": "80"}).stdout
    assert "from the last run of tarry local --skip-time (virtual time), until 20" in " ".join(shown.split())
    assert re.search(r"WAITING_RETRY +for 1 h 30 min$", shown, re.MULTILINE)
    assert "ValueError: ordered says no" in shown
    assert "Committed after 2 attempts in" in shown
    assert failed["id"] in Path("story.svg").read_text("utf-8")

    unknown = tarry("story", "nosuch", exits=1)
    assert unknown.stdout == ""
    assert "no tarry local answers at http://127.0.0.1:9; the record of its last run, until 20" in unknown.stderr
    assert "For a deployed stack: --stack NAME" in unknown.stderr
    [path] = directory(os.environ, Path.home()).glob("stories-*.jsonl")
    for damaged in (b"", b"\xff", b'{"ended_at": "now"}\n{"id": 1}\n'):
        path.write_bytes(damaged)
        assert "there is no record of an earlier run" in tarry("story", failed["id"], exits=1).stderr


def test_the_record_is_bounded_and_keeps_the_latest(project: Project, tmp_path: Path) -> None:
    def stories(count: int, text: str = "") -> list[Story]:
        event = StoryEvent(0.0, State.COMMITTED, text=text)
        return [Story(f"{number:05}", (event,), "tarry local", 1.0) for number in range(count)]

    keep_stories(tmp_path, stories(MOST_STORIES + 7))
    record = last_run(tmp_path)
    assert record is not None
    assert [record.stories[0].id, record.stories[-1].id] == ["00007", f"{MOST_STORIES + 6:05}"]
    assert record.path.stat().st_mode & 0o077 == 0, "errors may tell what is in a message"
    keep_stories(tmp_path, stories(30, "x" * 1_000_000))
    large = last_run(tmp_path)
    assert large is not None
    assert 10 < len(large.stories) < 20
    keep_stories(tmp_path, [])
    assert last_run(tmp_path) == large, "a run without messages keeps the record"
