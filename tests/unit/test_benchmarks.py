"""The benchmarks of `make bench` compare what is alike. A test compares no times: its machine may be busy."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import contenders as of
from benchmarks import requests
from benchmarks.contenders import BARE, POWERTOOLS, TARRY, BenchmarkContext, ClientThatAnswers, event_of
from benchmarks.message_time import loads, output_discarded
from benchmarks.outage import STRATEGIES, rows
from benchmarks.page.message_time import reason
from benchmarks.picture import Bar, Picture
from tarry.world import World, use


@pytest.fixture
def client(without_tracers: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientThatAnswers]:
    monkeypatch.delitem(sys.modules, "aws_lambda_powertools.tracing", raising=False)  # another test may have loaded it
    client = ClientThatAnswers()
    with use(World(client_factory=client.sqs_of_tarry)), output_discarded():
        yield client


def test_every_contender_reports_the_same_messages_as_failed(client: ClientThatAnswers) -> None:
    """Powertools' would report none if it took its failing path, nor would its figures be its own."""
    event, context = event_of(20), BenchmarkContext()
    expected = [event["Records"][index]["messageId"] for index in (0, 10)]
    for handler in (
        of.bare_loop(of.fails_at(0.1)),
        of.powertools(of.fails_at(0.1)),
        of.by_hand(of.fails_at(0.1), client.sqs),
        of.tarry(of.fails_at(0.1)),
    ):
        assert [failed["itemIdentifier"] for failed in handler(event, context)["batchItemFailures"]] == expected


def test_every_load_succeeds_or_fails_as_it_says_and_has_a_reason(client: ClientThatAnswers) -> None:
    """A row in which tarry is behind Powertools must be explained."""
    for load in loads(client):
        assert reason(load.name)
        event = event_of(10, groups=load.groups)
        failing = 10 if "all fail" in load.name else 1 if "fail" in load.name else 0
        for name, handler in load.handlers.items():
            failed = handler(event, BenchmarkContext())["batchItemFailures"]
            assert len(failed) == failing, (load.name, name)


def test_ten_failed_messages_cost_tarry_one_request_and_the_loop_by_hand_ten(client: ClientThatAnswers) -> None:
    of.tarry(of.fails)(event_of(10), BenchmarkContext())
    assert client.requests == {"GetQueueAttributes": 1, "ChangeMessageVisibilityBatch": 1}
    client.requests.clear()
    of.by_hand(of.fails, client.sqs)(event_of(10), BenchmarkContext())
    assert client.requests == {"ChangeMessageVisibility": 10}


def test_tarry_makes_the_fewest_requests_possible_for_each_batch() -> None:
    for row in requests.rows(quick=True):
        assert row["requests"][TARRY] == row["fewest"], row["case"]


def test_in_an_outage_tarry_makes_the_fewest_deliveries_and_requests() -> None:
    """The deliveries of a plain visibility timeout follow from the length of the outage."""
    of_strategy = {row["strategy"]: row for row in rows(quick=True)}
    plain, *_, by_hand, tarry = (of_strategy[strategy.name] for strategy in STRATEGIES)
    assert plain["failed_deliveries"] == pytest.approx(3_600 / 30 / 2, rel=0.02)
    assert tarry["failed_deliveries"] < plain["failed_deliveries"] / 10
    assert tarry["requests"] < by_hand["requests"] / 5


def test_a_picture_has_a_bar_for_each_contender_and_the_colours_of_both_themes() -> None:
    bars = [Bar(name, [1.0], ["good"], "1 ms", head="clean <batch>") for name in (BARE, TARRY)]
    svg = Picture("Times & ratios", "", bars, longest=2.0, mark=(1.0, POWERTOOLS)).svg()
    assert svg.count('<rect class="good"') == 2
    assert "clean &lt;batch&gt;" in svg
    assert "prefers-color-scheme: dark" in svg


FIRST_FAILURE = """
import logging, sys, time
time.sleep = lambda _: None  # before a retry
import botocore.httpsession
def refuse(*_):
    raise botocore.httpsession.ConnectionClosedError(endpoint_url="a test makes no requests")
botocore.httpsession.URLLib3Session.send = refuse
logging.disable()
def record():
    return {"messageId": "m", "receiptHandle": "h", "body": "{}", "eventSourceARN": "arn:aws:sqs:us-east-1:1:orders"}
"""
WITH_TARRY = """
from tarry import consumer
@consumer
def handler(message):
    raise ValueError
assert handler({"Records": [record()]}, None)["batchItemFailures"]
print(*sys.modules)
"""
WITH_BOTO3 = """
import boto3
client = boto3.client("sqs")
try:
    client.change_message_visibility(QueueUrl=client.meta.endpoint_url, ReceiptHandle="h", VisibilityTimeout=30)
except Exception:
    pass
print(*sys.modules)
"""


def test_a_first_failure_loads_nothing_but_tarry_that_boto3_does_not_load_for_one_request() -> None:
    def loaded(script: str) -> set[str]:
        region = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1"}
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        command = [sys.executable, "-c", FIRST_FAILURE + script]
        environment = {**os.environ, **region, **keys}
        return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())

    more = loaded(WITH_TARRY) - loaded(WITH_BOTO3)
    assert {name for name in more if name.partition(".")[0] != "tarry"} == set()
