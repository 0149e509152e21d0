"""The guard function: reports to the topic, and runs that end in an error."""

import json
from collections.abc import Callable
from types import ModuleType

import boto3
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends

from tarry.guard.operations import CannotGuard, Clients
from tarry.world import World, use
from tests.unit.test_guard import ORDERS, Consumer, until
from tests.wire import TestClock


@pytest.fixture
def app(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    variables = {"GUARDED": json.dumps([ORDERS._asdict()]), "POWERTOOLS_METRICS_NAMESPACE": "shop"}
    for name, value in {**variables, "REPORT_TOPIC": topic}.items():
        monkeypatch.setenv(name, value)
    return load("guard")


def play(app: ModuleType, consumer: Consumer, minutes: int) -> None:
    app.clients = Clients(consumer, consumer, consumer)  # type: ignore[attr-defined]
    for _ in range(minutes):
        consumer.pass_minute()
        with use(World(TestClock(consumer.now))):
            app.handler({}, None)


def test_each_act_is_reported_to_the_topic_with_its_figures(app: ModuleType) -> None:
    play(app, Consumer(until(4)), 20)
    [topic] = sns_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].topics.values()
    reports = [(subject, json.loads(text)) for _, text, subject, *_ in topic.sent_notifications]
    assert [subject for subject, _ in reports] == [
        "orders suspended: 100% of 9,000 runs failed",
        "orders probing: it was suspended for 5 minutes",
        "orders resuming: 12 of 1,200 runs failed",
        "orders resumed: 60 of 6,000 runs failed",
    ]
    assert reports[0][1] == {
        "consumer": "orders",
        "queue": "shop-orders",
        "mapping": ORDERS.mapping,
        "phase": "suspended",
        "why": "100% of 9,000 runs failed",
        "before": "enabled with MaximumConcurrency 20",
        "after": "disabled with MaximumConcurrency 20",
        "suspended_at": "2027-01-15T08:03:00.000Z",
        "text": reports[0][0],
    }


def test_a_report_that_cannot_be_sent_is_logged_and_the_consumer_is_suspended_all_the_same(
    app: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    app.TOPIC += "-gone"  # type: ignore[attr-defined]
    consumer = Consumer()
    play(app, consumer, 5)
    assert "The report was not sent to arn:aws:sns:us-east-1:123456789012:alarms-gone." in caplog.text
    assert consumer.is_enabled is False


def test_a_look_that_fails_is_an_error_of_the_function_which_its_alarm_counts(app: ModuleType) -> None:
    with pytest.raises(CannotGuard, match="this clock says"):
        play(app, Consumer(skew=120), 1)
    app.NAMESPACE = ""  # type: ignore[attr-defined]
    with pytest.raises(CannotGuard, match="POWERTOOLS_METRICS_NAMESPACE is not set"):
        play(app, Consumer(), 1)
