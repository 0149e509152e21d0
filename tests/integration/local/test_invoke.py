"""`tarry invoke`: one invocation of a function in a new process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.common.installation import install_command
from tests.served import served

REPOSITORY = Path(__file__).parents[3]

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
  Broken: {Type: AWS::Serverless::Function, Properties: {Handler: broken.handler}}
  Consumer: {Type: AWS::Serverless::Function, Properties: {Handler: consumer.handler}}
  Elsewhere: {Type: AWS::Serverless::Function, Properties: {CodeUri: s3://bucket/key}}
  Unresolved:
    Type: AWS::Serverless::Function
    Properties: {Environment: {Variables: {ROLE: !GetAtt PlainRole.Arn}}}
"""

APP = """
import os, time
from shared import greeting

def handler(event, context):
    print(greeting, "prints")
    match event:
        case {"raise": text}: raise LookupError(text)
        case {"sleep": seconds}: time.sleep(seconds)
        case {"exit": status}: os._exit(status)
        case {"variable": name}: return os.environ.get(name)
        case {"variables": names}: return [os.environ.get(name) for name in names]
    return {"event": event}
"""

SENDER = """
import boto3, os

def handler(event, context):
    boto3.client("sqs").send_message(QueueUrl=os.environ["QUEUE"], MessageBody="x")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "template.yaml": TEMPLATE,
        "code/app.py": APP,
        "code/sender.py": SENDER,
        "code/broken.py": "import no_such_library",
        "code/consumer.py": "from tarry import consumer\n@consumer\ndef handler(message): ...\n",
        "layer/python/shared.py": "greeting = 'hello'",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def invoke(project: Path, event: object, *options: str, function: str = "Plain") -> Result:
    text = event if isinstance(event, str) else json.dumps(event)
    template = ["--template", str(project / "template.yaml")]
    return CliRunner().invoke(app, ["invoke", function, "-e", "-", *template, *options], input=text)


def test_the_response_goes_to_stdout_and_the_log_to_stderr(project: Path) -> None:
    result = invoke(project, {"a": ["ü", 1]})
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"event": {"a": ["ü", 1]}}
    lines = result.stderr.splitlines()
    assert lines[0] == "hello prints"
    assert "cold start" not in lines[1]  # the handler was loaded before


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
    result = invoke(project, event)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["errorType"] == error_type
    lines = result.stderr.splitlines()
    assert lines[-1] == text
    if "raise" in str(event):
        assert "Traceback (most recent call last):" in lines
        assert [line.split(",")[0].strip() for line in lines if "File" in line] == [f'File "{project}/code/app.py"']


BATCH = """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

def one(record):
    raise KeyError(record.body)

def handler(event, context):
    processor = BatchProcessor(event_type=EventType.SQS)
    return process_partial_response(event=event, record_handler=one, processor=processor, context=context)
"""


def test_the_error_of_powertools_about_a_batch_is_shown_as_a_line_for_each_message(project: Path) -> None:
    (project / "code/app.py").write_text(BATCH)
    arn = "arn:aws:sqs:us-east-1:123456789012:Jobs"
    records = [
        {"messageId": name * 8, "body": name, "eventSource": "aws:sqs", "eventSourceARN": arn, "attributes": {}}
        for name in "ab"
    ]
    result = invoke(project, {"Records": records})
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[:3] == [
        "ERROR BatchProcessingError: all 2 messages failed",
        "  aaaaaaaa  KeyError: 'a' [app.py:5]",
        "  bbbbbbbb  KeyError: 'b' [app.py:5]",
    ]
    assert "Traceback" not in result.stderr
    assert lines[-1] == "tarry: Plain: BatchProcessingError: all 2 messages failed"
    assert "Traceback" in json.loads(result.stdout)["errorMessage"]


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ([], ["dev", "true", "us-east-1", "app.handler"]),
        (["--parameter", "Stage=test", "--region", "eu-central-1"], ["test", "true", "eu-central-1", "app.handler"]),
        (["--parameter", "Stage=test", "--env", "STAGE=mine"], ["mine", "true", "us-east-1", "app.handler"]),
    ],
)
def test_the_environment_is_that_of_lambda_with_the_overrides(
    project: Path, options: list[str], values: list[str]
) -> None:
    names = ["STAGE", "DEBUG", "AWS_REGION", "_HANDLER"]
    assert json.loads(invoke(project, {"variables": names}, *options).stdout) == values


@pytest.mark.parametrize("others", [None, "http://127.0.0.1:4577"])
def test_with_the_endpoint_url_of_tarry_local_the_function_uses_its_queues_and_tables(
    project: Path, others: str | None
) -> None:
    with served() as site:
        site.sqs.other_services = others
        site.queue("Jobs")
        options = ["--endpoint-url", site.url]
        assert invoke(project, {}, *options, function="Sender").exit_code == 0
        assert site.on_the_loop(lambda: site.sqs.depth("Jobs").ready) == 1
        names = ["QUEUE", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"]
        values = json.loads(invoke(project, {"variables": names}, *options).stdout)
    expected = others or "http://127.0.0.1:9/tarry-invoke-has-no-AWS"
    assert values == [f"{site.url}/123456789012/Jobs", site.url, expected]


def test_another_emulator_has_all_services_at_its_endpoint_url(project: Path) -> None:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    try:
        value = invoke(project, {"variable": "AWS_ENDPOINT_URL"}, "--endpoint-url", url).stdout
    finally:
        server.stop()
    assert json.loads(value) == url


def test_a_variable_that_cannot_be_resolved_has_its_name_as_placeholder_and_can_be_overridden(project: Path) -> None:
    result = invoke(project, {"variable": "ROLE"}, function="Unresolved")
    assert json.loads(result.stdout) == "ROLE"
    assert "ROLE of Unresolved (tarry does not create PlainRole). To set one: --env NAME=VALUE" in result.stderr
    result = invoke(project, {"variable": "ROLE"}, "--env", "ROLE=mine", function="Unresolved")
    assert json.loads(result.stdout) == "mine"


def test_no_request_reaches_aws_and_the_error_has_the_reason(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    result = invoke(project, {}, function="Sender")
    assert result.exit_code == 1
    assert "tarry-invoke-has-no-AWS" in result.stderr


MISTAKES = {
    "an unknown function": (
        {"function": "Nope"},
        "template.yaml has no function Nope; its functions are Plain, Sender, Broken, Consumer, Elsewhere, Unresolved",
    ),
    "an event that is not JSON": ({"event": "{"}, "stdin is not JSON: "),
    "an event of another service": (
        {"function": "Consumer", "event": '{"Records": [{"EventSource": "aws:sns"}]}'},
        "Consumer is a consumer of SQS messages, but the event is an SNS event, not an SQS event: give an object with",
    ),
    "an event that is a list": (
        {"function": "Consumer", "event": "[1, 2]"},
        "Consumer is a consumer of SQS messages, but the event is a list, not an SQS event: give an object with",
    ),
    "a record without an id": (
        {"function": "Consumer", "event": '{"Records": [{"body": "x"}]}'},
        "Consumer is a consumer of SQS messages, but the event is not valid: record 0 has no messageId",
    ),
    "an endpoint where nothing listens": (
        {"options": ["--endpoint-url", "http://127.0.0.1:9"]},
        "no SQS answers at http://127.0.0.1:9: start tarry local, or give another URL",
    ),
    "a missing event": ({"options": ["-e", "nowhere.json"]}, "nowhere.json cannot be read: No such file or directory"),
    "a directory as event": ({"options": ["-e", "/"]}, "/ cannot be read: Is a directory; give a file with the event"),
    "a binary event": ({"options": ["-e", sys.executable]}, "is not JSON: byte "),
    "a missing template": ({"options": ["-t", "nowhere.yaml"]}, "tarry: nowhere.yaml does not exist"),
    "code that is not local": (
        {"function": "Elsewhere"},
        "Elsewhere cannot run here: it needs a local CodeUri and a Handler",
    ),
    "a handler that cannot be imported": (
        {"function": "Broken"},
        "Broken: its handler broken.handler cannot be imported from",
    ),
    "a missing file of variables": ({"options": ["--env", "nowhere.env"]}, "--env must be NAME=VALUE or a file"),
    "an invalid URL": ({"options": ["--endpoint-url", "localhost"]}, "'localhost' is not an endpoint URL"),
    "an unknown parameter": ({"options": ["--parameter", "X=1"]}, "the template has no parameter X"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_usage_of_invoke_is_refused_in_one_line(project: Path, mistake: str) -> None:
    changes, text = MISTAKES[mistake]
    arguments = {"event": "{}", "options": [], "function": "Plain", **changes}
    result = invoke(project, arguments["event"], *arguments["options"], function=str(arguments["function"]))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("tarry: ")
    assert text in last
    if mistake != "a handler that cannot be imported":
        assert len(result.stderr.removeprefix("local 127.0.0.1:9\n").splitlines()) == 1


def test_without_its_libraries_tarry_invoke_names_what_to_install() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; from tarry.cli import main; main()"
    command = [sys.executable, "-c", code, "invoke", "Plain", "-e", "-"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"tarry: tarry invoke needs aiohttp; install it with: {install_command('local')}\n"


def test_the_traceback_of_a_failed_import_has_only_frames_of_the_handler(project: Path) -> None:
    lines = invoke(project, {}, function="Broken").stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{project}/code/broken.py", line 1, in <module>'
    assert lines[-2].endswith("No module named 'no_such_library'")


def test_a_consumer_of_the_repository_handles_a_sample_event() -> None:
    files = ["-e", str(REPOSITORY / "events/undecodable.json"), "-t", str(REPOSITORY / "template.yaml")]
    result = CliRunner().invoke(app, ["invoke", "OrdersFunction", *files])
    assert result.exit_code == 0, result.output
    records = json.loads((REPOSITORY / "events/undecodable.json").read_text())["Records"]
    failures = json.loads(result.stdout)["batchItemFailures"]
    assert {each["itemIdentifier"] for each in failures} <= {record["messageId"] for record in records}
