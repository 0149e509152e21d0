"""docs/guides/operating-dlqs.md: every command of the runbook, in order, against the served model of SQS."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tarry.tools.cli.app import app
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
  OrdersFunction:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.13
      CodeUri: code
      Handler: app.handler
      Events: {Orders: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn}}}
"""
KINDS = {
    "636e0ad2": ("app.GatewayTimeout", "9f2c61d0a4be", 24),
    "9f164b01": ("app.CardDeclined", "51aa03b8c7d2", 3),
    "77e01651": ("app.LockTimeout", "0c3d99aa14f2", 5),
    "d8053b4f": ("KeyError", "17b2c0ffee00", 4),
}


class EventSourceMapping:
    """That of orders, as Lambda describes it."""

    state = "Enabled"

    def __call__(self, method: str, uuid: str, query: Any, body: Any) -> tuple[int, dict[str, Any]]:
        if method == "PUT":
            self.state = "Enabled" if body["Enabled"] else "Disabled"
        function = "arn:aws:lambda:us-east-1:123456789012:function:handler"
        found = {
            "UUID": str(UUID(int=1)),
            "EventSourceArn": arn("orders"),
            "FunctionArn": function,
            "State": self.state,
        }
        return 200, found if uuid else {"EventSourceMappings": [found]}


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
    monkeypatch.setattr("tarry.tools.cli.failed.retrying.STEPS_OF_POLL", 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").touch()
    blocks = [block for block in PAGE.blocks if block.language == "sh"]
    assert [block for block in blocks if block.comment not in {"runbook", "not run: needs a terminal"}] == []
    outputs = {}
    with served() as sqs:
        sqs.sqs.event_source_mappings = mapping = EventSourceMapping()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
        sqs.queue("orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15})
        sqs.queue("orders", RedrivePolicy=policy, VisibilityTimeout="1")  # a canary is watched for that long
        sqs.on_the_loop(lambda: [put(sqs.sqs, prefix, *kind) for prefix, kind in KINDS.items()])
        for words in (words for block in blocks if block.comment == "runbook" for _, words in block.commands()):
            command = shlex.join(words)
            if words[0] == "tarry":
                asked = ["--force"] if words[:3] == ["tarry", "failed", "remove"] else []  # there is no terminal
                result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words[1:], *asked])
                assert result.exit_code == 0, (command, result.stdout, result.stderr)
                outputs[command] = result.stdout
            elif words[0] == "tail":
                paths = [str(Path(word).expanduser()) for word in words]
                outputs[command] = subprocess.run(paths, capture_output=True, text=True, check=True).stdout
            else:
                assert words in (["test_636e0ad2.py"], ["failure.json"])  # the file for the output
        assert mapping.state == "Enabled"
        moved = sqs.on_the_loop(lambda: (len(sqs.sqs.peek("orders")), len(sqs.sqs.peek("orders-dlq"))))
    assert outputs["tarry pause --queue orders"].startswith("orders -> handler: Enabled -> Disabled\n")
    assert outputs["tarry failed"]
    test = outputs["tarry failed show --queue orders-dlq 636e0ad2 --template template.yaml --pytest"]
    assert "def test_dead_letter_636e0ad2(" in test
    canaries = outputs["tarry failed retry --queue orders-dlq --group 9f2c61d0a4be --canary 10"]
    assert canaries == "retried 24, failed 0, skipped 0\n"
    audit = outputs["tail -n 10 '~/.local/state/tarry/audit.jsonl'"].splitlines()
    assert [json.loads(line)["command"] for line in audit[1::2]] == [
        "tarry resume", "tarry failed retry", "tarry failed retry", "tarry failed remove", "tarry failed restore",
    ]  # fmt: skip
    assert moved == (sum(count for *_, count in KINDS.values()), 0)  # restored ones too are moved by SQS at the end
