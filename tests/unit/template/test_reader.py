"""Templates that are read whole: their queues, mappings and functions; and templates that are refused."""

from pathlib import Path

import pytest

from tarry.tools.template import Template, TemplateError, read_template
from tarry.tools.template.model import TemplateLayer
from tarry.tools.template.variables import variables_of

REPOSITORY = Path(__file__).parents[3]
TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, Default: dev}
Conditions:
  IsProd: !Equals [!Ref Stage, prod]
Globals:
  Function:
    Runtime: python3.13
    Timeout: 20
    Layers: [!Ref Shared]
    Environment: {Variables: {STAGE: !Ref Stage, TABLE: !Ref Table}}
Resources:
  Shared:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layers/shared}
    Metadata: {BuildMethod: python3.13}
  Uploaded: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: s3://bucket/key}}
  Own: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layers/own}}
  Table:
    Type: AWS::Serverless::SimpleTable
  Jobs:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: !Sub "${Stage}-jobs"
      VisibilityTimeout: !If [IsProd, 600, 120]
      SqsManagedSseEnabled: true
      FifoQueue: false
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 7}
  Dead:
    Type: AWS::SQS::Queue
  Entries:
    Type: AWS::SQS::Queue
    Properties: {FifoQueue: true, ContentBasedDeduplication: true}
  OnlyInProd:
    Type: AWS::SQS::Queue
    Condition: IsProd
  Worker:
    Type: AWS::Serverless::Function
    Metadata: {BuildMethod: makefile}
    Properties:
      CodeUri: worker
      Handler: app.handler
      Layers: ["arn:aws:lambda:us-east-1:1:layer:public:3", !Ref Own, !Ref Uploaded]
      AutoPublishAlias: live
      Environment: {Variables: {QUEUE: !GetAtt Jobs.QueueName, URL: !Ref Jobs, DEBUG: true, COUNT: 3}}
      Events:
        Jobs:
          Type: SQS
          Properties:
            Queue: !GetAtt Jobs.Arn
            BatchSize: 50
            MaximumBatchingWindowInSeconds: 5
            ScalingConfig: {MaximumConcurrency: 7}
            FilterCriteria:
              Filters:
                - Pattern: !Sub '{"body": {"stage": ["${Stage}"]}}'
                - Pattern: '{"body": {"total": [{"numeric": [">", 100]}]}}'
            FunctionResponseTypes: [ReportBatchItemFailures]
        Daily: {Type: Schedule, Properties: {Schedule: rate(1 day)}}
  Bookkeeper:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: s3://elsewhere/code.zip
      Handler: app.handler
      Timeout: 5
      MemorySize: 256
      ReservedConcurrentExecutions: 3
  Projector:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker
      Handler: app.handler
      Events:
        Orders: {Type: DynamoDB, Properties: {Stream: !GetAtt Table.StreamArn, StartingPosition: LATEST}}
        Broker: {Type: MQ, Properties: {Broker: !GetAtt Mq.Arn, Queues: [x], SourceAccessConfigurations: [
          {Type: BASIC_AUTH, URI: !Ref Secret}]}}
  Mq: {Type: AWS::AmazonMQ::Broker, Properties: {}}
  Secret: {Type: AWS::SecretsManager::Secret, Properties: {}}
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {FunctionName: !GetAtt Bookkeeper.Arn, EventSourceArn: !GetAtt Entries.Arn}
"""


def read(folder: Path, text: str = TEMPLATE, **parameters: str) -> Template:
    path = folder / "template.yaml"
    path.write_text(text)
    return read_template(path, parameters)


def test_queues_have_their_names_attributes_and_redrive(tmp_path: Path) -> None:
    template = read(tmp_path)
    assert set(template.queues) == {"dev-jobs", "Dead", "Entries.fifo"}
    jobs, entries = template.queues["dev-jobs"], template.queues["Entries.fifo"]
    assert (jobs.logical_id, jobs.arn) == ("Jobs", "arn:aws:sqs:us-east-1:123456789012:dev-jobs")
    assert (jobs.attributes, jobs.visibility_timeout_seconds) == ({"VisibilityTimeout": "120"}, 120)
    assert (jobs.dead_letter_arn, jobs.max_receive_count) == ("arn:aws:sqs:us-east-1:123456789012:Dead", 7)
    assert (entries.is_fifo, entries.deduplicates_by_content, entries.dead_letter_arn) == (True, True, None)


def test_a_parameter_value_overrides_its_default(tmp_path: Path) -> None:
    template = read(tmp_path, Stage="prod")
    assert template.queues["prod-jobs"].visibility_timeout_seconds == 600
    assert "OnlyInProd" in template.queues


def test_mappings_come_from_sam_events_and_from_resources(tmp_path: Path) -> None:
    """SPEC N1. Sources and resources that tarry cannot run do not matter."""
    by_events, by_resource = sorted(read(tmp_path).mappings, key=lambda mapping: mapping.queue, reverse=True)
    assert (by_events.queue, by_events.function, by_events.qualifier) == ("dev-jobs", "Worker", "live")
    assert (by_events.batch_size, by_events.window_seconds, by_events.reports_failures) == (50, 5, True)
    assert by_events.maximum_concurrency == 7
    assert by_events.filters == ('{"body": {"stage": ["dev"]}}', '{"body": {"total": [{"numeric": [">", 100]}]}}')
    assert (by_resource.queue, by_resource.function, by_resource.qualifier) == ("Entries.fifo", "Bookkeeper", "")
    assert (by_resource.batch_size, by_resource.window_seconds, by_resource.reports_failures) == (10, 0, False)
    assert (by_resource.maximum_concurrency, by_resource.filters) == (None, ())


def test_functions_have_global_and_own_settings(tmp_path: Path) -> None:
    template = read(tmp_path)
    worker, bookkeeper = template.functions["Worker"], template.functions["Bookkeeper"]
    assert (worker.code, worker.handler, worker.timeout_seconds) == (tmp_path / "worker", "app.handler", 20)
    assert worker.environment == {
        "STAGE": "dev", "TABLE": {"Ref": "Table"}, "QUEUE": "dev-jobs", "URL": {"Ref": "Jobs"}, "DEBUG": "true",
        "COUNT": "3",
    }  # fmt: skip
    assert (bookkeeper.code, bookkeeper.timeout_seconds, bookkeeper.memory_mb) == (None, 5, 256)
    assert (worker.reserved_concurrency, bookkeeper.reserved_concurrency) == (None, 3)
    assert set(template.backing) == {"Table", "Secret"}
    assert template.functions["Projector"].handler == "app.handler"
    assert worker.all_layers == (
        TemplateLayer(tmp_path / "layers/shared", build_method="python3.13"),
        TemplateLayer(arn="arn:aws:lambda:us-east-1:1:layer:public:3"),
        TemplateLayer(tmp_path / "layers/own"),
        TemplateLayer(),
    )
    assert worker.layers == (tmp_path / "layers/shared", tmp_path / "layers/own")
    assert (worker.runtime, worker.build_method) == ("python3.13", "makefile")


@pytest.mark.parametrize(
    ("code", "folder"),
    [
        ("", "."),
        ("CodeUri: here", "here"),
        ("CodeUri: s3://bucket/key", None),
        ("CodeUri: {Bucket: b, Key: k}", None),
    ],
)
def test_the_code_path_is_that_of_sam(tmp_path: Path, code: str, folder: str | None) -> None:
    properties = ", ".join(filter(None, ["Handler: app.handler", "Runtime: python3.13", code]))
    text = f"Resources: {{F: {{Type: AWS::Serverless::Function, Properties: {{{properties}}}}}}}"
    assert read(tmp_path, text).functions["F"].code == (folder and tmp_path / folder)


def test_in_the_shipped_template_each_function_has_a_queue() -> None:
    template = read_template(REPOSITORY / "template.yaml")
    fed = {mapping.queue: template.functions[mapping.function] for mapping in template.mappings}
    assert set(fed) == {"orders", "ledger.fifo", "scans", "webhooks"}
    assert all(function.code and function.code.is_dir() for function in fed.values())
    assert all(mapping.reports_failures for mapping in template.mappings)
    assert template.queues["orders"].dead_letter_arn == template.queues["orders-dlq"].arn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Resources: [", "template.yaml is not YAML: line 1, column 13: expected the node content"),
        ("Resources:\n\tQ: {}",
         "line 2, column 1: found character '\\t' that cannot start any token; indent with spaces"),
        ("Resources:\n  Q: %%TYPE%%", "line 2: %%TYPE%% is a placeholder of another tool: run that tool first"),
        ("Resources:\n  {{ name }}: {Type: AWS::SQS::Queue}", "line 2: {{ name }} is a placeholder of another tool"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: '%%X%%-q'}}}",
         "'%%X%%-q' is not a queue name"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${D.QueueName}-q'}}, "
         "D: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${Q.QueueName}-d'}}}",
         "Q.QueueName, D.QueueName refer to each other: give one of them a plain name"),
        ("Resources: {"
         "Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt D.Arn}}}, "
         "D: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Q.Arn}}}, "
         + ", ".join(
         f"M{each}: {{Type: AWS::Lambda::EventSourceMapping, "
         f"Properties: {{FunctionName: f, EventSourceArn: !GetAtt {each}.Arn}}}}"
         for each in "QD"
         )
         + "}",
         "the cycle of dead-letter queues Q -> D -> Q: remove one RedrivePolicy"),
        ("just text", "is not a template"),
        ("\n".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]" for n in range(9))
         + "\nResources: *a8",
         "template.yaml has more than 500,000 values once its YAML aliases are expanded"),
        ("Resources: &a {Q: *a}", "or an alias that contains itself"),
        ("Resources: {Q: {Properties: {}}}", "is not a template"),
        ("Resources: {Q: {Type: [AWS::SQS::Queue]}}", "the Type of Q must be a text"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: [x]}}", "the Properties of Q must be a map"),
        ("Parameters: {Stage: dev}\nResources: {Q: {Type: X}}", "Parameters.Stage must be a map with a Type"),
        ("Conditions: dev\nResources: {Q: {Type: X}}", "Conditions must be a map"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Condition: [x]}}", "Q: the template has no condition ['x']"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: x}}}",
         "Q.RedrivePolicy must be a map, got 'x'"),
        ("Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
         "Properties: {FunctionName: [x], EventSourceArn: 'arn:aws:sqs:us-east-1:1:q'}}}",
         "M.FunctionName must be a name or an ARN, got ['x']"),
        ("Resources: {F: {Type: AWS::Serverless::Function, Properties: {CodeUri: f}}}", "SAM refuses the template"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name}}}", "Q.QueueName: Ref Name"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: soon}}}", "Q.VisibilityTimeout must"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: }}", "the Properties of Q must be a map"),
        ("Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
         "Properties: {FunctionName: f, EventSourceArn: 'arn:aws:sqs:us-east-1:1:q', FilterCriteria: [x]}}}",
         "is not a valid template (AttributeError: 'list' object has no attribute 'get'): sam validate --lint names"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        read(tmp_path, text)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_template_and_an_unknown_parameter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"nowhere\.yaml does not exist$"):
        read_template(tmp_path / "nowhere.yaml")
    with pytest.raises(TemplateError, match="no parameter Colour; it has Stage"):
        read(tmp_path, Colour="red")


# environment variables with the names of resources, whether or not these exist

WITH_A_VARIABLE = """
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
    path.write_text(WITH_A_VARIABLE.format(value=value))
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


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ("!ImportValue other", "Fn::ImportValue cannot be resolved here: set the variable to a value"),
        ("!GetAtt Server.Arn", "GetAtt Server.Arn cannot be resolved: "),
        ("'{{resolve:ssm:x}}'", "{{resolve:ssm:x}} cannot be resolved: "),
        ("!Ref Nothing", "Ref Nothing cannot be resolved: "),
        ("!Ref Server", "Ref Server cannot be resolved: "),
    ],
)
def test_a_value_that_cannot_be_resolved_needs_an_override(value: str, refusal: str, tmp_path: Path) -> None:
    assert value_of(value, tmp_path, VALUE="mine") == "mine"
    with pytest.raises(TemplateError) as refused:
        value_of(value, tmp_path)
    assert f"Function.Environment.Variables.VALUE: {refusal}" in str(refused.value)
