"""`tarry local` from the event file to the summary, on moto, in real time."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app

from .conftest import Project


def stories(stdout: str) -> dict[str, str]:
    """The story of each message in the summary, by its number in the event."""
    summary = stdout.partition("\nMessages\n")[2]
    return dict(re.findall(r"^ *#(\d+) \w{8} \S+  (\S.*)$", summary.partition("\n\n")[0], re.MULTILINE))


def test_a_batch_is_delivered_until_every_message_has_settled(project: Project) -> None:
    project.send()
    project.send(fail=1)
    project.send(fail=9)
    result = project.run()
    assert result.exit_code == 0, result.output
    assert stories(result.stdout) == {
        "1": "IN_FLIGHT 1 -> COMMITTED",
        "2": "IN_FLIGHT 1 -> WAITING_RETRY 1 s -> IN_FLIGHT 2 -> COMMITTED",
        "3": " -> ".join([f"IN_FLIGHT {attempt} -> WAITING_RETRY 1 s" for attempt in (1, 2, 3)] + ["DEAD_LETTERED"]),
    }
    assert "Dead  moved by SQS itself after 3 deliveries, without a record" in result.stdout
    assert re.search(r"COMMITTED +2\b", result.stdout)
    assert re.search(r"^3 messages settled in [\d.]+ s, none lost\.$", result.stdout, re.MULTILINE)


def test_what_tarry_logs_is_shown_and_two_functions_do_not_mix(project: Project) -> None:
    project.send("Entries.fifo", group="a", fail=1)
    project.send("Entries.fifo", group="a", discard=True)
    project.send()
    result = project.run()
    assert result.exit_code == 0, result.output
    assert stories(result.stdout) == {
        "1": "IN_FLIGHT 1 -> WAITING_RETRY 1 s -> IN_FLIGHT 2 -> COMMITTED",
        "2": "IN_FLIGHT 1 -> READY -> IN_FLIGHT 2 -> DISCARDED  (not needed)",
        "3": "IN_FLIGHT 1 -> COMMITTED",
    }
    assert "WAITING_RETRY 1 s  (ValueError: ordered says no)" in result.stdout
    assert "handled by plain Plain http://127.0.0.1:" in result.stderr


def test_a_fifo_group_comes_back_head_first(project: Project) -> None:
    """A whole group that becomes visible at once: moto by itself delivers its last message first."""
    project.write("ordered/app.py", "def handler(event, context):\n    raise ValueError")
    for _ in range(3):
        project.send("Entries.fifo", group="a")
    result = project.run("--give-up", "1.5")
    assert re.findall(r"#(\d) .* IN_FLIGHT 2$", result.stdout, re.MULTILINE) == ["1", "2", "3"]


def test_a_function_that_raises_gets_the_whole_batch_again(project: Project) -> None:
    project.send()
    project.send(boom="\x1b[31mboom")
    result = project.run()
    assert result.exit_code == 0
    assert stories(result.stdout)["1"] == stories(result.stdout)["2"]
    assert "IN_FLIGHT 1  " in result.stdout.replace("\n", "  ")
    assert "(whole batch failed: RuntimeError: \\x1b[31mboom)" in result.stdout
    assert "\x1b" not in result.output
    assert 'app.py", line 12, in handler' in result.stderr
    assert "tarry/local" not in result.stderr


def test_a_batch_of_a_function_that_overran_its_timeout_comes_back(project: Project) -> None:
    project.write("plain/app.py", "import time\ndef handler(event, context): time.sleep(1.1)")
    project.edit("template.yaml", "Timeout: 2", "Timeout: 1")
    project.edit("template.yaml", "maxReceiveCount: 3", "maxReceiveCount: 1")
    project.send()
    result = project.run()
    assert "(whole batch failed: Task timed out after 1.00 seconds)" in result.stdout
    assert "DEAD_LETTERED" in stories(result.stdout)["1"]


def test_what_does_not_settle_in_time_is_said_and_the_exit_code_is_1(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 1\n      Redrive", "VisibilityTimeout: 600\n      Redrive")
    project.send(fail=1)
    result = project.run("--give-up", "1")
    assert result.exit_code == 1
    assert re.search(r"1 of 1 message did not settle, the last is due at \d\d:\d\d:\d\d\.", result.stdout)


def test_nothing_is_waited_for_that_cannot_come_in_time(project: Project) -> None:
    project.edit("ordered/app.py", "Fixed(1)", "Fixed(900)")
    project.send("Entries.fifo", group="a", fail=1)
    began = time.monotonic()
    result = project.run("--give-up", "300")
    assert result.exit_code == 1
    assert time.monotonic() - began < 30


def test_a_message_that_is_deleted_while_tarry_says_it_waits_is_lost(project: Project) -> None:
    project.write(
        "plain/app.py",
        "import logging\n"
        "def handler(event, context):\n"
        "    id = event['Records'][0]['messageId']\n"
        "    extra = {'event': 'waiting_retry', 'state': 'WAITING_RETRY', 'message_id': id, 'delivery_id': id}\n"
        "    logging.getLogger('tarry').warning('x', extra=extra)\n",
    )
    project.send()
    result = project.run()
    assert result.exit_code == 1
    assert "1 of 1 message LOST" in result.stdout


def test_a_handlers_environment_knows_the_table_that_was_made(project: Project) -> None:
    table = (
        "Resources:\n  Table: {Type: AWS::Serverless::SimpleTable}\n"
        "  Bucket: {Type: AWS::S3::Bucket, Properties: {BucketName: !Sub 'b-${AWS::Region}'}}\n"
        "  Topic: {Type: AWS::SNS::Topic, Properties: {TopicName: !Sub '${Jobs.QueueName}-done'}}"
    )
    project.edit("template.yaml", "Resources:", table)
    project.edit(
        "template.yaml",
        "{QUEUE: !Ref Jobs}",
        "{QUEUE: !Ref Jobs, TABLE: !Ref Table, BUCKET: !Sub '${Bucket}!', TOPIC: !Ref Topic}",
    )
    project.edit(
        "plain/app.py",
        "failed = []",
        "failed = []\n"
        "    import boto3\n"
        "    assert boto3.client('dynamodb').describe_table(TableName=os.environ['TABLE'])\n"
        "    assert os.environ['BUCKET'] == 'b-us-east-1!'\n"
        "    assert os.environ['TOPIC'].endswith(':jobs-done')\n",
    )
    project.send()
    result = project.run("--verbose")
    assert result.exit_code == 0, result.output


def test_receive_counts_cannot_be_sent_which_is_said(project: Project) -> None:
    project.send(count=4)
    result = project.run()
    assert stories(result.stdout)["1"] == "IN_FLIGHT 1 -> COMMITTED"
    assert "receive counts are left out" in result.stderr


def test_an_empty_event_is_a_success(project: Project) -> None:
    result = project.run()
    assert result.exit_code == 0
    assert result.stdout == "\nThe event has no records: nothing to do.\n"


def test_ctrl_c_ends_a_run_with_what_is_known_so_far(project: Project) -> None:
    project.send()
    project.send(fail=1)
    project.edit("template.yaml", "VisibilityTimeout: 1\n      Redrive", "VisibilityTimeout: 600\n      Redrive")
    command = [sys.executable, "-c", "from tarry.cli import main; main()", "local", "-e", str(project.event())]
    process = subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert any("COMMITTED" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "1 of 2 messages did not settle" in stdout
    assert "interrupted" in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize("name", ["all-well", "digest", "ledger"])
def test_the_shipped_events_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Path(__file__).parents[3]
    monkeypatch.chdir(repository)
    result = CliRunner().invoke(app, ["local", "--event", f"events/{name}.json"])
    assert result.exit_code == 0, result.output
    assert "none lost" in result.stdout
