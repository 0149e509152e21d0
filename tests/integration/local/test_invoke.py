"""`tarry invoke`: one invocation of a function in a new process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from typer.testing import Result

from tests.served import served

from .conftest import tarry

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, Default: dev}
Globals:
  Function:
    Handler: app.handler
    Runtime: python3.13
    Timeout: 1
    CodeUri: code
    Layers: [!Ref Shared]
    Environment: {Variables: {STAGE: !Ref Stage, QUEUE: !Ref Jobs, DEBUG: true}}
Resources:
  Jobs: {Type: AWS::SQS::Queue}
  Shared: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layer}}
  Plain: {Type: AWS::Serverless::Function}
  Sender: {Type: AWS::Serverless::Function, Properties: {Handler: sender.handler, Timeout: 20}}
  Batch: {Type: AWS::Serverless::Function, Properties: {Handler: batch.handler, Timeout: 20}}
  Broken: {Type: AWS::Serverless::Function, Properties: {Handler: broken.handler}}
  Consumer: {Type: AWS::Serverless::Function, Properties: {Handler: consumer.handler, Timeout: 20}}
  Elsewhere: {Type: AWS::Serverless::Function, Properties: {CodeUri: s3://bucket/key}}
  Unresolved:
    Type: AWS::Serverless::Function
    Properties: {Environment: {Variables: {ROLE: !GetAtt PlainRole.Arn}}}
"""
FILES = {
    "template.yaml": TEMPLATE,
    "code/broken.py": "import no_such_library",
    "layer/python/shared.py": "greeting = 'hello'",
    "code/app.py": """
import os, time
from shared import greeting

def handler(event, context):
    print(greeting, "prints")
    match event:
        case {"raise": text}: raise LookupError(text)
        case {"sleep": seconds}: time.sleep(seconds)
        case {"exit": status}: os._exit(status)
        case {"variables": names}: return [os.environ.get(name) for name in names]
    return {"event": event}
""",
    "code/sender.py": """
import boto3, os

def handler(event, context):
    boto3.client("sqs").send_message(QueueUrl=os.environ["QUEUE"], MessageBody="x")
""",
    "code/batch.py": """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

def one(record):
    raise KeyError(record.body)

def handler(event, context):
    processor = BatchProcessor(event_type=EventType.SQS)
    return process_partial_response(event=event, record_handler=one, processor=processor, context=context)
""",
    "code/consumer.py": """
from tarry import consumer
@consumer
def handler(message): ...
""",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(event: object, *options: str, function: str = "Plain", exits: int = 0) -> Result:
    text = event if isinstance(event, str) else json.dumps(event)
    return tarry("invoke", function, "-e", "-", *options, input=text, exits=exits)


def records() -> list[dict[str, Any]]:
    attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"}
    queue = {"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:Jobs"}
    return [
        {"messageId": name * 8, "body": name, "attributes": attributes, "receiptHandle": name, **queue} for name in "ab"
    ]


def test_the_response_goes_to_stdout_and_the_log_to_stderr_also_of_a_consumer() -> None:
    result = invoke({"a": ["ü", 1]})
    assert json.loads(result.stdout) == {"event": {"a": ["ü", 1]}}
    lines = result.stderr.splitlines()
    assert lines[0] == "hello prints"
    assert "cold start" not in lines[1]  # the handler was loaded before
    assert json.loads(invoke({"Records": records()}, function="Consumer").stdout) == {"batchItemFailures": []}


@pytest.mark.parametrize(
    ("event", "error_type", "text"),
    [
        ({"raise": "no luck"}, "LookupError", "tarry: Plain: LookupError: no luck"),
        ({"sleep": 3}, "Sandbox.Timedout", "tarry: Plain: Task timed out after 1.00 seconds"),
        ({"exit": 3}, "Runtime.ExitError", "tarry: Plain: Runtime exited with error: exit status 3"),
    ],
)
def test_a_failed_invocation_has_the_response_of_lambda(
    project: Path, event: object, error_type: str, text: str
) -> None:
    result = invoke(event, exits=1)
    assert json.loads(result.stdout)["errorType"] == error_type
    lines = result.stderr.splitlines()
    assert lines[-1] == text
    if "raise" in str(event):
        assert "Traceback (most recent call last):" in lines
        assert [line.split(",")[0].strip() for line in lines if "File" in line] == [f'File "{project}/code/app.py"']


def test_the_error_of_powertools_about_a_batch_is_shown_as_a_line_for_each_message() -> None:
    result = invoke({"Records": records()}, function="Batch", exits=1)
    lines = result.stderr.splitlines()
    assert lines[:3] == [
        "ERROR BatchProcessingError: all 2 messages failed",
        "  aaaaaaaa  KeyError: 'a' [batch.py:5]",
        "  bbbbbbbb  KeyError: 'b' [batch.py:5]",
    ]
    assert "Traceback" not in result.stderr
    assert lines[-1] == "tarry: Batch: BatchProcessingError: all 2 messages failed"
    assert "Traceback" in json.loads(result.stdout)["errorMessage"]


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("", ["dev", "true", "us-east-1", "app.handler"]),
        (
            "--parameter Stage=test --region eu-central-1 --env DEBUG=mine",
            ["test", "mine", "eu-central-1", "app.handler"],
        ),
        ("--parameter Stage=test --env STAGE=mine", ["mine", "true", "us-east-1", "app.handler"]),
    ],
)
def test_the_environment_is_that_of_lambda_with_the_overrides(options: str, values: list[str]) -> None:
    names = ["STAGE", "DEBUG", "AWS_REGION", "_HANDLER"]
    assert json.loads(invoke({"variables": names}, *options.split()).stdout) == values


def test_with_the_endpoint_url_of_tarry_local_the_function_uses_its_queues_and_tables() -> None:
    names = ["QUEUE", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"]
    with served() as site:
        site.queue("Jobs")
        for others in (None, "http://127.0.0.1:4577"):
            site.sqs.other_services = others
            values = json.loads(invoke({"variables": names}, "--endpoint-url", site.url).stdout)
            expected = others or "http://127.0.0.1:9/tarry-invoke-has-no-AWS"
            assert values == [f"{site.url}/123456789012/Jobs", site.url, expected]
        invoke({}, "--endpoint-url", site.url, function="Sender")
        assert site.on_the_loop(lambda: site.sqs.depth("Jobs").ready) == 1


def test_another_emulator_has_all_services_at_its_endpoint_url() -> None:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    try:
        value = invoke({"variables": ["AWS_ENDPOINT_URL"]}, "--endpoint-url", url).stdout
    finally:
        server.stop()
    assert json.loads(value) == [url]


def test_a_variable_that_cannot_be_resolved_has_its_name_as_placeholder_and_can_be_overridden() -> None:
    result = invoke({"variables": ["ROLE"]}, function="Unresolved")
    assert json.loads(result.stdout) == ["ROLE"]
    assert "ROLE of Unresolved (tarry does not create PlainRole). To set one: --env NAME=VALUE" in result.stderr
    result = invoke({"variables": ["ROLE"]}, "--env", "ROLE=mine", function="Unresolved")
    assert json.loads(result.stdout) == ["mine"]


def test_no_request_reaches_aws_and_the_error_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    assert "tarry-invoke-has-no-AWS" in invoke({}, function="Sender", exits=1).stderr


NO_EVENT = "Consumer is a consumer of SQS messages, but the event is "
MISTAKES: dict[str, tuple[str, str, str, str]] = {
    "an unknown function": (
        "Nope", "{}", "", "no function Nope; its functions are Plain, Sender, Batch, Broken, Consumer, Elsewhere, Unres"
    ),
    "an event that is not JSON": ("Plain", "{", "", "stdin is not JSON: "),
    "an event of another service": (
        "Consumer", '{"Records": [{"EventSource": "aws:sns"}]}', "",
        f"{NO_EVENT}an SNS event, not an SQS event: give an object with",
    ),
    "an event that is a list": (
        "Consumer", "[1, 2]", "", f"{NO_EVENT}a list, not an SQS event: give an object with"
    ),
    "a record without an id": (
        "Consumer", '{"Records": [{"body": "x"}]}', "", f"{NO_EVENT}not valid: record 0 has no messageId"
    ),
    "an endpoint where nothing listens": (
        "Plain", "{}", "--endpoint-url http://127.0.0.1:9",
        "no SQS answers at http://127.0.0.1:9: start tarry local, or give another URL",
    ),
    "a missing event": ("Plain", "", "-e nowhere.json", "nowhere.json cannot be read: No such file or directory"),
    "a directory as event": ("Plain", "", "-e /", "/ cannot be read: Is a directory; give a file with the event"),
    "a binary event": ("Plain", "", f"-e {sys.executable}", "is not JSON: byte "),
    "a missing template": ("Plain", "{}", "-t nowhere.yaml", "tarry: nowhere.yaml does not exist"),
    "code that is not local": (
        "Elsewhere", "{}", "", "Elsewhere cannot run here: it needs a local CodeUri and a Handler"
    ),
    "a missing file of variables": ("Plain", "{}", "--env nowhere.env", "--env must be NAME=VALUE or a file"),
    "an invalid URL": ("Plain", "{}", "--endpoint-url localhost", "'localhost' is not an endpoint URL"),
    "an unknown parameter": ("Plain", "{}", "--parameter X=1", "the template has no parameter X"),
}  # fmt: skip


def test_wrong_usage_of_invoke_is_refused_in_one_line() -> None:
    for mistake, (function, event, options, text) in MISTAKES.items():
        result = invoke(event, *options.split(), function=function, exits=2)
        [line] = result.stderr.removeprefix("local 127.0.0.1:9\n").splitlines()
        assert (result.stdout, line.startswith("tarry: "), text in line) == ("", True, True), mistake


def test_a_handler_that_cannot_be_imported_is_refused_with_its_frames_alone(project: Path) -> None:
    result = invoke({}, function="Broken", exits=2)
    lines = result.stderr.splitlines()
    assert (result.stdout, lines[0]) == ("", "Traceback (most recent call last):")
    assert lines[1] == f'  File "{project}/code/broken.py", line 1, in <module>'
    assert lines[-2].endswith("No module named 'no_such_library'")
    assert lines[-1].startswith("tarry: Broken: its handler broken.handler cannot be imported from")
