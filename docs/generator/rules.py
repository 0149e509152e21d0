"""docs/reference/check.md: the rules of `tarry check`, each with the lines to change of an example from rules.toml."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import ndiff
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from docs.generator.messages import wrapped
from tarry.tools.check.finding import RULES
from tarry.tools.template.document import _Loader

Side = Literal["wrong", "right"]

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  OrdersFunction:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.13
      CodeUri: functions/orders
      Handler: app.handler
      Timeout: 30
      Layers: [!Ref TarryLayer]
      Role: !GetAtt OrdersRole.Arn
      Events:
        Orders:
          Type: SQS
          Properties:
            Queue: !GetAtt OrdersQueue.Arn
            FunctionResponseTypes: [ReportBatchItemFailures]
  OrdersRole:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {Statement: []}
      Policies:
        - PolicyName: orders
          PolicyDocument:
            Statement:
              - Effect: Allow
                Action: [sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility, sqs:GetQueueAttributes]
                Resource: !GetAtt OrdersQueue.Arn
              - Effect: Allow
                Action: [sqs:SendMessage, sqs:GetQueueAttributes]
                Resource: !GetAtt OrdersDeadLetters.Arn
  OrdersQueue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 180
      RedrivePolicy: {deadLetterTargetArn: !GetAtt OrdersDeadLetters.Arn, maxReceiveCount: 15}
  OrdersDeadLetters:
    Type: AWS::SQS::Queue
    Properties: {MessageRetentionPeriod: 1209600}
  OrdersAlarm:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Namespace: AWS/SQS
      MetricName: ApproximateNumberOfMessagesVisible
      Dimensions: [{Name: QueueName, Value: !GetAtt OrdersDeadLetters.QueueName}]
      Statistic: Maximum
      Period: 60
      EvaluationPeriods: 1
      Threshold: 0
      ComparisonOperator: GreaterThanThreshold
      TreatMissingData: notBreaching
  TarryLayer: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layers/tarry}}
"""
CODE = """
from tarry import Message, consumer

@consumer(max_attempts=5)
def handler(message: Message) -> None: ...
"""


@cache
def rules() -> Mapping[str, Mapping[str, str]]:
    """Return the texts of rules.toml, by the id of the rule."""
    found: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("rules.toml").read_text("utf-8"))
    return found


def write_example(rule: str, side: Side, directory: Path) -> Path:
    """Write the project of an example, and return its template."""
    texts = rules()[rule]
    document: dict[str, Any] = yaml.load(TEMPLATE, _Loader)
    for text in (texts.get("both"), texts.get(side)):
        _merge(document["Resources"], yaml.load(text, _Loader) if text else {})
    code = directory / "functions" / "orders"
    code.mkdir(parents=True)
    own = texts.get(
        f"{side}_code", texts.get("both_code", texts.get("wrong_code") if "right_requirements" in texts else None)
    )
    (code / "app.py").write_text(own or CODE)
    requirements = texts.get(f"{side}_requirements", texts.get("both_requirements", ""))
    (code / "requirements.txt").write_text(requirements)
    layer = directory / "layers" / "tarry" / "python" / "tarry"
    layer.mkdir(parents=True)
    (layer / "__init__.py").touch()
    template = directory / "template.json"
    template.write_text(json.dumps(document, indent=1))
    return template


def _merge(target: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if value is None:
            target.pop(key, None)
        elif (
            isinstance(value, dict)
            and isinstance(target.get(key), dict)
            and not str(next(iter(value))).startswith("Fn")
        ):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def parts() -> dict[str, str]:
    """Return the generated part of the page, by its name."""
    return {"rules": "\n".join(line for rule in RULES for line in _section(rule)).strip()}


def _section(rule: str) -> Iterator[str]:
    texts = rules()[rule]
    yield f"## {rule}\n"
    yield wrapped(f"**{RULES[rule]}** {' '.join(texts['why'].split())}") + "\n"
    wrong, right = ("\n".join(_shown(texts, side)) for side in ("wrong", "right"))
    lines = [each for each in ndiff(wrong.splitlines(), right.splitlines()) if not each.startswith("?")]
    yield "```diff\n" + "\n".join(each[0] + each[2:] for each in lines).replace(" \n", "\n") + "\n```\n"


def _shown(texts: Mapping[str, str], side: Side) -> Iterator[str]:
    """Yield the parts of an example: of its template, its code, its requirements."""
    code = texts.get(f"{side}_code", texts.get("wrong_code", "") if "right_requirements" in texts else "")
    yield from filter(None, (_without_null(texts.get(side, "")).strip(), code.strip()))
    if requirements := texts.get(f"{side}_requirements", "").strip():
        yield f"# requirements.txt\n{requirements}"


def _without_null(text: str) -> str:
    """Return an example as it is written in a template, in which a missing property has no line."""
    return re.sub(r"^( *)([^ ].*): null$", r"\1# without \2", text, flags=re.MULTILINE)
