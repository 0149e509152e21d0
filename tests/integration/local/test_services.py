"""AWS services other than SQS in `tarry local`: the resources of the template, and sources that end in a queue."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from typer.testing import Result

from tarry.failed.usage import UsageError
from tarry.tools.common.installation import install_command
from tarry.tools.local.aws.services import Services

from .conftest import tarry
from .process import LocalProcess

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Runtime: python3.11, Handler: app.handler, Timeout: 20}}
Resources:
  Jobs: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 60}}
  Raw: {Type: AWS::SQS::Queue}
  Wrapped: {Type: AWS::SQS::Queue}
  Files: {Type: AWS::SQS::Queue}
  Paid: {Type: AWS::SQS::Queue}
  Topic:
    Type: AWS::SNS::Topic
    Properties:
      Subscription: [{Protocol: sqs, Endpoint: !GetAtt Wrapped.Arn}, {Protocol: https, Endpoint: !Ref Api}]
  RawSubscription:
    Type: AWS::SNS::Subscription
    Properties:
      {TopicArn: !Ref Topic, Protocol: sqs, Endpoint: !GetAtt Raw.Arn, RawMessageDelivery: true,
       FilterPolicy: {kind: [paid]}}
  Bucket:
    Type: AWS::S3::Bucket
    Properties:
      BucketName: files
      NotificationConfiguration:
        QueueConfigurations:
          - Filter: {S3Key: {Rules: [{Name: suffix, Value: .csv}]}}
            Event: s3:ObjectCreated:*
            Queue: !GetAtt Files.Arn
  Bus: {Type: AWS::Events::EventBus, Properties: {Name: shop}}
  Rule:
    Type: AWS::Events::Rule
    Properties:
      EventBusName: !Ref Bus
      EventPattern: {source: [shop], detail: {total: [{numeric: [">", 10]}]}}
      Targets:
        - {Id: queue, Arn: !GetAtt Paid.Arn, InputPath: $.detail}
        - {Id: flow, Arn: !Ref Flow, RoleArn: !GetAtt Role.Arn}
  Flow: {Type: AWS::StepFunctions::StateMachine, Properties: {DefinitionString: "{}"}}
  Role: {Type: AWS::IAM::Role, Properties: {AssumeRolePolicyDocument: {}}}
  Nightly:
    Type: AWS::Events::Rule
    Properties: {ScheduleExpression: rate(1 day), Targets: [{Id: worker, Arn: !GetAtt Worker.Arn}]}
  Api: {Type: AWS::ApiGatewayV2::Api, Properties: {Name: api, ProtocolType: HTTP}}
  Rate: {Type: AWS::SSM::Parameter, Properties: {Name: /shop/rate, Type: String, Value: "7"}}
  Secret:
    Type: AWS::SecretsManager::Secret
    Properties: {GenerateSecretString: {SecretStringTemplate: '{"user": "shop"}', GenerateStringKey: key}}
  Stream: {Type: AWS::Kinesis::Stream, Properties: {ShardCount: 1}}
  B: {Type: AWS::S3::Bucket}
  Imported: {Type: AWS::SSM::Parameter, Properties: {Name: imported, Type: String, Value: !ImportValue x}}
  Elsewhere:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !ImportValue topic, Protocol: sqs, Endpoint: !GetAtt Raw.Arn}
  Broken: {Type: AWS::SSM::Parameter, Properties: {Name: /aws/reserved, Type: String, Value: "1"}}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src
      Environment:
        Variables:
          {TOPIC: !Ref Topic, SECRET: !Ref Secret, BUS: !Ref Bus, STREAM: !GetAtt Stream.Arn, RATE: !Ref Rate,
           B: !Ref B}
      Events: {Jobs: EVENT, Nightly: {Type: Schedule, Properties: {Schedule: rate(1 day)}}}
  Sink:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: src, Handler: app.sink, Events: {Raw: EVENT, Wrapped: EVENT, Files: EVENT, Paid: EVENT}}
"""


def with_events(template: str, *queues: str) -> str:
    """Return a template in which each ``EVENT`` is one of a queue with the same name."""
    for name in queues:
        event = f"{{Type: SQS, Properties: {{Queue: !GetAtt {name}.Arn, FunctionResponseTypes: [{REPORTS}]}}}}"
        template = template.replace(f"{name}: EVENT", f"{name}: {event}")
    return template.replace("python3.11", f"python3.{sys.version_info.minor}")


REPORTS = "ReportBatchItemFailures"
APP = """
import json
import os

import boto3

CALLS = [
    ("translate", "translate_text", {"Text": "x", "SourceLanguageCode": "en", "TargetLanguageCode": "de"}),
    ("sns", "list_origination_numbers", {}),
    ("location", "list_maps", {}),
    ("cloudwatch", "describe_anomaly_detectors", {}),
    ("glue", "start_workflow_run", {"Name": "x"}),
    ("ssm", "get_parameter", {"Name": "imported"}),
]

def client(name):
    return boto3.client(name)

def handler(event, context):
    for kind in ("paid", "open"):
        attributes = {"kind": {"DataType": "String", "StringValue": kind}}
        client("sns").publish(TopicArn=os.environ["TOPIC"], Message=kind, MessageAttributes=attributes)
    for key in ("in/a b.csv", "in/a.txt"):
        client("s3").put_object(Bucket="files", Key=key, Body=b"1")
    for total in (9, 12):
        event = {"Source": "shop", "DetailType": "paid", "Detail": json.dumps({"total": total})}
        client("events").put_events(Entries=[{"EventBusName": os.environ["BUS"], **event}])
    client("s3").put_object(Bucket=os.environ["B"], Key="a", Body=b"1")
    client("kinesis").put_record(StreamARN=os.environ["STREAM"], Data=b"x", PartitionKey="k")
    names = [os.environ["RATE"], "/seeded"]
    print(*(client("ssm").get_parameter(Name=name)["Parameter"]["Value"] for name in names))
    print(len(json.loads(client("secretsmanager").get_secret_value(SecretId=os.environ["SECRET"])["SecretString"])["key"]))
    for service, operation, parameters in CALLS:
        try:
            getattr(client(service), operation)(**parameters)
        except Exception as error:
            print(error)

def sink(event, context):
    for record in event["Records"]:
        body, attributes = record["body"], sorted(record["messageAttributes"])
        try:
            found = json.loads(body)
        except ValueError:
            found = body
        if isinstance(found, dict) and "Type" in found:
            found = [found[key] for key in ("Type", "Message", "Timestamp", "TopicArn")]
        if isinstance(found, dict) and "Records" in found:
            found = [found["Records"][0]["eventName"], found["Records"][0]["s3"]["object"]["key"]]
        print(record["eventSourceARN"].rpartition(":")[2], found, attributes)
"""
SEED = [
    {"service": "ssm", "operation": "put_parameter", "parameters": {"Name": "/seeded", "Type": "String", "Value": "8"}},
    {"service": "sqs", "operation": "SendMessage", "parameters": {"QueueUrl": "Raw", "MessageBody": "seed"}},
]
ARRIVED = [
    "Files ['ObjectCreated:Put', 'in/a+b.csv'] []",
    "Paid {'total': 12} []",
    "Raw paid ['kind']",
    "Raw seed []",
]
REFUSED = "cannot be emulated: moto, which emulates {} here, does not implement it."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app.py").write_text(APP)
    template = with_events(TEMPLATE, "Jobs", "Raw", "Wrapped", "Files", "Paid")
    (tmp_path / "template.yaml").write_text(template)
    (tmp_path / "seed.jsonl").write_text("\n".join(json.dumps(call) for call in SEED))
    arn = "arn:aws:sqs:us-east-1:123456789012:Jobs"
    (tmp_path / "event.json").write_text(json.dumps({"Records": [{"body": "1", "eventSourceARN": arn}]}))
    return tmp_path


def run(*options: str, exits: int = 0) -> Result:
    return tarry("local", "--event", "event.json", *options, exits=exits)


def printed(result: Result, function: str) -> list[str]:
    """Return the lines that a function has printed."""
    return sorted(re.findall(rf" {function}: (?!\d+ messages? )(.*)", result.stderr))


@pytest.mark.parametrize("options", [[], ["--skip-time"]])
def test_topics_buckets_and_event_buses_send_to_queues_and_resources_are_made(folder: Path, options: list[str]) -> None:
    result = run("--seed", "seed.jsonl", "--expect", "committed=7", *options)
    lines = printed(result, "Sink")
    notifications = [line for line in lines if line.startswith("Wrapped")]
    assert [line for line in lines if line not in notifications] == ARRIVED
    arn = "arn:aws:sns:us-east-1:123456789012:Topic"
    assert [line.replace(line.split("'")[5], "TIME") for line in notifications] == [
        f"Wrapped ['Notification', '{kind}', 'TIME', '{arn}'] []" for kind in ("open", "paid")
    ]
    worker = printed(result, "Worker")
    assert {"7 8", "32"} <= set(worker)
    refused = [line.partition("operation: ")[2] for line in worker if REFUSED[:16] in line]
    assert refused == [
        f"DescribeAnomalyDetectors {REFUSED.format('monitoring')}",
        f"POST /maps/v0/list-maps {REFUSED.format('geo')}",
        f"ListOriginationNumbers {REFUSED.format('sns')}",
        f"TranslateText {REFUSED.format('translate')}",
    ]
    assert any("(EntityNotFoundException) when calling the StartWorkflowRun" in line for line in worker)
    assert any("(ParameterNotFound) when calling the GetParameter" in line for line in worker)
    assert result.stderr.count("Imported") == 1
    assert "Imported.Value: Fn::ImportValue cannot be resolved here" in result.stderr
    assert "Elsewhere.TopicArn" not in result.stderr
    assert (
        "Not emulated here: Worker (Schedule events), Topic (its subscriptions: https), "
        "Flow (AWS::StepFunctions::StateMachine), Nightly (schedule), Api (AWS::ApiGatewayV2::Api), "
        "Elsewhere (subscription to a topic elsewhere)." in result.stderr
    )
    assert "moto cannot create Broken: " in result.stderr
    if options:
        assert all("'2027-01-15T08:00:00" in line for line in notifications)
        again = run("--seed", "seed.jsonl", *options)
        assert again.stderr == result.stderr


INVOKING = """
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Runtime: python3.11, Timeout: 20, CodeUri: src}}
Resources:
  Jobs: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 60}}
  Failures: {Type: AWS::SQS::Queue}
  Letters: {Type: AWS::SQS::Queue}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      {Handler: app.handler, AutoPublishAlias: live, Events: {Jobs: EVENT},
       Environment: {Variables: {PRICE: !Ref Price, BROKEN: !GetAtt Broken.Arn}}}
  Price:
    Type: AWS::Serverless::Function
    Properties: {Handler: app.price, Environment: {Variables: {TAX: "2", RATES: !ImportValue rates}}}
  Broken:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.broken
      DeadLetterQueue: {Type: SQS, TargetArn: !GetAtt Letters.Arn}
      EventInvokeConfig:
        MaximumRetryAttempts: RETRIES
        DestinationConfig: {OnFailure: {Type: SQS, Destination: !GetAtt Failures.Arn}}
  Sink:
    Type: AWS::Serverless::Function
    Properties: {Handler: app.sink, Events: {Failures: EVENT, Letters: EVENT}}
"""
INVOKING_APP = """
import json
import os

import boto3

def handler(event, context):
    client = boto3.client("lambda")
    answer = client.invoke(FunctionName="Price", Qualifier="9", Payload=json.dumps({"net": 1}))
    print(context.invoked_function_arn.split(":")[5:], json.load(answer["Payload"])["of"])
    for name in ("PRICE", "BROKEN"):
        answer = client.invoke(FunctionName=os.environ[name], Payload=json.dumps({"net": 5}))
        found = json.load(answer["Payload"])
        print(found.get("gross", found.get("errorType")), answer["StatusCode"], answer.get("FunctionError"))
    kind = {"InvocationType": "Event", "Payload": json.dumps({"order": 1})}
    print(client.invoke(FunctionName=os.environ["BROKEN"], **kind)["StatusCode"])
    try:
        client.invoke(FunctionName="nobody")
    except client.exceptions.ResourceNotFoundException as error:
        print(error)

def price(event, context):
    return {"gross": event["net"] + int(os.environ["TAX"]), "of": context.invoked_function_arn.split(":")[5:]}

def broken(event, context):
    raise KeyError("broken")

def sink(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        attributes = {name: each["stringValue"] for name, each in record["messageAttributes"].items()}
        attributes.pop("RequestID", None)
        count = body.get("requestContext", body).get("approximateInvokeCount")
        print(count, body.get("requestPayload", body), attributes)
"""


@pytest.mark.parametrize("options", [[], ["--skip-time"]], ids=["real", "virtual"])
def test_a_function_invokes_others_which_are_retried_and_have_failure_destinations(
    folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.tools.simulator.lambda_invoke.RETRY_SECONDS", (60,) if options else (1,))
    template = INVOKING.replace("RETRIES", "1")
    Path("template.yaml").write_text(with_events(template, "Jobs", "Failures", "Letters"))
    Path("src/app.py").write_text(INVOKING_APP)
    result = run("--expect", "committed=3", *options)
    made_up = "Variables with their name as placeholder: RATES of Price (Fn::ImportValue cannot be resolved here)."
    assert result.output.count(made_up) == 1
    assert printed(result, "Worker") == [
        "202",
        "7 200 None",
        "An error occurred (ResourceNotFoundException) when calling the Invoke operation: "
        "Function not found: the template has no function nobody",
        "KeyError 200 Unhandled",
        "['function', 'Worker', 'live'] ['function', 'Price', '9']",
    ]
    assert printed(result, "Sink") == [
        "2 {'order': 1} {}",
        "None {'order': 1} {'ErrorCode': '200', 'ErrorMessage': \"KeyError: 'broken'\"}",
    ]
    assert "Asynchronous invocation of Broken: attempt 1 of 2 failed; Lambda runs the next one in " in result.stderr
    if options:
        assert "settled in 1 min 1 s of virtual time" in result.stdout


def test_a_seed_that_a_service_refuses_or_that_is_wrong_stops_the_start_in_one_line(folder: Path) -> None:
    no_bucket = {"service": "s3", "operation": "put_object", "parameters": {"Bucket": "none", "Key": "k", "Body": ""}}
    no_queue = {"service": "sqs", "operation": "send_message", "parameters": {"QueueUrl": "None", "MessageBody": "x"}}
    for call, text in (
        (no_bucket, "An error occurred (NoSuchBucket) when calling the PutObject operation: "),
        (no_queue, "SQS refuses SendMessage: The specified queue does not exist."),
    ):
        Path("seed.jsonl").write_text(json.dumps(call))
        result = run("--seed", "seed.jsonl", "--skip-time", exits=2)
        assert result.stdout == ""
        assert result.stderr.splitlines()[-1].startswith(f"tarry: seed.jsonl, line 1: {text}")
    why = "cannot be read: No such file or directory; give a file of JSON lines"
    assert run("--seed", "none.jsonl", exits=2).stderr == f"tarry: --seed none.jsonl {why}\n"
    result = run("--seed", "seed.jsonl", "--endpoint-url", "http://127.0.0.1:9", exits=2)
    assert "--seed cannot be combined with --endpoint-url" in result.output


def without_resources() -> None:
    """Change the template to one with queues and functions alone."""
    template = Path("template.yaml").read_text()
    queues, functions = template.partition("  Topic:\n")[0], template.partition("  Worker:\n")[2]
    environment = functions[functions.index("      Environment") : functions.index("      Events")]
    Path("template.yaml").write_text(f"{queues}  Worker:\n{functions.replace(environment, '')}")


def test_moto_is_needed_only_for_what_it_emulates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith("moto.")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "moto", None)
        last = run("--skip-time", exits=2).stderr.splitlines()[-1]
        assert last.startswith("tarry: tarry local needs moto for Topic, RawSubscription, ")
        assert last.endswith(f"; install it with: {install_command('local-aws')}")
        without_resources()
        Path("src/app.py").write_text("def handler(event, context): pass\ndef sink(event, context): pass\n")
        run("--skip-time")
    calls = "def handler(event, context): import boto3; print(boto3.client('s3').list_buckets()['Buckets'])\n"
    Path("src/app.py").write_text(f"{calls}def sink(event, context): pass\n")
    assert "Worker: []" in run("--skip-time").stderr


def test_a_library_that_moto_needs_is_named_without_a_warning_of_moto(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("moto.server", "moto.moto_server."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flask", None)
    services = Services(Mock(), Mock(), Mock())
    try:
        with pytest.raises(UsageError, match="tarry local needs flask for Table;"):  # any warning is an error
            services.start("Table")
    finally:
        services.close()


PAGE = "http://localhost:3000"


def answered(url: str, method: str = "GET", **headers: str) -> tuple[int, str | None]:
    """Make a request; return the status, and the origin whose pages may read the answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers)) as answer:
            return answer.status, answer.headers["Access-Control-Allow-Origin"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Access-Control-Allow-Origin"]


def test_another_terminal_uses_a_running_tarry_local_whose_services_start_when_they_are_called(folder: Path) -> None:
    without_resources()
    with LocalProcess(folder, "--allow-host", "host.docker.internal", "--cors", PAGE) as local:
        local.wait("^SQS is running")
        sqs = f"http://127.0.0.1:{local.port}"
        variables = tarry("local", "env", "--port", str(local.port))
        assert variables.stderr == ""
        shell = ["sh", "-c", f"eval {variables.stdout.strip()!r}; env"]
        set_there = subprocess.check_output(shell, text=True, env={"PATH": os.environ["PATH"]}).splitlines()
        found = dict(line.split("=", 1) for line in set_there if line.startswith("AWS_"))
        others = found.pop("AWS_ENDPOINT_URL")
        assert others in local.text
        assert found == {
            "AWS_ENDPOINT_URL_SQS": sqs,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        }
        assert tarry("local", "env").stdout == variables.stdout
        assert tarry("send", "Raw", "by the template", "--local").stdout.startswith(f"sent to Raw at {sqs}: ")
        local.wait("by the template")

        def client(service: str, endpoint: str = others) -> Any:
            keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
            return boto3.Session(**keys).client(  # type: ignore[call-overload]
                service, endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1})
            )

        assert client("s3").list_buckets()["Buckets"] == []
        topic = client("sns").create_topic(Name="new")["TopicArn"]
        arn = "arn:aws:sqs:us-east-1:123456789012:Raw"
        client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        client("sns").publish(TopicArn=topic, Message="from outside")
        local.wait("from outside")
        with pytest.raises(ClientError, match=f"SQS is at {sqs}: set AWS_ENDPOINT_URL_SQS"):
            client("sqs").list_queues()
        for service, operation in (("glue", "list_jobs"), ("sns", "list_topics"), ("s3", "list_buckets")):
            with pytest.raises(ClientError, match="This endpoint has only SQS, not "):
                getattr(client(service, sqs), operation)()
        with urllib.request.urlopen(f"{others}/moto-api/") as answer:
            assert answer.status == 200
        for url in (sqs, others):  # SPEC N1
            assert answered(url, Host="host.docker.internal:4577") == (200, None)
            assert answered(url, Origin=PAGE) == (200, PAGE)
            assert answered(url, "OPTIONS", Origin=PAGE) == (204, PAGE)
            assert answered(url, Origin="https://evil.example") == (403, None)
            assert answered(url, "OPTIONS", Origin="https://evil.example") == (403, None)
            assert answered(url, Host="evil.example") == (403, None)
    refused = tarry("local", "env", "--port", str(local.port), exits=2)
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"tarry: no tarry local runs at {sqs}: start it, or name its port")
