"""Dead letters that a console has scanned, without SQS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tarry.failed.dead_letters import read_dead_letter
from tarry.support.values import queue_arn
from tarry.tools.console import dead_letters as console_dead_letters
from tarry.tools.console.dead_letters.snapshots import Snapshots
from tarry.tools.template import read_template
from tests.unit.failed.dead_letters import NOW, envelope_of, received
from tests.wire import arn

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tarry.failed import DeadLetterMessage
    from tarry.tools.template import Template

QUEUE = queue_arn(arn("orders-dlq"))
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/var/task/app.py", line 30, in pay\n    raise CardDeclined("no")\n'
    "app.CardDeclined"
)
HISTORY = [
    {"attempt": 1, "at": "2026-11-21T08:03:00.000Z", "error": "app.GatewayTimeout: no answer", "delay": 30},
    {"attempt": 2, "at": "2026-11-21T08:09:00.000Z", "error": "app.GatewayTimeout: no answer", "delay": 60},
    {"attempt": 5, "at": "2026-11-21T08:21:40.112Z", "error": "app.CardDeclined: no"},
]
HOSTILE = "\x1b[31m\u202e<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
"""A terminal escape, a right-to-left override, and HTML."""


def recorded(
    name: str, body: str = "{}", attributes: dict[str, Any] | None = None, **failure: Any
) -> DeadLetterMessage:
    """Return a dead letter of orders-dlq whose stable id is ``name`` and whose delivery id is ``NAME-1``."""
    record = {"traceback": TRACEBACK, "history": HISTORY, "function": "shop-orders", "request_id": "r-1", **failure}
    found = received(body, envelope_of(body, name, **record), attributes)
    return read_dead_letter({**found, "MessageId": f"{name}-1"}, QUEUE, NOW)


def moved(name: str, body: str = "{}") -> DeadLetterMessage:
    """Return a dead letter without a record, as the redrive policy moves it."""
    return read_dead_letter({**received(body), "MessageId": name}, QUEUE, NOW)


def scan(monkeypatch: pytest.MonkeyPatch, *found: DeadLetterMessage, most_bytes: int = 100_000_000) -> Snapshots:
    """Let consoles that begin from now on have a scan of orders-dlq with these dead letters."""
    snapshots = Snapshots(most_bytes)
    queue: Any = SimpleNamespace(name=QUEUE.name, arn=QUEUE)
    snapshot = snapshots.begin(queue, NOW)
    for each in found:
        snapshot.add(each)
    snapshot.end(NOW, is_complete=True)
    snapshots.put(snapshot)
    monkeypatch.setattr(console_dead_letters, "Snapshots", lambda: snapshots)
    return snapshots


def attribute(text: str) -> dict[str, str]:
    """Return a message attribute."""
    return {"DataType": "String", "StringValue": text}


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders: {Type: AWS::SQS::Queue, Properties: {QueueName: orders}}
  Works:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.handler
      Runtime: python3.13
      CodeUri: works
      Events: {Orders: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn}}}
"""
BROKEN = (
    TEMPLATE
    + """
  Jobs: {Type: AWS::SQS::Queue, Properties: {QueueName: jobs}}
  Broken:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.handler
      Runtime: python3.13
      CodeUri: broken
      Events: {Jobs: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn}}}
"""
)
WORKS = """
from tarry import Fixed, consumer

@consumer(max_attempts=3, backoff=Fixed(60))
def handler(message): ...
"""


def project(folder: Path, text: str = TEMPLATE) -> Template:
    """Return the template of a small project in a folder: a function for orders, and one that cannot be imported."""
    (folder / "template.yaml").write_text(text)
    for name, code in (("works", WORKS), ("broken", "raise ValueError('\u202e<b>')")):
        (folder / name).mkdir()
        (folder / name / "app.py").write_text(code)
    return read_template(folder / "template.yaml", lenient=True)
