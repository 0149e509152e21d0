"""Small projects, and the warnings of their templates."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.tools.check.finding import Finding
from tarry.tools.check.start import findings_at_start
from tarry.tools.template import read_template

FUNCTION = """
Transform: AWS::Serverless-2016-10-31
Resources:
  OrdersFunction:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.13
      CodeUri: src
      Handler: app.handler
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt OrdersQueue.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
"""
"""A template up to the events of its function, which `QUEUES` completes; properties can be added in between."""

QUEUES = """
  OrdersQueue:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders
      RedrivePolicy: {deadLetterTargetArn: !GetAtt OrdersDlq.Arn, maxReceiveCount: 15}
  OrdersDlq: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq}}
"""

Find = Callable[..., list[Finding]]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """A function that writes a project and returns the findings of its template.

    Its arguments are the files by name, the properties of the function, and other resources; of a file named without a
    suffix, a directory is made.
    """
    monkeypatch.chdir(tmp_path)

    def run(
        files: dict[str, str], properties: str = "", resources: str = "", here: tuple[int, int] = (3, 13)
    ) -> list[Finding]:
        added = textwrap.indent(textwrap.dedent(properties), " " * 6)
        template = FUNCTION.rstrip() + "\n" + added + QUEUES + textwrap.indent(textwrap.dedent(resources), "  ")
        for name, text in {"template.yaml": template, **files}.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        read = read_template("template.yaml")
        return findings_at_start(read, read.mappings, here)

    return run
