"""`tarry send` and `tarry queues` against an SQS server as in `tarry local`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends
from typer.testing import CliRunner, Result

from tarry.record.attribute import ATTRIBUTE
from tarry.tools.cli.app import app
from tarry.tools.cli.send import show_progress
from tarry.tools.local.aws import client
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.instances import announced
from tests.network import free_port
from tests.served import Served, served
from tests.wire import ACCOUNT


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set AWS variables of a developer, which must have no effect."""
    monkeypatch.setenv("AWS_PROFILE", "not-to-be-found")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with queues, as the endpoint in the environment."""
    with served() as here:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", here.url)
        here.queue("dead")
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 3}
        here.queue("orders", RedrivePolicy=json.dumps(policy))
        here.queue("ledger.fifo")
        yield here


def tarry(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def received(site: Served, queue: str) -> list[dict[str, Any]]:
    answer = site.client.receive_message(
        QueueUrl=f"{site.url}/{ACCOUNT}/{queue}",
        MaxNumberOfMessages=10,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    )
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


# sending


def test_a_message_is_sent_and_its_id_printed(site: Served) -> None:
    result = tarry("send", "orders", '{"id": 1}', "--attribute", "tenant=acme=1")
    assert result.exit_code == 0, result.stderr
    [message] = received(site, "orders")
    assert message["Body"] == '{"id": 1}'
    assert message["MessageAttributes"]["tenant"] == {"StringValue": "acme=1", "DataType": "String"}
    assert result.stdout == f"sent to orders at {site.url}: {message['MessageId']}\n"


def test_a_body_from_a_file_is_sent_unchanged(site: Served, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_bytes('{"name": "Zoë"}\n'.encode())
    assert tarry("send", "orders", f"@{tmp_path}/body.json").exit_code == 0
    assert [message["Body"] for message in received(site, "orders")] == ['{"name": "Zoë"}\n']


def test_each_line_of_stdin_is_a_message(site: Served) -> None:
    lines = '{"id": 1}\r\n\n  \n  {"name": "Zoë"} \nlast'.encode()
    result = tarry("send", "orders", "-", "--attribute", "tenant=acme", stdin=lines)
    assert (result.exit_code, result.stdout) == (0, f"sent 3 messages to orders at {site.url}\n")
    messages = received(site, "orders")
    assert {message["Body"] for message in messages} == {'{"id": 1}', '  {"name": "Zoë"} ', "last"}
    assert all(message["MessageAttributes"]["tenant"]["StringValue"] == "acme" for message in messages)
    result = tarry("send", "ledger.fifo", "-", "--group-id", "a", "--json", stdin=b"one\n\ntwo\n")
    assert [json.loads(line)["line"] for line in result.stdout.splitlines()] == [1, 3]
    assert [message["Body"] for message in received(site, "ledger.fifo")] == ["one", "two"]


def test_the_progress_of_many_lines_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for has_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda has_terminal=has_terminal: has_terminal)
        for count in (999, 1_000, 1_001):
            show_progress(count)
    assert capsys.readouterr().err == "1,000 messages read\n"


def test_a_line_that_cannot_be_sent_is_named_and_the_others_are_sent(site: Served) -> None:
    lines = b"one\n\nab\xff\n" + b"x" * 1_048_577 + b"\ntwo\n"
    result = tarry("send", "orders", "-", stdin=lines)
    assert (result.exit_code, result.stdout) == (1, f"sent 2 messages to orders at {site.url}\n")
    place, third, fourth, last = result.stderr.splitlines()
    assert place == f"local {site.url.removeprefix('http://')}"
    assert third == "tarry: line 3 was not sent: byte 2 is not UTF-8, and SQS accepts only text"
    assert fourth.startswith("tarry: line 4 was not sent: ")
    assert "1048576" in fourth
    assert last == "tarry: 2 of 4 lines were not sent"
    assert {message["Body"] for message in received(site, "orders")} == {"one", "two"}


def test_a_message_is_sent_many_times(site: Served) -> None:
    result = tarry("send", "orders", "x", "--count", "25")
    assert result.stdout == f"sent 25 messages to orders at {site.url}\n"
    assert site.on_the_loop(lambda: site.sqs.depth("orders").ready) == 25


def test_send_with_json_prints_one_object_per_line(site: Served) -> None:
    result = tarry("send", "orders", "x", "--count", "2", "--json")
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    ids = {message["MessageId"] for message in received(site, "orders")}
    assert [each["queue"] for each in printed] == ["orders", "orders"]
    assert {each["message_id"] for each in printed} == ids


def test_a_fifo_queue_gets_group_and_deduplication_id(site: Served) -> None:
    for _ in range(2):
        assert tarry("send", "ledger.fifo", "x", "--group-id", "a", "--dedup", "once").exit_code == 0
    [message] = received(site, "ledger.fifo")
    attributes = message["Attributes"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("a", "once")


def test_the_earlier_name_of_an_option_works_with_a_notice(site: Served) -> None:
    result = tarry("send", "ledger.fifo", "x", "--group", "a")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        0,
        "--group is now --group-id; the old name still works here.",
    )
    assert received(site, "ledger.fifo")[0]["Attributes"]["MessageGroupId"] == "a"


def test_without_a_place_nothing_is_sent_and_the_options_are_named(
    site: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # SPEC M3
    monkeypatch.delenv("AWS_ENDPOINT_URL_SQS")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.chdir(tmp_path)
    Path("template.yaml").write_text("Resources: {}")
    with announced(site.url, tmp_path / "template.yaml"):
        result = tarry("send", "orders", "x")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(
            "tarry: say where to do this: --local, --aws, --stack NAME or --endpoint-url URL (without one of them it "
            f"would be local {site.url.removeprefix('http://')})"
        )
        assert tarry("queues").stderr == f"local {site.url.removeprefix('http://')}\n"
        assert tarry("send", "orders", "x", "--local").exit_code == 0
    assert tarry("send", f"{site.url}/{ACCOUNT}/orders", "x").exit_code == 0
    assert len(received(site, "orders")) == 2


def test_a_port_says_where(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC M3
    monkeypatch.delenv("AWS_ENDPOINT_URL_SQS")
    monkeypatch.delenv("AWS_PROFILE")
    address = site.url.removeprefix("http://")
    here = ("--port", address.rpartition(":")[2])
    assert tarry("send", "orders", "x", *here).exit_code == 0
    assert tarry("queues", *here).stderr == f"local {address}\n"
    assert tarry("failed", "--queue", "dead", *here).stderr.splitlines()[0] == f"local {address}"
    assert tarry("send", "dead", "y", *here).exit_code == 0
    retried = tarry("failed", "retry", "--all", "--queue", "dead", "--to", "orders", *here)
    assert (retried.exit_code, retried.stderr.splitlines()[0]) == (0, f"local {address}")
    assert {message["Body"] for message in received(site, "orders")} == {"x", "y"}


def test_a_delay_above_the_limit_of_sqs_is_kept_by_the_consumer(site: Served) -> None:  # SPEC J4
    assert tarry("send", "orders", "x", "--delay", "3600").exit_code == 0
    [message] = site.on_the_loop(lambda: site.sqs.peek("orders"))
    assert message.visible_at - message.sent_at == 900
    assert "due" in json.loads(message.attributes[ATTRIBUTE]["StringValue"])


def test_a_queue_can_be_given_by_url_or_arn(site: Served) -> None:
    for queue in (f"{site.url}/{ACCOUNT}/orders", f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"):
        assert tarry("send", queue, "x").exit_code == 0
    assert len(received(site, "orders")) == 2


def test_a_logical_id_of_the_template_stands_for_its_queue(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are those of tarry local: parameters have the values of samconfig.toml."""
    (tmp_path / "template.yaml").write_text(
        """
        Parameters: {Name: {Type: String, Default: other}}
        Resources:
          OrdersQueue: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name}}
        """
    )
    (tmp_path / "samconfig.toml").write_text('[default.deploy.parameters]\nparameter_overrides = "Name=orders"\n')
    monkeypatch.chdir(tmp_path)
    assert tarry("send", "OrdersQueue", "x").stdout.startswith("sent to orders at ")
    assert tarry("send", "OrdersQueue", "-", stdin=b"y\n").stdout.startswith("sent 1 message to orders at ")
    assert len(received(site, "orders")) == 2
    [line] = tarry("queues", "OrdersQueue", "--json").stdout.splitlines()
    assert json.loads(line)["name"] == "orders"
    assert tarry("queues", "ordrs").stderr.endswith(
        "\ntarry: there is no queue 'ordrs'; did you mean orders? Existing queues: dead, ledger.fifo, orders\n"
    )


def test_a_logical_id_of_a_stack_stands_for_its_queue(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    page = {
        "StackResourceSummaries": [
            {"LogicalResourceId": name, "PhysicalResourceId": f"{site.url}/{ACCOUNT}/{queue}", "ResourceType": kind}
            for name, queue, kind in (
                ("OrdersQueue", "orders", "AWS::SQS::Queue"),
                ("OrdersDeadLetters", "dead", "AWS::SQS::Queue"),
                ("OrdersPolicy", "policy", "AWS::SQS::QueuePolicy"),
            )
        ]
    }
    asked: list[tuple[str | None, str, str]] = []
    real = client.client_at

    def client_at(url: str | None, service: str) -> Any:
        if service == "sqs":
            return real(url, service)

        def paginate(StackName: str) -> list[Any]:
            asked.append((url, service, StackName))
            return [page]

        return SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=paginate))

    monkeypatch.setattr(client, "client_at", client_at)
    for queue in ("OrdersQueue", "orders"):
        assert tarry("send", queue, "x", "--stack", "shop").exit_code == 0
    assert asked == 2 * [(site.url, "cloudformation", "shop")]
    assert len(received(site, "orders")) == 2
    listed = tarry("queues", "--stack", "shop", "--json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in listed] == ["orders", "dead"]
    at_tarry_local = tarry("send", "OrdersQueue", "x", "--stack", "shop", "--endpoint-url", "http://127.0.0.1:4576")
    assert (at_tarry_local.exit_code, at_tarry_local.stderr) == (
        2,
        "tarry: tarry local has no stacks: add --aws for the stack shop on AWS\n",
    )
    assert tarry("send", "ledger.fifo", "x", "--stack", "shop").stderr == (
        "tarry: stack shop has no queue 'ledger.fifo'; existing queues: OrdersDeadLetters, OrdersQueue\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ordes", "x"], "; did you mean orders? Existing queues: dead, ledger.fifo, orders"),
        (["ledger.fifo", "x"], "ledger.fifo is a FIFO queue: give a message group id (--group-id ID)"),
        (["orders", "x" * 1_048_577], "1048576"),  # SPEC J2
        (["orders", "x", "--delay", "43201"], "43200"),  # SPEC J4
        (["orders", "x", "--attribute", "tenant"], "--attribute must be NAME=VALUE, got 'tenant'"),
        (["orders", "x", "--attribute", "AWS.tenant=1"], "AWS."),
        (["orders", "@missing.json"], "missing.json cannot be read: No such file or directory"),
        (["orders", "@/"], "/ cannot be read: Is a directory"),
        (["orders", "@/bin/sh"], "/bin/sh is not text: byte "),
        (["orders", "-", "--count", "2"], "--count cannot be combined with -"),
        (["orders", "-", "--dedup", "a"], "--dedup cannot be combined with -"),
        (["ledger.fifo", "-"], "ledger.fifo is a FIFO queue: give a message group id (--group-id ID)"),
        (["nowhere", "-"], "queue 'nowhere' does not exist at "),
        (["orders", "x", "--count", "0"], "--count"),
        (["orders", "x", "--endpoint-url", "localhost:4576"], "'localhost:4576' is not an endpoint URL"),
        (
            ["orders", "x", "--endpoint-url", "http://127.0.0.1:1", "--aws"],
            "--aws and --endpoint-url cannot be combined",
        ),
    ],
)
def test_wrong_usage_of_send_is_refused_in_one_message(site: Served, arguments: list[str], text: str) -> None:
    result = tarry("send", *arguments, stdin=b"a line\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert site.on_the_loop(lambda: sum(site.sqs.depth(queue).ready for queue in site.sqs.queues())) == 0


@pytest.mark.parametrize("command", [["send", "orders", "x"], ["queues"]])
def test_if_no_sqs_answers_the_error_has_the_remedy(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = tarry(*command, "--endpoint-url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"tarry: no SQS answers at {url}: start tarry local, or say where (" in result.stderr


# queues


def test_queues_are_listed_with_their_numbers_of_messages(site: Served) -> None:
    for delay in ("0", "0", "60"):
        tarry("send", "orders", "x", "--delay", delay)
    received(site, "orders")
    tarry("send", "orders", "x")
    result = tarry("queues")
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == "QUEUE READY IN FLIGHT DELAYED OLDEST DEAD-LETTER QUEUE".split()
    assert lines[1] == ["dead", "0", "0", "0", "-", "-"]
    assert lines[2] == ["ledger.fifo", "0", "0", "0", "-", "-"]
    assert lines[3][:4] == ["orders", "1", "2", "1"]
    assert lines[3][-2:] == ["s", "dead"]


def test_queues_with_json_prints_one_object_per_line(site: Served) -> None:
    tarry("send", "orders", "x")
    listed = [json.loads(line) for line in tarry("queues", "--json").stdout.splitlines()]
    assert [each["name"] for each in listed] == ["dead", "ledger.fifo", "orders"]
    assert listed[2]["oldest_seconds"] in range(5)
    del listed[2]["oldest_seconds"]
    counts = {"ready": 1, "in_flight": 0, "delayed": 0}
    url = f"{site.url}/{ACCOUNT}/orders"
    assert listed[2] == {"name": "orders", "url": url, **counts, "dead_letter_queue": "dead"}


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an external SQS."""
    monkeypatch.delenv("AWS_PROFILE")  # moto, in this process, would use it
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()
    for backend in sqs_backends[ACCOUNT].values():
        backend.reset()


def test_the_age_of_messages_in_an_external_sqs_is_unknown(moto: str) -> None:
    sqs_client(moto).create_queue(QueueName="elsewhere")
    assert tarry("send", "elsewhere", "x", "--endpoint-url", moto).exit_code == 0
    result = tarry("queues", "--endpoint-url", moto, "--json")
    listed = json.loads(result.stdout)
    assert (listed["name"], listed["ready"], listed["oldest_seconds"]) == ("elsewhere", 1, None)


def test_an_sqs_without_queues_is_reported(moto: str) -> None:
    place = f"local {moto.removeprefix('http://')}"
    result = tarry("queues", "--endpoint-url", moto)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{place}\nno queues at {place}\n")
