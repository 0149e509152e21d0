"""Wrong usage is refused with one line and exit code 2, before any message is sent."""

from collections.abc import Callable

import pytest

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
        lambda project: project.edit(
            "template.yaml", "BatchSize: 5, FunctionResponseTypes: [ReportBatchItemFailures]", "BatchSize: 5"
        ),
        "add to its event: FunctionResponseTypes: [ReportBatchItemFailures]",
    ),
    "a template that does not parse": (
        lambda project: project.write("template.yaml", "Resources: ["),
        "template.yaml is neither YAML nor JSON",
    ),
    "an intrinsic with an unknown name": (
        lambda project: project.edit("template.yaml", "!Ref Jobs", "!Ref Nothing"),
        "Plain.Environment.Variables.QUEUE: Ref Nothing cannot be resolved",
    ),
    "an intrinsic of another stack": (
        lambda project: project.edit("template.yaml", "!Ref Jobs", "!ImportValue other"),
        "Plain.Environment.Variables.QUEUE: Fn::ImportValue cannot be resolved here: set the variable to a value",
    ),
    "an intrinsic for a resource that is not created": (
        lambda project: project.edit("template.yaml", "!Ref Jobs", "!GetAtt PlainRole.Arn"),
        "QUEUE: GetAtt PlainRole.Arn cannot be resolved: tarry does not create PlainRole",
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
    "a message that SQS refuses": (
        lambda project: project.records[0].update(messageAttributes={"AWS.x": {"dataType": "Odd", "stringValue": "1"}}),
        "SQS refuses record 1",
    ),
}


@pytest.mark.parametrize("skip", [[], ["--skip-time"]], ids=["real", "virtual"])
@pytest.mark.parametrize("mistake", MISTAKES)
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


def test_the_traceback_of_an_import_has_only_frames_of_the_handler(project: Project) -> None:
    project.write("plain/helper.py", "import no_such_library")
    project.send()
    lines = project.run().stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert 'plain/app.py", line 3' in lines[1]
    assert "importlib" not in "".join(lines)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["Unknown"], "template.yaml has no function Unknown; its functions are Plain, Ordered"),
        (["Alone"], "Alone has no SQS event; functions with one are Plain, Ordered. "),
    ],
)
def test_a_function_without_a_queue_is_refused(project: Project, names: list[str], text: str) -> None:
    if names == ["Alone"]:
        project.edit(
            "template.yaml",
            "Resources:",
            "Resources:\n  Alone: {Type: AWS::Serverless::Function, Properties: {CodeUri: plain}}",
        )
    result = project.invoke(*names)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_template_without_an_sqs_event_is_refused(project: Project) -> None:
    project.write("template.yaml", "Resources: {Jobs: {Type: AWS::SQS::Queue}}")
    result = project.invoke()
    assert result.exit_code == 2
    assert "no function has an SQS event. Add one to a function: " in result.stderr


def test_settings_that_aws_would_refuse_are_refused(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n", "VisibilityTimeout: 1\n")
    result = project.invoke()
    assert result.exit_code == 2
    assert "AWS refuses PlainJobs: Invalid request provided: Queue visibility timeout: 1 seconds" in result.stderr


def test_a_parameter_needs_a_value(project: Project) -> None:
    project.send()
    result = project.run("--parameter", "Stage")
    assert result.exit_code == 2
    assert "--parameter must be NAME=VALUE, got 'Stage'" in result.stderr
