"""Only what queues, mappings and their functions need must be resolvable."""

from pathlib import Path

import pytest

from tarry.tools.template import Template, TemplateError, read_template

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: {Runtime: python3.13, Handler: app.handler, CodeUri: src, AutoPublishAlias: live}
  Api: {TracingEnabled: true}
Conditions:
  Shared: !Equals [!ImportValue stage, prod]
Resources:
  Jobs: {Type: AWS::SQS::Queue, Properties: {QueueName: jobs}}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub "${Jobs.QueueName}-dlq"}}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      DeploymentPreference: {Type: !If [Shared, Canary10Percent5Minutes, AllAtOnce]}
      Events:
        Jobs: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn}}
        Web: {Type: HttpApi, Properties: {ApiId: !Ref Api}}
"""
NEEDLESS = """
  Api:
    Type: AWS::Serverless::HttpApi
    Properties: {DefinitionBody: {Fn::Transform: {Name: AWS::Include, Parameters: {Location: ./api.yaml}}}}
  Flow: {Type: AWS::Serverless::StateMachine, Properties: {DefinitionUri: flow.json, Role: !ImportValue role}}
  Fn::Transform: {Name: AWS::Include, Parameters: {Location: more.yaml}}
  Conditional: {Type: AWS::Events::Rule, Condition: Shared}
  Key: {Type: AWS::KMS::Key, Properties: {Description: d, KeyPolicy: {Principal: !ImportValue admin}}}
  Topic: {Type: AWS::SNS::Topic, Properties: {TopicName: t, Subscription: [{Endpoint: !Ref Api, Protocol: https}]}}
  NoHandler: {Type: AWS::Serverless::Function, Properties: {InlineCode: pass, PackageType: Image}}
  NoNumber: {Type: AWS::Lambda::Function, Properties: {Timeout: !ImportValue timeout}}
"""
NEEDED = """
  Imported:
    Type: AWS::SQS::Queue
    Properties: {RedrivePolicy: {deadLetterTargetArn: !ImportValue dlq, maxReceiveCount: 3}, VisibilityTimeout: 60}
  Foreign:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {FunctionName: !Ref Worker, EventSourceArn: !ImportValue queue}
"""


def read(folder: Path, text: str, *, lenient: bool = False) -> Template:
    (folder / "template.yaml").write_text(text)
    return read_template(folder / "template.yaml", lenient=lenient)


def test_resources_that_do_not_matter_do_not_stop_the_start_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = read(tmp_path, TEMPLATE + NEEDLESS)
    assert not caplog.records
    assert set(template.queues) == {"jobs", "jobs-dlq"}
    assert [mapping.function for mapping in template.mappings] == ["Worker"]
    assert template.backing["Key"]["Properties"] == {"Description": "d"}
    assert template.backing["Topic"]["Properties"] == {"TopicName": "t"}
    assert template.not_played == (
        "Worker (HttpApi events)",
        "Api (AWS::Serverless::HttpApi)",
        "Flow (AWS::Serverless::StateMachine)",
        "Fn::Transform",
        "Topic (its subscriptions: https)",
    )
    named = [text.partition(":")[0] for text in template.left_out]
    assert named[1:] == ["Conditions.Shared", "NoNumber.Timeout", "Key.KeyPolicy.Principal", "Topic.Subscription"]
    assert "Resource with id [NoHandler] is invalid" in template.left_out[0]


def test_a_queue_or_mapping_that_cannot_be_resolved_is_refused_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"Foreign\.EventSourceArn: Fn::ImportValue cannot be resolved here"):
        read(tmp_path, TEMPLATE + NEEDED)
    template = read(tmp_path, TEMPLATE + NEEDED, lenient=True)
    assert len(template.mappings) == 1
    imported = template.queues["Imported"]
    assert (imported.dead_letter_arn, imported.visibility_timeout_seconds) == (None, 60)
    assert [text.partition(":")[0] for text in template.left_out] == [
        "Foreign.EventSourceArn",
        "Imported.RedrivePolicy.deadLetterTargetArn",
    ]


def test_a_function_with_a_queue_that_sam_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"SAM refuses the template: Resource with id \[Worker\] is invalid"):
        read(tmp_path, TEMPLATE.replace("      Events:", "      Policies: 3\n      Events:"))
