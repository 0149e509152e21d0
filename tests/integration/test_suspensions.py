"""Consumers that the outage guard has suspended, in `tarry queues` and `tarry failed`, on moto."""

import json
from collections.abc import Iterator

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.guard.decision import Note, Phase, Setting
from tarry.guard.operations import TAG, suspensions
from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tests.mappings import LambdaAtOnce
from tests.wire import arn, client_error

AT = 1_800_000_720.0  # 08:12 UTC
NOTE = Note("suspended", AT, AT, 20, Setting(False, 20), Setting(False, 20), ended=240, failed=230)
TEXT = "suspended since 08:12 UTC: 96% of 240 runs failed; next probe 08:17"


@pytest.fixture
def functions() -> LambdaAtOnce:
    """Three queues with a consumer each; the guard has suspended that of orders, another that of scans."""
    found = LambdaAtOnce("handler", ["orders", "scans", "webhooks"])
    orders, scans, _ = found.mappings
    orders.state = scans.state = "Disabled"
    orders.tags[TAG] = NOTE.text()
    return found


@pytest.fixture
def _on_moto(functions: LambdaAtOnce, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The queues are on moto."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    real = AwsAccess.client
    monkeypatch.setattr(
        AwsAccess,
        "client",
        lambda self, service, **more: functions if service == "lambda" else real(self, service, **more),
    )
    with mock_aws():
        sqs = boto3.client("sqs")
        redrive = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 5})
        for queue in ("orders-dlq", "orders", "scans", "webhooks"):
            sqs.create_queue(QueueName=queue, Attributes={"RedrivePolicy": redrive} if queue == "orders" else {})
        yield


def suspended(functions: LambdaAtOnce, **more: str) -> dict[str, str]:
    [mapping] = functions.list_event_source_mappings(EventSourceArn=arn("orders"))["EventSourceMappings"]
    return suspensions([{**mapping, **more}], functions)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--aws"])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.usefixtures("_on_moto")
def test_the_commands_show_the_suspended_consumers_of_their_queues(functions: LambdaAtOnce) -> None:
    """In `tarry queues` below the others."""
    lines = run("queues").stdout.splitlines()
    assert (len(lines), lines[-1]) == (6, f"orders: {TEXT}")
    asked = [name for name, _ in functions.requests]
    assert asked == ["list_event_source_mappings", "list_tags", "list_tags"]  # webhooks is not asked for
    found = {each["name"]: each["guard"] for each in map(json.loads, run("queues", "--json").stdout.splitlines())}
    assert found == {"orders": TEXT, "orders-dlq": None, "scans": None, "webhooks": None}
    assert "suspended" not in run("queues", "scans").stdout
    assert f"\norders: {TEXT}\n" in run("failed", "--queue", "orders-dlq").stdout
    assert "suspended" not in run("failed", "--queue", "orders-dlq", "--json").stdout


@pytest.mark.usefixtures("_on_moto")
def test_without_an_answer_of_lambda_the_commands_show_the_rest(functions: LambdaAtOnce) -> None:
    denied, throttled = map(client_error, ("AccessDeniedException", "TooManyRequestsException"))
    silent = ConnectTimeoutError(endpoint_url="https://lambda")
    mappings, tags = "list_event_source_mappings", "list_tags"
    for failing, error in ((mappings, denied), (mappings, silent), (tags, throttled), (tags, silent)):
        functions.requests.clear()
        functions.failing, functions.error = failing, error
        result = run("queues")
        assert (len(result.stdout.splitlines()), result.stderr) == (5, "AWS 123456789012 us-east-1\n")
        assert [name for name, _ in functions.requests].count(failing) == 1
    assert "suspended" not in run("failed", "--queue", "orders-dlq").stdout


@pytest.mark.parametrize(
    ("phase", "setting", "text"),
    [
        ("probing", Setting(True, 2), "a probe runs"),
        ("judging", Setting(False, 2), "a probe is judged"),
        ("resuming", Setting(True, 10), "resuming, now enabled with MaximumConcurrency 10"),
        ("resumed", Setting(False, None), "resuming, now disabled with MaximumConcurrency unset"),
    ],
)
def test_the_line_says_what_the_guard_does_now(
    phase: Phase, setting: Setting, text: str, functions: LambdaAtOnce
) -> None:
    functions.mappings[0].tags[TAG] = NOTE._replace(phase=phase, setting=setting).text()
    assert suspended(functions) == {"orders": f"suspended since 08:12 UTC: 96% of 240 runs failed; {text}"}


def test_the_next_probe_is_later_after_probes_that_used_many_attempts() -> None:
    assert str(NOTE._replace(doublings=1)).endswith("next probe 08:22")
    assert str(NOTE._replace(doublings=9)).endswith("next probe 08:27")


def test_what_is_not_a_suspension_is_left_out(functions: LambdaAtOnce) -> None:
    """A consumer that the guard leaves to another, a mapping without an ARN, and a tag that is not the guard's."""
    assert suspended(functions, EventSourceMappingArn="") == {}
    for text in (NOTE._replace(phase="left").text(), "mine"):
        functions.mappings[0].tags[TAG] = text
        assert suspended(functions) == {}
