"""`tarry failed show --pending`: the messages that wait for a retry (SPEC O3)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import Result
from moto import mock_aws
from typer.testing import CliRunner

from tarry import AttemptChange, DynamoDBAttempts
from tarry.tools.cli.app import app

TABLE = "shop-attempts"
STACK = """
Resources:
  AttemptsTable:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: shop-attempts
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: id, AttributeType: S}]
      KeySchema: [{AttributeName: id, KeyType: HASH}]
"""
ID = "636e0ad2-2096-46ab-9069-64496372034"


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        for name, template in (("shop", STACK), ("other", "Resources: {Queue: {Type: AWS::SQS::Queue}}")):
            boto3.client("cloudformation").create_stack(StackName=name, TemplateBody=template)
        yield


def write(message: str, queue: str, next_try: float, kind: Any = "run", error: str = "no answer in 3 s") -> None:
    failure = {"type": "app.GatewayTimeout", "message": error, "fingerprint": "b45dfe4b2404"}
    fields = {"message": message, "queue": queue, "attempt": 2, "state": "WAITING_RETRY", "next_try": next_try}
    if kind != "seen":
        fields |= {"failure": failure, "history": [{"attempt": 2}]}
    change = AttemptChange(f"{queue}#{message}", 2, kind, fields)
    DynamoDBAttempts(TABLE, client=boto3.client("dynamodb")).write([change])


def run(*arguments: str, columns: str = "200") -> Result:
    return CliRunner(env={"COLUMNS": columns}).invoke(app, ["failed", "show", "--pending", *arguments])


def test_the_messages_that_wait_are_shown_with_the_next_try_first() -> None:
    """Control characters and markup of an error have no effect."""
    write(f"{ID}a", "orders", 4_000_000_000)
    write(f"{ID}b", "ledger.fifo", 1_000_000_000, "seen")
    write(f"{ID}c", "orders", 3_000_000_000)
    write(f"{ID}c", "orders", 0, "end")
    write(f"{ID}d", "red", 4_000_000_001, error="[bold]\x1b[31mred")
    result = run("--stack", "shop")
    assert (result.exit_code, "\x1b" in result.stdout) == (0, False), result.output
    assert [line.split()[1:] for line in result.stdout.splitlines() if ID[:8] in line] == [
        ["ledger.fifo", "2", "waiting_retry", "due"],
        ["orders", "2", *"app.GatewayTimeout: no answer in 3 s 2096-10-02 07:06:40".split()],
        ["red", "2", "app.GatewayTimeout:", "[bold]\\x1b[31mred", "2096-10-02", "07:06:41"],
    ]
    assert result.stderr == f"AWS 123456789012 us-east-1\n{TABLE}: 3 messages pending\n"


def test_a_queue_and_a_number_select_and_json_has_everything() -> None:
    for index in range(3):
        write(f"{ID}{index}", "orders", 4_000_000_000 + index)
    write(f"{ID}x", "other", 0)
    result = run("--table", TABLE, "--queue", "orders", "--max", "2", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["id"] for each in found] == [f"{ID}0", f"{ID}1"]
    assert found[0] == {
        "id": f"{ID}0", "queue": "orders", "state": "WAITING_RETRY", "attempt": 2,
        "error": "app.GatewayTimeout: no answer in 3 s", "fingerprint": "b45dfe4b2404",
        "next_try": "2096-10-02T07:06:40.000Z", "history": [{"attempt": 2}],
    }  # fmt: skip
    assert result.stderr == f"AWS 123456789012 us-east-1\n{TABLE}: 2 messages pending; 1 more (--max)\n"


def test_a_table_that_is_not_known_is_an_error() -> None:
    for arguments, text in (
        ((), "--pending reads the table of attempts=: name it (--table NAME), or its stack (--stack NAME)"),
        (("--stack", "other"), "stack other has no table with Attempts in its logical id: name the table"),
        (("--table", "t", "--event"), "--pending takes only --table, --stack, --queue, --max and --json"),
        (("--table", "nope"), "there is no table nope in us-east-1: check the name, and --region"),
    ):
        result = run(*arguments)
        assert (result.exit_code, text in " ".join(result.stderr.split())) == (2, True), arguments


def test_the_others_are_shown_beside_records_of_another_program_and_one_that_expired() -> None:
    write(f"{ID}a", "orders", 4_000_000_000)
    for number, item in enumerate(
        (
            {"next_try": {"S": "soon"}},
            {"next_try": {"N": "1e99"}},
            {"next_try": {"N": "5"}, "failure": {"S": "{"}},
            {"next_try": {"N": "5"}, "failure": {"S": '{"type":7}'}, "message": {"M": {}}},
            {"next_try": {"N": "5"}, "expires": {"N": "7"}},
        )
    ):
        boto3.client("dynamodb").put_item(TableName=TABLE, Item={"id": {"S": f"x{number}"}, **item})
    result = run("--stack", "shop", columns="80")
    assert (result.exit_code, ID[:8] in result.stdout) == (0, True), result.output
    assert [line.split()[:3] for line in result.stdout.splitlines() if "None" in line] == [
        ["None", "None", "None"],
        ["{}", "None", "None"],
    ]
