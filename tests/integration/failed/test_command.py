"""`tarry failed` on moto: output and exit codes."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber
from rich.console import Console
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.cli.failed.rendering import table
from tarry.tools.cli.failed.targets import AwsAccess, in_project
from tarry.tools.cli.options import TargetOptions
from tarry.tools.local.instances import announced
from tests.unit.failed.dead_letters import envelope_of, recorded_dead_letter
from tests.wire import arn

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold red]money[/] \u202egnp.exe \x9b31m"

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

APP = """
import os
from tarry import Message, consumer

@consumer
def handler(message: Message) -> None:
    print("handling", message.queue, os.environ["QUEUE"].rpartition("/")[2])
    if message.json()["id"] >= int(os.environ["LIMIT"]):
        raise ValueError("too many")
"""


class MotoShop:
    """Queues on moto with dead letters, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sqs: Any = boto3.client("sqs", region_name="us-east-1")
        self.dlq = self.queue("orders-dlq")
        self.queue(
            "orders", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15})
        )

    def queue(self, name: str, **attributes: str) -> str:
        url: str = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def put(self, count: int = 1, first: int = 0, recorded: bool = True, **more: Any) -> None:
        entries = []
        for index in range(first, first + count):
            body = more.get("body", json.dumps({"id": index}))
            fields = {name: value for name, value in more.items() if name != "body"}
            envelope = json.dumps(envelope_of(body, f"id-{index}", **{"attempts": index + 1, **fields}))
            attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}} if recorded else {}
            entries.append({"Id": str(index), "MessageBody": body, "MessageAttributes": attributes})
        for ten in (entries[start : start + 10] for start in range(0, count, 10)):
            assert not self.sqs.send_message_batch(QueueUrl=self.dlq, Entries=ten).get("Failed")

    def template(self) -> None:
        (self.folder / "code").mkdir()
        (self.folder / "code/app.py").write_text(APP)
        (self.folder / "template.yaml").write_text(TEMPLATE)

    def run(
        self, *arguments: str, queue: str | None = "orders-dlq", columns: str | None = None, typed: str = ""
    ) -> Result:
        named = ("--queue", queue) if queue else ()
        where = () if {"--local", "--endpoint-url", "--stack"} & {*arguments} else ("--aws",)
        return CliRunner(env={"COLUMNS": columns}).invoke(app, ["failed", *arguments, *named, *where], input=typed)

    def depths(self) -> tuple[int, int, int]:
        """Return the numbers of messages in orders, visible in orders-dlq, and in flight in orders-dlq."""
        return self._count("orders", ""), self._count("orders-dlq", ""), self._count("orders-dlq", "NotVisible")

    def _count(self, queue: str, what: str) -> int:
        name = f"ApproximateNumberOfMessages{what}"
        url = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return int(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serialize the requests to moto, which may lose one of two concurrent deletes."""
    lock, answer = threading.RLock(), BotocoreStubber.process_request

    def locked(stubber: BotocoreStubber, request: Any) -> Any:
        with lock:
            return answer(stubber, request)

    monkeypatch.setattr(BotocoreStubber, "process_request", locked)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoShop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # moto would wait in real time
    one_at_a_time(monkeypatch)
    with mock_aws():
        yield MotoShop(tmp_path)


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# show


def test_show_prints_a_table_to_stdout_and_how_many_it_scanned_to_stderr(shop: MotoShop) -> None:  # SPEC M2, M6
    shop.put(3)
    shop.put(recorded=False)
    result = shop.run("show")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "orders-dlq"
    assert lines[1].split() == ["id", "when", "(UTC)", "error", "attempts", "origin"]
    assert any("id-1" in line and "app.CardDeclined: no" in line and "orders" in line for line in lines)
    assert any("no failure record (not dead-lettered by tarry)" in line for line in lines)
    assert result.stderr == "AWS 123456789012 us-east-1\norders-dlq: scanned 4 of about 4 in 4 requests\n"
    [shown] = objects(shop.run("show", "--json", "--where", "attempts = 2"))
    assert (shown["id"], shown["origin"]) == ("id-1", arn("orders"))
    shop.put(60)
    assert "scanned 50 of about 64" in shop.run("show").stderr
    assert len(objects(shop.run("show", "--json", "--max", "7"))) == 7
    assert shop.depths() == (0, 64, 0)


def test_in_a_pipe_the_table_is_as_wide_as_columns_and_an_undecodable_body_has_its_id_once(shop: MotoShop) -> None:
    problem = "the body of message id-0 does not fit Invoice: total: Field required"
    shop.put(reason="undecodable", type="tarry.errors.Undecodable", message=problem)
    result = shop.run("show", columns="60")
    assert max(map(len, result.stdout.splitlines())) <= 60
    assert "undecodable: the body does" in result.stdout


def test_show_with_an_id_prints_all_details(shop: MotoShop) -> None:  # SPEC M2
    """The text of the error is after the traceback, and no history repeats it."""
    frames = '  File "/var/task/app.py", line 12, in handler\n    charge(order)'
    shop.put(2, traceback=frames, history=[{"attempt": 1, "at": "2026-11-21T08:00:00Z", "error": "Earlier: one"}])
    result = shop.run("show", "id-1")
    assert result.exit_code == 0
    for text in ("exhausted, after 2 attempts", "9f2c61d0a4be", frames, "Earlier: one", '{"id": 1}'):
        assert text in result.stdout
    entry = {"at": "2026-11-21T08:21:43Z", "attempt": 4, "error": "app.LedgerDown"}
    traceback = f"Traceback (most recent call last):\n{frames}\napp.LedgerDown"
    shop.put(first=3, type="app.LedgerDown", message="no answer", traceback=traceback, attempts=4, history=[entry])
    shown = shop.run("show", "id-3").stdout
    assert ("charge(order)\napp.LedgerDown: no answer\n" in shown, "history" in shown) == (True, False)
    result = shop.run("show", "unknown")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "dead letter 'unknown' was not found in orders-dlq" in result.stderr
    shop.put(recorded=False)
    [bare] = objects(shop.run("show", "--json", "--where", "type = null"))
    shown = shop.run("show", bare["id"]).stdout
    assert "no failure record (not dead-lettered by tarry)" in shown
    assert f'filter @message like "{bare["id"]}"' in shown


def test_hostile_text_is_harmless(shop: MotoShop) -> None:  # SPEC M2
    """Control characters in a message do not reach the terminal, and markup in it has no effect."""
    body = "\u202e \U0001f600 [link=x]body[/link]"
    shop.put(body=body, message=HOSTILE, type="[red]Type", function=HOSTILE, fingerprint="\x1b]0;f\x07")
    for arguments in ("show", "show id-0", "show --json", "show --event", "", "show --group-by fingerprint"):
        result = shop.run(*arguments.split())
        assert result.exit_code == 0
        assert not set(result.output) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
        if "--json" in arguments or "--event" in arguments:
            continue
        assert "[bold red]money[/]" in result.stdout
        assert "\\x1b[2J" in result.stdout


@pytest.mark.parametrize(
    ("columns", "titles", "own_id"),
    [
        (80, ["id", "when", "(UTC)", "error", "attempts"], "aaaaaaaaa1"),
        (99, ["id", "when", "(UTC)", "error", "attempts"], "aaaaaaaaa1"),
        (107, ["id", "when", "(UTC)", "error", "attempts"], "aaaaaaaaa1-2096-46ab-9069-6449637203"),
        (120, ["id", "when", "(UTC)", "error", "attempts", "origin"], "aaaaaaaaa1-2096-46ab-9069-6449637203"),
    ],
)
def test_in_a_narrow_terminal_the_table_keeps_the_error(columns: int, titles: list[str], own_id: str) -> None:
    """It leaves out the origin, then the end of the ids, as far as they stay different."""
    ids = [f"aaaaaaaaa{number}-2096-46ab-9069-6449637203" for number in range(3)]
    error = "connection to the gateway was refused, no retry"
    console = Console(file=StringIO(), width=columns)
    console.print(table([recorded_dead_letter(message_id=each, message=error) for each in ids], columns))
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == titles
    row = next(line for line in lines if line.split()[0] == own_id)
    assert "app.CardDeclined: connection to the" in row
    assert max(map(len, lines)) <= columns


def test_show_with_event_prints_an_sqs_event_for_tarry_local(shop: MotoShop) -> None:  # SPEC M2
    shop.put(2)
    [event] = objects(shop.run("show", "--event", "id-1", "id-0"))
    assert [record["eventSourceARN"] for record in event["Records"]] == [arn("orders")] * 2
    assert [json.loads(record["body"])["id"] for record in event["Records"]] == [1, 0]


def test_show_warns_of_a_dead_letter_queue_with_a_redrive_policy(shop: MotoShop) -> None:  # SPEC M2, PLATFORM 22
    shop.queue("worse")
    policy = json.dumps({"deadLetterTargetArn": arn("worse"), "maxReceiveCount": 5})
    shop.sqs.set_queue_attributes(QueueUrl=shop.dlq, Attributes={"RedrivePolicy": policy})
    assert "after 5 receives SQS moves a dead letter to worse" in shop.run("show").stderr


# retry and remove


def test_retry_with_json_prints_each_result(shop: MotoShop) -> None:  # SPEC M6
    shop.put(30)
    result = shop.run("retry", "id-20", "unknown", "id-3", "--json")
    assert result.exit_code == 1
    assert objects(result) == [
        {"id": "unknown", "outcome": "failed", "error": "not found in orders-dlq"},
        {"id": "id-20", "outcome": "retried"},
        {"id": "id-3", "outcome": "retried"},
    ]
    assert result.stderr.splitlines()[1:3] == ["id-20  app.CardDeclined: no", "id-3  app.CardDeclined: no"]
    assert result.stderr.splitlines()[-1] == "retried 2, failed 1, skipped 0"
    assert shop.depths() == (2, 28, 0)


@pytest.mark.parametrize("command", ["retry", "remove"])
def test_all_are_those_of_before_the_command_and_new_ones_are_counted(shop: MotoShop, command: str) -> None:  # SPEC M3
    shop.put(2)
    shop.put(1, first=7, failed_at="2099-01-01T00:00:00Z")
    result = shop.run(command, "--all", "--force", *(["--yes-delete", "orders-dlq"] if command == "remove" else []))
    done = "retried 2, failed 0, skipped 0" if command == "retry" else "deleted 2, failed 0"
    assert (result.exit_code, result.stdout) == (0, f"{done}\n")
    assert "orders-dlq: 1 dead letter came after the command began, or after the preview, and is left" in result.stderr
    assert shop.depths() == (2 if command == "retry" else 0, 1, 0)


def test_conditions_and_the_beginning_of_an_id_select(shop: MotoShop) -> None:  # SPEC M1, M3
    shop.put(12, first=100)
    result = shop.run("retry", "id-105", "id-11")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "tarry: 2 ids begin with 'id-11': id-110, id-111; give more characters of the id"
    )
    assert shop.depths() == (0, 12, 0)
    assert objects(shop.run("remove", "id-111", "--json", "--force")) == [{"id": "id-111", "outcome": "deleted"}]
    result = shop.run("retry", "--where", "attempts > 108", "--json")
    assert sorted(each["id"] for each in objects(result)) == ["id-108", "id-109", "id-110"]
    assert "the messages that it is sending (up to 10) may be delivered twice" in result.stderr
    assert shop.run("remove", "--where", "body.id < 104", "--force").stdout == "deleted 4, failed 0\n"
    assert shop.depths() == (3, 4, 0)


def test_retry_of_a_mixed_queue_retries_what_it_can_and_exits_with_1(shop: MotoShop) -> None:  # SPEC M3, M4
    shop.put(40)
    shop.put(first=40, reason="undecodable")
    shop.put(recorded=False)
    result = shop.run("retry", "--all", "--concurrency", "4")
    assert result.exit_code == 1
    assert "id-40  skipped: its body cannot be decoded: edit or remove it" in result.stdout
    assert "name a queue to send it to (--to QUEUE)" in result.stdout
    assert result.stdout.splitlines()[-1] == "retried 40, failed 1, skipped 1"
    assert "the messages that it is sending (up to 40) may be delivered twice" in result.stderr
    assert shop.depths() == (40, 2, 0)


EDITOR = """#!{python}
import sys, pathlib
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text().replace("{old}", "{new}") + "\\n")
"""


def editor(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    path = folder / "editor"
    path.write_text(EDITOR.format(python=sys.executable, old=old, new=new))
    path.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(path))


def test_retry_sends_an_edited_body(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # SPEC M3, M6
    """A body that is no longer JSON is refused; the output of the editor does not go to stdout."""
    shop.put(2, reason="undecodable")
    editor(shop.folder, monkeypatch, "1}", "7}")
    assert objects(shop.run("retry", "id-1", "--edit", "--json")) == [{"id": "id-1", "outcome": "retried"}]
    [message] = shop.sqs.receive_message(
        QueueUrl=shop.sqs.get_queue_url(QueueName="orders")["QueueUrl"], MessageAttributeNames=["All"]
    )["Messages"]
    assert message["Body"] == '{"id": 7}'
    record = json.loads(message["MessageAttributes"]["Tarry"]["StringValue"])
    assert (record["id"], "edited" in record) == ("id-1", True)
    editor(shop.folder, monkeypatch, "}", "")
    [result] = objects(shop.run("retry", "id-0", "--edit", "--json"))
    assert (result["outcome"], "was JSON, the edited body is not" in result["error"]) == ("failed", True)
    (shop.folder / "editor").write_text("#!/bin/sh\necho the screen\n")
    assert objects(shop.run("retry", "id-0", "--edit", "--json")) == [{"id": "id-0", "outcome": "skipped"}]
    assert capfd.readouterr() == ("", "the screen\n")
    assert "you did not change its body" in shop.run("retry", "id-0", "--edit").stdout
    assert len(objects(shop.run("show", "--json"))) == 1


def test_via_local_runs_the_handler_of_the_template(shop: MotoShop) -> None:  # SPEC M3
    shop.template()
    shop.put(5)
    result = shop.run("retry", "--all", "--via", "local", "--json", queue=None)
    assert result.exit_code == 1
    assert sorted((each["id"], each["outcome"]) for each in objects(result)) == [
        ("id-0", "retried"), ("id-1", "retried"), ("id-2", "retried"), ("id-3", "failed"), ("id-4", "failed"),
    ]  # fmt: skip
    assert "handling orders orders" in result.stderr
    assert shop.depths() == (0, 2, 0)
    failures = [each["failure"] for each in objects(shop.run("show", "--json", queue=None))]
    assert {(failure["attempts"], failure["message"]) for failure in failures} == {(5, "too many"), (6, "too many")}


def test_via_local_accepts_a_queue_of_the_template_that_sqs_does_not_list_as_a_source(
    shop: MotoShop,
) -> None:  # SPEC M3
    shop.template()
    shop.sqs.set_queue_attributes(
        QueueUrl=shop.sqs.get_queue_url(QueueName="orders")["QueueUrl"], Attributes={"RedrivePolicy": ""}
    )
    shop.put(2)
    assert objects(shop.run("retry", "id-1", "--via", "local", "--json")) == [{"id": "id-1", "outcome": "retried"}]
    assert shop.depths() == (0, 1, 0)


def test_via_local_exits_with_2_for_a_queue_without_a_function(shop: MotoShop) -> None:  # SPEC M3
    shop.template()
    shop.put(2, origin="orders-dlq-too")
    template = shop.folder / "template.yaml"
    template.write_text(
        template.read_text() + "  Too: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq-too}}\n"
    )
    shop.queue("orders-dlq-too")
    result = shop.run("retry", "id-1", "id-0", "--via", "local")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "template.yaml: no function consumes orders-dlq-too" in result.stderr
    result = shop.run("retry", "--all", "--via", "local", "--json")
    assert [each["outcome"] for each in objects(result)] == ["failed", "failed"]
    assert result.exit_code == 2
    assert shop.depths() == (0, 2, 0)


def test_a_template_selects_its_dead_letter_queues(shop: MotoShop) -> None:  # SPEC M1
    shop.template()
    shop.put(1)
    assert shop.run("show", queue=None).stdout.startswith("orders-dlq\n")
    assert shop.run("show", "--template", "template.yaml", queue="Dead").stdout.startswith("orders-dlq\n")
    result = shop.run("show", "--template", "template.yaml", queue="nope")
    error = "tarry: queue 'nope' does not exist; existing queues: orders-dlq\n"
    assert (result.exit_code, result.stderr) == (2, error)


@pytest.mark.parametrize("queue", [None, "Dead"])
def test_the_stack_must_be_named_if_the_queues_of_the_template_are_named_after_it(
    shop: MotoShop, queue: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine, samconfig.toml can give them plain names; on AWS these would be those of another stack."""
    (shop.folder / "template.yaml").write_text(
        """
Resources:
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub "${AWS::StackName}-dlq"}}
  Orders: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn}}}
"""
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    result = shop.run("show", queue=queue)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "tarry: template.yaml names its queues after the stack: name the stack that you mean (--stack NAME)\n"
    )


def put_in_worse(shop: MotoShop, *ids: str, **failure: str) -> None:
    """Write a template with two dead-letter queues, and put dead letters into the second one."""
    shop.template()
    path = shop.folder / "template.yaml"
    more = """
  Worse: {Type: AWS::SQS::Queue, Properties: {QueueName: worse}}
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {QueueName: jobs, RedrivePolicy: {deadLetterTargetArn: !GetAtt Worse.Arn, maxReceiveCount: 9}}
"""
    path.write_text(path.read_text() + more.removeprefix("\n"))
    worse = shop.queue("worse")
    shop.queue("jobs", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn("worse"), "maxReceiveCount": 9}))
    for own_id in ids:
        envelope = json.dumps(envelope_of("{}", own_id, origin="jobs", **failure))
        attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}}
        shop.sqs.send_message(QueueUrl=worse, MessageBody="{}", MessageAttributes=attributes)


@pytest.mark.parametrize("command", ["retry", "remove"])
def test_ids_are_looked_for_in_all_queues(shop: MotoShop, command: str) -> None:  # SPEC M1
    """One that is in none of them is reported once; the beginning of one must be unique among all."""
    put_in_worse(shop, "id-1", "job-1")
    shop.put(1)
    result = shop.run(command, "unknown", "--json", "--force", queue=None)
    error = "not found in orders-dlq, worse"
    assert objects(result) == [{"id": "unknown", "outcome": "failed", "error": error}]
    assert result.exit_code == 1
    assert "2 ids begin with 'id-': id-0, id-1; give" in shop.run(command, "id-", "--force", queue=None).stderr
    outcome = {"retry": "retried", "remove": "deleted"}[command]
    assert objects(shop.run(command, "job", "id-0", "--json", "--force", queue=None)) == [
        {"id": "job-1", "outcome": outcome},
        {"id": "id-0", "outcome": outcome},
    ]
    assert shop.depths() == (int(command == "retry"), 0, 0)


def test_remove_all_at_aws_needs_the_name_of_each_queue_typed_or_as_an_option(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    shop.template()
    shop.put(2)
    for queue in (None, "orders-dlq"):
        result = shop.run("remove", "--all", "--force", queue=queue)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            "AWS 123456789012 us-east-1\n"
            "tarry: remove --all at AWS must name the queue that it empties: add --yes-delete orders-dlq\n"
        )
    result = shop.run("remove", "--all", "--yes-delete", "orders")
    assert (result.exit_code, "but the selected queues are orders-dlq" in result.stderr) == (2, True)
    result = shop.run("remove", "--where", "attempts = 1", "--yes-delete", "orders-dlq")
    assert (result.exit_code, "--yes-delete confirms --all" in result.stderr) == (2, True)
    with monkeypatch.context() as at_a_terminal:
        at_a_terminal.setattr(sys.modules["tarry.tools.cli.failed.remove"], "has_terminal", lambda: True)
        for typed, code, left in (("y\n", 0, 2), ("", 0, 2), (" orders-dlq\n", 0, 0)):
            result = shop.run("remove", "--all", "--force", typed=typed)
            assert "Type the queue's name: " in result.stderr
            assert (result.exit_code, shop.depths()) == (code, (0, left, 0)), result.stderr
    shop.put(2)
    assert shop.run("remove", "--all", "--force", "--yes-delete", "orders-dlq").exit_code == 0
    assert shop.depths() == (0, 0, 0)


def test_a_stack_selects_its_dead_letter_queues(shop: MotoShop) -> None:  # SPEC M1
    plain = {
        "Resources": {
            "Jobs": {
                "Type": "AWS::SQS::Queue",
                "Properties": {
                    "RedrivePolicy": {"deadLetterTargetArn": {"Fn::GetAtt": ["Dead", "Arn"]}, "maxReceiveCount": 3}
                },
            },
            "Dead": {"Type": "AWS::SQS::Queue"},
        }
    }
    boto3.client("cloudformation", region_name="us-east-1").create_stack(
        StackName="shop", TemplateBody=json.dumps(plain)
    )
    result = shop.run("show", "--stack", "shop", queue=None)
    assert result.exit_code == 0
    assert "Dead" in result.stderr
    assert shop.run("show", "--stack", "shop", queue="Dead").exit_code == 0
    (shop.folder / "template.yml").write_text("Resources: {Dead: {Type: AWS::SQS::Queue}}")
    config = '[default.global.parameters]\nstack_name = "shop"\nregion = "eu-west-1"'
    (shop.folder / "samconfig.toml").write_text(config)
    found = shop.run("show", queue=None)  # with AWS_DEFAULT_REGION, which precedes
    assert found.stderr.startswith("AWS 123456789012 us-east-1, stack shop (of the samconfig file)\n")
    assert found.stdout == result.stdout
    result = shop.run("show", "--stack", "nope", queue=None)
    assert (result.exit_code, result.stdout) == (2, "")


# wrong usage: one line, exit code 2, nothing changed

ID_AND_MORE = "ids cannot be combined with --where, --group, --since, --until or --all"
WRONG = {
    "retry": "no dead letters selected, and no terminal to ask at: give ids, --where, --group or --all",
    "remove": "no dead letters selected: give ids, --where, --group or --all",
    "retry id-0 --all": f"{ID_AND_MORE}: ",
    "remove id-0 --where attempts=1": f"{ID_AND_MORE}: ",
    "show id-0 --group x": ID_AND_MORE,
    "show --where body.[=1": "invalid condition 'body.[=1' at column 9: unclosed bracket",
    "show --json --event": "--json and --event cannot be combined: give one of them",
    "show id-0 --json --event --pytest": "--json and --event and --pytest cannot be combined: give one",
    "show --endpoint-url localhost:4576": "'localhost:4576' is not an endpoint URL; an example is http://",
    "show --endpoint-url http://[::1": "'http://[::1' is not an endpoint URL",
    "retry --all --edit": "--edit needs ids",
    "retry --all --to nope": "queue 'nope' does not exist; existing queues: orders-dlq, orders",
    "retry --all --to orders-dlq": "orders-dlq is the dead-letter queue itself",
    "retry --all --via local": "the template is needed to find the handlers: there is no ",
    "retry --all --rate 0": "--rate must be a number of messages above 0, such as 20/s, 100/m or 500/h",
    "retry --all --max-return 5": "--max-return must be a percentage from 0% to 100%, such as 5%: '5'",
    "retry --all --canary 0": "--canary must be a number, 1 or more",
    "retry --all --canary 2 --within 0s": "--within must be more than 0 s and less than 12 h",
    "retry --all --within 5m": "--within says how long to watch canaries: give --canary N",
    "retry id-0 --canary 2": "--canary retries some of a selection first: give --group, --where or",
    "retry --all --via local --rate 2/s": "--via local runs one dead letter at a time: leave out",
    "retry --all --via aws --canary 2": "--via aws lets SQS move the messages: leave out --canary",
    "retry --group x --via aws": "--via aws moves the whole dead-letter queue: give --all, without",
    "show --since yesterday": "--since must be a time such as 2026-11-21T08:00Z, or a duration such as 2h",
    "show --since 1h --until 2h": "--since 1h is not before --until 2h: no time is between them",
    "show --sample 5": "--sample needs --group-by: --max limits a list",
    "show --group-by error --event": "--group-by counts dead letters: it cannot be combined with --event",
    "show id-0 --group-by error": "--group-by counts dead letters: it cannot be combined with ids",
    "show --group-by error --pytest": "--group-by counts dead letters: it cannot be combined with --py",
    "--sample 5 show": "options go after the command: tarry failed show [OPTIONS]",
    "show --pytest": "--pytest needs ids: name the dead letters that become tests",
}


def test_wrong_usage_is_one_line_with_the_remedy_and_changes_nothing(shop: MotoShop) -> None:  # SPEC M6
    shop.put(1)
    for arguments, line in WRONG.items():
        result = shop.run(*arguments.split())
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert result.stderr.removeprefix("AWS 123456789012 us-east-1\n").startswith(f"tarry: {line}"), result.stderr
        assert result.stderr.count("\ntarry: ") <= 1
    assert shop.depths() == (0, 1, 0)


def test_the_error_for_an_unknown_queue_lists_existing_queues_and_for_none_the_options(
    shop: MotoShop,
) -> None:  # SPEC M1
    for queue, error in (
        ("nope", "AWS us-east-1\ntarry: queue 'nope' does not exist; existing queues: orders-dlq, orders\n"),
        (
            None,
            "tarry: there is no template here (template.yaml, template.yml, template.json, .aws-sam/build/template.yaml"
            ", cdk.out/*.template.json): name one with --template FILE; or name a deployed stack (--stack NAME) or a "
            "queue (--queue NAME)\n",
        ),
    ):
        result = shop.run("show", queue=queue)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", error)


def test_a_dead_letter_without_a_known_target_exits_with_2(shop: MotoShop) -> None:  # SPEC M3
    shop.put(recorded=False)
    [dead_letter] = objects(shop.run("show", "--json"))
    for selected in ("--all", dead_letter["id"]):
        result = shop.run("retry", selected)
        assert (result.exit_code, "--to QUEUE" in result.output) == (2, True)
    shop.queue("payroll")
    shop.put(origin="payroll")
    result = shop.run("retry", "id-0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "which is not a source of orders-dlq (sources: orders)" in result.stderr
    assert shop.depths() == (0, 2, 0)
    assert shop.run("retry", "--all", "--to", "orders").exit_code == 0


def test_what_changes_something_needs_a_place_and_what_deletes_a_terminal_or_force(
    shop: MotoShop,
) -> None:  # SPEC M3
    shop.put(2)
    for selected in ("id-0", "--all", "--where=attempts = 1"):
        result = shop.run("remove", selected)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "remove asks before it deletes, and there is no terminal: add --force" in result.stderr
    for command in ("retry --all", "retry", "remove id-0", "remove id-0 --force"):
        result = CliRunner().invoke(app, ["failed", *command.split(), "--queue", "orders-dlq"])
        assert (result.exit_code, result.stdout) == (2, "")
        if command != "retry":
            assert "say where to do this: --local, --aws, --stack NAME or --endpoint-url URL" in result.stderr
    assert shop.depths() == (0, 2, 0)
    assert CliRunner().invoke(app, ["failed", "show", "--queue", "orders-dlq"]).exit_code == 0


def test_missing_credentials_and_region_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    result = CliRunner().invoke(app, ["failed", "show", "--queue", "orders-dlq"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tarry: no usable AWS credentials")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    result = CliRunner().invoke(app, ["failed", "show", "--queue", "orders-dlq"])
    assert (result.exit_code, "set AWS_REGION" in result.stderr) == (2, True)
    assert "for the queues of tarry local: --local" in result.stderr


def test_the_region_is_that_of_the_option_then_of_aws_region(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC M1
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert AwsAccess(TargetOptions()).client("sqs").meta.region_name == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert AwsAccess(TargetOptions()).client("sqs").meta.region_name == "eu-central-1"
    assert AwsAccess(TargetOptions(region="eu-west-1")).client("sqs").meta.region_name == "eu-west-1"


def test_the_stack_and_region_are_those_of_the_project_where_no_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M1
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert in_project(TargetOptions()) == TargetOptions()
    (tmp_path / ".aws-sam/build").mkdir(parents=True)
    (tmp_path / ".aws-sam/build/template.yaml").touch()
    (tmp_path / "samconfig.yaml").write_text("default: {deploy: {parameters: {stack_name: shop, region: eu-west-1}}}")
    assert in_project(TargetOptions()) == TargetOptions(stack="shop", region="eu-west-1")
    for named in (
        TargetOptions(queue="dlq"),
        TargetOptions(stack="other"),
        TargetOptions(template=tmp_path / "template.yaml"),
        TargetOptions(endpoint_url="http://127.0.0.1:4576"),
    ):
        assert in_project(named) == named
    assert AwsAccess(TargetOptions(queue="dlq")).region == "eu-west-1"
    assert AwsAccess(TargetOptions(endpoint_url="http://127.0.0.1:4576")).region == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert in_project(TargetOptions()) == TargetOptions(stack="shop", region="eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4576")
    assert in_project(TargetOptions()) == TargetOptions()


def test_at_aws_an_error_names_the_tarry_local_that_runs_the_template(shop: MotoShop) -> None:
    shop.template()
    with announced("http://127.0.0.1:5001", shop.folder / "template.yaml"):
        result = shop.run("show", queue="nope")
    hint = "; for the queues of the tarry local that runs here: --local\n"
    assert (result.exit_code, result.stderr.endswith(hint)) == (2, True)


def test_an_endpoint_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.tools.cli.failed.targets.TRIES", 1)
    result = CliRunner().invoke(app, ["failed", "show", "--queue", "dlq", "--endpoint-url", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tarry: no SQS answers at http://127.0.0.1:9/ (Could not connect")
