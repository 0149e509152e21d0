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
from typer.testing import Result

from tarry.record.attribute import ATTRIBUTE
from tarry.tools.cli.send import show_progress
from tarry.tools.local.aws import client
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.instances import announced
from tests.network import free_port
from tests.served import Served, served
from tests.wire import ACCOUNT

from .conftest import tarry

LIMIT = 1_048_576


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


@pytest.fixture
def no_place(site: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings that do not say where the server is; its address."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_SQS")
    monkeypatch.delenv("AWS_PROFILE")
    return site.url.removeprefix("http://")


def send(*arguments: str, stdin: bytes | None = None, exits: int = 0) -> Result:
    return tarry("send", *arguments, input=stdin, exits=exits)


def printed(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def received(site: Served, queue: str) -> list[dict[str, Any]]:
    names = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    url = f"{site.url}/{ACCOUNT}/{queue}"
    answer = site.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **names)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def bodies(site: Served, queue: str = "orders") -> list[str]:
    return [message["Body"] for message in received(site, queue)]


# sending


def test_a_message_is_sent_and_its_id_printed_and_a_body_from_a_file_is_sent_unchanged(
    site: Served, tmp_path: Path
) -> None:
    result = send("orders", '{"id": 1}', "--attribute", "tenant=acme=1")
    [message] = received(site, "orders")
    assert message["Body"] == '{"id": 1}'
    assert message["MessageAttributes"]["tenant"] == {"StringValue": "acme=1", "DataType": "String"}
    assert result.stdout == f"sent to orders at {site.url}: {message['MessageId']}\n"
    (tmp_path / "body.json").write_bytes('{"name": "Zoë"}\n'.encode())
    send("orders", f"@{tmp_path}/body.json")
    assert bodies(site) == ['{"name": "Zoë"}\n']


def test_each_line_of_stdin_is_a_message(site: Served) -> None:
    lines = '{"id": 1}\r\n\n  \n  {"name": "Zoë"} \nlast'.encode()
    result = send("orders", "-", "--attribute", "tenant=acme", stdin=lines)
    assert result.stdout == f"sent 3 messages to orders at {site.url}\n"
    messages = received(site, "orders")
    assert {message["Body"] for message in messages} == {'{"id": 1}', '  {"name": "Zoë"} ', "last"}
    assert all(message["MessageAttributes"]["tenant"]["StringValue"] == "acme" for message in messages)
    result = send("ledger.fifo", "-", "--group-id", "a", "--json", stdin=b"one\n\ntwo\n")
    assert [each["line"] for each in printed(result)] == [1, 3]
    assert bodies(site, "ledger.fifo") == ["one", "two"]


def test_the_progress_of_many_lines_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for has_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda has_terminal=has_terminal: has_terminal)
        for count in (999, 1_000, 1_001):
            show_progress(count)
    assert capsys.readouterr().err == "1,000 messages read\n"


def test_a_line_that_cannot_be_sent_is_named_and_the_others_are_sent(site: Served) -> None:
    lines = b"one\n\nab\xff\n" + b"x" * (LIMIT + 1) + b"\ntwo\n"
    result = send("orders", "-", stdin=lines, exits=1)
    assert result.stdout == f"sent 2 messages to orders at {site.url}\n"
    place, third, fourth, last = result.stderr.splitlines()
    assert place == f"local {site.url.removeprefix('http://')}"
    assert third == "tarry: line 3 was not sent: byte 2 is not UTF-8, and SQS accepts only text"
    assert fourth.startswith("tarry: line 4 was not sent: ")
    assert str(LIMIT) in fourth
    assert last == "tarry: 2 of 4 lines were not sent"
    assert {*bodies(site)} == {"one", "two"}


def test_a_message_is_sent_many_times_and_json_is_one_object_per_line(site: Served) -> None:
    assert send("orders", "x", "--count", "25").stdout == f"sent 25 messages to orders at {site.url}\n"
    assert site.on_the_loop(lambda: site.sqs.depth("orders").ready) == 25
    found = printed(send("ledger.fifo", "x", "--group-id", "a", "--count", "2", "--json"))
    ids = [message["MessageId"] for message in received(site, "ledger.fifo")]
    assert [(each["queue"], each["message_id"]) for each in found] == [("ledger.fifo", id) for id in ids]


def test_a_fifo_queue_gets_group_and_deduplication_id(site: Served) -> None:
    for name in ("--group-id", "--group"):
        result = send("ledger.fifo", "x", name, "a", "--dedup", "once")
    assert result.stderr.splitlines()[0] == "--group is now --group-id; the old name still works here."
    [message] = received(site, "ledger.fifo")
    attributes = message["Attributes"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("a", "once")


def test_without_a_place_nothing_is_sent_and_the_options_are_named(
    site: Served, no_place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # SPEC M3
    monkeypatch.chdir(tmp_path)
    Path("template.yaml").write_text("Resources: {}")
    with announced(site.url, tmp_path / "template.yaml"):
        result = send("orders", "x", exits=2)
        assert result.stdout == ""
        assert result.stderr.startswith(
            "tarry: say where to do this: --local, --aws, --stack NAME or --endpoint-url URL (without one of them it "
            f"would be local {no_place})"
        )
        assert tarry("queues").stderr == f"local {no_place}\n"
        send("orders", "x", "--local")
    send(f"{site.url}/{ACCOUNT}/orders", "y")
    here = ("--port", no_place.rpartition(":")[2])
    send("orders", "z", *here)
    assert tarry("queues", *here).stderr == f"local {no_place}\n"
    assert tarry("failed", "--queue", "dead", *here).stderr.splitlines()[0] == f"local {no_place}"
    assert {*bodies(site)} == {"x", "y", "z"}


def test_a_delay_above_the_limit_of_sqs_is_kept_by_the_consumer(site: Served) -> None:  # SPEC J4
    send("orders", "x", "--delay", "3600")
    [message] = site.on_the_loop(lambda: site.sqs.peek("orders"))
    assert message.visible_at - message.sent_at == 900
    assert "due" in json.loads(message.attributes[ATTRIBUTE]["StringValue"])


NAMES = """
Parameters: {Name: {Type: String, Default: other}}
Resources:
  OrdersQueue: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name}}
"""


def test_a_queue_can_be_given_by_url_arn_or_its_logical_id_in_the_template(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are those of tarry local: parameters have the values of samconfig.toml."""
    (tmp_path / "template.yaml").write_text(NAMES)
    (tmp_path / "samconfig.toml").write_text('[default.deploy.parameters]\nparameter_overrides = "Name=orders"\n')
    monkeypatch.chdir(tmp_path)
    for queue in (f"{site.url}/{ACCOUNT}/orders", f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders", "OrdersQueue"):
        assert send(queue, "x").stdout.startswith(f"sent to {queue if ':' in queue else 'orders'} at ")
    assert send("OrdersQueue", "-", stdin=b"y\n").stdout.startswith("sent 1 message to orders at ")
    assert sorted(bodies(site)) == ["x", "x", "x", "y"]
    assert [each["name"] for each in printed(tarry("queues", "OrdersQueue", "--json"))] == ["orders"]
    assert tarry("queues", "ordrs", exits=2).stderr.endswith(
        "\ntarry: there is no queue 'ordrs'; did you mean orders? Existing queues: dead, ledger.fifo, orders\n"
    )


def test_a_logical_id_of_a_stack_stands_for_its_queue(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"OrdersQueue": "orders", "OrdersDeadLetters": "dead", "OrdersPolicy": "policy"}
    resources = [
        {
            "LogicalResourceId": name,
            "PhysicalResourceId": f"{site.url}/{ACCOUNT}/{queue}",
            "ResourceType": "AWS::SQS::QueuePolicy" if queue == "policy" else "AWS::SQS::Queue",
        }
        for name, queue in kinds.items()
    ]
    asked: list[tuple[str | None, str, str]] = []
    real = client.client_at

    def client_at(url: str | None, service: str) -> Any:
        if service == "sqs":
            return real(url, service)

        def paginate(StackName: str) -> list[Any]:
            asked.append((url, service, StackName))
            return [{"StackResourceSummaries": resources}]

        return SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=paginate))

    monkeypatch.setattr(client, "client_at", client_at)
    stack = "--stack", "shop"
    for queue in ("OrdersQueue", "orders"):
        send(queue, "x", *stack)
    assert asked == 2 * [(site.url, "cloudformation", "shop")]
    assert len(received(site, "orders")) == 2
    assert [each["name"] for each in printed(tarry("queues", *stack, "--json"))] == ["orders", "dead"]
    at_tarry_local = send("OrdersQueue", "x", *stack, "--endpoint-url", "http://127.0.0.1:4576", exits=2)
    assert at_tarry_local.stderr == "tarry: tarry local has no stacks: add --aws for the stack shop on AWS\n"
    assert send("ledger.fifo", "x", *stack, exits=2).stderr == (
        "tarry: stack shop has no queue 'ledger.fifo'; existing queues: OrdersDeadLetters, OrdersQueue\n"
    )


FIFO = "ledger.fifo is a FIFO queue: give a message group id (--group-id ID)"
WRONG = [
    ("ordes x", "; did you mean orders? Existing queues: dead, ledger.fifo, orders"),
    ("ledger.fifo x", FIFO),
    (f"orders {'x' * (LIMIT + 1)}", str(LIMIT)),  # SPEC J2
    ("orders x --delay 43201", "43200"),  # SPEC J4
    ("orders x --attribute tenant", "--attribute must be NAME=VALUE, got 'tenant'"),
    ("orders x --attribute AWS.tenant=1", "AWS."),
    ("orders @missing.json", "missing.json cannot be read: No such file or directory"),
    ("orders @/", "/ cannot be read: Is a directory"),
    ("orders @/bin/sh", "/bin/sh is not text: byte "),
    ("orders - --count 2", "--count cannot be combined with -"),
    ("orders - --dedup a", "--dedup cannot be combined with -"),
    ("ledger.fifo -", FIFO),
    ("nowhere -", "queue 'nowhere' does not exist at "),
    ("orders x --count 0", "--count"),
    ("orders x --endpoint-url localhost:4576", "'localhost:4576' is not an endpoint URL"),
    ("orders x --endpoint-url http://127.0.0.1:1 --aws", "--aws and --endpoint-url cannot be combined"),
]


def test_wrong_usage_of_send_is_refused_in_one_message(site: Served) -> None:
    for arguments, text in WRONG:
        result = send(*arguments.split(), stdin=b"a line\n", exits=2)
        assert result.stdout == ""
        assert text in result.stderr
        assert "Traceback" not in result.stderr
    assert site.on_the_loop(lambda: sum(site.sqs.depth(queue).ready for queue in site.sqs.queues())) == 0


def test_if_no_sqs_answers_the_error_has_the_remedy() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for command in (["send", "orders", "x"], ["queues"]):
        result = tarry(*command, "--endpoint-url", url, exits=1)
        assert result.stdout == ""
        assert f"tarry: no SQS answers at {url}: start tarry local, or say where (" in result.stderr


# queues


def test_queues_are_listed_with_their_numbers_of_messages(site: Served) -> None:
    for delay in ("0", "0", "60"):
        send("orders", "x", "--delay", delay)
    received(site, "orders")
    send("orders", "x")
    lines = [line.split() for line in tarry("queues").stdout.splitlines()]
    assert lines[0] == "QUEUE READY IN FLIGHT DELAYED OLDEST DEAD-LETTER QUEUE".split()
    assert lines[1] == ["dead", "0", "0", "0", "-", "-"]
    assert lines[2] == ["ledger.fifo", "0", "0", "0", "-", "-"]
    assert lines[3][:4] == ["orders", "1", "2", "1"]
    assert lines[3][-2:] == ["s", "dead"]
    dead, ledger, orders = printed(tarry("queues", "--json"))
    assert (dead["name"], ledger["name"], orders.pop("oldest_seconds") in range(60)) == ("dead", "ledger.fifo", True)
    counts = {"ready": 1, "in_flight": 2, "delayed": 1}
    url = f"{site.url}/{ACCOUNT}/orders"
    assert orders == {"name": "orders", "url": url, **counts, "dead_letter_queue": "dead", "guard": None}


def test_an_external_sqs_may_have_no_queues_and_does_not_tell_the_age_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_PROFILE")  # moto, in this process, would use it
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        place = f"local {url.removeprefix('http://')}"
        result = tarry("queues", "--endpoint-url", url)
        assert (result.stdout, result.stderr) == ("", f"{place}\nno queues at {place}\n")
        sqs_client(url).create_queue(QueueName="elsewhere")
        send("elsewhere", "x", "--endpoint-url", url)
        [listed] = printed(tarry("queues", "--endpoint-url", url, "--json"))
        assert (listed["name"], listed["ready"], listed["oldest_seconds"]) == ("elsewhere", 1, None)
    finally:
        server.stop()
        for backend in sqs_backends[ACCOUNT].values():
            backend.reset()
