"""Templates in the shapes that public samples have, with the findings that each deserves: no false alarm."""

from pathlib import Path

import pytest

from tarry.tools.check.checking import check_template

SAM = "Transform: AWS::Serverless-2016-10-31\nResources:\n"
QUEUE = "  Queue: {Type: AWS::SQS::Queue}\n"
WITH_DLQ = """
  Queue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 60
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 5}
"""
LASTING_DLQ = "  Dlq: {Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 1209600}}\n"


def function(properties: str = "", event: str = "", name: str = "Consumer", queue: str = "!GetAtt Queue.Arn") -> str:
    return f"""
  {name}:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src/
      Handler: index.handler
      Runtime: nodejs22.x
      {properties}
      Events:
        Messages:
          Type: SQS
          Properties:
            Queue: {queue}
            {event}
"""


def alarm(metric: str = "ApproximateNumberOfMessagesVisible", more: str = "", queue: str = "Dlq") -> str:
    return f"""
  Alarm:
    Type: AWS::CloudWatch::Alarm
    {more}
    Properties:
      Namespace: AWS/SQS
      MetricName: {metric}
      Dimensions: [{{Name: QueueName, Value: !GetAtt {queue}.QueueName}}]
"""


WATCHED = LASTING_DLQ + alarm()


def plain(code: str, queue: str = "", more: str = "") -> str:
    """Return plain CloudFormation with a dead-letter queue that is watched."""
    return f"""
Resources:
  Queue:
    Type: AWS::SQS::Queue
    Properties: {{{queue}RedrivePolicy: {{deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 5}}}}
  Consumer:
    Type: AWS::Lambda::Function
    Properties:
      Code: {{ZipFile: "def handler(event, context): {code}"}}
      Handler: index.handler
      Runtime: python3.13
      Role: arn:aws:iam::123456789012:role/consumer
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {{EventSourceArn: !GetAtt Queue.Arn, FunctionName: !Ref Consumer{more}}}
{WATCHED}"""


SHAPES: dict[str, tuple[str, set[str]]] = {
    "a queue and a function, all defaults: a failing message is lost after 4 days": (
        SAM + function() + QUEUE, {"W9014"}),
    "a timeout of 20 s with the default visibility of 30 s": (
        SAM + function("Timeout: 20") + QUEUE, {"W9012", "W9014"}),
    "a timeout of 5 minutes with the default visibility, which Lambda refuses": (
        SAM + function("Timeout: 300") + QUEUE, {"E9011", "W9014"}),
    "a dead-letter queue with the default retention and no alarm": (
        SAM + function() + WITH_DLQ + "  Dlq: {Type: AWS::SQS::Queue}\n", {"W9016", "W9020"}),
    "a dead-letter queue that keeps messages for 14 days, with an alarm on its messages": (
        SAM + function() + WITH_DLQ + WATCHED, set()),
    "an alarm on the messages sent, which misses those that SQS moves": (
        SAM + function() + WITH_DLQ + LASTING_DLQ + alarm("NumberOfMessagesSent"), {"W9021"}),
    "an alarm under a condition that does not hold by default": (
        "Parameters: {Stage: {Type: String, Default: dev}}\nConditions: {IsProd: !Equals [!Ref Stage, prod]}\n"
        + SAM + function() + WITH_DLQ + LASTING_DLQ + alarm(more="Condition: IsProd"),
        set(),
    ),
    "an alarm on an expression over metrics": (
        SAM + function() + WITH_DLQ + LASTING_DLQ + """
  Alarm:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Metrics:
        - Id: dead
          MetricStat:
            Metric:
              Namespace: AWS/SQS
              MetricName: ApproximateNumberOfMessagesVisible
              Dimensions: [{Name: QueueName, Value: !GetAtt Dlq.QueueName}]
            Period: 60
            Stat: Maximum
        - {Id: sum, Expression: dead * 1}
""",
        set(),
    ),
    "alarms in a nested stack that gets the queue": (
        SAM + function() + WITH_DLQ + LASTING_DLQ + """
  Alarms:
    Type: AWS::CloudFormation::Stack
    Properties: {TemplateURL: alarms.yaml, Parameters: {Queue: !GetAtt Dlq.QueueName}}
""",
        set(),
    ),
    "a function that moves dead letters on, with a dead-letter queue of its own": (
        SAM + function() + function("", "", "Redriver", "!GetAtt Dlq.Arn") + WITH_DLQ + """
  Dlq:
    Type: AWS::SQS::Queue
    Properties:
      MessageRetentionPeriod: 1209600
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Last.Arn, maxReceiveCount: 5}
  Last: {Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 1209600}}
""" + alarm(queue="Last"),
        set(),
    ),
    "the dead-letter queue at the function, where it has no effect on the queue": (
        SAM + function("DeadLetterQueue: {Type: SQS, TargetArn: !GetAtt Dlq.Arn}") + QUEUE + LASTING_DLQ, {"W9014"}),
    "FIFO, with content-based deduplication and a FIFO dead-letter queue of the default retention": (
        SAM + function() + """
  Queue:
    Type: AWS::SQS::Queue
    Properties:
      FifoQueue: true
      ContentBasedDeduplication: true
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 3}
  Dlq: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true}}
""" + alarm(),
        set(),
    ),
    "FIFO with a standard dead-letter queue, which SQS refuses": (
        SAM + function() + """
  Queue:
    Type: AWS::SQS::Queue
    Properties: {FifoQueue: true, RedrivePolicy: {deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 3}}
""" + LASTING_DLQ,
        {"E9015", "W9020"},
    ),
    "a topic, with the queue that SAM makes for the function": (
        SAM + """
  Topic: {Type: AWS::SNS::Topic}
  Consumer:
    Type: AWS::Serverless::Function
    Properties:
      InlineCode: "exports.handler = async () => {}"
      Handler: index.handler
      Runtime: nodejs22.x
      Events: {Fanout: {Type: SNS, Properties: {Topic: !Ref Topic, SqsSubscription: true}}}
""",
        {"W9014"},
    ),
    "a queue that another stack exports": (
        SAM + function(queue="!ImportValue shared-queue-arn"), set()),
    "a queue whose ARN is a parameter": (
        "Parameters: {QueueArn: {Type: String}}\n" + SAM + function("Timeout: 300", queue="!Ref QueueArn"), set()),
    "a visibility timeout from a parameter without a default": (
        "Parameters: {Visibility: {Type: Number}}\n" + SAM + function("Timeout: 300") + """
  Queue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: !Ref Visibility
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 5}
""" + WATCHED,
        set(),
    ),
    "a queue that only an API sends to": (
        SAM + QUEUE + """
  Api: {Type: AWS::Serverless::HttpApi}
  Producer:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src/
      Handler: index.handler
      Runtime: nodejs22.x
      Policies: [{SQSSendMessagePolicy: {QueueName: !GetAtt Queue.QueueName}}]
""",
        set(),
    ),
    "a reserved concurrency of 1, without a limit for the queue": (
        SAM + function("ReservedConcurrentExecutions: 1") + WITH_DLQ + WATCHED, {"W9031"}),
    "full access to SQS for a function whose code is not read": (
        SAM + function("Policies: [AmazonSQSFullAccess]") + WITH_DLQ + WATCHED, set()),
    "plain CloudFormation, encrypted with the key of SQS": (
        plain("raise ValueError", "KmsMasterKeyId: alias/aws/sqs, ", ", BatchSize: 1"), set()),
    "a handler that lists failed messages, and a mapping that ignores the list": (
        plain("return {'batchItemFailures': []}"), {"E9010"}),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_public_shape_has_the_findings_that_it_deserves(shape: str, tmp_path: Path) -> None:
    text, expected = SHAPES[shape]
    path = tmp_path / "template.yaml"
    path.write_text(text)
    report = check_template(path)
    assert {each.rule for each in report.findings} == expected
    assert all(each.line and each.line > 1 for each in report.findings)
