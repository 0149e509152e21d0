"""The latest error of each dead-letter queue, searched in the logs of a stack in moto, and shown by the console."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tarry.failed.usage import UsageError
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.options import TargetOptions
from tarry.tools.console.access import Console, Place, WatchedQueue
from tarry.tools.story import searching as insights
from tarry.tools.story.searching import latest_errors, places_of
from tests.consoles import Visitor, visiting

from .test_story_command import ID, Shop

EARLIER = "exhausted: KeyError: no such tenant (20"
LATER = "exhausted: app.Timeout: no answer (20"


def client(service: str) -> Any:
    return boto3.client(service, "us-east-1")


def nothing(seconds: float) -> None: ...


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(insights, "FIRST_WAIT_SECONDS", 0.01)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        shop = Shop()
        shop.messages()
        yield shop


def test_the_latest_line_about_each_dead_letter_queue_is_found_in_both_formats_of_logs(shop: Shop) -> None:
    place = places_of(client, "us-east-1", "shop")
    found = latest_errors(client("logs"), place, nothing).errors
    assert list(found) == ["slow-dlq"]
    assert found["slow-dlq"].startswith(EARLIER)
    fields = {"event": "dead_lettered", "message_id": ID, "queue": "slow", "dead_letter_queue": "slow-dlq"}
    shop.log("slow", 9, json.dumps({**fields, "reason": "exhausted", "error": "app.Timeout: no answer"}))
    shop.log("slow", 8, "a line about dead_letter_queue=slow-dlq")
    of_function = places_of(client, "us-east-1", None, functions=["shop-slow"])
    for each in (place, of_function):
        assert latest_errors(client("logs"), each, nothing).errors["slow-dlq"].startswith(LATER)
    shop.log("orders", 3, json.dumps({**fields, "dead_letter_queue": "other-dlq", "reason": "rejected"}))
    assert latest_errors(client("logs"), of_function, nothing).errors.keys() == {"slow-dlq"}
    with pytest.raises(UsageError, match="none of the functions has a log group"):
        latest_errors(client("logs"), places_of(client, "us-east-1", None, functions=["shop-unused"]), nothing)


class SlowLogs:
    """A client of CloudWatch Logs whose query does not end."""

    stopped = 0

    def start_query(self, **_: Any) -> dict[str, Any]:
        return {"queryId": "1"}

    def get_query_results(self, **_: Any) -> dict[str, Any]:
        return {"status": "Running"}

    def stop_query(self, **_: Any) -> None:
        self.stopped += 1


def test_a_search_that_takes_long_is_stopped(shop: Shop) -> None:
    logs = SlowLogs()
    with pytest.raises(UsageError, match="took more than 30 s, and was stopped"):
        latest_errors(logs, places_of(client, "us-east-1", "shop"), nothing)
    assert logs.stopped == 1


def test_the_console_searches_only_when_it_is_asked_and_says_what_it_cost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs = client("sqs")
    dead = sqs.create_queue(QueueName="slow-dlq")["QueueUrl"]
    sqs.send_message(QueueUrl=dead, MessageBody="{}")
    account = AwsAccess(TargetOptions(stack="shop", region="us-east-1"))
    queues = [WatchedQueue(sqs.create_queue(QueueName="slow")["QueueUrl"], dead)]
    console = Console(account, Place("AWS", "us-east-1", "123456789012"), queues, stack="shop")

    async def look(visitor: Visitor) -> tuple[str, str]:
        before = (await visitor.get("/dead-letters")).text
        answer = await visitor.post("/latest-errors")
        assert (answer.status, answer.headers["Location"]) == (303, "/dead-letters")
        return before, (await visitor.get("/dead-letters")).text

    async def main() -> tuple[str, str]:
        async with visiting(console) as visitor:
            return await look(visitor)

    before, after = asyncio.run(main())
    assert "Latest errors from the logs" in before
    assert "The latest:" not in before
    assert f"The latest: {EARLIER}" in after
    assert "The logs of the last 24 hours have the latest errors of 1 dead-letter queue. Scanned " in after
    assert console.latest_errors()["slow-dlq"].startswith(EARLIER)

    def denied(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "StartQuery")

    monkeypatch.setattr(insights.LogSearch, "_start", denied)
    _, after = asyncio.run(main())
    assert "AWS denies access" in after
    assert f"The latest: {EARLIER}" in after, "what was found before stays"


def test_without_a_stack_or_functions_the_console_offers_no_search(shop: Shop) -> None:
    account, place = AwsAccess(TargetOptions(region="us-east-1")), Place("AWS", "us-east-1")
    assert Console(account, place, [WatchedQueue("slow", "slow-dlq")]).functions == ()
    assert Console(account, place, [WatchedQueue("slow", "slow-dlq", ("f",))]).functions == ("f",)
