"""The redrive function on moto: retries and removes dead letters, archives, reports."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends

from tarry import failed
from tarry.testing import lambda_context
from tarry.world import World, current, use
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import RunningClock, arn

EVENTS = Path(__file__).parents[3] / "events"
BUCKET = "removed-dead-letters"


class Clock(RunningClock):
    """A clock whose sleeps take no time, on top of a real one."""

    slept = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += seconds


class Redrive:
    """Queues with dead letters, and the function."""

    def __init__(self, app: ModuleType, clock: Clock) -> None:
        self.app = app
        self.clock = clock
        self.sqs: Any = boto3.client("sqs")
        self.s3: Any = boto3.client("s3")
        self.dlq = self.sqs.create_queue(QueueName="orders-dlq")["QueueUrl"]
        redrive = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 5})
        self.queue = self.sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": redrive})["QueueUrl"]

    def put(self, count: int, attempts: int = 5) -> None:
        for index in range(count):
            body = json.dumps({"id": index})
            text = json.dumps(envelope_of(body, f"id-{index}", attempts=attempts))
            attributes = {"Tarry": {"DataType": "String", "StringValue": text}}
            self.sqs.send_message(QueueUrl=self.dlq, MessageBody=body, MessageAttributes=attributes)

    def run(self, remaining: float = 300, **event: Any) -> dict[str, Any]:
        with use(World(self.clock, current().random, None, current().threads)):
            answer = self.app.handler({"queue": "orders-dlq", **event}, lambda_context(remaining))
        assert json.loads(json.dumps(answer)) == answer
        return dict(answer)

    def depths(self) -> tuple[int, int, int]:
        """Return the numbers of messages in orders, visible in orders-dlq, and in flight there."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = [
            self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            for url in (self.queue, self.dlq)
        ]
        return int(found[0][names[0]]), int(found[1][names[0]]), int(found[1][names[1]])

    def archive(self) -> dict[str, bytes]:
        keys = [each["Key"] for each in self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
        return {key: self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}


@pytest.fixture
def redrive(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[Redrive]:
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    monkeypatch.setenv("ARCHIVE_BUCKET", BUCKET)
    monkeypatch.setenv("REPORT_TOPIC", topic)
    monkeypatch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)
    return Redrive(load("redrive"), Clock())


def reports() -> list[tuple[str, dict[str, Any]]]:
    [topic] = sns_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].topics.values()
    return [(subject, json.loads(text)) for _, text, subject, *_ in topic.sent_notifications]


def test_dead_letters_are_retried_up_to_the_limit_at_the_rate_and_reported(
    redrive: Redrive, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC M7
    caplog.set_level(logging.INFO)
    redrive.put(15)
    redrive.put(10, attempts=20)
    answer = redrive.run(action="retry", where=["attempts < 20"], limit=12, rate=2)
    assert (answer["outcomes"], answer["is_cut_short"], len(answer["ids"])) == ({"retried": 12}, False, 12)
    assert redrive.depths() == (12, 13, 0)
    assert 4 < redrive.clock.slept <= 5  # ten, then two, at 2 a second
    [(subject, report)] = reports()
    assert (subject, report) == ("redrive of orders-dlq: retried 12", answer)
    begun, line = [each for each in caplog.records if hasattr(each, "audit")]
    assert (vars(begun)["audit"]["where"], vars(begun)["audit"]["outcomes"]) == (["attempts < 20"], {})
    assert (line.levelname, vars(line)["audit"]) == ("INFO", answer)


def test_removed_dead_letters_are_in_the_bucket_first_and_can_be_restored(redrive: Redrive, tmp_path: Path) -> None:
    redrive.put(12)
    answer = redrive.run(action="remove", where=["body.id < 11"])
    assert (answer["outcomes"], redrive.depths()) == ({"deleted": 11}, (0, 1, 0))
    found = redrive.archive()
    assert len(found) == 4  # ten, their deletion, one, its deletion
    prefix = answer["archive"].removeprefix(f"s3://{BUCKET}/")
    assert [key.removeprefix(prefix) for key in found] == [f"0000{number}.jsonl" for number in (1, 2, 3, 4)]
    [first, *_] = found
    assert redrive.s3.head_object(Bucket=BUCKET, Key=first)["ServerSideEncryption"] == "AES256"
    archive = tmp_path / "removed.jsonl"
    archive.write_bytes(b"".join(found.values()))
    assert {each.outcome for each in failed.restore(archive, failed.find("orders-dlq"))} == {"restored"}
    assert redrive.depths() == (0, 12, 0)


def test_what_cannot_be_archived_is_not_removed_and_the_function_fails(redrive: Redrive) -> None:
    redrive.put(3)
    redrive.s3.delete_bucket(Bucket=BUCKET)
    with pytest.raises(ClientError, match="NoSuchBucket"):
        redrive.run(action="remove", where=["attempts = 5"])
    assert redrive.depths() == (0, 3, 0)
    [(_, report)] = reports()
    assert report["error"].startswith("NoSuchBucket: ")


def test_it_ends_before_its_time_does_and_a_second_run_continues(redrive: Redrive) -> None:
    redrive.put(30)
    answer = redrive.run(action="retry", rate=1, remaining=48)
    assert (answer["is_cut_short"], answer["outcomes"]["retried"]) == (True, 20)
    assert redrive.depths() == (20, 10, 0)
    assert redrive.run(action="retry", rate=1000)["outcomes"] == {"retried": 10}
    assert redrive.run(action="retry", remaining=29)["outcomes"] == {}


def test_a_topic_that_refuses_the_report_is_logged(redrive: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    redrive.app.TOPIC = "arn:aws:sns:us-east-1:123456789012:none"
    redrive.put(1)
    assert redrive.run(action="retry")["outcomes"] == {"retried": 1}
    assert "The report was not sent to arn:aws:sns:us-east-1:123456789012:none." in caplog.text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"action": "delete"}, "action must be retry or remove, got 'delete'"),
    ({"action": "retry", "queue": 7}, "queue must be the name or URL of a dead-letter queue, got 7"),
    ({"action": "retry", "max": 7}, "unknown field 'max'; the fields are queue, action, where, limit, rate, to"),
    ({"action": "retry", "limit": "5"}, "limit must be a whole number from 1 to 100000, got '5'"),
    ({"action": "retry", "limit": True}, "limit must be a whole number from 1 to 100000, got True"),
    ({"action": "retry", "rate": 0}, "rate must be a number of dead letters a second from 0.1 to 1000, got 0"),
    ({"action": "retry", "where": "attempts < 3"}, "where must be a list of conditions"),
    ({"action": "retry", "where": ["attempts"]}, "where: invalid condition 'attempts' at column"),
    ({"action": "remove"}, "where must have a condition if the action is remove: this function empties no queue"),
    ({"action": "remove", "where": ["a = 1"], "to": "x"}, "to must be the name or URL of a queue, and goes with"),
]


def test_a_wrong_event_is_one_error_and_changes_nothing(redrive: Redrive) -> None:
    redrive.put(1)
    for event, line in WRONG:
        with pytest.raises(redrive.app.BadRequest) as error:
            redrive.run(**event)
        assert line in str(error.value)
        assert "\n" not in str(error.value)
    assert redrive.depths() == (0, 1, 0)


def test_the_sample_events_are_requests(redrive: Redrive) -> None:
    actions = [redrive.app.read(json.loads(path.read_text())).action for path in sorted(EVENTS.glob("redrive*.json"))]
    assert actions == ["remove", "retry"]
