"""Projects as they are published: `tarry local` runs them unmodified. Each project is a shape of public ones."""

import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from moto import mock_aws
from typer.testing import Result

from tests.command import rest_of, running

from .conftest import tarry

HANDLER = """
import os
from pathlib import Path

def handler(event, context):
    names = ("STAGE", "FLOW", "SHARED")
    print("handled", len(event["Records"]), "as", context.function_name, [os.environ.get(name) for name in names])
"""
QUEUE_EVENT = "{Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}}"
SAM = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: {Runtime: python3.13, Handler: app.handler}
Resources:
  Jobs: {Type: AWS::SQS::Queue}
"""
SAMPLE = {
    "messageId": "19dd0b57-b21e-4ac1-bd88-01bbb068cb78",
    "receiptHandle": "MessageReceiptHandle",
    "body": "Hello from SQS!",
    "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1523232000000"},
    "messageAttributes": {},
    "eventSource": "aws:sqs",
    "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:MyQueue",
    "awsRegion": "us-east-1",
}


def worker(code: str, name: str = "Worker", queue: str = "Jobs") -> str:
    """Return a function of a queue; ``code`` is its CodeUri, and whatever follows it."""
    properties = f"{{CodeUri: {code}, Events: {{E: {QUEUE_EVENT.replace('Jobs', queue)}}}}}"
    return f"  {name}: {{Type: AWS::Serverless::Function, Properties: {properties}}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in the current directory, with an event as SAM generates it."""
    monkeypatch.chdir(tmp_path)
    write("event.json", json.dumps({"Records": [SAMPLE]}))
    return tmp_path


def write(name: str, content: str | bytes = HANDLER) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def play(*options: str, exits: int = 0) -> Result:
    return tarry("local", "--event", "event.json", "--skip-time", *options, exits=exits)


PUBLISHED = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, AllowedValues: [dev, prod]}
  VpcId: {Type: "AWS::EC2::VPC::Id"}
  Seconds: {Type: Number}
Conditions:
  IsDev: !Equals [!Ref Stage, dev]
Globals:
  Function: {Runtime: python3.13, Handler: app.handler, Layers: !If [IsDev, [!Ref Common], []]}
Resources:
  Jobs: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub "${Stage}-jobs"}}
  Api: {Type: AWS::Serverless::Api, Properties: {DefinitionBody: {Fn::Transform: {Name: AWS::Include}}}}
  Flow: {Type: AWS::Serverless::StateMachine, Properties: {DefinitionUri: flow.json}}
  Key: {Type: AWS::KMS::Key, Properties: {KeyPolicy: {Principal: !ImportValue admin}}}
  Common: {Type: AWS::Serverless::LayerVersion, Condition: IsDev, Properties: {ContentUri: layers/common}}
  Gone:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: gone, Events: {Jobs: {Type: SQS, Properties: {Queue: !GetAtt Gone2.Arn}}}}
  Gone2: {Type: AWS::SQS::Queue}
"""


def test_parameters_resources_and_layers_of_a_template_need_no_edits() -> None:
    more = "src, Timeout: !Ref Seconds, Environment: {Variables: {STAGE: !Ref Stage, FLOW: !Ref Flow}}"
    write("template.yml", PUBLISHED + worker(more))
    write("src/app.py", "from common import SHARED\n" + HANDLER.replace('"SHARED")', "SHARED)"))
    write("layers/common/python/common.py", "SHARED = 'AWS_REGION'")
    result = play("--queue", "Jobs", "--expect", "committed=1")
    assert "handled 1 as Worker ['dev', 'FLOW', 'us-east-1']" in result.stderr
    assert result.stderr.splitlines()[:6] == [
        "Using template.yml.",
        "Parameters without a value get a placeholder: Stage=dev. "
        "AWS's defaults apply to properties whose parameter has no value: Worker.Timeout (Seconds). "
        "To set them: --parameter Stage=VALUE --parameter Seconds=VALUE",
        "Not emulated here: Api (AWS::Serverless::Api), Flow (AWS::Serverless::StateMachine).",
        "Left out: Key.KeyPolicy.Principal: Fn::ImportValue cannot be resolved here.",
        "Sending record 1 to dev-jobs: no function here consumes MyQueue.",
        "Variables with their name as placeholder: FLOW of Worker (tarry does not create Flow). "
        "To set one: --env NAME=VALUE",
    ]
    write("samconfig.toml", "[ci.deploy.parameters]\nparameter_overrides = 'Stage=prod'")
    assert play("--queue", "Jobs", "--config-env", "ci", "--strict-parameters", exits=2).stderr.endswith(
        "tarry: parameters without a value: VpcId, Seconds. Add --parameter VpcId=VALUE --parameter Seconds=VALUE\n"
    )


@pytest.mark.parametrize("command", [["local"], ["invoke", "Worker", "--event", "event.json"]])
def test_another_sqs_is_named_first_and_at_aws_no_value_is_made_up(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    write("template.yaml", SAM + worker("nowhere"))
    result = tarry(*command, "--endpoint-url", "http://127.0.0.1:9", exits=2)
    assert result.stderr.splitlines()[0] == "local 127.0.0.1:9"
    aws = "--endpoint-url", "https://sqs.eu-west-1.amazonaws.com"
    assert tarry(*command, *aws, exits=2).stderr == f"tarry: no AWS region is set for {aws[1]}: set AWS_REGION\n"
    write("template.yaml", "Parameters: {Stage: {Type: String}}" + SAM + worker("src"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with mock_aws():
        assert tarry(*command, *aws, exits=2).stderr == (
            "AWS 123456789012 eu-west-1\ntarry: parameters without a value: Stage. Add --parameter Stage=VALUE\n"
        )


def zipped(text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("app.py", text)
    return content.getvalue()


MAPPING = {
    "EventSourceArn": {"Fn::GetAtt": ["Jobs", "Arn"]},
    "FunctionName": {"Ref": "Worker"},
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
}


def cloudformation(code: object, **more: object) -> str:
    """Return a template in JSON, not of SAM, whose function has this code."""
    function = {"Type": "AWS::Lambda::Function", "Properties": {"Handler": "index.handler", "Code": code}}
    resources = {
        "Jobs": {"Type": "AWS::SQS::Queue"},
        "Worker": {**function, "Metadata": {"aws:asset:path": "asset.1", "aws:asset:property": "Code"}},
        "Mapping": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": MAPPING},
        "CDKMetadata": {"Type": "AWS::CDK::Metadata", "Condition": "Available"},
    }
    conditions = {"Available": {"Fn::Or": [{"Fn::Equals": [{"Ref": "AWS::Region"}, "us-east-1"]}]}}
    if not more:
        del resources["CDKMetadata"], resources["Worker"]["Metadata"]
    return json.dumps({"Resources": resources, **({"Conditions": conditions} if more else {})})


ASSET = cloudformation({"S3Bucket": {"Fn::Sub": "cdk-${AWS::AccountId}"}, "S3Key": "1.zip"}, is_cdk=True)
PROJECTS: dict[str, tuple[dict[str, str | bytes], str]] = {
    "a zip file": (
        {"template.yaml": SAM + worker("worker.zip"), "worker.zip": zipped(HANDLER)}, "Sending record 1 to Jobs"
    ),
    "a build step": (
        {
            "template.yaml": SAM + worker("src"),
            "src/Makefile": "build-Worker:",
            ".aws-sam/build/Worker/app.py": HANDLER,
        },
        "Worker runs from .aws-sam/build/Worker, because src does not have the handler",
    ),
    "only a build": (
        {".aws-sam/build/template.yaml": SAM + worker("Worker"), ".aws-sam/build/Worker/app.py": HANDLER},
        "Using .aws-sam/build/template.yaml.",
    ),
    "inline code in JSON": ({"template.json": cloudformation({"ZipFile": HANDLER})}, "Using template.json."),
    "an app of the CDK": (
        {"cdk.out/asset.1/index.py": HANDLER, "cdk.out/App.template.json": ASSET}, "Using cdk.out/App.template.json."
    ),
}  # fmt: skip


@pytest.mark.parametrize("project", PROJECTS)
def test_code_of_every_kind_runs_with_the_sample_event_of_sam(project: str) -> None:
    files, note = PROJECTS[project]
    for name, content in files.items():
        write(name, content)
    result = play("--expect", "committed=1")
    assert "handled 1 as Worker" in result.stderr
    assert note in result.stderr


def test_inline_code_and_layers_run_in_processes_too_and_leave_no_folder_behind(folder: Path) -> None:
    code = json.dumps("import common; handler = lambda event, context: print('inline', common.X)")
    layer = "  L: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: l}}"
    inline = worker(f"CODE, Handler: index.handler, Layers: [!Ref L], InlineCode: {code}").replace(
        "CodeUri: CODE, ", ""
    )
    write("template.yaml", SAM + inline + layer)
    write("l/python/common.py", "X = 7")
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary)}
    with running("local", "-e", "event.json", folder=folder, environment=environment) as process:
        printed = "".join(rest_of(process))
    assert process.returncode == 0, printed
    assert "inline 7" in printed
    assert list(temporary.iterdir()) == []


def test_a_queue_is_served_although_the_code_of_its_function_is_not_here() -> None:
    functions = worker("src") + worker("gone", "Gone") + worker("gone", "Elsewhere", "Other")
    write("template.yaml", f"{SAM}{functions}  Other: {{Type: AWS::SQS::Queue}}")
    write("src/app.py")
    why = "its CodeUri gone is not a directory"
    result = play("--queue", "Jobs", "--expect", "committed=1")
    assert f"Jobs is served, but Gone is not run here: {why}. If a build makes it, run: sam build" in result.stderr
    for options in (["--queue", "Other"], ["--queue", "Jobs", "Gone"]):
        assert why in play(*options, exits=2).stderr
    write("template.yaml", SAM + worker("gone"))
    assert f"no function can run here: Worker: {why}" in tarry("local", exits=2).stderr


def test_two_functions_of_one_queue_among_200_share_its_messages_and_a_note_says_so() -> None:
    queues = "".join(f"  Q{number}: {{Type: AWS::SQS::Queue}}\n" for number in range(200))
    write("template.yaml", SAM + queues + worker("src", "A") + worker("src", "B"))
    write("src/app.py")
    write("event.json", json.dumps({"Records": [SAMPLE] * 40}))
    result = play("--expect", "committed=40")
    assert "Jobs feeds A and B: each message goes to one of them, as on AWS." in result.stderr
    assert {"handled 10 as A", "handled 10 as B"} <= set(re.findall(r"handled 10 as [AB]", result.stderr))


def test_the_region_is_that_of_samconfig_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    write("template.yaml", SAM + worker("src, Environment: {Variables: {STAGE: !Ref AWS::Region}}"))
    write("src/app.py")
    write("samconfig.yaml", "default: {deploy: {parameters: {region: eu-central-1}}}")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert "['eu-central-1'," in play("--queue", "Jobs").stderr
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert "['us-west-2'," in play("--queue", "Jobs").stderr
