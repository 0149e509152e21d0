"""Measure messages a second end to end, with a queue that is full: in MiniStack, and in `tarry local`.

python -m benchmarks.end_to_end [--quick]

What is measured is the emulator more than the function: no handler does anything. The difference of the contenders is
what a consumer adds.
"""

import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cold_start import LAYER_OF, build_layers
from benchmarks.contenders import BARE, POWERTOOLS, TARRY, event_of
from benchmarks.results import Row, progress, report
from tests.deploy.aws import client
from tests.deploy.ministack import running

MESSAGES, QUICK_MESSAGES = 10_000, 500
BATCH = 10
MOST_SECONDS = 30.0
"""The time after which the messages handled so far are counted."""

APPS = {
    BARE: "def handler(event, context):\n    return {'batchItemFailures': []}\n",
    POWERTOOLS: """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
processor = BatchProcessor(event_type=EventType.SQS)
def handle(record): pass
def handler(event, context):
    return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)
""",
    TARRY: "from tarry import consumer\n@consumer\ndef handler(message): pass\n",
}


# MiniStack


def in_ministack(folder: Path, messages: int) -> Iterator[Row]:
    """Yield the messages a second of each contender in MiniStack."""
    layers = folder / "layers"
    build_layers(layers)
    with running(folder / "ministack") as ministack:
        of_service = {name: client(name, ministack.url) for name in ("iam", "lambda", "sqs")}
        role = _role(of_service["iam"])
        for number, name in enumerate(APPS):
            progress(f"end to end: MiniStack, {name}")
            code = _zipped(APPS[name], layers / LAYER_OF[name] / "python" if name in LAYER_OF else None)
            rate = _rate(of_service["sqs"], of_service["lambda"], f"function-{number}", code, role, messages)
            yield {"where": "MiniStack", "function": name, "waiting": messages, "rate": rate}


def _role(iam: Any) -> str:
    """Return the ARN of a role that may do everything."""
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
    arn: str = iam.create_role(RoleName="all", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    iam.put_role_policy(RoleName="all", PolicyName="all", PolicyDocument=json.dumps(everything))
    return arn


def _zipped(app: str, packages: Path | None) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("app.py", app)
        for file in packages.rglob("*") if packages is not None else ():
            if file.is_file():
                archive.write(file, file.relative_to(packages or file))
    return content.getvalue()


def _rate(sqs: Any, lambda_: Any, name: str, code: bytes, role: str, messages: int) -> float:
    """Return the messages a second from the event source mapping's start until the queue is empty."""
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "300"})["QueueUrl"]
    for _ in range(messages // BATCH):
        sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": str(index), "MessageBody": '{"order": 1}'} for index in range(BATCH)]
        )
    lambda_.create_function(
        FunctionName=name,
        Runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
        Role=role,
        Handler="app.handler",
        Code={"ZipFile": code},
        Timeout=30,
    )
    event = {"Records": event_of(1)["Records"]}
    lambda_.invoke(FunctionName=name, Payload=json.dumps(event))  # its cold start
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    began = time.monotonic()
    mapping = lambda_.create_event_source_mapping(
        EventSourceArn=arn, FunctionName=name, BatchSize=BATCH, FunctionResponseTypes=["ReportBatchItemFailures"]
    )
    left = messages
    while left and time.monotonic() < began + MOST_SECONDS:
        time.sleep(0.1)
        left = _left(sqs, url)
    seconds = time.monotonic() - began
    lambda_.delete_event_source_mapping(UUID=mapping["UUID"])
    return (messages - left) / seconds


def _left(sqs: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(counts[name]) for name in names)


# tarry local

TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Resources:
  Jobs: {{Type: AWS::SQS::Queue}}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker
      Handler: app.handler
      Runtime: python{sys.version_info.major}.{sys.version_info.minor}
      Events:
        Jobs:
          Type: SQS
          Properties:
            Queue: !GetAtt Jobs.Arn
            BatchSize: {BATCH}
            FunctionResponseTypes: [ReportBatchItemFailures]
"""
LOCAL = [sys.executable, "-c", "from tarry.cli import main; main()", "local", "--event", "event.json"]


def in_tarry_local(folder: Path, messages: int) -> Iterator[Row]:
    """Yield the messages a second of each contender in `tarry local`, without the start of the command."""
    (folder / "template.yaml").write_text(TEMPLATE)
    (folder / "worker").mkdir()
    for name, app in APPS.items():
        progress(f"end to end: tarry local, {name}")
        (folder / "worker" / "app.py").write_text(app)
        start, whole = _seconds(folder, 1), _seconds(folder, messages)
        yield {"where": "tarry local", "function": name, "waiting": messages, "rate": messages / (whole - start)}


def _seconds(folder: Path, messages: int) -> float:
    records = [
        {"body": "{}", "messageId": f"m-{number}", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:Jobs"}
        for number in range(messages)
    ]
    (folder / "event.json").write_text(json.dumps({"Records": records}))
    began = time.monotonic()
    result = subprocess.run(LOCAL, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if result.returncode:
        raise RuntimeError(f"tarry local failed:\n{result.stdout[-2_000:]}{result.stderr[-2_000:]}")
    return seconds


def rows(*, quick: bool) -> Iterator[Row]:
    """Yield the messages a second of each contender in each place."""
    messages = QUICK_MESSAGES if quick else MESSAGES
    with tempfile.TemporaryDirectory() as folder:
        yield from in_ministack(Path(folder), messages)
    with tempfile.TemporaryDirectory() as folder:
        yield from in_tarry_local(Path(folder), messages)


if __name__ == "__main__":
    report(rows)
