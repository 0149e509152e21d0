"""`tarry local --event` from the event file to the summary: in real time, and as far as they agree in virtual time."""

import json
import re
import signal
import time
from collections.abc import Iterator

import pytest
from typer.testing import Result

from .conftest import NOT_USED, Project, timelines
from .process import LocalProcess
from .processes import ends_soon, is_alive

FUNCTIONS = """
  Mails:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: 2, RedrivePolicy: {maxReceiveCount: 2, deadLetterTargetArn: !GetAtt Dead.Arn}}
  Mailer:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: mailer
      LoggingConfig: {LogGroup: !ImportValue group}
      Events: {E: {Type: SQS, Properties: {Queue: !GetAtt Mails.Arn}}}
  Bills:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: 2, RedrivePolicy: {maxReceiveCount: 2, deadLetterTargetArn: !GetAtt Dead.Arn}}
  Biller:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: mailer
      LoggingConfig: {LogFormat: JSON}
      Events:
        E: {Type: SQS, Properties: {Queue: !GetAtt Bills.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}}
  Orders:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: 3, RedrivePolicy: {maxReceiveCount: 30, deadLetterTargetArn: !GetAtt Dead.Arn}}
  Small:
    Type: AWS::Serverless::Function
    Properties:
      {CodeUri: small, Timeout: 3, Layers: ["arn:aws:lambda:us-east-1:123456789012:layer:tarry:1"], Events: {
        E: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}}}}
"""
MAILER = """
import logging, os
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

processor = BatchProcessor(EventType.SQS)

def work(record):
    logging.getLogger("shop").warning("deprecated")
    logging.getLogger("shop").info("at work as %s", os.environ.get("AWS_LAMBDA_LOG_LEVEL"))
    logging.getLogger("shop").debug("never shown")
    if "fine" not in record.body: raise LookupError("no order in " + record.body)

def handler(event, context):
    return process_partial_response(event, work, processor, context)
"""
SMALL = """
from tarry import Message, consumer

@consumer(max_attempts=1)
def handler(message: Message) -> None:
    raise ValueError("no")
"""
EXPECTED = "--expect", "committed=4,discarded=1,dead_lettered=5"


@pytest.fixture(scope="module", params=[[], ["--skip-time"]], ids=["real", "virtual"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """A run with messages for functions of each kind, which wait at the same time."""
    project = Project(tmp_path_factory.mktemp("run"))
    project.add(FUNCTIONS)
    project.write("mailer/app.py", MAILER)
    project.write("small/app.py", SMALL)
    project.send(count=4)
    project.send(fail=1)
    project.send(fail=9)
    project.send("Entries.fifo", group="a", fail=1)
    project.send("Entries.fifo", group="a", discard=True)
    for number in (6, 7):
        project.send("Mails", number=number)
    project.send("Bills", number=8)
    project.send("Bills", fine=True)
    project.send("Orders")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NOT_USED.items():
            patch.setenv(name, value)
        yield project.run(*EXPECTED, *request.param)


def test_messages_are_delivered_until_all_have_settled_and_each_timeline_is_printed(ran: Result) -> None:  # SPEC N2
    shown = {
        number: re.sub(r"(WAITING_RETRY) [\d.]+ s|(IN_FLIGHT)(?= ->)", lambda found: found[1] or "IN_FLIGHT 1", each)
        for number, each in timelines(ran).items()
    }
    assert {number: shown[number] for number in "12345"} == {
        "1": "IN_FLIGHT 1 -> COMMITTED",
        "2": "IN_FLIGHT 1 -> WAITING_RETRY -> IN_FLIGHT 2 -> COMMITTED",
        "3": " -> ".join([f"IN_FLIGHT {attempt} -> WAITING_RETRY" for attempt in (1, 2, 3)] + ["DEAD_LETTERED"]),
        "4": "IN_FLIGHT 1 -> WAITING_RETRY -> IN_FLIGHT 2 -> COMMITTED",
        "5": "IN_FLIGHT 1 -> READY -> IN_FLIGHT 1 -> DISCARDED  (not needed)",
    }
    assert "Dead  moved by SQS itself after 3 deliveries, without a failure record" in ran.stdout
    assert "(ValueError: ordered says no)" in ran.stdout
    assert re.search(r"Plain: handled by plain Plain http(://127\.0\.0\.1:|s://sqs\.us-east-1\.)", ran.stderr)
    assert "The receive counts in the event are ignored" in ran.stderr
    assert re.search(r"COMMITTED +4\b", ran.stdout)
    assert re.search(
        r"^10 messages settled in [^:]+ s.*: 4 committed, 5 dead-lettered, 1 discarded; none lost\.$",
        ran.stdout,
        re.MULTILINE,
    )


def test_the_error_of_a_batch_is_a_line_for_each_message(ran: Result) -> None:
    for number in (6, 7):
        error = f"LookupError: no order in {json.dumps({'number': number})} [app.py:11]"
        assert ran.stdout.count(f"  ({error})") == 2
        assert any(f"#{number} " in line and error in line for line in ran.stdout.splitlines())
        assert any(line.endswith(f"  {error}") for line in ran.stderr.splitlines())


def test_the_error_of_a_message_that_fails_alone_is_shown(ran: Result) -> None:
    error = f"LookupError: no order in {json.dumps({'number': 8})} [app.py:11]"
    assert f"  ({error})" in ran.stdout
    warning, line, *_ = (each for each in ran.stderr.splitlines() if "1 message failed" in each or error in each)
    assert warning.endswith("WARNING 1 message failed")
    assert line.endswith(f"  {error}")
    assert "record_error" not in ran.output


def test_a_function_logs_at_the_level_of_its_logging_config_and_each_warning_is_shown_once(ran: Result) -> None:
    lines = [line for line in ran.stderr.splitlines() if "deprecated" in line or "at work" in line]
    assert [sum(f"{function}: " in line for line in lines) for function in ("Mailer", "Biller")] == [1, 4]
    assert re.search(
        "Biller: INFO (shop: )?at work as INFO$", ran.stderr, re.MULTILINE
    )  # not of Mailer: below the level that Lambda gives for text
    assert "never shown" not in ran.stderr


def test_a_small_function_with_the_default_timeout_has_time_to_settle_its_messages(ran: Result) -> None:  # SPEC C8
    """It has 128 MB and 3 s. On a busy machine, it may take some deliveries until boto3 is loaded."""
    assert timelines(ran)["10"].endswith("DEAD_LETTERED")
    assert re.search(r"#10 .*exhausted: ValueError: no\b", ran.stdout)


def test_a_message_that_cannot_settle_in_time_is_not_waited_for(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 900\n      Redrive")
    project.send(fail=1)
    began = time.monotonic()
    result = project.run("--give-up", "300", exits=1)
    assert re.search(
        r"1 of 1 message did not settle, the last is due at \d\d:\d\d:\d\d "
        r"\(--give-up 9[12]0 waits for it, --skip-time skips the wait\)\.",
        result.stdout,
    )
    assert time.monotonic() - began < 200


def test_an_empty_event_is_a_success(project: Project) -> None:
    assert project.run().stdout == "\nThe event has no records: nothing to do.\n"


def test_ctrl_c_ends_a_run_with_a_summary(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 600\n      Redrive")
    project.send()
    project.send(fail=1)
    local = LocalProcess(project.folder, "--event", str(project.event()), "--give-up", "900")
    local.wait("COMMITTED")
    assert local.end(signal.SIGINT) == 130
    assert "1 of 2 messages did not settle" in local.text
    assert "interrupted" in local.text
    assert "Traceback" not in local.text
    assert local.left() == []


HANGING = """
import os, subprocess, time
print("runs", os.getpid(), subprocess.Popen(["sleep", "600"]).pid)
time.sleep(LOADS)
def handler(event, context): time.sleep(600)
"""


def test_no_process_outlives_a_killed_tarry_local(project: Project) -> None:
    """One of them handles a message, and the other is still loading its code."""
    project.edit("template.yaml", "Timeout: 2\nRes", "Timeout: 600\nRes")
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 600\n      Redrive")
    project.edit("template.yaml", "VisibilityTimeout: 2}", "VisibilityTimeout: 600}")
    project.write("plain/app.py", HANGING.replace("LOADS", "0"))
    project.write("ordered/app.py", HANGING.replace("LOADS", "600"))
    local = LocalProcess(project.folder)
    local.wait("^Plain: runs ")
    local.wait("^Ordered: runs ")
    pids = [int(pid) for pair in re.findall(r": runs (\d+) (\d+)$", local.text, re.MULTILINE) for pid in pair]
    assert (len(pids), all(map(is_alive, pids))) == (4, True)
    local.process.kill()
    assert all(map(ends_soon, pids))
