"""Wrong usage is refused with one line before any message is sent; warnings name what would fail at AWS."""

import sys
from collections.abc import Callable

import pytest

from tarry.tools.check.finding import Finding
from tarry.tools.cli.errors import text_of

from .conftest import Project, tarry

Mistake = Callable[[Project], object]


def edited(old: str, new: str, name: str = "template.yaml") -> Mistake:
    return lambda project: project.edit(name, old, new)


def event(queue: str) -> Mistake:
    return lambda project: (project.records.clear(), project.send(queue))


def not_listed(project: Project) -> None:
    project.edit("template.yaml", "BatchSize: 5, FunctionResponseTypes: [ReportBatchItemFailures]", "BatchSize: 5")
    project.write("plain/app.py", "from tarry import consumer\n@consumer\ndef handler(message): pass\n")


def unsupported(project: Project) -> None:
    project.edit("template.yaml", "Resources:", "Resources:\n  Topic: {Type: AWS::SNS::Topic}")
    project.edit("template.yaml", "!Ref Jobs", "!GetAtt Topic.Colour")


BUCKET = "Resources:\n  Bucket: {Type: AWS::S3::Bucket, Properties: {BucketName: X}}"
VIRTUAL, BOTH = (("--skip-time",),), ((), ("--skip-time",))
MISTAKES: dict[str, tuple[Mistake, str, tuple[tuple[str, ...], ...]]] = {
    "a queue without a consumer": (
        event("elsewhere"), "record 1 is for queue elsewhere, which no function in", VIRTUAL
    ),
    "a FIFO message without its group": (
        event("Entries.fifo"), "record 1 needs attributes.MessageGroupId", VIRTUAL
    ),
    "failures that would be deleted": (
        not_listed,
        "app.handler is a consumer of tarry, so Lambda would delete the messages that it reports as failed; "
        "add to its event: FunctionResponseTypes: [ReportBatchItemFailures]", BOTH
    ),
    "a template that does not parse": (
        lambda project: project.write("template.yaml", "Resources: ["),
        "template.yaml is not YAML: line 1, column 13: ", VIRTUAL
    ),
    "a bucket that cannot be created": (edited("Resources:", BUCKET), "moto cannot create Bucket: ", VIRTUAL),
    "an attribute that moto does not support": (
        unsupported,
        "Plain.Environment.Variables.QUEUE: GetAtt Topic.Colour cannot be resolved: moto does not support it", VIRTUAL
    ),
    "a missing folder": (edited("CodeUri: plain", "CodeUri: plane"), "plane is not a directory", VIRTUAL),
    "code that is not local": (
        edited("CodeUri: plain", "CodeUri: s3://bucket/key"),
        "Plain cannot run here: it needs a local CodeUri and a Handler", VIRTUAL
    ),
    "a missing handler": (
        edited("app.handler", "app.handle"), "its handler app.handle cannot be imported from", VIRTUAL
    ),
    "a handler that cannot be imported": (
        lambda project: project.write("plain/helper.py", "import no_such_library"),
        "No module named 'no_such_library'", BOTH
    ),
    "settings that AWS would refuse": (
        edited("VisibilityTimeout: 2\n", "VisibilityTimeout: 1\n"),
        "AWS refuses the event Jobs of Plain: Invalid request provided: Queue visibility timeout: 1", BOTH
    ),
    "a message that SQS refuses": (
        lambda project: project.records[0].update(messageAttributes={"AWS.x": {"dataType": "Odd", "stringValue": "1"}}),
        "SQS refuses record 1", BOTH
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mistake", "skip"), [(name, skip) for name, each in MISTAKES.items() for skip in each[2]])
def test_wrong_usage_is_refused_in_one_line(project: Project, mistake: str, skip: tuple[str, ...]) -> None:
    make, text, _ = MISTAKES[mistake]
    project.send()
    make(project)
    result = project.run(*skip, exits=2)
    assert result.stdout == ""
    *lines, last = result.stderr.splitlines()
    assert last.startswith("tarry: ")
    assert text in last
    assert "tarry/local" not in result.stderr
    if mistake == "a handler that cannot be imported" and not skip:
        begin = lines.index("Traceback (most recent call last):")
        assert 'plain/app.py", line 3' in lines[begin + 1]
        assert "importlib" not in result.stderr


FILES = {
    "a missing template": ("-t nowhere.yaml", "tarry: nowhere.yaml does not exist"),
    "a directory as template": ("-t plain", "plain is a directory: name the template file, such as plain/temp"),
    "an empty template": ("-t empty", "empty is empty: a SAM template has Resources"),
    "a template of another kind": ("-t list.json", "list.json is not a template: it needs Resources"),
    "a missing event": ("-e nowhere.json", "nowhere.json cannot be read: No such file or directory; give a file"),
    "a directory as event": ("-e plain", "plain cannot be read: Is a directory; give a file with an SQS event"),
    "an event that is a list": ("-e list.json", "list.json is a list, not an SQS event: give an object with"),
    "an event that is a string": ("-e string.json", "string.json is a string, not an SQS event: give an object"),
    "an event that is not JSON": ("-e plain/app.py", "plain/app.py is not JSON: "),
    "a nested event": ("-e nested.json", "nested.json is not JSON: "),
    "a binary event": ("-e binary", "binary is not JSON: byte 0 is not text; give a JSON file"),
    "an empty event": ("-e empty", "empty is not JSON: "),
    "an SNS event": ("-e sns.json", "sns.json is an SNS event, not an SQS event: give an object with Records"),
    "an S3 event": ("-e s3.json", "s3.json is an S3 event, not an SQS event"),
    "an API Gateway event": ("-e api.json", "api.json is an API Gateway event, not an SQS event"),
    "an EventBridge event": ("-e bus.json", "bus.json is an EventBridge event, not an SQS event"),
    "a record that is not an object": ("-e numbers.json", "numbers.json: record 1 is 1, not a message"),
    "a directory for the messages left": ("--keep plain", "--keep plain is a directory: name a file"),
    "a file in no directory": ("--keep no/kept.json", "--keep no/kept.json: the directory no does not exist"),
    "a file that would be overwritten": ("-e s3.json --keep s3.json", "--keep would overwrite the event"),
    "messages of another SQS": (
        "--keep kept.json --endpoint-url http://127.0.0.1:9", "--keep cannot be combined with --endpoint-url"
    ),
    "a template for a function": ("other.yaml", "other.yaml is not a function: for a template, give --template other"),
    "an unknown function": ("Nope", "template.yaml has no function Nope; its functions are Plain, Ordered"),
    "a function without a queue": ("Alone -t alone.yaml", "Alone has no SQS event; functions with one are Plain, "),
    "no function with a queue": ("-t queue.yaml", "no function has an SQS event. Add one to a function: "),
    "a parameter without a value": ("--parameter Stage", "--parameter must be NAME=VALUE, got 'Stage'"),
}  # fmt: skip
CONTENTS = {
    "empty": "",
    "list.json": "[1, 2]",
    "string.json": '"text"',
    "nested.json": "[" * 200_000,
    "numbers.json": '{"Records": [1, 2]}',
    "sns.json": '{"Records": [{"EventSource": "aws:sns", "Sns": {"Message": "x"}}]}',
    "s3.json": '{"Records": [{"eventSource": "aws:s3", "s3": {}}]}',
    "api.json": '{"requestContext": {}, "body": "x"}',
    "bus.json": '{"detail-type": "Order Placed", "detail": {}}',
    "queue.yaml": "Resources: {Jobs: {Type: AWS::SQS::Queue}}",
}
ALONE = "Resources:\n  Alone: {Type: AWS::Serverless::Function, Properties: {CodeUri: plain}}"


def test_a_wrong_file_or_name_is_refused_in_one_line(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / "binary").write_bytes(b"\xff\x00")
    template = (project.folder / "template.yaml").read_text().replace("Resources:", ALONE)
    for name, content in {**CONTENTS, "alone.yaml": template}.items():
        project.write(name, content)
    for mistake, (arguments, text) in FILES.items():
        result = tarry("local", *arguments.split(), exits=2, terminal_width=200)
        assert (result.stdout, text in result.stderr) == ("", True), mistake
        assert "Traceback" not in result.stderr
        if result.stderr.startswith("tarry: "):
            assert len(result.stderr.splitlines()) == 1, mistake


def test_a_template_whose_only_queue_is_in_another_stack_is_refused_with_that_reason(project: Project) -> None:
    properties = "{FunctionName: F, EventSourceArn: !ImportValue jobs}"
    mapping = f"{{Type: AWS::Lambda::EventSourceMapping, Properties: {properties}}}"
    project.write("template.yaml", f"Resources: {{M: {mapping}}}")
    for command in ("local", "plan"):
        refused = tarry(command, "--template", str(project.folder / "template.yaml"), exits=2).stderr
        assert "M.EventSourceArn: Fn::ImportValue cannot be resolved here. Write the ARN of the queue, " in refused
        assert "no function has an SQS event" not in refused


HERE = f"3.{sys.version_info.minor}"


@pytest.mark.parametrize("skip", [["--skip-time"], []])
def test_what_would_fail_at_aws_is_a_warning_of_one_line_and_the_run_is_the_same(
    project: Project, skip: list[str]
) -> None:
    project.edit("template.yaml", f"Runtime: python{HERE}", "Runtime: python3.10")
    project.edit("template.yaml", '      Layers: ["arn:aws:lambda:us-east-1:123456789012:layer:tarry:1"]\n', "")
    project.edit("template.yaml", "      Policies: [SQSPollerPolicy: {QueueName: !GetAtt Entries.QueueName}]\n", "")
    project.edit("plain/app.py", "import json, os", "import json, os, requests")
    project.send()
    result = project.run(*skip)
    assert "Warning" not in result.stdout
    lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith("Warning: ")] == [
        f"Warning: Functions run under Python {HERE} here; the template says python3.10. "
        "tarry needs Python 3.11 or later: update the Runtime.",
        f"Warning: Plain imports requests ({project.folder}/plain/app.py:2), which its build does not contain. "
        f"Add requests to {project.folder}/plain/requirements.txt.",
        f"Warning: Ordered imports tarry ({project.folder}/ordered/app.py:4), which its build does not contain. "
        "Add the tarry layer to its Layers.",
        f"Warning: Ordered ({project.folder}/template.yaml:28) lacks sqs:ChangeMessageVisibility on Entries.fifo: "
        "failed messages come back when the queue's visibility timeout ends, not after their delay. "
        "Add to its Policies:",
        "Warning: Ordered consumes Entries.fifo with the default max_attempts of 5: with the default delay of 30 s, an "
        "outage of more than 2 minutes dead-letters the first messages of each group, and the messages behind them "
        "run. Set BatchSize: 1, so that receives behind a failing message use up no attempts, and max_attempts for the "
        "longest outage (40 for 15 minutes).",
    ]
    assert lines[4] == "  - SQSPollerPolicy: {QueueName: !GetAtt Entries.QueueName}"
    assert lines[0].startswith("Warning: ")


def test_a_function_that_does_not_run_gets_no_warning(project: Project) -> None:
    project.edit("plain/app.py", "import json, os", "import json, os, requests")
    project.edit("ordered/app.py", "@consumer(", "@consumer(max_attempts=40, ")
    project.send("Entries.fifo", group="a")
    assert "Warning" not in project.run("--skip-time", "Ordered").stderr


def test_on_a_terminal_a_warning_is_wrapped_and_the_lines_to_add_are_not() -> None:
    snippet = "- Statement: {Effect: Allow, Action: sqs:SendMessage, Resource: arn:aws:sqs:eu-west-1:123456789012:dlq}"
    reason = f"Orders lacks {'permissions ' * 6}on the queue. Add to its Policies:"
    finding = Finding("W9003", ("Orders",), reason, snippet)
    assert text_of(finding, 80).splitlines() == [
        "Warning: Orders lacks permissions permissions permissions permissions",
        "  permissions permissions on the queue. Add to its Policies:",
        f"  {snippet}",
    ]
    assert text_of(finding, None) == f"Warning: {finding.text}\n  {snippet}"
