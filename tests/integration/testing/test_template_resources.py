"""`Sandbox.from_template(..., resources=True)`: the tables, buckets, topics and keys of a template, made in moto."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import utils
from moto.core.models import botocore_stubber

from tarry.testing import Sandbox
from tarry.tools.template import TemplateError
from tarry.tools.testing.moto_relay import relayed
from tests.facts.platforms.moto import clock_of_moto

TEMPLATE = """\
Transform: AWS::Serverless-2016-10-31
Resources:
  OrdersFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: orders
      Handler: app.handler
      Runtime: python3.13
      Environment:
        Variables:
          TABLE: !Ref OrdersTable
          BUCKET: !Ref Receipts
          TOPIC: !Ref Topic
          KEY: !GetAtt Key.Arn
          SHIPMENTS: !Ref Shipments
          REGION: !Ref AWS::Region
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt Orders.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
  Orders: {Type: AWS::SQS::Queue, Properties: {QueueName: orders}}
  Shipments: {Type: AWS::SQS::Queue, Properties: {QueueName: shipments}}
  OrdersTable:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      DeletionProtectionEnabled: true
      AttributeDefinitions: [{AttributeName: id, AttributeType: S}]
      KeySchema: [{AttributeName: id, KeyType: HASH}]
  Receipts: {Type: AWS::S3::Bucket, Properties: {VersioningConfiguration: {Status: Enabled}}}
  Topic:
    Type: AWS::SNS::Topic
    Properties: {TopicName: orders-paid, Subscription: [{Protocol: sqs, Endpoint: !GetAtt Shipments.Arn}]}
  Key: {Type: AWS::KMS::Key, Properties: {KeyPolicy: {}, Tags: [{Key: team, Value: payments}]}}
"""
APP = """
    import os
    import boto3
    from tarry import Fixed, Message, consumer

    sqs = boto3.client("sqs")

    @consumer(backoff=Fixed(3600))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise TimeoutError
        order = message.json()["id"]
        boto3.resource("dynamodb").Table(os.environ["TABLE"]).put_item(Item={"id": order})
        boto3.client("s3").put_object(Bucket=os.environ["BUCKET"], Key=order, Body=b"")
        boto3.client("sns").publish(TopicArn=os.environ["TOPIC"], Message=order)
        boto3.client("kms").describe_key(KeyId=os.environ["KEY"])
        sqs.send_message(QueueUrl=os.environ["SHIPMENTS"], MessageBody=order)
"""


@pytest.fixture(autouse=True)
def _no_aws_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings of a developer's machine: another account's profile, another endpoint, and no region."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    yield
    assert not {"AWS_ACCESS_KEY_ID", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"} & set(os.environ)
    assert not botocore_stubber.enabled


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "app.py").write_text(dedent(APP))
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    return tmp_path / "template.yaml"


def orders() -> list[Any]:
    items: list[Any] = boto3.resource("dynamodb").Table("OrdersTable").scan()["Items"]
    return items


def test_a_function_uses_its_tables_buckets_topics_and_keys_in_virtual_time(template: Path) -> None:
    with Sandbox.from_template(template, resources=True, region="eu-west-1") as sandbox:
        order = sandbox.send("orders", {"id": "o-1"})
        report = sandbox.run(for_=4_000)
        assert report.state(order) == "COMMITTED"
        assert [step.state for step in report.story(order)][:3] == ["READY", "IN_FLIGHT", "WAITING_RETRY"]
        assert orders() == [{"id": "o-1"}]
        [receipt] = boto3.resource("s3").Bucket("receipts").objects.all()
        assert receipt.key == "o-1"
        assert boto3.client("dynamodb").meta.region_name == "eu-west-1"
        [topic] = boto3.client("sns").list_topics()["Topics"]
        assert topic["TopicArn"] == "arn:aws:sns:eu-west-1:123456789012:orders-paid"
        published, shipped = [shipment.body for shipment in sandbox.messages("shipments")]
        assert (json.loads(published)["Message"], shipped) == ("o-1", "o-1")
        assert boto3.client("sqs").list_queues()["QueueUrls"] == [
            sandbox.sqs.url(name) for name in sandbox.sqs.queues()
        ]


def test_each_sandbox_has_resources_of_its_own_also_within_a_mock_of_the_test(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="of-the-test")
        boto3.client("sqs").create_queue(QueueName="of-the-test")
        for _ in range(2):
            with Sandbox.from_template(template, resources=True) as sandbox:
                assert orders() == []
                sandbox.send("orders", {"id": "o-1"})
                sandbox.run(for_=4_000)
                assert len(orders()) == 1
        assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["of-the-test"]
        assert boto3.client("dynamodb").list_tables()["TableNames"] == []
        [url] = boto3.client("sqs").list_queues()["QueueUrls"]
        assert url.endswith("/of-the-test")


def test_the_fixture_can_add_a_template_with_resources_and_the_test_may_delete_them(
    sandbox: Sandbox, template: Path
) -> None:
    sandbox.add_template(template, resources=True)
    boto3.client("dynamodb").update_table(TableName="OrdersTable", DeletionProtectionEnabled=False)
    boto3.client("dynamodb").delete_table(TableName="OrdersTable")
    with pytest.raises(ClientError, match="ResourceNotFound"):
        orders()
    sandbox.close()


def test_without_moto_the_error_names_the_extra(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moto", None)
    with pytest.raises(TemplateError, match=r"resources=True needs moto; install it with: pip install .*local-aws"):
        Sandbox.from_template(template, resources=True)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("KEY: !GetAtt Key.Arn", "KEY: !Ref Role", "Variables.KEY: Ref Role cannot be resolved: tarry does not create"),
        ("TopicName: orders-paid", "TopicName: a b", "moto cannot create Topic: InvalidParameter: Topic names"),
        ("CodeUri: orders", "CodeUri: [", "template.yaml"),
    ],
)
def test_a_resource_that_cannot_be_made_raises_an_error_and_ends_the_mock(
    template: Path, before: str, after: str, text: str
) -> None:
    role = "  Role: {Type: AWS::IAM::Role, Properties: {AssumeRolePolicyDocument: {}}}\n"
    template.write_text(TEMPLATE.replace(before, after) + role)
    with pytest.raises(TemplateError) as raised:
        Sandbox.from_template(template, resources=True)
    assert text in str(raised.value)


@pytest.mark.parametrize("at_a_time", [partial(relayed, Mock(), print), clock_of_moto], ids=["relayed", "facts"])
def test_a_module_of_moto_that_is_first_loaded_in_a_run_has_the_time_of_day_after_it(at_a_time: Any) -> None:
    """It has imported the function by name; moto refuses log lines that are older than 14 days, by this clock."""
    with at_a_time(lambda: 1_800_000_000.0):
        clock = utils.utcnow
        assert clock() == datetime.fromtimestamp(1_800_000_000, UTC).replace(tzinfo=None)
    assert abs(clock() - datetime.now(UTC).replace(tzinfo=None)) < timedelta(days=1)
