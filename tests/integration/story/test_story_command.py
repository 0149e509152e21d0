"""`tarry story` on a stack in moto: what it finds, what it says when it finds nothing, and wrong usage.  # SPEC L6"""

import io
import json
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import NoCredentialsError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.story import searching as insights

ID, COPY = "5f3a2b1c-7d9e-4c1a-9b60-2f8e1d4c7a35", "b0000000-7d9e-4c1a-9b60-2f8e1d4c7a35"
ROLE = "arn:aws:iam::123456789012:role/lambda-role"


def tarry(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["story", *arguments], env={"COLUMNS": "80"})


class Shop:
    """A stack with two functions, of which one was never invoked, and their logs."""

    def __init__(self) -> None:
        self.logs: Any = boto3.client("logs", "us-east-1")
        iam = boto3.client("iam", "us-east-1")
        document = {"Version": "2012-10-17", "Statement": []}
        iam.create_role(RoleName="lambda-role", AssumeRolePolicyDocument=json.dumps(document))
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("app.py", "")
        s3 = boto3.client("s3", "us-east-1")
        s3.create_bucket(Bucket="code")
        s3.put_object(Bucket="code", Key="code.zip", Body=code.getvalue())
        function = {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Runtime": "python3.13",
                "Role": ROLE,
                "Handler": "app.handler",
                "Code": {"S3Bucket": "code", "S3Key": "code.zip"},
            },
        }
        resources = {
            name: {**function, "Properties": {**function["Properties"], "FunctionName": f"shop-{name}"}}  # type: ignore[dict-item]
            for name in ("orders", "slow", "unused")
        }
        template = {"Resources": {**resources, "Queue": {"Type": "AWS::SQS::Queue"}}}
        boto3.client("cloudformation", "us-east-1").create_stack(StackName="shop", TemplateBody=json.dumps(template))
        for name in ("orders", "slow"):
            self.logs.create_log_group(logGroupName=f"/aws/lambda/shop-{name}")
            self.logs.create_log_stream(logGroupName=f"/aws/lambda/shop-{name}", logStreamName="s")

    def log(self, function: str, ago: float, text: str) -> None:
        event = {"timestamp": int((time.time() - ago) * 1000), "message": text}
        group = f"/aws/lambda/shop-{function}"
        self.logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=[event])

    def messages(self) -> None:
        """Log a message that was retried, sent on and dead-lettered, among other lines."""
        retried = {"event": "waiting_retry", "state": "WAITING_RETRY", "message_id": ID, "delivery_id": ID}
        self.log(
            "orders", 400, json.dumps({**retried, "queue": "orders", "attempt": 1, "delay": 30, "error": "E: \x1b"})
        )
        self.log("orders", 399, f"an own line about {ID}")
        self.log(
            "orders", 399, json.dumps({**retried, "message_id": "other", "delivery_id": "other", "queue": "orders"})
        )
        self.log("orders", 370, f"[WARNING]\tx\t{COPY}\tresent message_id={ID} queue=orders attempt=2 sent_to=slow\n")
        self.log(
            "slow",
            300,
            f"[ERROR]\tx\t{COPY}\tdead_lettered message_id={ID} delivery_id={COPY} queue=slow attempt=3 max_attempts=3 "
            "reason=exhausted dead_letter_queue=slow-dlq error='KeyError: no such tenant' fingerprint=1\n",
        )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insights.LogSearch.__init__, "__defaults__", (lambda text: None, lambda seconds: None))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def interrupt(self: insights.LogSearch, query_id: str) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def shop(no_waiting: None) -> Iterator[Shop]:
    with mock_aws():
        yield Shop()


def test_the_story_of_a_message_over_the_functions_of_a_stack(shop: Shop, tmp_path: Path) -> None:
    shop.messages()
    picture = tmp_path / "story.svg"
    result = tarry(ID, "--stack", "shop", "--svg", str(picture))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:2] == [f"message {ID}", "orders -> slow -> slow-dlq, from CloudWatch Logs"]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output
    assert re.findall(r"^\d\d:.*  ([A-Z]+_?[A-Z]+) ", result.stdout, re.MULTILINE) == [
        "WAITING_RETRY",
        "RESENT",
        "DEAD_LETTERED",
    ]
    assert "KeyError: no such tenant" in result.stdout
    text = " ".join(result.stdout.split())
    assert "Dead-lettered after 3 attempts in 1 min 40 s. First failure" in text
    assert "Note: shop-orders, shop-slow write only lines of level WARN and above" in text
    assert result.stderr.startswith("AWS 123456789012 us-east-1\n")
    assert "shop-unused has no log group: never invoked" in result.stderr
    assert "Searching 2 log groups since" in result.stderr
    assert "a GB)." in result.stderr
    assert f"message {ID}" in picture.read_text("utf-8")

    found = json.loads(tarry(ID, "--stack", "shop", "--json").stdout)
    assert [event["state"] for event in found["events"]] == ["WAITING_RETRY", "RESENT", "DEAD_LETTERED"]
    assert found["events"][2]["function"] == "shop-slow"
    assert found["is_whole"] is False


def test_a_delivery_id_and_the_beginning_of_an_id_lead_to_the_whole_story(shop: Shop) -> None:
    shop.messages()
    result = tarry(COPY, "--log-group", "/aws/lambda/shop-orders", "--log-group", "/aws/lambda/shop-slow", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["events"]) == 3
    assert f"{COPY} is a copy of message {ID}" in result.stderr
    assert json.loads(tarry(ID[:8], "--stack", "shop", "--json").stdout)["id"] == ID
    alone = json.loads(tarry(ID, "--group", "/aws/lambda/shop-orders", "--json").stdout)
    assert alone["events"][-1]["state"] is None
    assert alone["events"][-1]["is_seen"] is False


def test_a_message_without_a_line_is_not_found_with_the_places_and_the_reasons(shop: Shop) -> None:
    shop.log("orders", 100, f"my line about {ID}")
    shop.logs.put_retention_policy(logGroupName="/aws/lambda/shop-slow", retentionInDays=7)
    result = tarry(ID, "--stack", "shop")
    assert result.exit_code == 1
    assert result.stdout == ""
    for text in (
        "tarry: no line of tarry since 20",
        "Searched: /aws/lambda/shop-orders, /aws/lambda/shop-slow",
        "it succeeded at its first attempt, which writes no line",
        "level WARN and above",
        "/aws/lambda/shop-slow: lines are kept for 7 d only",
        "1 other line names it, but none is of tarry",
    ):
        assert text in result.stderr, text


def test_an_incomplete_search_ends_with_1_and_an_interrupted_one_with_130(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.messages()
    monkeypatch.setattr(insights, "MOST_RESULTS", 5)
    result = tarry(ID, "--stack", "shop")
    assert result.exit_code == 1
    assert "Note: the query found more than 5 lines" in result.stdout
    stopped: list[str] = []
    monkeypatch.setattr(insights.LogSearch, "_answer", interrupt)
    monkeypatch.setattr(insights.LogSearch, "_stop", lambda self, query_id: stopped.append(query_id))
    assert tarry(ID, "--stack", "shop").exit_code == 130
    assert len(stopped) == 1


WRONG = [
    (['5f3a2b1c" | fields @message', "--stack", "shop"], "is not the id of a message"),
    (["x\x1b[2J"], "is not the id of a message: an id has only letters"),
    (["5f3a", "--stack", "shop"], "give at least 8 characters of the id"),
    ([ID, "--stack", "no-such-stack"], "the stack does not exist"),
    ([ID, "--log-group", "/aws/lambda/none"], "the log group /aws/lambda/none does not exist in us-east-1"),
    ([ID, "--stack", "shop", "--since", "yesterday"], "--since must be a time span such as 90m, 36h, 14d or 2w"),
    ([ID, "--stack", "shop", "--since", "2099-01-01"], "give a time in the past"),
    ([ID, "--stack", "shop", "--since", "9" * 400 + "d"], "--since must be a time span"),
    ([ID, "--region", "eu-west-1"], "add --stack NAME or --log-group NAME"),
    ([ID, "--svg", "no/such/place.svg"], "the directory no/such does not exist"),
    ([ID, "--endpoint-url", "nowhere"], "'nowhere' is not an endpoint URL"),
]


def test_wrong_usage_is_refused_in_one_line(shop: Shop) -> None:
    for arguments, text in WRONG:
        result = tarry(*arguments)
        assert result.exit_code == 2, result.output
        assert text in result.stderr
        assert result.stderr.removeprefix("AWS 123456789012 us-east-1\n").count("\n") == 1
        assert "\x1b" not in result.stderr


def test_missing_credentials_and_an_empty_stack_are_reported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3.client("cloudformation", "us-east-1").create_stack(
        StackName="queues", TemplateBody=json.dumps({"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}})
    )
    result = tarry(ID, "--stack", "queues")
    assert (result.exit_code, "stack queues has no functions" in result.stderr) == (2, True)

    def no_client(self: AwsAccess, service: str) -> Any:
        raise NoCredentialsError

    monkeypatch.setattr(AwsAccess, "client", no_client)
    result = tarry(ID, "--stack", "shop")
    assert (result.exit_code, "no usable AWS credentials" in result.stderr) == (2, True)
