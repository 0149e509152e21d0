"""Queues on moto with dead letters, and the command `tarry failed` on them."""

import json
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core.botocore_stubber import BotocoreStubber
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 15}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq}}
  Handler:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: code
      Handler: app.handler
      Runtime: python3.13
      Environment: {Variables: {QUEUE: !Ref Orders, LIMIT: "3"}}
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt Orders.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
"""
WORSE = """  Worse: {Type: AWS::SQS::Queue, Properties: {QueueName: worse}}
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {QueueName: jobs, RedrivePolicy: {deadLetterTargetArn: !GetAtt Worse.Arn, maxReceiveCount: 9}}
"""
APP = """
import os
from tarry import Message, consumer

@consumer
def handler(message: Message) -> None:
    print("handling", message.queue, os.environ["QUEUE"].rpartition("/")[2])
    if message.json()["id"] >= int(os.environ["LIMIT"]):
        raise ValueError("too many")
"""
EDITOR = """#!/bin/sh
sed 's|{old}|{new}|' "$1" > "$1~" && mv "$1~" "$1" && echo >> "$1"
"""
TIMEOUT: dict[str, Any] = {"type": "app.Timeout", "message": "no answer", "fingerprint": "timeout00000"}


class MotoShop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sqs: Any = boto3.client("sqs", region_name="us-east-1")
        self.dlq = self.queue("orders-dlq")
        self.orders = self.queue("orders", RedrivePolicy=policy("orders-dlq", 15))

    def queue(self, name: str, **attributes: str) -> str:
        url: str = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def put(self, count: int = 1, first: int = 0, recorded: bool = True, url: str = "", **more: Any) -> None:
        """Put dead letters of orders from ``id-FIRST`` on into orders-dlq; ``more`` has fields of their envelopes."""
        given, name = more.pop("body", None), more.pop("name", "id")
        entries = []
        for index in range(first, first + count):
            body = given or json.dumps({"id": index})
            envelope = json.dumps(envelope_of(body, f"{name}-{index}", **{"attempts": index + 1, **more}))
            attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}} if recorded else {}
            entries.append({"Id": str(index), "MessageBody": body, "MessageAttributes": attributes})
        for ten in (entries[start : start + 10] for start in range(0, count, 10)):
            assert not self.sqs.send_message_batch(QueueUrl=url or self.dlq, Entries=ten).get("Failed")

    def put_both(self) -> None:
        """Put four declined cards, six timeouts, and a message that SQS moved."""
        self.put(4)
        self.put(6, first=4, **{"failed_at": "2026-11-21T08:31:40Z", **TIMEOUT})
        self.put(recorded=False)

    def put_in_worse(self, count: int = 1, **failure: Any) -> None:
        """Write a template with two dead-letter queues, and put job-1 and so on into the second one."""
        self.template(TEMPLATE + WORSE)
        worse = self.queue("worse")
        self.queue("jobs", RedrivePolicy=policy("worse", 9))
        self.put(count, first=1, url=worse, name="job", origin="jobs", **failure)

    def template(self, text: str = TEMPLATE) -> None:
        (self.folder / "code").mkdir()
        (self.folder / "code/app.py").write_text(APP)
        (self.folder / "template.yaml").write_text(text)

    def run(
        self, *arguments: str, queue: str | None = "orders-dlq", columns: str | None = None, typed: str = ""
    ) -> Result:
        named = ("--queue", queue) if queue else ()
        where = () if {"--local", "--endpoint-url", "--stack"} & {*arguments} else ("--aws",)
        return CliRunner(env={"COLUMNS": columns}).invoke(app, ["failed", *arguments, *named, *where], input=typed)

    def refused(self, *arguments: str, code: int = 2, **options: Any) -> str:
        """Return the stderr of a command that prints nothing else."""
        result = self.run(*arguments, **options)
        assert (result.exit_code, result.stdout) == (code, ""), (arguments, result.output)
        return result.stderr

    def objects(self, *arguments: str, **options: Any) -> list[dict[str, Any]]:
        """Return the lines of a command with --json."""
        return [json.loads(line) for line in self.run(*arguments, "--json", **options).stdout.splitlines()]

    def depths(self) -> tuple[int, int, int]:
        """Return the numbers of messages in orders, visible in orders-dlq, and in flight in orders-dlq."""
        ready, in_flight = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"

        def count(url: str, name: str) -> int:
            return int(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

        return count(self.orders, ready), count(self.dlq, ready), count(self.dlq, in_flight)


def policy(dead_letter_queue: str, receives: int) -> str:
    """Return a redrive policy."""
    return json.dumps({"deadLetterTargetArn": arn(dead_letter_queue), "maxReceiveCount": receives})


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serialize the requests to moto, which may lose one of two concurrent deletes."""
    lock, answer = threading.RLock(), BotocoreStubber.process_request

    def locked(stubber: BotocoreStubber, request: Any) -> Any:
        with lock:
            return answer(stubber, request)

    monkeypatch.setattr(BotocoreStubber, "process_request", locked)


def editor(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Let the user's editor replace a text."""
    path = folder / "editor"
    path.write_text(EDITOR.format(old=old, new=new))
    path.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(path))
