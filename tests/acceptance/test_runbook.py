"""docs/guides/operating-dlqs.md: every command of the runbook, in order, against the served model of SQS."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app
from tests.pages import ROOT, Page
from tests.served import served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

PAGE = Page(ROOT / "docs/guides/operating-dlqs.md")
TEMPLATE = """
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 15}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq}}
"""
KINDS = {
    "636e0ad2": ("app.GatewayTimeout", "9f2c61d0a4be", 24),
    "9f164b01": ("app.CardDeclined", "51aa03b8c7d2", 3),
    "77e01651": ("app.LockTimeout", "0c3d99aa14f2", 5),
    "d8053b4f": ("KeyError", "17b2c0ffee00", 4),
}


def put(sqs: Any, prefix: str, kind: str, fingerprint: str, count: int) -> None:
    for number in range(count):
        body = json.dumps({"id": number, "total": 100})
        envelope = envelope_of(body, f"{prefix}-{number:02}" if number else prefix, type=kind, fingerprint=fingerprint)
        attributes = {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
        parameters = {"QueueUrl": sqs.url("orders-dlq"), "MessageBody": body, "MessageAttributes": attributes}
        sqs.call("SendMessage", parameters)


def test_every_command_of_the_runbook_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M1, M2, M3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    with served() as sqs:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        sqs.queue("orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15})
        sqs.queue("orders", RedrivePolicy=policy, VisibilityTimeout="1")  # a canary is watched for that long
        sqs.on_the_loop(lambda: [put(sqs.sqs, prefix, *kind) for prefix, kind in KINDS.items()])
        blocks = [block for block in PAGE.blocks if block.language == "sh"]
        unchecked = [block for block in blocks if block.comment not in {"runbook", "not run: needs a terminal"}]
        assert unchecked == []
        outputs = {}
        for words in (words for block in blocks if block.comment == "runbook" for _, words in block.commands()):
            if words[0] == "tarry":  # the other is a file for the output
                result = CliRunner(env={"COLUMNS": "80"}).invoke(app, words[1:])
                assert result.exit_code == 0, (shlex.join(words), result.stdout, result.stderr)
                outputs[shlex.join(words[1:])] = result.stdout
        moved = sqs.on_the_loop(lambda: (len(sqs.sqs.peek("orders")), len(sqs.sqs.peek("orders-dlq"))))
    assert outputs["failed"]
    assert "retried 24, failed 0" in outputs["failed retry --queue orders-dlq --group 9f2c61d0a4be --canary 10"]
    assert moved == (24 + 5 + 4, 0)  # the declined cards are removed, the others moved by SQS
