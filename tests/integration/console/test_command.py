"""`tarry console`: the queues that it finds, its one-time addresses, and wrong input at its start."""

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from tarry.failed.queue_names import queue_name
from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.options import TargetOptions
from tarry.tools.console.access import Place, WatchedQueue
from tarry.tools.console.finding import (
    place_of,
    queues_by_name,
    queues_of_endpoint,
    queues_of_stack,
    queues_of_template,
)
from tarry.tools.template import read_template
from tests.command import TARRY
from tests.consoles import EndpointAccount
from tests.integration.failed.motoshop import TEMPLATE, policy
from tests.integration.failed.test_targets import PLAIN, without_settings
from tests.processes import started
from tests.served import Served, served

MAILS = "  Mails: {Type: AWS::SQS::Queue, Properties: {QueueName: mails}}\n"


@pytest.fixture(scope="module")
def sqs() -> Iterator[Served]:
    with served() as found:
        found.queue("orders-dlq")
        found.queue("orders", RedrivePolicy=policy("orders-dlq", 5))
        found.queue("alone")
        yield found


def pairs(queues: list[WatchedQueue]) -> list[tuple[str | None, str | None]]:
    return [(each.name, each.dead_letter_queue) for each in queues]


# the queues


def test_queues_and_their_dead_letter_queues_are_paired_and_stand_for_each_other(sqs: Served) -> None:
    found = queues_of_endpoint(EndpointAccount(sqs.url))
    assert sorted(pairs(found.queues), key=str) == [("alone", None), ("orders", "orders-dlq")]
    assert place_of(EndpointAccount(sqs.url), found.account).name == f"tarry local at {sqs.url.removeprefix('http://')}"
    for name in ("orders", "orders-dlq", sqs.queue("orders-dlq")):
        assert pairs(queues_by_name([name], EndpointAccount(sqs.url)).queues) == [("orders", "orders-dlq")]


def test_a_queue_of_the_template_that_does_not_exist_is_shown_as_gone(sqs: Served, tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE + MAILS)
    found = queues_of_template(read_template(path, lenient=True), EndpointAccount(sqs.url)).queues
    assert [(each.address, each.functions) for each in found] == [
        (sqs.queue("orders"), ("Handler",)),
        ("mails", ()),
    ]
    assert pairs(found) == [("orders", "orders-dlq"), ("mails", None)]


def test_the_queues_of_a_stack_are_those_of_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        boto3.client("cloudformation", region_name="eu-west-1").create_stack(StackName="shop", TemplateBody=PLAIN)
        account = AwsAccess(TargetOptions(stack="shop", region="eu-west-1"))
        found = queues_of_stack("shop", account)
        assert [queue_name(each.address or "").partition("-")[2][:4] for each in found.queues] == ["Jobs"]
        assert found.queues[0].dead_letters
        assert place_of(account, found.account) == Place("AWS", "eu-west-1", "123456789012")


# the command


def test_it_prints_one_address_on_stdout_and_another_on_enter_and_stops_on_a_signal(sqs: Served) -> None:
    command = [*TARRY, "console", "--endpoint-url", sqs.url, "--no-open", "--write"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, **pipes) as process:
        assert process.stdout
        assert process.stdin
        assert process.stderr
        first = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/open\?token=[\w-]{43}", first)
        process.stdin.write("\n")
        process.stdin.flush()
        second = process.stdout.readline().strip()
        assert second.partition("token=")[0] == first.partition("token=")[0]
        assert second != first
        assert _status(first) == 401
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate()
    assert (process.returncode, out) == (0, "")
    at = first.partition("/open")[0]
    assert errors == (
        f"local {sqs.url.removeprefix('http://')}\nConsole for 2 queues at {at}. It can change messages (--write).\n"
        "Press Enter for a new one-time address, Ctrl-C to stop.\n"
    )


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--stack", "shop", "--queue", "orders"], "--stack and --queue cannot be combined: give one of them"),
        (["--queue", "nope", "--endpoint-url", "{url}"], "queue 'nope' does not exist"),
        (["--endpoint-url", "somewhere"], "'somewhere' is not an endpoint URL; an example is http://127.0.0.1:4576"),
        (["--port", "70000"], "--port must be a number, 0 to 65535"),
        (["--keepalive", "0"], "--keepalive must be a number, 1 to 43200"),
    ],
)
def test_wrong_input_is_one_line_before_anything_is_served(sqs: Served, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["console", *(each.format(url=sqs.url) for each in arguments)])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"tarry: {text}\n")


def test_a_port_in_use_is_named(sqs: Served) -> None:
    port = sqs.url.rpartition(":")[2]
    result = CliRunner().invoke(app, ["console", "--endpoint-url", sqs.url, "--port", port, "--no-open"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"local 127.0.0.1:{port}\ntarry: cannot listen at port {port} of 127.0.0.1: address already in use; "
        "give another port (--port N), or none for a free one\n"
    )


def test_without_credentials_one_line_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_settings(monkeypatch, tmp_path)
    for arguments in (["--stack", "shop"], ["--queue", "orders-dlq"]):
        result = CliRunner().invoke(app, ["console", "--region", "eu-west-1", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("tarry: no usable AWS credentials (Unable to locate credentials): log in")
        assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, ["console"])
    assert (result.exit_code, "name a deployed stack (--stack NAME) or a queue" in result.stderr) == (2, True)
