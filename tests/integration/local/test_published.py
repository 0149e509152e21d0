"""Projects as they are published: `tarry local` runs them unmodified. Each project is a shape of public ones."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.local.plan import RunSettings, make_plan
from tarry.tools.template.model import with_foreign_queues

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
WORKER = """
  Worker:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: CODE, Events: {Jobs: EVENT}}
""".replace("EVENT", QUEUE_EVENT)
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in the current directory, with an event as SAM generates it."""
    monkeypatch.chdir(tmp_path)
    write("event.json", json.dumps({"Records": [SAMPLE]}))
    return tmp_path


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def play(*options: str) -> Result:
    return CliRunner().invoke(app, ["local", "--event", "event.json", "--skip-time", *options])


def test_parameters_resources_and_layers_of_a_template_need_no_edits(folder: Path) -> None:
    write(
        "template.yml",
        """
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
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src
      Timeout: !Ref Seconds
      Environment: {Variables: {STAGE: !Ref Stage, FLOW: !Ref Flow}}
      Events: {Jobs: EVENT}
  Gone:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: gone, Events: {Jobs: {Type: SQS, Properties: {Queue: !GetAtt Gone2.Arn}}}}
  Gone2: {Type: AWS::SQS::Queue}
""".replace("EVENT", QUEUE_EVENT),
    )
    write("src/app.py", "from common import SHARED\n" + HANDLER.replace('"SHARED")', "SHARED)"))
    write("layers/common/python/common.py", "SHARED = 'AWS_REGION'")
    result = play("--queue", "Jobs", "--expect", "committed=1")
    assert result.exit_code == 0, result.output
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
    refused = play("--queue", "Jobs", "--config-env", "ci", "--strict-parameters")
    assert refused.exit_code == 2
    assert refused.stderr.endswith(
        "tarry: parameters without a value: VpcId, Seconds. Add --parameter VpcId=VALUE --parameter Seconds=VALUE\n"
    )


@pytest.mark.parametrize("command", [["local"], ["invoke", "Worker", "--event", "event.json"]])
def test_at_aws_no_value_is_made_up(folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write("template.yaml", "Parameters: {Stage: {Type: String}}" + SAM + WORKER.replace("CODE", "src"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with mock_aws():
        result = CliRunner().invoke(app, [*command, "--endpoint-url", "https://sqs.eu-west-1.amazonaws.com"])
    assert result.exit_code == 2, result.output
    assert result.stderr == (
        "AWS 123456789012 eu-west-1\ntarry: parameters without a value: Stage. Add --parameter Stage=VALUE\n"
    )


@pytest.mark.parametrize("command", [["local"], ["invoke", "Worker", "--event", "event.json"]])
def test_another_sqs_is_named_first(folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    write("template.yaml", SAM + WORKER.replace("CODE", "nowhere"))
    result = CliRunner().invoke(app, [*command, "--endpoint-url", "http://127.0.0.1:9"])
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "local 127.0.0.1:9")
    url = "https://sqs.eu-west-1.amazonaws.com"
    result = CliRunner().invoke(app, [*command, "--endpoint-url", url])
    assert (result.exit_code, result.stderr) == (2, f"tarry: no AWS region is set for {url}: set AWS_REGION\n")


def of_zip() -> None:
    write("template.yaml", SAM + WORKER.replace("CODE", "worker.zip"))
    with zipfile.ZipFile("worker.zip", "w") as archive:
        archive.writestr("app.py", HANDLER)


def of_build() -> None:
    write("template.yaml", SAM + WORKER.replace("CODE", "src"))
    write("src/Makefile", "build-Worker:")
    write(".aws-sam/build/Worker/app.py", HANDLER)


def of_built_template() -> None:
    write(".aws-sam/build/template.yaml", SAM + WORKER.replace("CODE", "Worker"))
    write(".aws-sam/build/Worker/app.py", HANDLER)


def of_inline_code() -> None:
    write(
        "template.json",
        json.dumps(
            {
                "Resources": {
                    "Jobs": {"Type": "AWS::SQS::Queue"},
                    "Worker": {
                        "Type": "AWS::Lambda::Function",
                        "Properties": {"Handler": "index.handler", "Code": {"ZipFile": HANDLER}},
                    },
                    "Mapping": MAPPING,
                }
            }
        ),
    )


def of_cdk() -> None:
    write("cdk.out/asset.1/index.py", HANDLER)
    place = {"S3Bucket": {"Fn::Sub": "cdk-${AWS::AccountId}"}, "S3Key": "1.zip"}
    resources = {
        "Jobs": {"Type": "AWS::SQS::Queue"},
        "Worker": {
            "Type": "AWS::Lambda::Function",
            "Properties": {"Handler": "index.handler", "Code": place},
            "Metadata": {"aws:asset:path": "asset.1", "aws:asset:property": "Code"},
        },
        "Mapping": MAPPING,
        "CDKMetadata": {"Type": "AWS::CDK::Metadata", "Condition": "Available"},
    }
    conditions = {"Available": {"Fn::Or": [{"Fn::Equals": [{"Ref": "AWS::Region"}, "us-east-1"]}]}}
    write("cdk.out/App.template.json", json.dumps({"Resources": resources, "Conditions": conditions}))


MAPPING = {
    "Type": "AWS::Lambda::EventSourceMapping",
    "Properties": {
        "EventSourceArn": {"Fn::GetAtt": ["Jobs", "Arn"]},
        "FunctionName": {"Ref": "Worker"},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    },
}
PROJECTS = {
    "a zip file": (of_zip, "Sending record 1 to Jobs"),
    "a build step": (of_build, "Worker runs from .aws-sam/build/Worker, because src does not have the handler"),
    "only a build": (of_built_template, "Using .aws-sam/build/template.yaml."),
    "inline code in JSON": (of_inline_code, "Using template.json."),
    "an app of the CDK": (of_cdk, "Using cdk.out/App.template.json."),
}


@pytest.mark.parametrize("project", PROJECTS)
def test_code_of_every_kind_runs_with_the_sample_event_of_sam(folder: Path, project: str) -> None:
    make, note = PROJECTS[project]
    make()
    result = play("--expect", "committed=1")
    assert result.exit_code == 0, result.output
    assert "handled 1 as Worker" in result.stderr
    assert note in result.stderr


def test_inline_code_and_layers_run_in_processes_too_and_leave_no_folder_behind(folder: Path) -> None:
    code = "import common; handler = lambda event, context: print('inline', common.X)"
    worker = WORKER.replace(
        "CodeUri: CODE", f"Handler: index.handler, Layers: [!Ref L], InlineCode: {json.dumps(code)}"
    )
    layer = "  L: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: l}}"
    write("template.yaml", SAM + worker + layer)
    write("l/python/common.py", "X = 7")
    temporary = folder / "temporary"
    temporary.mkdir()
    command = "import sys; from tarry.cli import main; sys.argv[1:] = ['local', '-e', 'event.json']; main()"
    result = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin", "TMPDIR": str(temporary)},
    )
    assert result.returncode == 0, result.stderr
    assert "inline 7" in result.stderr
    assert list(temporary.iterdir()) == []


def test_a_queue_is_served_although_the_code_of_its_function_is_not_here(folder: Path) -> None:
    gone = WORKER.replace("CODE", "gone").replace("Worker:", "Gone:")
    other = gone.replace("Gone:", "Elsewhere:").replace("Jobs.Arn", "Other.Arn")
    write("template.yaml", SAM + WORKER.replace("CODE", "src") + gone + other + "  Other: {Type: AWS::SQS::Queue}")
    write("src/app.py", HANDLER)
    notes: list[str] = []
    plan = make_plan(RunSettings(Path("template.yaml")), notes.append)
    why = "its CodeUri gone is not a directory. If a build makes it, run: sam build"
    assert notes == [
        f"Jobs is served, but Gone is not run here: {why}",
        f"Other is served, but Elsewhere is not run here: {why}",
    ]
    assert [mapping.function for mapping in plan.all_mappings] == ["Worker"]
    assert set(with_foreign_queues(plan.template)) == {"Jobs", "Other"}
    result = play("--queue", "Jobs", "--expect", "committed=1")
    assert result.exit_code == 0, result.output
    for options in (["--queue", "Other"], ["--queue", "Jobs", "Gone"]):
        result = play(*options)
        assert result.exit_code == 2, result.output
        assert "its CodeUri gone is not a directory" in result.stderr


def test_a_template_of_which_no_function_can_run_is_refused_with_the_reasons(folder: Path) -> None:
    write("template.yaml", SAM + WORKER.replace("CODE", "gone"))
    result = CliRunner().invoke(app, ["local"])
    assert result.exit_code == 2
    assert "no function can run here: Worker: its CodeUri gone is not a directory" in result.stderr


def test_two_functions_of_one_queue_share_its_messages_and_a_note_says_so(folder: Path) -> None:
    write("template.yaml", SAM + "".join(WORKER.replace("CODE", "src").replace("Worker:", f"{each}:") for each in "AB"))
    write("src/app.py", HANDLER)
    write("event.json", json.dumps({"Records": [SAMPLE] * 40}))
    result = play("--expect", "committed=40")
    assert result.exit_code == 0, result.output
    assert "Jobs feeds A and B: each message goes to one of them, as on AWS." in result.stderr
    assert {"handled 10 as A", "handled 10 as B"} <= set(re.findall(r"handled 10 as [AB]", result.stderr))


def test_200_queues_are_played(folder: Path) -> None:
    queues = "".join(f"  Q{number}: {{Type: AWS::SQS::Queue}}\n" for number in range(200))
    write("template.yaml", SAM + queues + WORKER.replace("CODE", "src"))
    write("src/app.py", HANDLER)
    result = play("--expect", "committed=1")
    assert result.exit_code == 0, result.output


def test_the_region_is_that_of_samconfig_unless_the_environment_names_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WORKER.replace("CODE", "src, Environment: {Variables: {STAGE: !Ref AWS::Region}}")
    write("template.yaml", SAM + worker)
    write("src/app.py", HANDLER)
    write("samconfig.yaml", "default: {deploy: {parameters: {region: eu-central-1}}}")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert "['eu-central-1'," in play("--queue", "Jobs").stderr
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert "['us-west-2'," in play("--queue", "Jobs").stderr
