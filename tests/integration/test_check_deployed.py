"""`tarry check --stack` and `--queue`: the rules on what is deployed, in moto."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.tools.check.deployed import limit_of
from tarry.tools.cli.app import app

STACK = {
    "Resources": {
        "Orders": {
            "Type": "AWS::SQS::Queue",
            "Properties": {
                "QueueName": "shop-orders",
                "VisibilityTimeout": 180,
                "RedrivePolicy": {"deadLetterTargetArn": {"Fn::GetAtt": ["Dead", "Arn"]}, "maxReceiveCount": 15},
            },
        },
        "Dead": {
            "Type": "AWS::SQS::Queue",
            "Properties": {"QueueName": "shop-orders-dlq", "MessageRetentionPeriod": 1209600},
        },
    }
}
TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders: {Type: AWS::SQS::Queue, Properties: {QueueName: orders}}
  Handler:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src
      Handler: app.handler
      Runtime: python3.13
      Events: {Orders: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn}}}
"""
HANDLER = "from tarry import Message, consumer\n@consumer(max_attempts=5)\ndef handler(message: Message) -> None: ...\n"
CONSUME = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"]
ALARM = {
    "AlarmName": "dead", "Namespace": "AWS/SQS", "MetricName": "ApproximateNumberOfMessagesVisible",
    "Dimensions": [{"Name": "QueueName", "Value": "shop-orders-dlq"}], "Statistic": "Maximum", "Period": 60,
    "EvaluationPeriods": 1, "Threshold": 0, "ComparisonOperator": "GreaterThanThreshold",
}  # fmt: skip


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield


def role(*statements: dict[str, Any]) -> str:
    iam = boto3.client("iam")
    arn = iam.create_role(RoleName="handler", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    iam.put_role_policy(RoleName="handler", PolicyName="handler", PolicyDocument=json.dumps(document))
    return arn


def allow(queue: str, *actions: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": f"arn:aws:sqs:us-east-1:123456789012:{queue}"}


def deploy(*statements: dict[str, Any], **mapping: Any) -> None:
    function = {
        "FunctionName": "shop-handler", "Runtime": "python3.13", "Handler": "index.handler", "Timeout": 30,
        "Role": role(*statements), "Code": {"ZipFile": ""},
    }  # fmt: skip
    source = {"EventSourceArn": {"Fn::GetAtt": ["Orders", "Arn"]}, "FunctionName": {"Ref": "Handler"}}
    resources = {
        **STACK["Resources"],
        "Handler": {"Type": "AWS::Lambda::Function", "Properties": function},
        "Mapping": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": {**source, **mapping}},
    }
    template = json.dumps({"Resources": resources})
    boto3.client("cloudformation").create_stack(StackName="shop", TemplateBody=template)


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments, "--format", "json"])


def rules(result: Result) -> list[tuple[str, str]]:
    return [(each["resource"], each["rule"]) for each in json.loads(result.stdout)["findings"]]


COMPLETE = (allow("shop-orders", *CONSUME), allow("shop-orders-dlq", "sqs:SendMessage", "sqs:GetQueueAttributes"))


def test_a_stack_has_no_findings_until_its_alarm_is_deleted_and_it_drifts() -> None:
    deploy(*COMPLETE, FunctionResponseTypes=["ReportBatchItemFailures"])
    cloudwatch, sqs, functions = (boto3.client(service) for service in ("cloudwatch", "sqs", "lambda"))
    cloudwatch.put_metric_alarm(**ALARM)
    result = check("--stack", "shop")
    assert (result.exit_code, json.loads(result.stdout)["findings"]) == (0, [])
    assert result.stderr == "AWS 123456789012 us-east-1\n"
    cloudwatch.delete_alarms(AlarmNames=["dead"])
    result = check("--queue", sqs.get_queue_url(QueueName="shop-orders")["QueueUrl"])
    assert rules(result) == [("shop-orders-dlq", "W9020")]
    assert "Value: shop-orders-dlq" in json.loads(result.stdout)["findings"][0]["snippet"]
    url = sqs.get_queue_url(QueueName="shop-orders-dlq")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "3600"})
    functions.update_function_configuration(FunctionName="shop-handler", Timeout=200)
    [mapping] = functions.list_event_source_mappings()["EventSourceMappings"]
    functions.update_event_source_mapping(UUID=mapping["UUID"], FunctionResponseTypes=[])
    result = check("--stack", "shop")
    assert result.exit_code == 1
    assert sorted(rules(result)) == [("Dead", "W9016"), ("Dead", "W9020"), ("Orders", "E9011")]


@pytest.mark.parametrize(
    ("mapping", "limit"),
    [
        ({"ScalingConfig": {"MaximumConcurrency": "5"}}, 5),
        ({"ProvisionedPollerConfig": {"MaximumPollers": "2"}}, 20),
        ({"ScalingConfig": {}}, None),
        ({"ScalingConfig": {"MaximumConcurrency": "many"}}, ValueError),
        ({"ProvisionedPollerConfig": {"MaximumPollers": "all"}}, ValueError),
    ],
)
def test_a_limit_that_an_endpoint_gives_as_text_is_read_if_it_is_a_number(mapping: Any, limit: Any) -> None:
    with pytest.raises(limit, match="invalid literal") if limit is ValueError else nullcontext():
        assert limit_of(mapping) == limit


def test_the_code_of_the_template_here_is_compared_with_the_stack() -> None:
    deploy(allow("shop-orders", *CONSUME))
    boto3.client("cloudwatch").put_metric_alarm(**ALARM)
    Path("template.yaml").write_text(TEMPLATE)
    Path("src").mkdir()
    Path("src/app.py").write_text(HANDLER.replace("=5", "=20"))
    result = check("--stack", "shop")
    assert sorted(rules(result)) == [("Handler", "W9003"), ("Mapping", "E9010"), ("Orders", "W9004")]
    texts = {each["rule"]: each["text"] for each in json.loads(result.stdout)["findings"]}
    assert texts["W9004"].startswith("shop-orders has a maxReceiveCount of 15, below the max_attempts of 20 of Handler")
    assert texts["W9003"].startswith("Handler lacks sqs:SendMessage and sqs:GetQueueAttributes on shop-orders-dlq")


def test_wrong_names_and_options_are_refused_in_one_line() -> None:
    place = "AWS 123456789012 us-east-1\n"
    for arguments, text in (
        (["--stack", "none"], "does not exist"),
        (["--queue", "none"], "does not exist"),
        (["--stack", "one", "--queue", "other"], "give one of them"),
        (["--stack", "one", "--fix"], "without --fix"),
    ):
        result = check(*arguments)
        error = result.stderr.removeprefix(place)
        assert (result.exit_code, result.stdout, error.count("\n")) == (2, "", 1), error
        assert text in result.stderr
    boto3.client("sqs").create_queue(QueueName="idle")
    assert "has no queue that a function consumes" in check("--queue", "idle").stderr
