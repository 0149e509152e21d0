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
from tests.consoles import Answer, visiting
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

    def identity(self) -> str:
        raise AssertionError

    def renew(self) -> None:
        pass

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


def page(path: str, account: Any, **settings: Any) -> Answer:
    async def main() -> Answer:
        console = Console(account, Place("AWS", "us-east-1"), [], **settings)
        async with visiting(console) as visitor:
            return await visitor.get(path)

    return asyncio.run(main())


def test_messages_being_retried_are_shown_with_the_next_one_first() -> None:
    account = Tables([item("late", "orders", 4_000_000_000), item("a/b", "jobs", time.time() - 5, HOSTILE)])
    html = page("/pending", account, stack="shop").text
    assert html.index("a/b") < html.index("late")
    for part in ('href="/message/a%2Fb"', ">due<", "2096-10-02 07:06:40", "2 messages in shop-attempts", "\\u202e"):
        assert part in html, part
    assert "<script>document" not in html
    only = page("/pending?queue=orders", account, stack="shop").text
    assert ("late" in only, "a/b" in only) == (True, False)


def test_without_an_attempt_store_the_page_says_how_to_get_one() -> None:
    assert "No attempt store is known." in page("/pending", Tables([])).text
    assert "No message waits for a retry." in page("/pending", Tables([]), attempt_tables=["shop-attempts"]).text


@pytest.fixture
def template(tmp_path: Path) -> Any:
    return project(tmp_path, BROKEN)


def test_a_policy_is_shown_as_the_picture_and_the_text_of_tarry_plan(template: Any) -> None:
    consumers = page("/policies", Tables([]), template=template).text
    assert 'href="/policies/Works"' in consumers
    html = page("/policies/Works", Tables([]), template=template).text
    assert '<svg class="picture"' in html
    assert "<style" not in html
    assert "ATTEMPT" in html
    assert "max_attempts=3, backoff=Fixed(60" in html


def test_code_that_cannot_be_imported_is_shown_with_its_error(template: Any) -> None:
    answer = page("/policies/Broken", Tables([]), template=template)
    assert answer.status == 200
    assert "The policy cannot be read." in answer.text
    assert "ValueError: \\u202e&lt;b&gt;" in answer.text
    assert page("/policies/Nosuch", Tables([]), template=template).status == 404
    assert "This console has no template." in page("/policies", Tables([])).text


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
