"""`tarry local --skip-time`: a run in virtual time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import boto3
import pytest
from botocore.session import Session
from typer.testing import CliRunner

from tarry.failed.usage import UsageError
from tarry.tools.cli.app import app
from tarry.tools.local.aws.services import Services
from tests.command import TARRY
from tests.processes import PATIENCE_SECONDS, started

from .conftest import Project
from .test_run import timelines

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def project(project: Project) -> Project:
    """The project with visibility timeouts that AWS accepts, and a backoff of 1.5 hours."""
    for rest in ("\n      Redrive", "}"):
        project.edit("template.yaml", f"VisibilityTimeout: 2{rest}", f"VisibilityTimeout: 30{rest}")
    project.edit("ordered/app.py", "Fixed(1)", "Fixed(5400)")
    return project


def test_hours_of_retries_take_no_real_time(project: Project) -> None:  # SPEC N3
    project.send("Entries.fifo", group="a", fail=3)
    began = time.monotonic()
    result = project.run("--skip-time")
    assert time.monotonic() - began < 1.5 * 3600  # a single wait
    assert result.exit_code == 0, result.output
    waits = " -> ".join(f"IN_FLIGHT {attempt} -> WAITING_RETRY 1 h 30 min" for attempt in (1, 2, 3))
    assert timelines(result.stdout) == {"1": f"{waits} -> IN_FLIGHT 4 -> COMMITTED"}
    assert "1 message to Entries.fifo; no wait takes real time." in result.stdout
    assert "+1 h 30 min  #1  IN_FLIGHT 2\n" in result.stdout
    assert "+4 h 30 min  #1  COMMITTED\n" in result.stdout
    assert re.search(
        r"^1 message settled in 4 h 30 min of virtual time \([\d.]+ s\): 1 committed; none lost\.$",
        result.stdout,
        re.MULTILINE,
    )


def test_the_output_of_functions_goes_to_stderr_with_its_time(project: Project) -> None:
    project.send(fail=1)
    result = project.run("--skip-time")
    lines = [line.strip() for line in result.output.splitlines()]
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/jobs"
    first = lines.index(f"+0 s  Plain: handled by plain Plain {url}")
    assert lines[first - 1] == "+0 s  #1  IN_FLIGHT 1"
    assert lines[first + 1].startswith("+0 s  #1  WAITING_RETRY")
    assert f"+30 s  Plain: handled by plain Plain {url}" in lines
    assert "handled by" not in result.stdout
    assert timelines(result.stdout) == {"1": "IN_FLIGHT 1 -> WAITING_RETRY 30 s -> IN_FLIGHT 2 -> COMMITTED"}


def test_an_exception_is_printed_with_the_traceback_of_the_function(project: Project) -> None:
    project.send(boom="\x1b[31mboom")
    result = project.run("--skip-time")
    assert result.exit_code == 0
    assert "WAITING_RETRY 30 s  (RuntimeError: \\x1b[31mboom)" in result.stdout
    assert 'app.py", line 12, in handler' in result.stderr
    assert "tarry/" not in result.stderr
    assert "\x1b" not in result.output
    assert result.stderr.count("Traceback") == 1
    assert "+30 s  Plain: RuntimeError: \\x1b[31mboom (traceback above)" in result.stderr


def test_the_first_traceback_of_each_error_is_shown_without_verbose(project: Project) -> None:
    project.send("Entries.fifo", group="a", fail=2)
    result = project.run("--skip-time")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Traceback") == 1
    assert re.search(r"\+0 s  Ordered: WAITING_RETRY \w{8}, attempt 1:$", result.stderr, re.MULTILINE)
    assert 'ordered/app.py", line 10, in handler' in result.stderr
    assert result.stderr.count("ValueError: ordered says no") == 1


def test_the_messages_that_are_left_can_be_sent_again(project: Project) -> None:
    project.send(fail=9)
    kept, left = project.folder / "kept.json", project.folder / "left.json"
    result = project.run("--skip-time", "--keep", str(kept))
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == (
        f"Wrote 1 message (1 in Dead) to {kept}. To send them again: tarry local --event {kept}"
    )
    project.write("plain/app.py", "def handler(event, context):\n    assert len(event['Records']) == 1\n")
    result = project.invoke("--event", str(kept), "--skip-time", "--expect", "committed=1", "--keep", str(left))
    assert result.exit_code == 0, result.output
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
    assert result.exit_code == 0, result.output
    waits = [line.partition(" waited ")[2] for line in result.stderr.splitlines() if " waited " in line]
    assert waits == ["60.0", "60.0", "60.0", "60.0", "True"]
    assert re.search(r"^ *\+4 min \d+ s +#1 +COMMITTED$", result.stdout, re.MULTILINE)


def test_a_function_that_sleeps_beyond_its_timeout_is_killed(project: Project) -> None:  # SPEC N3
    project.write("plain/app.py", "import time\ndef handler(event, context):\n    time.sleep(3)\n    print('woken')\n")
    project.edit("template.yaml", "maxReceiveCount: 3", "maxReceiveCount: 1")
    project.send()
    result = project.run("--skip-time", "--expect", "dead_lettered=1")
    assert result.exit_code == 0, result.output
    assert "Task timed out after 2.00 seconds" in result.stdout
    assert "(by SQS itself, after 1 receive)" in result.stdout
    assert "woken" not in result.output


def test_a_function_that_leaves_virtual_time_is_reported(project: Project) -> None:
    project.write(
        "plain/app.py",
        "import concurrent.futures, tarry.world\n"
        "def handler(event, context):\n"
        "    with concurrent.futures.ThreadPoolExecutor() as threads:\n"
        "        threads.submit(tarry.world.current().clock.sleep, 1)\n",
    )
    project.send()
    result = project.run("--skip-time")
    assert result.exit_code == 1
    *_, last = result.stderr.splitlines()
    assert last == "To run in real time, leave out --skip-time."
    assert "#1  IN_FLIGHT 1" in result.stdout


def test_a_message_that_a_function_sends_with_boto3_reaches_the_next_function(project: Project) -> None:
    project.write(
        "plain/app.py",
        "import boto3\n"
        "sqs = boto3.client('sqs')\n"
        "def handler(event, context):\n"
        "    url = sqs.get_queue_url(QueueName='Entries.fifo')['QueueUrl']\n"
        "    sqs.send_message(QueueUrl=url, MessageBody='{}', MessageGroupId='a', MessageDeduplicationId='1')\n",
    )
    project.send()
    result = project.run("--skip-time", "--expect", "committed=2")
    assert result.exit_code == 0, result.output
    assert re.search(r"^ +\w{8} Entries\.fifo  READY -> IN_FLIGHT 1 -> COMMITTED$", result.stdout, re.MULTILINE)


def test_a_function_is_imported_for_its_first_message(project: Project) -> None:
    project.write("ordered/app.py", "import no_such_library")
    project.send()
    assert project.run("--skip-time").exit_code == 0
    project.write(
        "plain/app.py",
        "from tarry import Queue\ndef handler(event, context): Queue('Entries.fifo').send('x', group_id='a')\n",
    )
    result = project.run("--skip-time")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("ModuleNotFoundError: No module named 'no_such_library'")
    assert result.stdout == ""


def test_a_function_with_an_unresolved_variable_is_left_out_if_the_event_does_not_need_it(project: Project) -> None:
    project.edit(
        "template.yaml",
        "      CodeUri: ordered\n",
        "      CodeUri: ordered\n      Environment: {Variables: {ARN: !GetAtt PlainRole.Arn}}\n",
    )
    project.send()
    result = project.run("--skip-time", "--strict-parameters")
    assert result.exit_code == 0
    assert "Ordered is left out: Ordered.Environment.Variables.ARN: GetAtt PlainRole.Arn" in result.stderr


def test_a_message_that_expires_is_lost(project: Project) -> None:
    project.edit(
        "template.yaml",
        "      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}",
        "      MessageRetentionPeriod: 60",
    )
    project.send(fail=9)
    result = project.run("--skip-time")
    assert result.exit_code == 1
    assert "LOST  (it expired: it was not settled within the retention of its queue)" in result.stdout
    assert "1 of 1 message LOST." in result.stdout


def test_after_give_up_the_messages_that_did_not_settle_are_reported(project: Project) -> None:
    project.send("Entries.fifo", group="a", fail=1)
    result = project.run("--skip-time", "--give-up", "3600")
    assert result.exit_code == 1
    assert (
        "1 of 1 message did not settle, the last is due after 1 h 30 min (--give-up 5420 waits for it). "
        "The run took 1 h of virtual time ("
    ) in result.stdout


def test_unexpected_states_fail_with_expected_and_actual_numbers(project: Project) -> None:
    project.send()
    project.send()
    result = project.run("--expect", "committed=1, dead_lettered=1", "--skip-time")  # SPEC N2
    assert result.exit_code == 1
    assert result.stdout.endswith(": 2 committed; none lost.\n")
    last = result.stderr.splitlines()[-1]
    assert last == "tarry: expected 1 COMMITTED, 1 DEAD_LETTERED, got 2 COMMITTED, 0 DEAD_LETTERED"
    assert project.run("--expect", "committed=2", "--skip-time").exit_code == 0


@pytest.mark.parametrize("wrong", ["lost=1", "committed", "committed=-1", "committed=x"])
def test_an_invalid_expect_option_lists_the_states(project: Project, wrong: str) -> None:
    result = project.run("--skip-time", "--expect", wrong)
    assert result.exit_code == 2
    assert "--expect must be STATE=N" in result.stderr
    assert "dead_lettered" in result.stderr


def test_a_library_that_moto_needs_for_tables_is_named_without_a_warning_of_moto(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith(("moto.server", "moto.moto_server."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flask", None)
    services = Services(Mock(), Mock(), Mock())
    try:
        with pytest.raises(UsageError, match="tarry local needs flask for Table;"):  # any warning is an error
            services.start("Table")
    finally:
        services.close()


def test_moto_is_not_needed_without_tables(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moto.server", None)
    project.send()
    assert project.run("--skip-time").exit_code == 0


def test_the_state_of_the_process_is_restored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("plain/app.py", "import boto3\ndef handler(event, context): boto3.client('sqs').list_queues()\n")
    project.send()
    monkeypatch.delenv("AWS_PROFILE")
    session = boto3.Session(region_name="eu-west-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
    before = dict(os.environ), Session.create_client, list(sys.path)
    assert project.run("--skip-time").exit_code == 0
    assert (dict(os.environ), Session.create_client, list(sys.path)) == before
    assert boto3.DEFAULT_SESSION is session


def test_ctrl_c_ends_it_with_the_timeline_so_far(project: Project) -> None:
    project.write(
        "plain/app.py", "import sys\ndef handler(event, context):\n    open('now', 'w').close()\n    sys.stdin.read()\n"
    )
    project.send()
    command = [*TARRY, "local", "--skip-time", "-e", str(project.event())]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(command, cwd=project.folder, **pipes) as process:
        while not (project.folder / "now").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, stderr
    assert "1 of 1 message did not settle; interrupted." in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ledger", "committed=5,dead_lettered=1"),
        ("digest", "committed=5,dead_lettered=2"),
        ("undecodable", "dead_lettered=3"),
        ("webhooks", "dead_lettered=7"),
    ],
)
def test_the_shipped_events_end_in_the_expected_states(
    name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    result = CliRunner().invoke(app, ["local", "--event", f"events/{name}.json", "--skip-time", "--expect", expected])
    assert result.exit_code == 0, result.output


def test_the_readme_shows_the_actual_output_of_the_shipped_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    expected = "committed=8,dead_lettered=2"
    result = CliRunner().invoke(app, ["local", "--event", "events/orders.json", "--skip-time", "--expect", expected])
    assert result.exit_code == 0, result.output
    seen = re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", result.stdout), flags=re.MULTILINE)

    readme = Path("README.md").read_text()
    [shown] = re.findall(r"^<!-- shown -->\n```text\n(.*?)```$", readme, re.MULTILINE | re.DOTALL)
    for part in shown.split("...\n"):
        assert without_seconds(part) in without_seconds(seen)


def without_seconds(text: str) -> str:
    """Remove the real duration, the only part of the output that varies."""
    return re.sub(r"\(\d+\.\d s\)", "(... s)", text)
