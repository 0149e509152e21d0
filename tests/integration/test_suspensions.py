"""Consumers that the outage guard has suspended, in `tarry queues` and `tarry failed`, on moto."""

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.guard.decision import Note, Phase, Setting
from tarry.guard.operations import TAG, suspensions
from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tests.wire import arn

AT = 1_800_000_720.0  # 08:12 UTC
NOTE = Note("suspended", AT, AT, 20, Setting(False, 20), Setting(True, 20), is_set=True, ended=240, failed=230)
TEXT = "suspended since 08:12 UTC: 96% of 240 runs failed; next probe 08:17"


class Lambda:
    """Lambda's client on moto: the requests that read mappings or tags, and an error of one of them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.requests: list[str] = []
        self.error: tuple[str, Exception] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _ask(self, name: str, **parameters: Any) -> Any:
        self.requests.append(name)
        if self.error is not None and self.error[0] == name:
            raise self.error[1]
        return getattr(self._client, name)(**parameters)

    def get_paginator(self, name: str) -> Any:
        pages = type("Pages", (), {"paginate": lambda _, **parameters: iter([self._ask(name, **parameters)])})
        return pages()

    def list_tags(self, **parameters: Any) -> Any:
        return self._ask("list_tags", **parameters)


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lambda]:
    """Three queues with a consumer each; the guard has suspended that of orders."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        sqs, found, real = boto3.client("sqs"), Lambda(boto3.client("lambda")), AwsAccess.client
        sqs.create_queue(QueueName="orders-dlq")
        redrive = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 5})
        code, role = io.BytesIO(), boto3.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument="{}")
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("app.py", "")
        same: Any = {"Runtime": "python3.13", "Role": role["Role"]["Arn"], "Handler": "app.handler"}
        found.create_function(FunctionName="handler", Code={"ZipFile": code.getvalue()}, **same)
        for queue in ("orders", "scans", "webhooks"):
            sqs.create_queue(QueueName=queue, Attributes={"RedrivePolicy": redrive} if queue == "orders" else {})
            mapping = found.create_event_source_mapping(FunctionName="handler", EventSourceArn=arn(queue))
            if queue != "webhooks":
                found.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
            if queue == "orders":
                found.tag_resource(Resource=mapping["EventSourceMappingArn"], Tags={TAG: NOTE.text()})
        monkeypatch.setattr(
            AwsAccess,
            "client",
            lambda self, service, **more: found if service == "lambda" else real(self, service, **more),
        )
        yield found


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--aws"])
    assert result.exit_code == 0, result.output
    return result


def test_the_queues_of_suspended_consumers_are_listed_below_the_others(functions: Lambda) -> None:
    lines = run("queues").stdout.splitlines()
    assert (len(lines), lines[-1]) == (6, f"orders: {TEXT}")
    assert functions.requests == ["list_event_source_mappings", "list_tags", "list_tags"]  # webhooks is not asked for
    found = {each["name"]: each["guard"] for each in map(json.loads, run("queues", "--json").stdout.splitlines())}
    assert found == {"orders": TEXT, "orders-dlq": None, "scans": None, "webhooks": None}
    assert run("queues", "scans").stdout.count("suspended") == 0


def test_tarry_failed_names_the_suspended_consumers_of_its_queues(functions: Lambda) -> None:
    assert f"\norders: {TEXT}\n" in run("failed", "--queue", "orders-dlq").stdout
    assert "suspended" not in run("failed", "--queue", "orders-dlq", "--json").stdout


@pytest.mark.parametrize("request_name", ["list_event_source_mappings", "list_tags"])
@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "ListTags"),
        ClientError({"Error": {"Code": "TooManyRequestsException", "Message": "no"}}, "ListTags"),
        ConnectTimeoutError(endpoint_url="https://lambda"),
    ],
    ids=["denied", "throttled", "no answer"],
)
def test_without_an_answer_of_lambda_the_commands_show_the_rest(
    request_name: str, error: Exception, functions: Lambda
) -> None:
    functions.error = request_name, error
    result = run("queues")
    assert (len(result.stdout.splitlines()), result.stderr) == (5, "AWS 123456789012 us-east-1\n")
    assert functions.requests.count(request_name) == 1
    assert "suspended" not in run("failed", "--queue", "orders-dlq").stdout


@pytest.mark.parametrize(
    ("phase", "setting", "text"),
    [
        ("probing", Setting(True, 2), "a probe runs"),
        ("judging", Setting(False, 2), "a probe is judged"),
        ("resuming", Setting(True, 10), "resuming, now enabled with MaximumConcurrency 10"),
        ("restoring", Setting(False, None), "resuming, now disabled with no MaximumConcurrency"),
    ],
)
def test_the_line_says_what_the_guard_does_now(phase: Phase, setting: Setting, text: str, functions: Lambda) -> None:
    [mapping] = functions.list_event_source_mappings(EventSourceArn=arn("orders"))["EventSourceMappings"]
    kept = replace(NOTE, phase=phase, setting=setting)
    functions.tag_resource(Resource=mapping["EventSourceMappingArn"], Tags={TAG: kept.text()})
    found = suspensions([mapping], functions)
    assert found == {"orders": f"suspended since 08:12 UTC: 96% of 240 runs failed; {text}"}


def test_the_next_probe_is_later_after_probes_that_used_many_attempts() -> None:
    assert str(replace(NOTE, doublings=1)).endswith("next probe 08:22")
    assert str(replace(NOTE, doublings=9)).endswith("next probe 08:27")


def test_what_is_not_a_suspension_is_left_out(functions: Lambda) -> None:
    """A consumer that the guard leaves to another, a mapping without an ARN, and a tag that is not the guard's."""
    [mapping] = functions.list_event_source_mappings(EventSourceArn=arn("orders"))["EventSourceMappings"]
    resource = mapping["EventSourceMappingArn"]
    functions.tag_resource(Resource=resource, Tags={TAG: replace(NOTE, phase="left").text()})
    assert suspensions([mapping], functions) == {}
    assert suspensions([{**mapping, "EventSourceMappingArn": ""}], functions) == {}
    functions.tag_resource(Resource=resource, Tags={TAG: "mine"})
    assert suspensions([mapping], functions) == {}
