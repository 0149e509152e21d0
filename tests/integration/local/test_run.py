"""`tarry local --event` in real time, from the event file to the summary.  # SPEC N2

Most behaviour is tested in virtual time, in test_skip_time.py.
"""

import re
import signal
import time

import pytest

from .conftest import Project
from .process import LocalProcess


def timelines(stdout: str) -> dict[str, str]:
    """Return the timeline of each message in the summary, by its number in the event."""
    summary = stdout.partition("\nMessages\n")[2]
    return dict(re.findall(r"^ *#(\d+) \w{8} \S+  (\S.*)$", summary.partition("\n\n")[0], re.MULTILINE))


def test_messages_are_delivered_until_all_have_settled_and_each_timeline_is_printed(project: Project) -> None:
    project.send()
    project.send(fail=1)
    project.send(fail=9)
    project.send("Entries.fifo", group="a", fail=1)
    project.send("Entries.fifo", group="a", discard=True)
    result = project.run()
    assert result.exit_code == 0, result.output
    shown = {
        number: re.sub(r"WAITING_RETRY [\d.]+ s", "WAITING_RETRY", timeline)
        for number, timeline in timelines(result.stdout).items()
    }
    assert shown == {
        "1": "IN_FLIGHT 1 -> COMMITTED",
        "2": "IN_FLIGHT 1 -> WAITING_RETRY -> IN_FLIGHT 2 -> COMMITTED",
        "3": " -> ".join([f"IN_FLIGHT {attempt} -> WAITING_RETRY" for attempt in (1, 2, 3)] + ["DEAD_LETTERED"]),
        "4": "IN_FLIGHT 1 -> WAITING_RETRY -> IN_FLIGHT 2 -> COMMITTED",
        "5": "IN_FLIGHT 1 -> READY -> IN_FLIGHT 1 -> DISCARDED  (not needed)",
    }
    assert "Dead  moved by SQS itself after 3 deliveries, without a failure record" in result.stdout
    assert "(ValueError: ordered says no)" in result.stdout
    assert "Plain: handled by plain Plain http://127.0.0.1:" in result.stderr
    assert re.search(r"COMMITTED +3\b", result.stdout)
    assert re.search(
        r"^5 messages settled in [\d.]+ s: 3 committed, 1 dead-lettered, 1 discarded; none lost\.$",
        result.stdout,
        re.MULTILINE,
    )


def test_a_small_function_with_the_default_timeout_has_time_to_settle_its_messages(project: Project) -> None:  # SPEC C8
    """It has 128 MB and 3 s. On a busy machine, it may take some deliveries until boto3 is loaded."""
    project.write("template.yaml", SMALL)
    project.write("app.py", REFUSING)
    project.send("Orders")
    result = project.run()
    assert result.exit_code == 0, result.output
    assert timelines(result.stdout)["1"].endswith("DEAD_LETTERED")
    assert "ValueError: no" in result.output
    assert "moved by SQS itself" not in result.output


SMALL = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 3
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 30}
  Dead: {Type: AWS::SQS::Queue}
  Handle:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: .
      Handler: app.handler
      Runtime: python3.11
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt Orders.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
"""
REFUSING = """
from tarry import Message, consumer

@consumer(max_attempts=1)
def handler(message: Message) -> None:
    raise ValueError("no")
"""


def test_after_an_exception_the_whole_batch_is_redelivered(project: Project) -> None:
    project.edit("template.yaml", "maxReceiveCount: 3", "maxReceiveCount: 1")
    project.send()
    project.send(boom="\x1b[31mboom")
    result = project.run()
    assert result.exit_code == 0
    assert timelines(result.stdout)["1"] == timelines(result.stdout)["2"]
    assert "(RuntimeError: \\x1b[31mboom)" in result.stdout
    assert "\x1b" not in result.output
    assert 'app.py", line 12, in handler' in result.stderr
    assert "tarry/local" not in result.stderr


def test_a_message_that_cannot_settle_in_time_is_not_waited_for(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 900\n      Redrive")
    project.send(fail=1)
    began = time.monotonic()
    result = project.run("--give-up", "300")
    assert result.exit_code == 1
    assert re.search(
        r"1 of 1 message did not settle, the last is due at \d\d:\d\d:\d\d "
        r"\(--give-up 9[12]0 waits for it, --skip-time skips the wait\)\.",
        result.stdout,
    )
    assert time.monotonic() - began < 200


def test_a_message_deleted_while_it_waits_for_a_retry_is_lost(project: Project) -> None:
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


def test_the_environment_of_a_handler_has_created_resources_and_overrides(project: Project) -> None:
    table = (
        "Resources:\n  Table: {Type: AWS::Serverless::SimpleTable}\n"
        "  Bucket: {Type: AWS::S3::Bucket, Properties: {BucketName: !Sub 'b-${AWS::Region}'}}\n"
        "  Topic: {Type: AWS::SNS::Topic, Properties: {TopicName: !Sub '${Jobs.QueueName}-done'}}"
    )
    project.edit("template.yaml", "Resources:", table)
    project.edit(
        "template.yaml",
        "{QUEUE: !Ref Jobs}",
        "{QUEUE: !Ref Jobs, TABLE: !Ref Table, BUCKET: !Sub '${Bucket}!', TOPIC: !Ref Topic, STAGE: production}",
    )
    project.edit(
        "plain/app.py",
        "failed = []",
        "failed = []\n"
        "    import boto3\n"
        "    assert boto3.client('dynamodb').describe_table(TableName=os.environ['TABLE'])\n"
        "    assert boto3.client('sns').publish(TopicArn=os.environ['TOPIC'], Message='x')\n"
        "    assert os.environ['BUCKET'] == 'b-us-east-1!'\n"
        "    assert os.environ['STAGE'] == 'local'\n",
    )
    project.edit("template.yaml", "Timeout: 2", "Timeout: 20")
    project.edit("template.yaml", "VisibilityTimeout: 2", "VisibilityTimeout: 20")
    project.send()
    result = project.run("--env", "STAGE=local", "--give-up", "15")
    assert result.exit_code == 0, result.output


def test_receive_counts_in_the_event_are_ignored_with_a_hint(project: Project) -> None:
    project.send(count=4)
    result = project.run()
    assert timelines(result.stdout)["1"] == "IN_FLIGHT 1 -> COMMITTED"
    assert "The receive counts in the event are ignored" in result.stderr


def test_an_empty_event_is_a_success(project: Project) -> None:
    result = project.run()
    assert result.exit_code == 0
    assert result.stdout == "\nThe event has no records: nothing to do.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_run_with_a_summary(project: Project, number: int) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 600\n      Redrive")
    project.send()
    project.send(fail=1)
    local = LocalProcess(project.folder, "--event", str(project.event()), "--give-up", "900")
    local.wait("COMMITTED")
    assert local.end(number) == 130
    assert "1 of 2 messages did not settle" in local.text
    assert "interrupted" in local.text
    assert "Traceback" not in local.text
    assert local.left() == []
