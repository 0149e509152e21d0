"""`tarry story` on a stack in moto, and the latest errors in its logs, which the console shows.  # SPEC L6"""

import asyncio
import io
import json
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.failed.usage import UsageError
from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.options import TargetOptions
from tarry.tools.console.access import Console, Place, WatchedQueue
from tarry.tools.story import searching
from tarry.tools.story.searching import latest_errors, places_of
from tests.consoles import visiting

ID, COPY = "5f3a2b1c-7d9e-4c1a-9b60-2f8e1d4c7a35", "b0000000-7d9e-4c1a-9b60-2f8e1d4c7a35"
ROLE = "arn:aws:iam::123456789012:role/lambda-role"
STACK = "--stack", "shop"


def tarry(*arguments: str, exits: int = 0) -> Result:
    result = CliRunner().invoke(app, ["story", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == exits, result.output
    return result


def in_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tarry(*arguments, "--json").stdout)
    return found


def client(service: str) -> Any:
    return boto3.client(service, "us-east-1")  # type: ignore[call-overload]


class Shop:
    """A stack with three functions, of which one was never invoked, and their logs."""

    def __init__(self) -> None:
        self.logs = client("logs")
        document = json.dumps({"Version": "2012-10-17", "Statement": []})
        client("iam").create_role(RoleName="lambda-role", AssumeRolePolicyDocument=document)
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("app.py", "")
        client("s3").create_bucket(Bucket="code")
        client("s3").put_object(Bucket="code", Key="code.zip", Body=code.getvalue())
        place = {"S3Bucket": "code", "S3Key": "code.zip"}
        settings = {"Runtime": "python3.13", "Role": ROLE, "Handler": "app.handler", "Code": place}
        resources = {
            name: {"Type": "AWS::Lambda::Function", "Properties": {**settings, "FunctionName": f"shop-{name}"}}
            for name in ("orders", "slow", "unused")
        }
        self.stack("shop", **resources)
        for name in ("orders", "slow"):
            self.logs.create_log_group(logGroupName=f"/aws/lambda/shop-{name}")
            self.logs.create_log_stream(logGroupName=f"/aws/lambda/shop-{name}", logStreamName="s")

    def stack(self, name: str, **resources: Any) -> None:
        template = json.dumps({"Resources": {**resources, "Queue": {"Type": "AWS::SQS::Queue"}}})
        client("cloudformation").create_stack(StackName=name, TemplateBody=template)

    def log(self, function: str, ago: float, text: str | dict[str, Any]) -> None:
        message = text if isinstance(text, str) else json.dumps(text)
        event = {"timestamp": int((time.time() - ago) * 1000), "message": message}
        group = f"/aws/lambda/shop-{function}"
        self.logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=[event])

    def messages(self) -> None:
        """Log a message that was retried, sent on and dead-lettered, among other lines."""
        retried = {"event": "waiting_retry", "state": "WAITING_RETRY", "message_id": ID, "queue": "orders"}
        self.log("orders", 400, {**retried, "delivery_id": ID, "attempt": 1, "delay": 30, "error": "E: \x1b"})
        self.log("orders", 399, f"an own line about {ID}")
        self.log("orders", 399, {**retried, "message_id": "other", "delivery_id": "other"})
        self.log("orders", 370, f"[WARNING]\tx\t{COPY}\tresent message_id={ID} queue=orders attempt=2 sent_to=slow\n")
        dead = f"dead_lettered message_id={ID} delivery_id={COPY} queue=slow attempt=3 max_attempts=3 reason=exhausted"
        error = "dead_letter_queue=slow-dlq error='KeyError: no such tenant' fingerprint=1"
        self.log("slow", 300, f"[ERROR]\tx\t{COPY}\t{dead} {error}\n")


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(searching.LogSearch.__init__, "__defaults__", (lambda text: None, lambda seconds: None))
    monkeypatch.setattr(searching, "FIRST_WAIT_SECONDS", 0.01)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with mock_aws():
        yield Shop()


def test_the_story_of_a_message_over_the_functions_of_a_stack(shop: Shop, tmp_path: Path) -> None:
    shop.messages()
    picture = tmp_path / "story.svg"
    result = tarry(ID, *STACK, "--svg", str(picture))
    too_long = str(tmp_path / ("x" * 300))
    assert f"tarry: --svg {too_long}: File name too long\n" in tarry(ID, *STACK, "--svg", too_long, exits=2).stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == [f"message {ID}", "orders -> slow -> slow-dlq, from CloudWatch Logs"]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output
    states = ["WAITING_RETRY", "RESENT", "DEAD_LETTERED"]
    assert re.findall(r"^\d\d:.*  ([A-Z]+_?[A-Z]+) ", result.stdout, re.MULTILINE) == states
    assert "KeyError: no such tenant" in result.stdout
    text = " ".join(result.stdout.split())
    assert "Dead-lettered after 3 attempts in 1 min 40 s. First failure" in text
    assert "Note: shop-orders, shop-slow write only lines of level WARN and above" in text
    assert result.stderr.startswith("AWS 123456789012 us-east-1\n")
    for part in ("shop-unused has no log group: never invoked", "Searching 2 log groups since", "a GB)."):
        assert part in result.stderr
    assert f"message {ID}" in picture.read_text("utf-8")
    found = in_json(ID, *STACK)
    assert [event["state"] for event in found["events"]] == states
    assert (found["events"][2]["function"], found["is_whole"]) == ("shop-slow", False)
    # A delivery id, and the beginning of an id, lead to the whole story.
    groups = [part for name in ("orders", "slow") for part in ("--log-group", f"/aws/lambda/shop-{name}")]
    assert len(in_json(COPY, *groups)["events"]) == 3
    assert f"{COPY} is a copy of message {ID}" in tarry(COPY, *groups).stderr
    assert in_json(ID[:8], *STACK)["id"] == ID
    last = in_json(ID, "--group", "/aws/lambda/shop-orders")["events"][-1]
    assert (last["state"], last["is_seen"]) == (None, False)


def test_a_message_without_a_line_is_not_found_with_the_places_and_the_reasons(shop: Shop) -> None:
    shop.log("orders", 100, f"my line about {ID}")
    shop.logs.put_retention_policy(logGroupName="/aws/lambda/shop-slow", retentionInDays=7)
    result = tarry(ID, *STACK, exits=1)
    assert result.stdout == ""
    for text in (
        "tarry: no line of tarry since 20",
        "Searched: /aws/lambda/shop-orders, /aws/lambda/shop-slow",
        "it succeeded at its first attempt, which writes no line",
        "level WARN and above",
        "/aws/lambda/shop-slow: lines are kept for 7 d only",
        "1 other line names it, but none is of tarry",
    ):
        assert text in result.stderr


def interrupt(self: searching.LogSearch, query_id: str) -> Any:
    raise KeyboardInterrupt


def test_an_incomplete_search_ends_with_1_and_an_interrupted_one_with_130(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.messages()
    monkeypatch.setattr(searching, "MOST_RESULTS", 5)
    assert "Note: the query found more than 5 lines" in tarry(ID, *STACK, exits=1).stdout
    stopped: list[str] = []
    monkeypatch.setattr(searching.LogSearch, "_answer", interrupt)
    monkeypatch.setattr(searching.LogSearch, "_stop", lambda self, query_id: stopped.append(query_id))
    tarry(ID, *STACK, exits=130)
    assert len(stopped) == 1


WRONG = [
    (['5f3a2b1c" | fields @message', *STACK], "is not the id of a message"),
    (["x\x1b[2J"], "is not the id of a message: an id has only letters"),
    (["5f3a", *STACK], "give at least 8 characters of the id"),
    ([ID, "--stack", "no-such-stack"], "the stack does not exist"),
    ([ID, "--stack", "queues"], "stack queues has no functions"),
    ([ID, "--log-group", "/aws/lambda/none"], "the log group /aws/lambda/none does not exist in us-east-1"),
    ([ID, *STACK, "--since", "yesterday"], "--since must be a time span such as 90m, 36h, 14d or 2w"),
    ([ID, *STACK, "--since", "2099-01-01"], "give a time in the past"),
    ([ID, *STACK, "--since", "9" * 400 + "d"], "--since must be a time span"),
    ([ID, "--region", "eu-west-1"], "add --stack NAME or --log-group NAME"),
    ([ID, "--svg", "no/such/place.svg"], "the directory no/such does not exist"),
    ([ID, "--endpoint-url", "nowhere"], "'nowhere' is not an endpoint URL"),
]


def test_wrong_usage_and_missing_credentials_are_refused_in_one_line(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.stack("queues")
    for arguments, text in WRONG:
        result = tarry(*arguments, exits=2)
        assert text in result.stderr
        assert result.stderr.removeprefix("AWS 123456789012 us-east-1\n").count("\n") == 1
        assert "\x1b" not in result.stderr

    def no_client(self: AwsAccess, service: str) -> Any:
        raise NoCredentialsError

    monkeypatch.setattr(AwsAccess, "client", no_client)
    assert "no usable AWS credentials" in tarry(ID, *STACK, exits=2).stderr


# the latest errors

EARLIER = "exhausted: KeyError: no such tenant (20"


def errors_in(place: Any, logs: Any = None) -> dict[str, str]:
    return latest_errors(logs or client("logs"), place, lambda seconds: None).errors


def test_the_latest_line_about_each_dead_letter_queue_is_found_in_both_formats_of_logs(shop: Shop) -> None:
    shop.messages()
    place = places_of(client, "us-east-1", "shop")
    [(queue, error)] = errors_in(place).items()
    assert (queue, error.startswith(EARLIER)) == ("slow-dlq", True)
    fields = {"event": "dead_lettered", "message_id": ID, "queue": "slow", "dead_letter_queue": "slow-dlq"}
    shop.log("slow", 9, {**fields, "reason": "exhausted", "error": "app.Timeout: no answer"})
    shop.log("slow", 8, "a line about dead_letter_queue=slow-dlq")
    of_function = places_of(client, "us-east-1", None, functions=["shop-slow"])
    for each in (place, of_function):
        assert errors_in(each)["slow-dlq"].startswith("exhausted: app.Timeout: no answer (20")
    shop.log("orders", 3, {**fields, "dead_letter_queue": "other-dlq", "reason": "rejected"})
    assert errors_in(of_function).keys() == {"slow-dlq"}
    with pytest.raises(UsageError, match="none of the functions has a log group"):
        errors_in(places_of(client, "us-east-1", None, functions=["shop-unused"]))


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
        errors_in(places_of(client, "us-east-1", "shop"), logs)
    assert logs.stopped == 1


def test_the_console_searches_only_when_it_is_asked_and_says_what_it_cost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.messages()
    sqs = client("sqs")
    dead = sqs.create_queue(QueueName="slow-dlq")["QueueUrl"]
    sqs.send_message(QueueUrl=dead, MessageBody="{}")
    account = AwsAccess(TargetOptions(stack="shop", region="us-east-1"))
    queues = [WatchedQueue(sqs.create_queue(QueueName="slow")["QueueUrl"], dead)]
    console = Console(account, Place("AWS", "us-east-1", "123456789012"), queues, stack="shop")

    async def look() -> tuple[str, str]:
        async with visiting(console) as visitor:
            before = (await visitor.get("/dead-letters")).text
            answer = await visitor.post("/latest-errors")
            assert (answer.status, answer.headers["Location"]) == (303, "/dead-letters")
            return before, (await visitor.get("/dead-letters")).text

    before, after = asyncio.run(look())
    assert "Latest errors from the logs" in before
    assert "The latest:" not in before
    assert f"The latest: {EARLIER}" in after
    assert "The logs of the last 24 hours have the latest errors of 1 dead-letter queue. Scanned " in after
    assert console.latest_errors()["slow-dlq"].startswith(EARLIER)

    def denied(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "StartQuery")

    monkeypatch.setattr(searching.LogSearch, "_start", denied)
    _, after = asyncio.run(look())
    assert "AWS denies access" in after
    assert f"The latest: {EARLIER}" in after, "what was found before stays"


def test_without_a_stack_or_functions_the_console_offers_no_search() -> None:
    account, place = AwsAccess(TargetOptions(region="us-east-1")), Place("AWS", "us-east-1")
    assert Console(account, place, [WatchedQueue("slow", "slow-dlq")]).functions == ()
    assert Console(account, place, [WatchedQueue("slow", "slow-dlq", ("f",))]).functions == ("f",)
