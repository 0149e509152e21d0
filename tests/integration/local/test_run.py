"""`tarry local --event` in real time, from the event file to the summary.  # SPEC N2

Most behaviour is tested in virtual time, in test_skip_time.py.
"""

import re
import signal
import time

from .conftest import Project
from .process import LocalProcess


def timelines(stdout: str) -> dict[str, str]:
    """Return the timeline of each message in the summary, by its number in the event."""
    summary = stdout.partition("\nMessages\n")[2]
    return dict(re.findall(r"^ *#(\d+) \w{8} \S+  (\S.*)$", summary.partition("\n\n")[0], re.MULTILINE))


def test_messages_are_delivered_until_all_have_settled_and_each_timeline_is_printed(project: Project) -> None:
    project.send(count=4)
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
    assert "The receive counts in the event are ignored" in result.stderr
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


def test_an_empty_event_is_a_success(project: Project) -> None:
    result = project.run()
    assert result.exit_code == 0
    assert result.stdout == "\nThe event has no records: nothing to do.\n"


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
