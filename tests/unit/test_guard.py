"""The guard: outages that it notices, and everything else, which it leaves alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.guard import Clients, Guarded, Limits, guard
from tarry.guard.decision import Note, Setting
from tarry.guard.operations import TAG
from tarry.world import World, use

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE, HOUR = 60.0, 3600.0
START = 1_800_000_000.0
ORDERS = Guarded("orders", "shop-orders", "14e0db71-5d35-4eb5-b481-8945cf9d10c2")
ARN = f"arn:aws:lambda:eu-west-1:123456789012:event-source-mapping:{ORDERS.mapping}"


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "UpdateEventSourceMapping")


class Killed(BaseException):
    """The process of the guard ends, before or after a request took effect."""


@dataclass
class Consumer:
    """A consumer of 50 messages a second, its mapping, and AWS's requests about both, minute by minute."""

    is_down: Callable[[float], bool]
    per_minute: int = 3000
    capacity: int = 12_000
    former: int | None = 20
    lag: float = 60.0
    retention: float = 4 * 24 * HOUR
    now: float = START
    is_enabled: bool = True
    state: str = "Enabled"
    maximum: int | None = 20
    tags: dict[str, str] = field(default_factory=dict)
    backlog: int = 0
    runs: dict[float, tuple[int, int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    fails_at: dict[int, BaseException] = field(default_factory=dict)
    """By the number of the request; every second one takes effect before."""
    queue_consumers: int = 1
    skew: float = 0.0
    pollers: bool = False

    def __post_init__(self) -> None:
        self.maximum = self.former

    def pass_minute(self) -> None:
        self.backlog += self.per_minute
        if self.state == "Enabled":
            share = 1.0 if self.maximum is None else min(1.0, self.maximum / 20)
            done = min(self.backlog, int(self.capacity * share))
            failed = done if self.is_down(self.now - START) else done // 100
            self.runs[self.now] = done, failed
            self.backlog -= done - failed
        self.now += MINUTE
        self.state = "Enabled" if self.is_enabled else "Disabled"

    # the requests

    def _asked(self, name: str, effect: Callable[[], Any] = lambda: None) -> Any:
        number = len(self.requests)
        self.requests.append(name)
        error = self.fails_at.get(number)
        if error is None:
            return effect()
        if number % 2:
            effect()
        raise error

    def get_metric_data(self, **asked: Any) -> Any:
        def answer() -> Any:
            seen = [(at, *counts) for at, counts in self.runs.items() if at + MINUTE + self.lag <= self.now]
            since = asked["StartTime"].timestamp()
            seen = [each for each in seen if each[0] >= since]
            times = [datetime.fromtimestamp(at, UTC) for at, *_ in seen]
            date = datetime.fromtimestamp(self.now + self.skew, UTC)
            return {
                "ResponseMetadata": {"HTTPHeaders": {"date": f"{date:%a, %d %b %Y %H:%M:%S GMT}"}},
                "MetricDataResults": [
                    {"Id": "ended0", "Timestamps": times, "Values": [float(ended) for _, ended, _ in seen]},
                    {"Id": "failed0", "Timestamps": times, "Values": [float(failed) for *_, failed in seen]},
                ],
            }

        return self._asked("GetMetricData", answer)

    def get_metric_statistics(self, **_: Any) -> Any:
        age = self.backlog / self.per_minute * MINUTE
        return self._asked(
            "GetMetricStatistics",
            lambda: {"Datapoints": [{"Timestamp": datetime.fromtimestamp(self.now - MINUTE, UTC), "Maximum": age}]},
        )

    def get_queue_url(self, **_: Any) -> Any:
        return self._asked("GetQueueUrl", lambda: {"QueueUrl": "https://sqs/shop-orders"})

    def get_queue_attributes(self, **_: Any) -> Any:
        attributes = {"MessageRetentionPeriod": str(int(self.retention))}
        return self._asked("GetQueueAttributes", lambda: {"Attributes": attributes})

    def get_event_source_mapping(self, **_: Any) -> Any:
        scaling = {} if self.maximum is None else {"ScalingConfig": {"MaximumConcurrency": self.maximum}}
        pollers = {"ProvisionedPollerConfig": {"MinimumPollers": 2}} if self.pollers else {}
        found = {
            "UUID": ORDERS.mapping,
            "EventSourceMappingArn": ARN,
            "EventSourceArn": "arn:queue",
            "State": self.state,
        }
        return self._asked("GetEventSourceMapping", lambda: {**found, **scaling, **pollers})

    def list_event_source_mappings(self, **_: Any) -> Any:
        return self._asked("ListEventSourceMappings", lambda: {"EventSourceMappings": [{}] * self.queue_consumers})

    def list_tags(self, **_: Any) -> Any:
        return self._asked("ListTags", lambda: {"Tags": dict(self.tags)})

    def tag_resource(self, *, Tags: dict[str, str], **_: Any) -> None:
        self._asked("TagResource", lambda: self.tags.update(Tags))

    def untag_resource(self, **_: Any) -> None:
        self._asked("UntagResource", self.tags.clear)

    def update_event_source_mapping(self, **asked: Any) -> None:
        def effect() -> None:
            if self.state not in ("Enabled", "Disabled"):
                raise client_error("ResourceInUseException")
            self.is_enabled = asked["Enabled"]
            self.maximum = asked["ScalingConfig"].get("MaximumConcurrency")
            self.state = "Enabling" if self.is_enabled else "Disabling"

        self._asked("UpdateEventSourceMapping", effect)

    # the guard

    def look(self, consumer: Guarded = ORDERS, namespace: str = "shop") -> list[dict[str, Any]]:
        with use(World(clock=AtTime(self.now))):
            try:
                return list(guard([consumer], namespace, Limits(), Clients(self, self, self)))
            except Killed:
                return []

    def play(self, minutes: int) -> list[tuple[float, str]]:
        """Return the phases that were told, each with its minute."""
        told = []
        for _ in range(minutes):
            self.pass_minute()
            told += [((self.now - START) / MINUTE, act["phase"]) for act in self.look()]
        return told


@dataclass
class AtTime:
    now: float

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


def between(start: float, end: float) -> Callable[[float], bool]:
    return lambda now: start <= now < end


@pytest.mark.parametrize("former", [20, 8, None])
def test_a_consumer_is_suspended_within_three_minutes_probed_and_resumed_in_steps(former: int | None) -> None:
    consumer = Consumer(between(2 * HOUR, 2 * HOUR + 15 * MINUTE), former=former)
    told = consumer.play(4 * 60)
    before = "probing" if former == 8 else "resuming"
    assert [phase for _, phase in told][-2:] == [before, "restoring"]
    assert told[0][1] == "suspended"
    assert 2 * 60 < told[0][0] <= 2 * 60 + 4
    assert told[-1][0] <= 2 * 60 + 15 + 16
    assert (consumer.state, consumer.maximum, consumer.tags) == ("Enabled", former, {})


def test_a_long_outage_ends_the_suspension_after_six_hours_and_is_not_suspended_again() -> None:
    consumer = Consumer(between(2 * HOUR, 32 * HOUR))
    told = consumer.play(34 * 60)
    assert [phase for _, phase in told].count("restoring") == 1
    assert told[-1][1] == "restoring"
    assert told[-1][0] == pytest.approx(told[0][0] + 6 * 60, abs=6)
    assert (consumer.state, consumer.maximum, consumer.tags) == ("Enabled", 20, {})


def test_a_consumer_is_resumed_an_hour_before_messages_expire() -> None:
    consumer = Consumer(between(2 * HOUR, 32 * HOUR), retention=3 * HOUR)
    told = consumer.play(6 * 60)
    assert told[-1][1] == "restoring"
    assert told[-1][0] <= 2 * 60 + 2 * 60 + 5


@pytest.mark.parametrize(
    ("is_down", "runs"),
    [
        (lambda now: False, 3000),
        (lambda now: True, 3000),  # it has failed ever since: not an outage that begins
        (between(2 * HOUR, 2 * HOUR + 4 * MINUTE), 2),  # too few runs to tell
    ],
)
def test_a_consumer_without_an_outage_is_left_alone(is_down: Callable[[float], bool], runs: int) -> None:
    consumer = Consumer(is_down, per_minute=runs)
    assert consumer.play(4 * 60) == []
    assert {*consumer.requests} == {"GetMetricData", "GetEventSourceMapping", "ListTags"}


OUTAGE = between(2 * HOUR, 3 * HOUR)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"pollers": True}, "The guard leaves orders as it is: its mapping has provisioned pollers"),
        ({"queue_consumers": 2}, "shop-orders has 2 consumers; the others would get its messages"),
        ({"skew": 120.0}, "The guard changes nothing: this clock says"),
        ({"tags": {TAG: "mine"}}, "remove the tag tarry:guard from"),
    ],
)
def test_what_cannot_be_guarded_is_told_and_not_changed(
    changes: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(OUTAGE, **changes)
    assert consumer.play(3 * 60) == []
    assert line in caplog.text
    assert (consumer.is_enabled, "UpdateEventSourceMapping" in consumer.requests) == (True, False)


def test_a_fifo_queue_a_missing_namespace_and_a_missing_mapping_are_told(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(OUTAGE)
    consumer.play(2 * 60 + 3)
    assert consumer.is_enabled is False
    other = Consumer(OUTAGE)
    for _ in range(2 * 60 + 4):
        other.pass_minute()
        other.look(ORDERS._replace(queue="orders.fifo"))
    other.look(namespace="")
    other.fails_at = {len(other.requests) + 1: client_error("ResourceNotFoundException")}
    other.look()
    for text in ("orders.fifo is a FIFO queue", "POWERTOOLS_METRICS_NAMESPACE is not set", "does not exist; deploy"):
        assert text in caplog.text
    assert other.is_enabled is True


def test_metrics_that_lag_by_five_minutes_change_nothing_or_resume() -> None:
    consumer = Consumer(OUTAGE, lag=5 * MINUTE)
    assert consumer.play(4 * 60) == []
    assert consumer.is_enabled is True


def test_a_mapping_that_another_has_changed_is_left_to_them() -> None:
    for state, maximum in (("Enabled", 20), ("Disabled", 5)):
        consumer = Consumer(OUTAGE)
        consumer.play(2 * 60 + 5)
        assert consumer.state == "Disabled"
        consumer.state, consumer.is_enabled, consumer.maximum = state, state == "Enabled", maximum
        assert [act["phase"] for act in consumer.look()] == ["left"]
        assert (consumer.state, consumer.maximum, consumer.tags) == (state, maximum, {})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_whatever_request_fails_or_ends_the_guard_the_former_setting_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    start = rng.uniform(1, 3) * HOUR
    consumer = Consumer(between(start, start + rng.uniform(3, 400) * MINUTE), former=rng.choice([None, 2, 20, 500]))
    errors = [Killed(), client_error("ThrottlingException"), client_error("ResourceInUseException")]
    consumer.fails_at = {number: rng.choice(errors) for number in rng.sample(range(4000), 400)}
    consumer.play(14 * 60)
    consumer.fails_at = {}
    consumer.play(30)
    assert (consumer.state, consumer.maximum, consumer.tags) == ("Enabled", consumer.former, {})


@given(
    note=st.builds(
        Note,
        phase=st.sampled_from(["suspended", "probing", "judging", "resuming", "restoring"]),
        since=st.integers(0, 10**10).map(float),
        at=st.integers(0, 10**10).map(float),
        former=st.none() | st.integers(2, 1000),
        setting=st.builds(Setting, st.booleans(), st.none() | st.integers(2, 1000)),
        before=st.builds(Setting, st.booleans(), st.none() | st.integers(2, 1000)),
        is_set=st.booleans(),
        step=st.integers(0, 1),
        ended=st.integers(0, 10**9),
        failed=st.integers(0, 10**9),
    )
)
def test_a_note_is_read_as_it_was_written_and_fits_a_tag(note: Note) -> None:
    assert Note.read(note.text()) == note
    assert len(note.text()) <= 256
    assert all(each.isalnum() or each in " +-=._:/@" for each in note.text())
