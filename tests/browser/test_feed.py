"""`tarry local --console` in a real browser: a message is sent from the form, and the feed follows it."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.local.process import LocalProcess
from tests.scanned import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    Opened = Callable[..., Page]

expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leftover processes are found in /proc")
ADDRESS = re.compile(r"^http://127\.0\.0\.1:\d+/open\?token=\S+$", re.MULTILINE)

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders
      VisibilityTimeout: 180
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 5}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq}}
  Works:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.handler
      Runtime: python3.13
      CodeUri: works
      Timeout: 30
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt Orders.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
"""
CODE = """
from tarry import Fixed, Reject, consumer

@consumer(backoff=Fixed(600))
def handler(message):
    if message.body == "later":
        raise TimeoutError("no answer")
    if message.body != "fine":
        raise Reject(message.body)
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalProcess]:
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    (tmp_path / "works").mkdir()
    (tmp_path / "works/app.py").write_text(CODE)
    (tmp_path / "events").mkdir()
    record = {"body": "fine", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders"}
    (tmp_path / "events/fine.json").write_text(json.dumps({"Records": [record]}))
    with LocalProcess(tmp_path, "--console") as process:
        process.wait("open.token=")
        yield process


def address_of(local: LocalProcess) -> str:
    [address] = ADDRESS.findall(local.text)
    return str(address)


def test_the_feed_follows_a_message_that_was_sent_from_the_form(
    local: LocalProcess, opened: Opened, no_barriers: Callable[..., None]
) -> None:
    address = address_of(local)
    feed = opened(address)
    console = address.partition("/open")[0]
    feed.goto(f"{console}/feed")
    expect(feed.get_by_text("No message yet.")).to_be_visible()
    form = feed.context.new_page()
    form.goto(f"{console}/send")
    form.get_by_label("Sample of events/").select_option("fine.json:1")
    form.get_by_role("button", name="Fill in").click()
    expect(form.get_by_label("Body")).to_have_value("fine")
    for body in ("fine", "later", HOSTILE[5:]):
        form.get_by_label("Body").fill(body)
        form.get_by_role("button", name="Send to tarry local").click()
        expect(form.get_by_role("status").first).to_contain_text("Sent to orders")
    rows = feed.locator("[data-row]")
    fine, later, hostile = (rows.filter(has_text=state) for state in ("COMMITTED", "TimeoutError", "DEAD_LETTERED"))
    expect(fine).to_contain_text("READY → IN_FLIGHT 1 → COMMITTED")
    expect(later).to_contain_text("WAITING_RETRY")
    expect(hostile).to_contain_text("rejected: \\u202e<script>document.title")
    expect(feed.locator("#feed")).to_contain_text("1 committed, 1 dead-lettered")
    expect(feed.get_by_role("link", name="1 in orders-dlq")).to_be_visible()
    assert "token=" not in feed.locator("body").inner_text()
    no_barriers(feed)

    feed.get_by_label("Pause").check()
    local.send("orders", "fine")
    local.wait(r"COMMITTED$", times=2)
    expect(rows).to_have_count(3)
    feed.get_by_label("Pause").uncheck()
    expect(rows).to_have_count(4)

    hostile.get_by_role("link").click()
    expect(feed.get_by_role("heading", name="Story")).to_be_visible()
    expect(feed).to_have_title(re.compile("^Message "))
    expect(feed.locator("pre.body")).to_have_text(HOSTILE[5:].replace("\u202e", "\\u202e"))
    expect(feed.get_by_role("link", name="orders-dlq", exact=True)).to_be_visible()
    assert feed.locator("main img, main script").count() == 0

    feed.goto(f"{console}/send")
    expect(feed.get_by_label("Queue").locator("option")).to_have_text(["orders"])  # and no dead-letter queue
    feed.goto(f"{console}/audit")
    expect(feed.locator("main code").nth(1)).to_have_text(re.compile("/console-[0-9a-f]{16}/audit.jsonl$"))

    feed.goto(f"{console}/feed")
    assert local.end(signal.SIGTERM) == 0
    expect(feed.get_by_text("The console does not answer.")).to_be_visible()
    assert local.left() == []
