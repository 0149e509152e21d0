"""Wrong usage is refused with one line and exit code 2, before any message is sent."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from tarry.tools.cli.app import app

from .conftest import Project

Mistake = Callable[[Project], object]

MISTAKES: dict[str, tuple[Mistake, str]] = {
    "a queue without a consumer": (
        lambda project: project.send("elsewhere"),
        "record 1 is for queue elsewhere, which no function in",
    ),
    "a FIFO message without its group": (
        lambda project: project.send("Entries.fifo"),
        "record 1 needs attributes.MessageGroupId",
    ),
    "failures that would be deleted": (
        lambda project: (
            project.edit(
                "template.yaml", "BatchSize: 5, FunctionResponseTypes: [ReportBatchItemFailures]", "BatchSize: 5"
            ),
            project.write("plain/app.py", "from tarry import consumer\n@consumer\ndef handler(message): pass\n"),
        ),
        "app.handler is a consumer of tarry, so Lambda would delete the messages that it reports as failed; "
        "add to its event: FunctionResponseTypes: [ReportBatchItemFailures]",
    ),
    "a template that does not parse": (
        lambda project: project.write("template.yaml", "Resources: ["),
        "template.yaml is not YAML: line 1, column 13: ",
    ),
    "a bucket that cannot be created": (
        lambda project: project.edit(
            "template.yaml", "Resources:", "Resources:\n  Bucket: {Type: AWS::S3::Bucket, Properties: {BucketName: X}}"
        ),
        "moto cannot create Bucket: ",
    ),
    "an attribute that moto does not support": (
        lambda project: (
            project.edit("template.yaml", "Resources:", "Resources:\n  Topic: {Type: AWS::SNS::Topic}"),
            project.edit("template.yaml", "!Ref Jobs", "!GetAtt Topic.Colour"),
        ),
        "Plain.Environment.Variables.QUEUE: GetAtt Topic.Colour cannot be resolved: moto does not support it",
    ),
    "a missing folder": (
        lambda project: project.edit("template.yaml", "CodeUri: plain", "CodeUri: plane"),
        "plane is not a directory",
    ),
    "code that is not local": (
        lambda project: project.edit("template.yaml", "CodeUri: plain", "CodeUri: s3://bucket/key"),
        "Plain cannot run here: it needs a local CodeUri and a Handler",
    ),
    "a missing handler": (
        lambda project: project.edit("template.yaml", "app.handler", "app.handle"),
        "its handler app.handle cannot be imported from",
    ),
    "a handler that cannot be imported": (
        lambda project: project.write("plain/helper.py", "import no_such_library"),
        "No module named 'no_such_library'",
    ),
    "settings that AWS would refuse": (
        lambda project: project.edit("template.yaml", "VisibilityTimeout: 2\n", "VisibilityTimeout: 1\n"),
        "AWS refuses the event Jobs of Plain: Invalid request provided: Queue visibility timeout: 1",
    ),
    "a message that SQS refuses": (
        lambda project: project.records[0].update(messageAttributes={"AWS.x": {"dataType": "Odd", "stringValue": "1"}}),
        "SQS refuses record 1",
    ),
}


FILES = {
    "a missing template": (["-t", "nowhere.yaml"], "tarry: nowhere.yaml does not exist"),
    "a directory as template": (["-t", "plain"], "plain is a directory: name the template file, such as plain/temp"),
    "an empty template": (["-t", "empty"], "empty is empty: a SAM template has Resources"),
    "a template of another kind": (["-t", "list.json"], "list.json is not a template: it needs Resources"),
    "a missing event": (["-e", "nowhere.json"], "nowhere.json cannot be read: No such file or directory; give a file"),
    "a directory as event": (["-e", "plain"], "plain cannot be read: Is a directory; give a file with an SQS event"),
    "an event that is a list": (["-e", "list.json"], "list.json is a list, not an SQS event: give an object with"),
    "an event that is a string": (["-e", "string.json"], "string.json is a string, not an SQS event: give an object"),
    "an event that is not JSON": (["-e", "plain/app.py"], "plain/app.py is not JSON: "),
    "a nested event": (["-e", "nested.json"], "nested.json is not JSON: "),
    "a binary event": (["-e", "binary"], "binary is not JSON: byte 0 is not text; give a JSON file"),
    "an empty event": (["-e", "empty"], "empty is not JSON: "),
    "an SNS event": (["-e", "sns.json"], "sns.json is an SNS event, not an SQS event: give an object with Records"),
    "an S3 event": (["-e", "s3.json"], "s3.json is an S3 event, not an SQS event"),
    "an API Gateway event": (["-e", "api.json"], "api.json is an API Gateway event, not an SQS event"),
    "an EventBridge event": (["-e", "bus.json"], "bus.json is an EventBridge event, not an SQS event"),
    "a record that is not an object": (["-e", "numbers.json"], "numbers.json: record 1 is 1, not a message"),
    "a directory for the messages left": (["--keep", "plain"], "--keep plain is a directory: name a file"),
    "a file in no directory": (["--keep", "no/kept.json"], "--keep no/kept.json: the directory no does not exist"),
    "a file that would be overwritten": (["-e", "s3.json", "--keep", "s3.json"], "--keep would overwrite the event"),
    "messages of another SQS": (
        ["--keep", "kept.json", "--endpoint-url", "http://127.0.0.1:9"],
        "--keep cannot be combined with --endpoint-url",
    ),
    "a template for a function": (
        ["other.yaml"],
        "other.yaml is not a function: for a template, give --template other",
    ),
    "an unknown function": (["Nope"], "template.yaml has no function Nope; its functions are Plain, Ordered"),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_wrong_file_or_name_is_refused_in_one_line(
    project: Project, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, text = FILES[mistake]
    monkeypatch.chdir(project.folder)
    (project.folder / "binary").write_bytes(b"\xff\x00")
    for name, content in {
        "empty": "",
        "list.json": "[1, 2]",
        "string.json": '"text"',
        "nested.json": "[" * 200_000,
        "numbers.json": '{"Records": [1, 2]}',
        "sns.json": '{"Records": [{"EventSource": "aws:sns", "Sns": {"Message": "x"}}]}',
        "s3.json": '{"Records": [{"eventSource": "aws:s3", "s3": {}}]}',
        "api.json": '{"requestContext": {}, "body": "x"}',
        "bus.json": '{"detail-type": "Order Placed", "detail": {}}',
    }.items():
        project.write(name, content)
    result = CliRunner().invoke(app, ["local", *arguments], terminal_width=200)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    if result.stderr.startswith("tarry: "):
        assert len(result.stderr.splitlines()) == 1


IN_REAL_TIME = ("failures that", "settings that", "a missing handler", "a handler that", "a message that")
"""The beginnings of the mistakes that are found elsewhere without --skip-time."""


@pytest.mark.parametrize(
    ("mistake", "skip"),
    [
        *((each, ["--skip-time"]) for each in MISTAKES),
        *((each, []) for each in MISTAKES if each.startswith(IN_REAL_TIME)),
    ],
)
def test_wrong_usage_is_refused_in_one_line(project: Project, mistake: str, skip: list[str]) -> None:
    make, text = MISTAKES[mistake]
    project.send()
    make(project)
    if mistake.startswith(("a queue", "a FIFO")):
        del project.records[0]
    result = project.run(*skip)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("tarry: ")
    assert text in last
    assert "tarry/local" not in result.stderr
    if mistake == "a handler that cannot be imported" and not skip:
        lines = result.stderr.splitlines()
        begin = lines.index("Traceback (most recent call last):")
        assert 'plain/app.py", line 3' in lines[begin + 1]
        assert "importlib" not in result.stderr


def test_a_template_whose_only_queue_is_in_another_stack_is_refused_with_that_reason(project: Project) -> None:
    properties = "{FunctionName: F, EventSourceArn: !ImportValue jobs}"
    project.write(
        "template.yaml", f"Resources: {{M: {{Type: AWS::Lambda::EventSourceMapping, Properties: {properties}}}}}"
    )
    result = project.invoke()
    assert result.exit_code == 2
    assert "M.EventSourceArn: Fn::ImportValue cannot be resolved here. Write the ARN of the queue, " in result.stderr
    assert "no function has an SQS event" not in result.stderr
    planned = CliRunner().invoke(app, ["plan", "--template", str(project.folder / "template.yaml")])
    assert planned.exit_code == 2
    assert "M.EventSourceArn: Fn::ImportValue cannot be resolved here. Write " in planned.stderr


ALONE = "Resources:\n  Alone: {Type: AWS::Serverless::Function, Properties: {CodeUri: plain}}"
WITHOUT_EVENT: dict[str, tuple[list[str], Mistake, str]] = {
    "a function without a queue": (
        ["Alone"],
        lambda project: project.edit("template.yaml", "Resources:", ALONE),
        "Alone has no SQS event; functions with one are Plain, Ordered. ",
    ),
    "no function with a queue": (
        [],
        lambda project: project.write("template.yaml", "Resources: {Jobs: {Type: AWS::SQS::Queue}}"),
        "no function has an SQS event. Add one to a function: ",
    ),
    "a parameter without a value": (
        ["--parameter", "Stage"],
        lambda project: None,
        "--parameter must be NAME=VALUE, got 'Stage'",
    ),
}


@pytest.mark.parametrize("mistake", WITHOUT_EVENT)
def test_wrong_usage_without_an_event_is_refused(project: Project, mistake: str) -> None:
    arguments, make, text = WITHOUT_EVENT[mistake]
    make(project)
    result = project.invoke(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
