"""A small project in a temporary folder, and the command that runs it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.local.functions import host

from .process import STARTED

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Handler: app.handler
    Runtime: python3.13
    Timeout: 2
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: jobs
      VisibilityTimeout: 2
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}
  Dead: {Type: AWS::SQS::Queue}
  Entries:
    Type: AWS::SQS::Queue
    Properties: {FifoQueue: true, VisibilityTimeout: 2}
  Plain:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: plain
      Environment: {Variables: {QUEUE: !Ref Jobs}}
      Events:
        Jobs:
          Type: SQS
          Properties: {Queue: !GetAtt Jobs.Arn, BatchSize: 5, FunctionResponseTypes: [ReportBatchItemFailures]}
  Ordered:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: ordered
      Layers: ["arn:aws:lambda:us-east-1:123456789012:layer:tarry:1"]
      Policies: [SQSPollerPolicy: {QueueName: !GetAtt Entries.QueueName}]
      Events:
        Entries:
          Type: SQS
          Properties: {Queue: !GetAtt Entries.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
"""

PLAIN = """
import json, os
from helper import name

def handler(event, context):
    assert context.get_remaining_time_in_millis() > 0
    print("handled by", name(), context.function_name, os.environ["QUEUE"])
    failed = []
    for record in event["Records"]:
        wish = json.loads(record["body"])
        if "boom" in wish:
            raise RuntimeError(wish["boom"])
        if wish.get("fail", 0) >= int(record["attributes"]["ApproximateReceiveCount"]):
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}
"""

ORDERED = """
import json
from helper import name
from tarry import Discard, Fixed, consumer

@consumer(backoff=Fixed(1))
def handler(message):
    wish = message.json()
    if wish.get("fail", 0) >= message.attempt:
        raise ValueError(f"{name()} says no")
    if wish.get("discard"):
        raise Discard("not needed")
"""


NOT_USED = {"AWS_PROFILE": "not-to-be-found", "AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:9"}
"""Settings of the developer, which must have no effect."""


class Project:
    """A project folder with a template, functions, and an event for its queues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("template.yaml", TEMPLATE.replace("python3.13", f"python3.{sys.version_info.minor}"))
        self.write("plain/app.py", PLAIN)
        self.write("plain/helper.py", "def name(): return 'plain'")
        self.write("ordered/app.py", ORDERED)
        self.write("ordered/helper.py", "def name(): return 'ordered'")
        self.records: list[dict[str, Any]] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def add(self, resources: str) -> None:
        """Add resources to the template."""
        self.write("template.yaml", (self.folder / "template.yaml").read_text() + resources)

    def send(self, queue: str = "jobs", group: str | None = None, count: int = 1, **wish: Any) -> None:
        attributes = {"ApproximateReceiveCount": str(count)} | ({"MessageGroupId": group} if group else {})
        arn = f"arn:aws:sqs:eu-west-1:999999999999:{queue}"
        self.records.append({"body": json.dumps(wish), "attributes": attributes, "eventSourceARN": arn})

    def event(self) -> Path:
        """Write the event file with all records; return its path."""
        self.write("event.json", json.dumps({"Records": self.records}))
        return self.folder / "event.json"

    def run(self, *options: str, exits: int = 0) -> Result:
        """Run the command with the event; stdout is not a terminal."""
        return self.invoke("--event", str(self.event()), *options, exits=exits)

    def invoke(self, *arguments: str, exits: int = 0) -> Result:
        """Run the command without an event, and check its exit code."""
        return tarry("local", "--template", str(self.folder / "template.yaml"), *arguments, exits=exits)

    def refusal(self, *options: str) -> str:
        """Run the command with the event, which it refuses; return the last line of stderr."""
        result = self.run(*options, exits=2)
        assert result.stdout == ""
        return result.stderr.splitlines()[-1]


def tarry(*arguments: str, exits: int = 0, **options: Any) -> Result:
    """Run a command in this process, and check its exit code; the options are those of `CliRunner`."""
    result = CliRunner().invoke(app, arguments, **options)
    assert result.exit_code == exits, result.output
    return result


def timelines(result: Result) -> dict[str, str]:
    """Return the timeline of each message in the summary, by its number in the event."""
    summary = result.stdout.partition("\nMessages\n")[2]
    return dict(re.findall(r"^ *#(\d+) \w{8} \S+  (\S.*)$", summary.partition("\n\n")[0], re.MULTILINE))


@pytest.fixture(scope="session", autouse=True)
def _imports_may_take_long() -> Iterator[None]:
    """Let a busy machine take longer to import a function than Lambda allows: 10 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "MAX_INIT_SECONDS", 60.0)
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name, value in NOT_USED.items():
        monkeypatch.setenv(name, value)
    return Project(tmp_path)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Kill the processes that a test has started, however it ends."""
    before = len(STARTED)
    yield
    for local in STARTED[before:]:
        local.kill()
    del STARTED[before:]
