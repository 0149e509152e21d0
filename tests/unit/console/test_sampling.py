"""Reading the queues for the overview: from an SQS that refuses, that is slow, and from CloudWatch."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.tools.console import overview
from tarry.tools.console.access import Console, Place, WatchedQueue
from tests.consoles import Visitor, visiting

PATIENCE_SECONDS = 60.0


def refused(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "Rate exceeded"}}, operation)


class Clients:
    """The clients of an account whose only requests are those of the overview."""

    is_aws = True
    endpoint = None
    region = "eu-west-1"

    def __init__(self, attributes: Callable[[], dict[str, str]], metrics: Callable[[], list[Any]] = list) -> None:
        self._attributes = attributes
        self._metrics = metrics

    def identity(self) -> str:
        return "arn:aws:iam::123456789012:user/me"

    def renew(self) -> None:
        pass

    def client(self, service: str) -> "Clients":
        assert service in {"sqs", "cloudwatch"}
        return self

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": self._attributes()}

    def get_paginator(self, _: str) -> "Clients":
        return self

    def paginate(self, **_: Any) -> list[Any]:
        return self._metrics()


def seen(clients: Clients, look: Callable[[Visitor], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the result of ``look`` at a console with one queue."""
    monkeypatch.setattr(overview, "AWS_SECONDS", 0.01)
    place = Place("AWS", "eu-west-1", "123456789012")
    console = Console(clients, place, [WatchedQueue("https://sqs/123456789012/orders")])

    async def main() -> Any:
        async with visiting(console) as visitor, asyncio.timeout(PATIENCE_SECONDS):
            return await look(visitor)

    return asyncio.run(main())


async def page_of(visitor: Visitor) -> str:
    """Return the overview once the queue was read."""
    while "Reading the queues." in (text := (await visitor.get("/")).text):
        pass
    return text


def test_account_region_and_access_are_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    text = seen(Clients(dict), page_of, monkeypatch)
    for each in ("AWS", "account 123456789012", "eu-west-1", "read-only"):
        assert f">{each}<" in text


def test_an_sqs_that_throttles_leaves_the_last_numbers_on_the_page_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([{"ApproximateNumberOfMessages": "4321"}])

    def attributes() -> dict[str, str]:
        if (found := next(answers, None)) is None:
            raise refused("ThrottlingException", "GetQueueAttributes")
        return found

    async def look(visitor: Visitor) -> str:
        while "cannot be read" not in (text := await page_of(visitor)):
            assert "4,321" in text
        return text

    text = seen(Clients(attributes), look, monkeypatch)
    assert "It cannot be read: An error occurred (ThrottlingException) when calling the GetQueueAttributes" in text
    assert "4,321" in text


def test_the_first_page_waits_for_no_request_and_gets_a_reading_that_came_before_it_listened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, end = threading.Event(), threading.Event(), threading.Event()
    begun = iter([first])

    def attributes() -> dict[str, str]:
        if (answers := next(begun, end)) is end:
            second.set()  # so the first reading is published
        assert answers.wait(PATIENCE_SECONDS)
        return {"ApproximateNumberOfMessages": "4321"}

    async def look(visitor: Visitor) -> tuple[str, str]:
        try:
            page, text = (await visitor.get("/")).text, ""
            first.set()
            await asyncio.to_thread(second.wait, PATIENCE_SECONDS)
            async with visitor.http.get(f"{visitor.url}/live?topic=overview") as stream:
                while "4,321" not in text:
                    text += (await stream.content.readany()).decode()
            return page, text
        finally:
            first.set()
            end.set()

    page, text = seen(Clients(attributes), look, monkeypatch)
    assert ("Reading the queues." in page, "4,321" in page, "4,321" in text) == (True, False, True)


def test_cloudwatch_that_refuses_leaves_ages_and_rates_unknown_with_the_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def metrics() -> list[Any]:
        raise refused("AccessDenied", "GetMetricData")

    text = seen(Clients(lambda: {"ApproximateNumberOfMessages": "7"}, metrics), page_of, monkeypatch)
    assert "CloudWatch does not tell ages and rates, so these are not known. AWS denies access:" in text
    assert text.count("not known</span>") == 2
