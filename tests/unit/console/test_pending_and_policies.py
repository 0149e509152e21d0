"""The pages of messages being retried, and of policies."""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tarry.tools.console import policy as reading
from tarry.tools.console.access import Console, Place
from tests.consoles import Answer, visited
from tests.scanned import BROKEN, HOSTILE, project


class Tables:
    """An account whose DynamoDB has one table, and whose CloudFormation one stack with it."""

    is_aws, endpoint, region = True, None, "us-east-1"

    def __init__(self, items: Sequence[dict[str, Any]]) -> None:
        self.items = items

    class exceptions:  # noqa: N801 a name of boto3
        class ResourceNotFoundException(Exception):
            """The error of boto3."""

    def client(self, service: str) -> Any:
        return self

    def get_paginator(self, operation: str) -> Any:
        return self

    def paginate(self, **given: Any) -> list[dict[str, Any]]:
        if "StackName" in given:
            table = {"LogicalResourceId": "AttemptsTable", "PhysicalResourceId": "shop-attempts"}
            return [{"StackResourceSummaries": [{**table, "ResourceType": "AWS::DynamoDB::Table"}]}]
        assert given["TableName"] == "shop-attempts"
        return [{"Items": self.items}]


def item(name: str, queue: str, next_try: float, error: str = "no answer") -> dict[str, Any]:
    texts = {"id": f"{queue}#{name}", "message": name, "queue": queue, "state": "WAITING_RETRY"}
    failure = {"type": "app.Timeout", "message": error}
    return {
        **{key: {"S": text} for key, text in texts.items()},
        "attempt": {"N": "2"},
        "next_try": {"N": str(next_try)},
        "failure": {"S": json.dumps(failure)},
    }


def page(path: str, account: Any = None, **settings: Any) -> Answer:
    with visited(Console(account or Tables([]), Place("AWS", "us-east-1"), [], **settings)) as guest:
        return guest.get(path)


def test_messages_being_retried_are_shown_with_the_next_one_first() -> None:
    account = Tables([item("late", "orders", 4_000_000_000), item("a/b", "jobs", time.time() - 5, HOSTILE)])
    html = page("/pending", account, stack="shop").text
    assert html.index("a/b") < html.index("late")
    for part in ('href="/message/a%2Fb"', ">due<", "2096-10-02 07:06:40", "2 messages in shop-attempts", "\\u202e"):
        assert part in html, part
    assert "<script>document" not in html
    only = page("/pending?queue=orders", account, stack="shop").text
    assert ("late" in only, "a/b" in only) == (True, False)
    assert "No attempt store is known." in page("/pending").text
    assert "No message waits for a retry." in page("/pending", attempt_tables=["shop-attempts"]).text


def test_a_policy_is_shown_as_the_picture_and_the_text_of_tarry_plan_or_with_the_error_of_its_code(
    tmp_path: Path,
) -> None:
    template = project(tmp_path, BROKEN)
    assert 'href="/policies/Works"' in page("/policies", template=template).text
    html = page("/policies/Works", template=template).text
    assert ('<svg class="picture"' in html, "<style" in html) == (True, False)
    assert "ATTEMPT" in html
    assert "max_attempts=3, backoff=Fixed(60" in html
    answer = page("/policies/Broken", template=template)
    assert (answer.status, "The policy cannot be read." in answer.text) == (200, True)
    assert "ValueError: \\u202e&lt;b&gt;" in answer.text
    assert page("/policies/Nosuch", template=template).status == 404
    assert "This console has no template." in page("/policies").text


def test_each_function_is_read_once_at_a_time_however_many_pages_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    most = 0

    def read(template: object, function: str) -> reading.ReadPolicies:
        nonlocal most
        reads.append(function)
        with lock:
            running.append(function)
            most = max(most, len(running))
        release.wait(60)
        with lock:
            running.remove(function)
        return reading.ReadPolicies([], [])

    async def main() -> None:
        console = Console(Tables([]), Place("AWS", "us-east-1"), [])
        reader = reading.PolicyReader(console)
        names = ("a", "b", "c", "a", "b", "a")
        tasks = [asyncio.create_task(reader.read(unused, name)) for name in names]
        tasks[0].cancel()
        asyncio.get_running_loop().call_later(0.01, release.set)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in results[1:]] == [reading.ReadPolicies] * 5
        await reader.read(unused, "a")  # anew: the code may have changed

    unused: Any = None
    lock, release, running = threading.Lock(), threading.Event(), list[str]()
    monkeypatch.setattr(reading, "policies_of", read)
    asyncio.run(main())
    assert sorted(reads) == ["a", "a", "b", "c"]
    assert most <= reading.AT_ONCE
