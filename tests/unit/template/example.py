"""A template with queues, functions and mappings, for the tests of their readers."""

from pathlib import Path

from tarry.tools.template import Template, read_template

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
