"""`tarry pause` and `tarry resume` on moto."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tests.served import served
from tests.wire import TestClock, arn

HANDLER = {
    "FunctionName": "stack-handler-x1",
    "Runtime": "python3.13",
    "Handler": "app.handler",
    "Role": {"Fn::GetAtt": ["Role", "Arn"]},
    "Code": {"ZipFile": "x"},
}
MAPPING = {"FunctionName": {"Ref": "Handler"}, "EventSourceArn": {"Fn::GetAtt": ["Orders", "Arn"]}}
RESOURCES = {
    "Orders": ("AWS::SQS::Queue", {"QueueName": "stack-orders"}),
    "Role": ("AWS::IAM::Role", {"AssumeRolePolicyDocument": {}}),
    "Handler": ("AWS::Lambda::Function", HANDLER),
    "Mapping": ("AWS::Lambda::EventSourceMapping", MAPPING),
}
TEMPLATE = {"Resources": {name: {"Type": kind, "Properties": more} for name, (kind, more) in RESOURCES.items()}}


class Shop:
    """Two functions and their queues on moto, and the commands."""

    def __init__(self) -> None:
        self.sqs: Any = boto3.client("sqs")
        self.aws: Any = boto3.client("lambda")
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("app.py", "")
        role = boto3.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        same = {"Runtime": "python3.13", "Role": role, "Handler": "app.handler", "Code": {"ZipFile": code.getvalue()}}
        for function, queues in (("handler", ("orders", "refunds")), ("other", ("orders",))):
            self.aws.create_function(FunctionName=function, **same)
            for queue in queues:
                self.sqs.create_queue(QueueName=queue)
                self.aws.create_event_source_mapping(FunctionName=function, EventSourceArn=arn(queue))

    def states(self) -> dict[tuple[str, str], str]:
        found = self.aws.list_event_source_mappings()["EventSourceMappings"]
        return {
            (each["EventSourceArn"].split(":")[5], each["FunctionArn"].split(":")[6]): each["State"] for each in found
        }


def run(*arguments: str) -> Result:
    place = () if {"--endpoint-url", "--stack"} & {*arguments} else ("--aws",)
    return CliRunner().invoke(app, [*arguments, *place])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with mock_aws():
        yield Shop()


OFF, ON = "Enabled -> Disabled\n", "Disabled -> Enabled\n"


def test_a_function_a_queue_and_a_stack_are_paused_and_resumed(shop: Shop, tmp_path: Path) -> None:
    result = run("pause", "--queue", "orders")
    assert (result.exit_code, result.stdout) == (0, f"orders -> handler: {OFF}orders -> other: {OFF}")
    assert result.stderr == (
        "AWS 123456789012 us-east-1\n"
        "Messages wait in their queue until its retention period ends. To resume: tarry resume --queue orders --aws\n"
    )
    assert shop.states()["refunds", "handler"] == "Enabled"
    result = run("pause", "handler", "--json")
    before = {each["queue"]: (each["before"], each["after"]) for each in map(json.loads, result.stdout.splitlines())}
    assert before == {"orders": ("Disabled", "Disabled"), "refunds": ("Enabled", "Disabled")}
    assert run("resume", "handler").exit_code == 0
    assert run("resume", "--queue", "orders").stdout == f"orders -> handler: Enabled (unchanged)\norders -> other: {ON}"
    boto3.client("cloudformation").create_stack(StackName="shop", TemplateBody=json.dumps(TEMPLATE))
    for arguments in (("--stack", "shop"), ("Handler", "--stack", "shop"), ("--queue", "Orders", "--stack", "shop")):
        assert run("pause", *arguments).stdout == f"stack-orders -> stack-handler-x1: {OFF}"
        assert run("resume", *arguments).stdout == f"stack-orders -> stack-handler-x1: {ON}"
    begun, *lines = [json.loads(line) for line in (tmp_path / "tarry/audit.jsonl").read_text().splitlines()]
    assert ("changes" in begun, begun["run"]) == (False, lines[0]["run"])
    of_queue, of_function, resumed, *_ = [line for line in lines if "ended_at" in line]
    assert [each["command"] for each in (of_queue, of_function, resumed)] == [*["tarry pause"] * 2, "tarry resume"]
    assert (of_queue["queue"], of_queue["changes"][0]["after"]) == ("orders", "Disabled")
    assert of_function["function"] == "handler"


class Slow:
    """Lambda's client, for which a change takes some looks."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.looks, self.refusals, self.needed = 0, 2, 5

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def update_event_source_mapping(self, **parameters: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise ClientError({"Error": {"Code": "ResourceInUseException", "Message": "busy"}}, "Update")
        return self._client.update_event_source_mapping(**parameters)

    def get_event_source_mapping(self, **parameters: Any) -> Any:
        self.looks += 1
        found = self._client.get_event_source_mapping(**parameters)
        return found if self.looks >= self.needed else {**found, "State": "Disabling"}


def test_it_waits_until_the_state_holds_and_says_if_it_does_not(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, clock, real = Slow(shop.aws), TestClock(0.0), AwsAccess.client
    monkeypatch.setattr("tarry.tools.cli.pause.current", lambda: SimpleNamespace(clock=clock))
    monkeypatch.setattr(AwsAccess, "client", lambda self, service: slow if service == "lambda" else real(self, service))
    result = run("pause", "other")
    assert (result.exit_code, result.stdout) == (0, f"orders -> other: {OFF}")
    assert (slow.looks, clock.now) == (5, 6)  # two refusals and four looks before
    slow.looks, slow.needed = 0, 10_000
    monkeypatch.setattr(slow, "update_event_source_mapping", lambda **_: None)
    result = run("resume", "other")
    assert result.exit_code == 1
    assert "failed: not Enabled after 300 s; Lambda may still change it" in result.stdout


def test_wrong_usage_changes_nothing_and_neither_does_an_audit_that_cannot_be_written(shop: Shop) -> None:  # SPEC M6
    shop.sqs.create_queue(QueueName="dlq")
    redrive = json.dumps({"deadLetterTargetArn": arn("dlq"), "maxReceiveCount": 5})
    url = shop.sqs.get_queue_url(QueueName="refunds")["QueueUrl"]
    shop.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive})
    for arguments, code, line in [
        ("", 2, "name what to pause: a function, a queue (--queue NAME), or a stack (--stack NAME)"),
        ("handler --queue orders", 2, "name what to pause: "),
        ("nope", 2, "function nope has no event source mapping of SQS"),
        ("--queue nope", 2, "queue 'nope' does not exist; existing queues: "),
        ("--queue dlq", 2, "queue dlq has no event source mapping of SQS; it is the dead-letter queue of refunds"),
        ("--stack nope", 2, "the stack does not exist"),
        ("handler --audit .", 1, "the audit file . cannot be written: Is a directory"),
    ]:
        result = run("pause", *arguments.split())
        assert (result.exit_code, result.stdout) == (code, "")
        assert f"tarry: {line}" in result.stderr
        assert set(shop.states().values()) == {"Enabled"}


def test_an_endpoint_without_lambda_is_an_error_that_says_so_and_lambda_is_not_asked_at_aws(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as sqs:
        sqs.queue("orders")
        at = ["--endpoint-url", sqs.url]
        results = [run("pause", "handler", *at), run("pause", "--queue", "orders", *at)]
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
        results.append(CliRunner().invoke(app, ["pause", "handler"]))
    for result in results:
        assert (result.exit_code, f"{sqs.url} has no event source mappings" in result.stderr) == (2, True)
    assert set(shop.states().values()) == {"Enabled"}
