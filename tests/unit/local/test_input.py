"""Input of `tarry local`: event and seed files, the queue of a record, values of --env, the code of functions."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import CannotImport, Endpoints, FunctionCode, read_overrides, variables_of
from tarry.tools.local.plan import routed
from tarry.tools.local.reloading import stamps_of
from tarry.tools.local.samples import Sample, SeedCall, read_samples, read_seed, stored_values
from tarry.tools.template import Template, TemplateFunction, TemplateMapping, TemplateQueue
from tarry.tools.template.model import TemplateLayer

SQS = "arn:aws:sqs:us-east-1:123456789012:"
ARN = "arn:aws:sqs:eu-west-1:999999999999:orders"
FUNCTION_ARN = "arn:aws:lambda:eu-west-1:123456789012:function:orders"
ORDERS = TemplateFunction("Orders", "orders", FUNCTION_ARN, Path("orders"), "app.handler", memory_mb=512)

# event files


def write(folder: Path, *records: Any) -> Path:
    path = folder / "event.json"
    path.write_text(json.dumps({"Records": records}))
    return path


def test_a_record_is_sent_with_all_parameters_of_send_message(tmp_path: Path) -> None:
    system = {"MessageGroupId": "group", "MessageDeduplicationId": "once", "AWSTraceHeader": "Root=1"}
    record = {
        "body": "text",
        "eventSourceARN": f"{ARN}.fifo",
        "attributes": {"ApproximateReceiveCount": "3", **system},
        "messageAttributes": {
            "kind": {"dataType": "String.label", "stringValue": "x"},
            "blob": {"dataType": "Binary", "binaryValue": base64.b64encode(b"\x00\xff").decode()},
        },
    }
    attributes = {
        "kind": {"DataType": "String.label", "StringValue": "x"},
        "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sample = Sample(1, "orders.fifo", "text", attributes, "group", "once", "Root=1", receive_count=3)
    assert read_samples(write(tmp_path, record)) == [sample]


OWN: dict[str, Any] = {"body": "x", "eventSourceARN": ARN}
BINARY = {"a": {"dataType": "Binary", "binaryValue": "?"}}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("text", "record 1 is 'text'"),
        ({"body": "x", "eventSourceARN": 3}, "record 1: eventSourceARN must be the ARN of a queue"),
        ({"body": "x", "eventSourceARN": "arn:aws:sns:us-east-1:1:topic"}, "record 1: eventSourceARN must be the ARN"),
        ({"eventSourceARN": ARN}, "record 1: body must be a string"),
        ({"body": "x", "eventSourceARN": f"{ARN}.fifo"}, "record 1 needs attributes.MessageGroupId"),
        ({**OWN, "attributes": [1]}, "must be objects"),
        ({**OWN, "messageAttributes": {"a": {}}}, "attribute a needs a dataType"),
        ({**OWN, "messageAttributes": BINARY}, "attribute a: its binaryValue is not base64"),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_with_its_number(tmp_path: Path, record: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_samples(write(tmp_path, record))


# the queue of a record


def template(*queues: str) -> Template:
    """A template with a function for each queue; the logical id of a queue is its name as a title."""
    return Template(
        path=Path("template.yaml"),
        region="us-east-1",
        queues={name: TemplateQueue(name, SQS + name, name.partition(".")[0].title()) for name in queues},
        functions={},
        mappings=tuple(TemplateMapping(f"{name}Mapping", SQS + name, "Worker") for name in queues),
        backing={},
    )


def route(*records: str, to: Template, queue: str | None = None) -> tuple[list[str], str]:
    """Return the queues of records, and the notes."""
    notes: list[str] = []
    samples = [Sample(number, name, "{}") for number, name in enumerate(records, start=1)]
    return [each.queue for each in routed(samples, to, queue, "event.json", notes.append)], " ".join(notes)


def test_a_record_stays_with_its_queue_or_goes_to_the_only_one_or_to_the_named_one() -> None:
    both = template("orders", "scans")
    assert route("orders", "Scans", to=both) == (["orders", "scans"], ""), "by name, or by logical id"
    queues, notes = route("MyQueue", "", "MyQueue", "orders", to=template("orders"))
    assert queues == ["orders"] * 4
    consumed, named = "no function here consumes MyQueue", "no queue is named"
    assert notes == f"Sending 2 records to orders: {consumed}. Sending record 2 to orders: {named}."
    assert route("", "scans", to=both, queue="orders")[0] == ["orders", "scans"]
    assert route("x", to=both, queue="Scans")[0] == ["scans"]
    event = [Sample(1, "", "{}"), Sample(2, "", "{}", group_id="own")]
    groups = [each.group_id for each in routed(event, template("entries.fifo"), None, "event.json", str)]
    assert groups == ["sample", "own"]


@pytest.mark.parametrize(
    ("record", "queue", "text"),
    [
        ("x", None, "event.json: record 1 is for queue x, which no function in template.yaml consumes: name the queue"),
        ("", None, r"record 1 names no queue: name the queue to send it to \(--queue NAME\); .*: orders, scans"),
        ("", "x", r"no function in template.yaml consumes x \(--queue\); queues with a function: orders, scans"),
    ],
)
def test_a_record_whose_queue_is_not_clear_is_refused(record: str, queue: str | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        route(record, to=template("orders", "scans"), queue=queue)


# seed files

PUT = '{"service": "ssm", "operation": "put_parameter", "parameters": {"Name": "/rate", "Value": "7"}}'


def test_a_line_is_a_call_with_the_operation_as_in_boto3_or_in_the_documentation_of_aws(tmp_path: Path) -> None:
    file = tmp_path / "seed.jsonl"
    file.write_text(f'\n{PUT}\n{{"service": "s3", "operation": "ListBuckets"}}\n')
    put, listed = read_seed(file)
    assert (put.where, put.service, put.operation) == (f"{file}, line 2", "ssm", "PutParameter")
    assert put.parameters == {"Name": "/rate", "Value": "7"}
    assert (listed.operation, listed.parameters) == ("ListBuckets", {})
    secret = SeedCall("", "secretsmanager", "CreateSecret", {"Name": "db", "SecretString": "s"})
    assert stored_values([put, listed, secret]) == {("ssm", "/rate"): "7", ("secretsmanager", "db"): "s"}


NO_OPERATION = ", line 2: s3 has no operation 'putobjekt'; did you mean put_o"
MISSING = 'Missing required parameter in input: "Key"; Invalid type for parameter Bucket, value: 1'


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", ", line 2 is not JSON (Expecting property name"),
        ("[]", ", line 2 is a list, not a call such as {"),
        ('{"service": "s3", "operation": "put_object", "params": {}}', ", line 2 has params; a call has only service"),
        ('{"service": 3, "operation": "x"}', ", line 2: service must be a text; write a call such as {"),
        ('{"service": "s3", "operation": "x", "parameters": []}', ", line 2: parameters must be an object; write"),
        ('{"service": "dynamo", "operation": "x"}', ", line 2: boto3 has no service 'dynamo'; did you mean dynamodb?"),
        ('{"service": "s3", "operation": "putobjekt"}', NO_OPERATION),
        ('{"service": "s3", "operation": "put_object", "parameters": {"Bucket": 1}}', f", line 2: {MISSING}"),
        ("\xff", " is not text: byte 96 is not UTF-8; give a file"),
    ],
)
def test_a_wrong_line_is_refused(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "seed.jsonl"
    file.write_bytes(f"{PUT}\n{line}\n".encode("latin-1"))
    with pytest.raises(UsageError) as raised:
        read_seed(file)
    assert str(raised.value).removeprefix("--seed ").startswith(f"{file}{text}")
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="cannot be read: Is a directory; give a file of JSON lines"):
        read_seed(tmp_path)


# environment variables


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# comment\n\nA=1\nexport B=' two '\nC=\"three\"\n", {"A": "1", "B": " two ", "C": "three"}),
        ('{"A": "text", "B": 2, "C": true}', {"A": "text", "B": "2", "C": "true"}),
        (  # as for the SAM CLI
            '{"Parameters": {"A": "all", "B": "all"}, "Orders": {"B": "one"}, "Other": {"A": "other"}}',
            {"A": "all", "B": "one"},
        ),
    ],
)
def test_values_for_env_are_pairs_of_which_the_last_wins_or_a_file_of_pairs_or_json(
    tmp_path: Path, content: str, expected: dict[str, str]
) -> None:
    file = tmp_path / ("env.json" if content.startswith("{") else ".env")
    file.write_text(content)
    assert read_overrides([str(file)]).of(ORDERS) == expected
    assert read_overrides(["A=1", "B=x=y", "A=2", "EMPTY="]).of(ORDERS) == {"A": "2", "B": "x=y", "EMPTY": ""}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "--env must be NAME=VALUE or a file: {file}: No such file or directory"),
        ("{", "--env {file} is not JSON: "),
        ("A=1\nwhat is this\n", "--env {file}, line 2: must be NAME=VALUE"),
    ],
)
def test_a_file_in_another_format_is_refused(tmp_path: Path, content: str | None, text: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as refusal:
        read_overrides([str(file)])
    assert str(refusal.value).startswith(text.format(file=file))


HERE = "http://127.0.0.1:4576"
DEVELOPER = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "DATABASE": "mine",
    "AWS_PROFILE": "production",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_ENDPOINT_URL_SQS": "http://elsewhere",
    "NO_PROXY": "intranet",
}


def variables(endpoints: Endpoints, **own: str) -> dict[str, str]:
    return variables_of(ORDERS, own, endpoints, DEVELOPER)


def test_the_variables_of_lambda_are_set_and_no_credentials_of_the_developer() -> None:
    found = variables(Endpoints(HERE, others="http://127.0.0.1:5000"), AWS_LAMBDA_LOG_LEVEL="DEBUG")
    assert {
        "_HANDLER": "app.handler",
        "LAMBDA_TASK_ROOT": str(Path("orders").resolve()),
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_LAMBDA_FUNCTION_NAME": "orders",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
        "AWS_LAMBDA_LOG_LEVEL": "DEBUG",  # that of the function has precedence
        "TZ": ":UTC",
        "PATH": "/bin",
        "NO_PROXY": "intranet,127.0.0.1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:5000",
        "AWS_ENDPOINT_URL_SQS": HERE,
        "AWS_ACCESS_KEY_ID": "local",
    }.items() <= found.items()
    assert not {"HOME", "DATABASE", "AWS_PROFILE"} & found.keys()
    assert "secret" not in found.values()


def test_an_emulator_gets_the_keys_of_the_environment_and_aws_the_profile_of_the_developer() -> None:
    found = variables(Endpoints("http://localstack:4566", is_foreign=True))
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SHARED_CREDENTIALS_FILE"]) == ("key", os.devnull)
    assert "AWS_PROFILE" not in found
    aws = "https://sqs.eu-west-1.amazonaws.com"
    found = variables(Endpoints(aws, is_foreign=True))
    assert (found["AWS_PROFILE"], found["HOME"], found["AWS_ENDPOINT_URL_SQS"]) == ("production", "/home/me", aws)
    assert "AWS_ENDPOINT_URL" not in found


def test_code_precedes_layers_and_later_layers_precede_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "first" / "python").mkdir(parents=True)
    (tmp_path / "built").mkdir()  # sam build creates python/
    layers = tuple(TemplateLayer(tmp_path / each) for each in ("first", "built"))
    given = replace(ORDERS, code=tmp_path / "code", all_layers=layers)
    path = variables_of(given, {}, Endpoints(HERE), {"PYTHONPATH": "mine"})["PYTHONPATH"].split(os.pathsep)
    wanted = [tmp_path / "code", tmp_path / "built", tmp_path / "first" / "python", Path("mine").resolve()]
    assert path[:4] == [str(each) for each in wanted]


# the code of functions


def test_compiled_dot_and_backup_files_are_not_watched(tmp_path: Path) -> None:
    for name in ("app.py", "lib/rules.json", "lib/__pycache__/x.pyc", ".git/index", "app.py~", "lib/.app.py.swp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    before = stamps_of(tmp_path)
    assert set(before) == {"app.py", "lib/rules.json"}
    (tmp_path / "lib/rules.json").write_text("12")
    assert {name for name, stamp in stamps_of(tmp_path).items() if stamp != before[name]} == {"lib/rules.json"}
    assert stamps_of(tmp_path / "missing") == {}


FRAME = '  File "/shop/{}", line 14, in <module>\n    @consumer(model=str)\n'
CODE = FunctionCode(ORDERS, {"PYTHONPATH": "/shop/tarry:/shop/layers"})


def test_a_mistake_in_the_settings_is_shown_without_the_frames_of_tarry() -> None:
    frames = [FRAME.format("tarry/orders/app.py"), FRAME.format("layers/tarry/consumer.py")]
    error = {"errorType": "ConfigurationError", "errorMessage": "not str", "stackTrace": frames}
    shown = CannotImport(CODE, "ConfigurationError: not str", error)
    assert shown.details == f"Traceback (most recent call last):\n{frames[0].rstrip()}\nConfigurationError: not str"
    assert shown.frames == shown.details.removesuffix("\nConfigurationError: not str")
    bug = CannotImport(CODE, "KeyError: 'x'", {**error, "errorType": "KeyError"})
    assert "layers/tarry/consumer.py" in bug.details


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("UserCodeSyntaxError", "Syntax error in module 'app': invalid (app.py, line 3)", "SyntaxError: invalid (app"),
        ("ImportModuleError", "Unable to import module 'app': No module named 'x'", "ImportError: No module named"),
    ],
)
def test_an_error_of_lambda_is_shown_with_the_name_that_python_gives_it(kind: str, text: str, shown: str) -> None:
    error = {"errorType": f"Runtime.{kind}", "errorMessage": text}
    assert CannotImport(CODE, "", error).details.startswith(shown)


SDK = "module '@aws-sdk/client-s3'"
INSTALL = "To install it: cd orders && npm install"
ON_LAMBDA = "; on Lambda, nodejs22.x has it, but this machine has not. "


@pytest.mark.parametrize(
    ("why", "runtime", "text"),
    [
        (SDK, "nodejs22.x", f"{ON_LAMBDA}{INSTALL} --save-dev @aws-sdk/client-s3"),
        (SDK, "nodejs16.x", f". {INSTALL} @aws-sdk/client-s3"),
        ("package 'left-pad' imported from /x/y.mjs", "nodejs22.x", f". {INSTALL}"),
        ("module 'right-pad/lib'", "nodejs22.x", f". {INSTALL} right-pad"),
    ],
)
def test_the_error_of_nodejs_for_a_package_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, runtime: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders/src").mkdir(parents=True)
    (tmp_path / "orders/package.json").write_text('{"dependencies": {"left-pad": "1"}}')
    code = replace(CODE, function=replace(ORDERS, code=Path("orders/src"), runtime=runtime))
    shown = CannotImport(code, f"Runtime.ImportModuleError: Error: Cannot find {why}", {"trace": ["Error", "  at x"]})
    assert (shown.why.partition(" is not installed")[2], shown.details) == (text, "")


@pytest.mark.parametrize("file", ["'./own'", "'/shop/own.mjs' imported from /shop/index.mjs", "'node:nothing'"])
def test_the_error_of_nodejs_for_a_file_is_shown_as_it_is(file: str) -> None:
    why = f"Runtime.ImportModuleError: Error: Cannot find module {file}"
    code = replace(CODE, function=replace(ORDERS, runtime="nodejs22.x"))
    shown = CannotImport(code, why, {"trace": ["Error", "  at x"]})
    assert (shown.why, shown.details, shown.is_not_installed) == (why, "Error\n  at x", False)
