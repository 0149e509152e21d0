"""Environment variables with the names of resources, whether or not these exist."""

from pathlib import Path

import pytest

from tarry.tools.template import TemplateError, read_template
from tarry.tools.template.variables import variables_of

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: .
      Handler: app.handler
      Runtime: python3.13
      Environment: {{Variables: {{VALUE: {value}}}}}
  Queue: {{Type: AWS::SQS::Queue, Properties: {{QueueName: orders}}}}
  Table: {{Type: AWS::DynamoDB::Table}}
  NamedTable: {{Type: AWS::DynamoDB::Table, Properties: {{TableName: orders-table}}}}
  Bucket: {{Type: AWS::S3::Bucket}}
  Topic: {{Type: AWS::SNS::Topic}}
  Key: {{Type: AWS::KMS::Key}}
  Server: {{Type: AWS::EC2::Instance}}
"""
URLS = {"orders": "https://sqs/orders"}


def value_of(value: str, tmp_path: Path, **given: str) -> str:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE.format(value=value))
    template = read_template(path)
    return variables_of(template.functions["Function"], template, URLS, given)["VALUE"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("7", "7"),
        ("!Ref Queue", "https://sqs/orders"),
        ("!GetAtt Queue.QueueUrl", "https://sqs/orders"),
        ("!GetAtt Queue.Arn", "arn:aws:sqs:us-east-1:123456789012:orders"),
        ("!Ref Table", "Table"),
        ("!Ref NamedTable", "orders-table"),
        ("!GetAtt NamedTable.Arn", "arn:aws:dynamodb:us-east-1:123456789012:table/orders-table"),
        ("!Ref Bucket", "bucket"),
        ("!Sub 's3://${Bucket}/scans'", "s3://bucket/scans"),
        ("!Ref Topic", "arn:aws:sns:us-east-1:123456789012:Topic"),
        ("!GetAtt Topic.TopicName", "Topic"),
        ("!GetAtt Key.Arn", "arn:aws:kms:us-east-1:123456789012:key/Key"),
    ],
)
def test_a_reference_is_replaced_by_the_name_of_its_resource(value: str, found: str, tmp_path: Path) -> None:
    assert value_of(value, tmp_path) == found


@pytest.mark.parametrize("value", ["!ImportValue other", "!GetAtt Server.Arn", "'{{resolve:ssm:x}}'", "!Ref Nothing"])
def test_an_override_replaces_a_value_that_cannot_be_resolved(value: str, tmp_path: Path) -> None:
    assert value_of(value, tmp_path, VALUE="mine") == "mine"


def test_a_value_that_cannot_be_resolved_needs_an_override(tmp_path: Path) -> None:
    text = (
        r"Function\.Environment\.Variables\.VALUE: Fn::ImportValue cannot be resolved here: set the variable to a value"
    )
    with pytest.raises(TemplateError, match=text):
        value_of("!ImportValue other", tmp_path)


def test_a_reference_to_a_resource_without_a_known_name_needs_an_override(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"Variables\.VALUE: Ref Server cannot be resolved: "):
        value_of("!Ref Server", tmp_path)
    assert value_of("!Ref Server", tmp_path, VALUE="given") == "given"
