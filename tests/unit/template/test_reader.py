"""Reading a SAM template into queues, functions and mappings."""

from pathlib import Path

import pytest

from tarry.template import Template, TemplateError, read_template
from tarry.template.model import TemplateLayer

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
    Environment: {Variables: {STAGE: !Ref Stage, TABLE: !Ref Table}}
Resources:
  Layer:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layer/}
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
    Properties:
      CodeUri: worker
      Handler: app.handler
      Layers: [!Ref Layer]
      AutoPublishAlias: live
      Environment: {Variables: {QUEUE: !GetAtt Jobs.QueueName, URL: !Ref Jobs}}
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
    jobs = template.queues["dev-jobs"]
    assert (jobs.logical_id, jobs.arn) == ("Jobs", "arn:aws:sqs:us-east-1:123456789012:dev-jobs")
    assert jobs.attributes == {"VisibilityTimeout": "120"}
    assert jobs.visibility_timeout_seconds == 120
    assert (jobs.dead_letter_arn, jobs.max_receive_count) == ("arn:aws:sqs:us-east-1:123456789012:Dead", 7)
    entries = template.queues["Entries.fifo"]
    assert entries.is_fifo
    assert entries.deduplicates_by_content
    assert entries.dead_letter_arn is None


def test_a_parameter_value_overrides_its_default(tmp_path: Path) -> None:
    template = read(tmp_path, Stage="prod")
    assert template.queues["prod-jobs"].visibility_timeout_seconds == 600
    assert "OnlyInProd" in template.queues


def test_functions_have_global_and_own_settings(tmp_path: Path) -> None:
    template = read(tmp_path)
    worker, bookkeeper = template.functions["Worker"], template.functions["Bookkeeper"]
    assert (worker.code, worker.handler, worker.timeout_seconds) == (tmp_path / "worker", "app.handler", 20)
    assert worker.environment == {
        "STAGE": "dev",
        "TABLE": {"Ref": "Table"},
        "QUEUE": "dev-jobs",
        "URL": {"Ref": "Jobs"},
    }
    assert (bookkeeper.code, bookkeeper.timeout_seconds, bookkeeper.memory_mb) == (None, 5, 256)
    assert (worker.reserved_concurrency, bookkeeper.reserved_concurrency) == (None, 3)
    assert set(template.backing) == {"Table"}


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


def test_mappings_come_from_sam_events_and_from_resources(tmp_path: Path) -> None:
    by_events, by_resource = sorted(read(tmp_path).mappings, key=lambda mapping: mapping.queue, reverse=True)
    assert (by_events.queue, by_events.function) == ("dev-jobs", "Worker")
    assert (by_events.batch_size, by_events.window_seconds, by_events.reports_failures) == (50, 5, True)
    assert (by_resource.queue, by_resource.function) == ("Entries.fifo", "Bookkeeper")
    assert (by_resource.batch_size, by_resource.window_seconds, by_resource.reports_failures) == (10, 0, False)


def test_a_function_with_a_stream_as_source_is_read(tmp_path: Path) -> None:
    """SPEC N1. Resources that tarry cannot run do not matter."""
    template = read(
        tmp_path,
        TEMPLATE
        + """
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
""",
    )

    assert template.functions["Projector"].handler == "app.handler"
    assert {mapping.function for mapping in template.mappings} == {m.function for m in read(tmp_path).mappings}


def test_a_mapping_has_its_concurrency_and_filter_patterns(tmp_path: Path) -> None:
    by_events, by_resource = sorted(read(tmp_path).mappings, key=lambda mapping: mapping.queue, reverse=True)
    assert by_events.maximum_concurrency == 7
    assert by_events.filters == ('{"body": {"stage": ["dev"]}}', '{"body": {"total": [{"numeric": [">", 100]}]}}')
    assert (by_resource.maximum_concurrency, by_resource.filters) == (None, ())


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
        (
            "Resources:\n\tQ: {}",
            "line 2, column 1: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("Resources:\n  Q: %%TYPE%%", "line 2: %%TYPE%% is a placeholder of another tool: run that tool first"),
        ("Resources:\n  {{ name }}: {Type: AWS::SQS::Queue}", "line 2: {{ name }} is a placeholder of another tool"),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: '%%X%%-q'}}}",
            "'%%X%%-q' is not a queue name",
        ),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${D.QueueName}-q'}}, "
            "D: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${Q.QueueName}-d'}}}",
            "Q.QueueName, D.QueueName refer to each other: give one of them a plain name",
        ),
        (
            "Resources: {"
            "Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt D.Arn}}}, "
            "D: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Q.Arn}}}}",
            "the cycle of dead-letter queues Q -> D -> Q: remove one RedrivePolicy",
        ),
        ("just text", "is not a template"),
        ("Resources: {Q: {Properties: {}}}", "is not a template"),
        ("Resources: {Q: {Type: [AWS::SQS::Queue]}}", "the Type of Q must be a text"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: [x]}}", "the Properties of Q must be a map"),
        ("Parameters: {Stage: dev}\nResources: {Q: {Type: X}}", "Parameters.Stage must be a map with a Type"),
        ("Conditions: dev\nResources: {Q: {Type: X}}", "Conditions must be a map"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Condition: [x]}}", "Q: the template has no condition ['x']"),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: x}}}",
            "Q.RedrivePolicy must be a map, got 'x'",
        ),
        (
            "Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
            "Properties: {FunctionName: [x], EventSourceArn: 'arn:aws:sqs:us-east-1:1:q'}}}",
            "M.FunctionName must be a name or an ARN, got ['x']",
        ),
        ("Resources: {F: {Type: AWS::Serverless::Function, Properties: {CodeUri: f}}}", "SAM refuses the template"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name}}}", "Q.QueueName: Ref Name"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: soon}}}", "Q.VisibilityTimeout must"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: }}", "the Properties of Q must be a map"),
        (
            "Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
            "Properties: {FunctionName: f, EventSourceArn: 'arn:aws:sqs:us-east-1:1:q', FilterCriteria: [x]}}}",
            "is not a valid template (AttributeError: 'list' object has no attribute 'get'): sam validate --lint names",
        ),
    ],
)
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


def test_layers_are_listed_with_global_ones_first(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("""
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: {Runtime: python3.13, Handler: app.handler, Layers: [!Ref Shared]}
Resources:
  Shared:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layers/shared}
    Metadata: {BuildMethod: python3.13}
  Uploaded: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: s3://bucket/key}}
  Own: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layers/own}}
  Worker:
    Type: AWS::Serverless::Function
    Metadata: {BuildMethod: makefile}
    Properties: {Layers: ["arn:aws:lambda:us-east-1:1:layer:public:3", !Ref Own, !Ref Uploaded]}
""")
    worker = read_template(tmp_path / "template.yaml").functions["Worker"]
    assert worker.all_layers == (
        TemplateLayer(tmp_path / "layers/shared", build_method="python3.13"),
        TemplateLayer(arn="arn:aws:lambda:us-east-1:1:layer:public:3"),
        TemplateLayer(tmp_path / "layers/own"),
        TemplateLayer(),
    )
    assert worker.layers == (tmp_path / "layers/shared", tmp_path / "layers/own")
    assert (worker.runtime, worker.build_method) == ("python3.13", "makefile")


def test_numbers_and_booleans_in_the_environment_become_text(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("""
Transform: AWS::Serverless-2016-10-31
Resources:
  Worker:
    Type: AWS::Serverless::Function
    Properties: {Runtime: python3.13, Handler: app.handler, Environment: {Variables: {DEBUG: true, COUNT: 3}}}
""")
    assert read_template(tmp_path / "template.yaml").functions["Worker"].environment == {"DEBUG": "true", "COUNT": "3"}
