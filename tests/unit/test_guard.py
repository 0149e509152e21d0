"""The guard: outages that it notices, and everything else, which it leaves alone."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.guard.decision import PHASES, GuardLimits, Note, Setting
from tarry.guard.operations import TAG, CannotGuard, Clients, Guarded, guard
from tarry.world import World, use
from tests.wire import TestClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE, HOUR = 60.0, 3600.0
START = 1_800_000_000.0
ORDERS = Guarded("orders", "shop-orders", "14e0db71-5d35-4eb5-b481-8945cf9d10c2")
ARN = f"arn:aws:lambda:eu-west-1:123456789012:event-source-mapping:{ORDERS.mapping}"
LOOK = ["GetMetricData", "GetEventSourceMapping", "ListTags"]
SUSPENDED = [*LOOK, "GetQueueUrl", "GetQueueAttributes", "ListEventSourceMappings", "GetMetricStatistics"]
CHANGE = ["GetEventSourceMapping", "TagResource", "UpdateEventSourceMapping", "TagResource"]


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "UpdateEventSourceMapping")


def until(minutes: float) -> Callable[[float], bool]:
    return lambda now: now < minutes * MINUTE


def plainly(number: int, name: str, effect: Callable[[], Any]) -> Any:
    return effect()


class Killed(BaseException):
    """The process of the guard ends."""


@dataclass
class Consumer:
    """A consumer of 50 messages a second, its mapping, and AWS's requests about both, minute by minute."""

    is_down: Callable[[float], bool] = lambda now: now < HOUR
    per_minute: int = 3000
    failed_before: int = 30
    former: int | None = 20
    lag: float = 60.0
    retention: float = 4 * 24 * HOUR
    age: float | None = 0.0
    """Of the oldest message before the outage; None if CloudWatch does not tell it."""
    now: float = START
    is_enabled: bool = True
    state: str = "Enabled"
    pollers: bool = False
    queue_consumers: int = 1
    skew: float = 0.0
    status: str = "Complete"
    pages: int = 1
    tags: dict[str, str] = field(default_factory=dict)
    backlog: int = 0
    requests: list[str] = field(default_factory=list)
    happens: Callable[[int, str, Callable[[], Any]], Any] = plainly
    """The fate of a request, by its number and its name."""

    def __post_init__(self) -> None:
        self.maximum = self.former
        self.runs = {START - each * MINUTE: (self.per_minute, self.failed_before) for each in range(20, 0, -1)}

    def pass_minute(self) -> None:
        self.backlog += self.per_minute
        if self.state == "Enabled":
            done = min(self.backlog, int(12_000 * min(1.0, (self.maximum or 20) / 20)))
            failed = done if self.is_down(self.now - START) else done // 100
            self.runs[self.now] = done, failed
            self.backlog -= done - failed
        self.now += MINUTE
        self.state = "Enabled" if self.is_enabled else "Disabled"

    def change(self, enabled: bool, maximum: int | None) -> None:
        if self.state not in ("Enabled", "Disabled"):
            raise client_error("ResourceInUseException")
        self.is_enabled, self.maximum, self.state = enabled, maximum, "Updating"

    # the requests

    def _asked(self, name: str, effect: Callable[[], Any]) -> Any:
        self.requests.append(name)
        return self.happens(len(self.requests) - 1, name, effect)

    def get_metric_data(self, **asked: Any) -> Any:
        def answer() -> Any:
            last, page = self.now - MINUTE - self.lag, int(asked.get("NextToken", 1))
            seen = [(at, *of) for at, of in self.runs.items() if asked["StartTime"].timestamp() <= at <= last]
            seen = seen[page - 1 :: self.pages]
            times = [datetime.fromtimestamp(at, UTC) for at, *_ in seen]
            of = {"Timestamps": times, "StatusCode": self.status if page == self.pages else "PartialData"}
            date = datetime.fromtimestamp(self.now + self.skew, UTC)
            return {
                "ResponseMetadata": {"HTTPHeaders": {"date": f"{date:%a, %d %b %Y %H:%M:%S GMT}"}},
                "MetricDataResults": [
                    {"Id": "ended0", "Values": [float(ended) for _, ended, _ in seen], **of},
                    {"Id": "failed0", "Values": [float(failed) for *_, failed in seen], **of},
                ],
                **({"NextToken": str(page + 1)} if page < self.pages else {}),
            }

        return self._asked("GetMetricData", answer)

    def get_metric_statistics(self, **_: Any) -> Any:
        age = (self.age or 0) + self.backlog / self.per_minute * MINUTE
        point = {"Timestamp": datetime.fromtimestamp(self.now - MINUTE, UTC), "Maximum": age}
        return self._asked("GetMetricStatistics", lambda: {"Datapoints": [] if self.age is None else [point]})

    def get_queue_url(self, **_: Any) -> Any:
        return self._asked("GetQueueUrl", lambda: {"QueueUrl": "https://sqs/shop-orders"})

    def get_queue_attributes(self, **_: Any) -> Any:
        ready, retention = str(int(self.backlog)), str(int(self.retention))
        attributes = {"ApproximateNumberOfMessages": ready, "MessageRetentionPeriod": retention}
        return self._asked("GetQueueAttributes", lambda: {"Attributes": attributes})

    def get_event_source_mapping(self, **_: Any) -> Any:
        found: dict[str, Any] = {"UUID": ORDERS.mapping, "EventSourceMappingArn": ARN, "EventSourceArn": "arn:queue"}
        found |= {} if self.maximum is None else {"ScalingConfig": {"MaximumConcurrency": self.maximum}}
        found |= {"ProvisionedPollerConfig": {"MinimumPollers": 2}} if self.pollers else {}
        return self._asked("GetEventSourceMapping", lambda: found | {"State": self.state})

    def list_event_source_mappings(self, **_: Any) -> Any:
        return self._asked("ListEventSourceMappings", lambda: {"EventSourceMappings": [{}] * self.queue_consumers})

    def list_tags(self, **_: Any) -> Any:
        return self._asked("ListTags", lambda: {"Tags": dict(self.tags)})

    def tag_resource(self, *, Tags: dict[str, str], **_: Any) -> None:
        self._asked("TagResource", lambda: self.tags.update(Tags))

    def untag_resource(self, **_: Any) -> None:
        self._asked("UntagResource", self.tags.clear)

    def update_event_source_mapping(self, *, Enabled: bool, ScalingConfig: Any = None, **_: Any) -> None:
        assert ScalingConfig is None or not self.pollers, "Lambda refuses both"
        maximum = self.maximum if ScalingConfig is None else ScalingConfig.get("MaximumConcurrency")
        self._asked("UpdateEventSourceMapping", lambda: self.change(Enabled, maximum))

    # the guard

    def acts(self, consumer: Guarded = ORDERS, namespace: str = "shop") -> Iterator[dict[str, Any]]:
        with use(World(TestClock(self.now))):
            yield from guard([consumer], namespace, GuardLimits(), Clients(self, self, self))

    def look(self) -> list[tuple[float, str]]:
        """Look once, whatever becomes of it; return the phases that were reported, each with its minute."""
        phases: list[tuple[float, str]] = []
        with suppress(CannotGuard, Killed):
            phases.extend(((self.now - START) / MINUTE, act["phase"]) for act in self.acts())
        return phases

    def play(self, minutes: int) -> list[tuple[float, str]]:
        phases = []
        for _ in range(minutes):
            self.pass_minute()
            phases += self.look()
        return phases

    @property
    def has(self) -> tuple[bool, int | None, dict[str, str]]:
        return self.is_enabled, self.maximum, self.tags


# outages


@pytest.mark.parametrize(("former", "steps"), [(20, 1), (8, 0), (None, 1)])
def test_a_consumer_is_suspended_within_four_minutes_probed_and_resumed_in_steps(
    former: int | None, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tarry.guard")
    consumer = Consumer(until(15), former=former, pages=2)
    phases = consumer.play(60)
    of_probes = ["probing", "suspended", "probing"]
    assert [phase for _, phase in phases] == ["suspended", *of_probes, *["resuming"] * steps, "resumed"]
    assert (phases[0][0] <= 4, phases[-1][0] <= 15 + 10) == (True, True)
    assert consumer.has == (True, former, {})
    asked, done = [each for each in caplog.records if "orders suspended: 100% of" in each.message]
    assert asked.message == f"Asked of Lambda: {done.message}"
    assert vars(done)["audit"] == vars(asked)["audit"]
    maximum = f"MaximumConcurrency {former or 'unset'}"
    settings = {"before": f"enabled with {maximum}", "after": f"disabled with {maximum}"}
    assert vars(done)["audit"].items() >= {"phase": "suspended", "queue": "shop-orders", **settings}.items()


def test_a_look_makes_three_requests_and_seven_while_a_consumer_is_suspended_and_a_change_four_more() -> None:
    consumer, looks = Consumer(), []
    for _ in range(5):
        consumer.play(1)
        looks.append(consumer.requests[:])
        consumer.requests.clear()
    assert looks == [LOOK, LOOK, SUSPENDED + CHANGE, SUSPENDED, SUSPENDED]


def test_a_suspension_ends_after_six_hours_or_an_hour_before_messages_expire_and_does_not_begin_again() -> None:
    for retention, hours in ((4 * 24 * HOUR, 6), (3 * HOUR, 2)):
        consumer = Consumer(until(30 * 60), retention=retention)
        phases = consumer.play(8 * 60)
        assert [phase for _, phase in phases].count("resumed") == 1
        assert phases[-1][0] == pytest.approx(hours * 60, abs=10)
        assert consumer.has == (True, 20, {})


@pytest.mark.parametrize(
    "changes",
    [
        {"is_down": until(0)},
        {"failed_before": 3000},  # it has failed ever since: not an outage that begins
        {"is_down": until(3), "per_minute": 2},  # too few runs to tell
        {"per_minute": 0},
        {"is_down": lambda now: now % (5 * MINUTE) < MINUTE},  # too short
    ],
)
def test_a_consumer_without_an_outage_that_begins_is_left_alone(changes: dict[str, Any]) -> None:
    consumer = Consumer(**changes)
    assert consumer.play(60) == []
    assert consumer.requests == LOOK * 60


@pytest.mark.parametrize(("failing", "is_suspended"), [(319, False), (321, True)])
def test_the_retries_of_poison_messages_that_are_left_of_a_load_are_no_outage(failing: int, is_suspended: bool) -> None:
    consumer = Consumer(failed_before=160)
    consumer.per_minute = 1
    for _ in range(3):
        consumer.pass_minute()
        consumer.runs[consumer.now - MINUTE] = failing, failing
    assert bool(consumer.look()) == is_suspended


def test_a_consumer_without_runs_in_the_hour_before_is_not_suspended() -> None:
    consumer = Consumer()
    consumer.runs.clear()
    assert consumer.play(30) == []
    assert consumer.requests == LOOK * 30


# bad input


@pytest.mark.parametrize(
    ("changes", "line", "is_error"),
    [
        ({"pollers": True}, "orders as it is: with provisioned pollers, it has no", True),
        ({"queue_consumers": 2}, "orders as it is: its queue has 2 consumers", True),
        ({"age": None}, "orders as it is: CloudWatch does not tell the age of its oldest message", True),
        ({"age": 2.5 * HOUR, "retention": 3 * HOUR}, "orders as it is: the oldest message expires in 2", True),
        ({"tags": {TAG: "mine"}}, "remove the tag tarry:guard from", True),
        ({"is_enabled": False, "state": "Disabled"}, "or they come late; its mapping is disabled with", False),
        ({"lag": 5 * MINUTE}, "orders as it is: it has no metrics since", False),
        ({"lag": 5 * HOUR}, "orders as it is: it has no metrics in the last hour", False),
        ({"skew": 120.0}, "The guard changes nothing: this clock says", True),
        ({"status": "InternalError"}, "The guard changes nothing: CloudWatch's answer is InternalError", True),
    ],
)
def test_a_consumer_that_cannot_be_guarded_is_logged_and_not_changed(
    changes: dict[str, Any], line: str, is_error: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tarry.guard")
    consumer, errors = Consumer(**changes), []
    for _ in range(10):
        consumer.pass_minute()
        try:
            assert not [*consumer.acts()]
        except CannotGuard as error:
            errors.append(str(error))
    assert line in f"{caplog.text} {errors}"
    assert bool(errors) == is_error
    assert not {*CHANGE[1:], "UntagResource"} & {*consumer.requests}


@pytest.mark.parametrize(
    ("code", "of", "line"),
    [
        ("ResourceNotFoundException", "GetEventSourceMapping", f"(mapping {ORDERS.mapping})"),
        ("AccessDenied", "GetMetricData", "The guard changes nothing, because it has no metrics: An error occurred"),
        ("ThrottlingException", "ListTags", "The guard left orders as they are; the lines before tell why"),
    ],
)
def test_a_request_that_fails_is_an_error_of_the_run_and_changes_nothing(
    code: str, of: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    def happens(number: int, name: str, effect: Callable[[], Any]) -> Any:
        if name == of:
            raise client_error(code)
        return effect()

    consumer = Consumer(happens=happens)
    with pytest.raises(CannotGuard) as error:
        [*consumer.acts()]
    assert line in f"{caplog.text} {error.value}"
    assert consumer.requests == LOOK[: LOOK.index(of) + 1]


def test_a_fifo_queue_and_a_missing_namespace_are_errors_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer()
    with pytest.raises(CannotGuard, match="left orders"):
        [*consumer.acts(ORDERS._replace(queue="orders.fifo"))]
    assert "a failed message of a FIFO queue holds up its group anyway" in caplog.text
    with pytest.raises(CannotGuard, match="POWERTOOLS_METRICS_NAMESPACE is not set"):
        [*consumer.acts(namespace="")]
    assert consumer.requests == LOOK


# changes by others


@pytest.mark.parametrize("enabled", [None, True, False])
@pytest.mark.parametrize("maximum", [None, 5, 30])
def test_a_change_by_another_stays_whenever_it_is_made_and_the_guard_takes_only_its_own_back(
    enabled: bool | None, maximum: int | None
) -> None:
    before, moments = Consumer(until(12)), 0
    for _ in range(24):
        before.play(1)
        if before.state == "Updating":
            continue  # Lambda refuses other changes now
        consumer, moments = deepcopy(before), moments + 1
        consumer.change(before.is_enabled if enabled is None else enabled, maximum or before.maximum)
        consumer.play(90)
        is_enabled = enabled is not False or not before.is_enabled  # disabling a disabled mapping changes nothing
        assert consumer.has == (is_enabled, maximum or 20, {}), before.tags
    assert moments > 15


def test_a_consumer_that_another_has_enabled_is_left_alone_for_an_hour() -> None:
    consumer = Consumer(until(90))
    consumer.play(5)
    assert consumer.is_enabled is False
    consumer.change(enabled=True, maximum=20)
    assert consumer.play(62) == [(6, "left")]
    assert consumer.has == (True, 20, {})


def test_a_suspended_consumer_is_resumed_when_its_mapping_gets_provisioned_pollers() -> None:
    consumer = Consumer()
    consumer.play(5)
    consumer.pollers, consumer.maximum = True, None
    assert [phase for _, phase in consumer.play(5)] == ["suspended", "resumed"]
    assert consumer.has == (True, None, {})


# crashes, errors and a second guard, at each request


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("what", [Killed(), client_error("ThrottlingException"), "another look"])
def test_whatever_happens_at_a_request_the_former_setting_comes_back(
    what: BaseException | str, is_before: bool
) -> None:
    def happens(number: int, name: str, effect: Callable[[], Any]) -> Any:
        if number != disturbed:
            return effect()
        answer = None if is_before else effect()
        if isinstance(what, BaseException):
            raise what
        consumer.look()
        return effect() if is_before else answer

    whole = Consumer(until(10))
    assert len(whole.play(30)) == 6
    for disturbed in range(len(whole.requests)):
        consumer = Consumer(until(10), happens=happens)
        consumer.play(36)
        assert consumer.has == (True, 20, {}), (disturbed, whole.requests[disturbed], consumer.tags)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_former_setting_comes_back_whatever_fails_and_however_often(seed: int) -> None:
    rng = random.Random(seed)
    errors = [Killed(), client_error("ThrottlingException"), client_error("ResourceInUseException")]

    def happens(number: int, name: str, effect: Callable[[], Any]) -> Any:
        is_disturbed, is_before = rng.random() < 0.1, rng.random() < 0.5
        answer = None if is_disturbed and is_before else effect()
        if is_disturbed:
            raise rng.choice(errors)
        return answer

    consumer = Consumer(until(rng.uniform(3, 400)), former=rng.choice([None, 2, 20, 500]), happens=happens)
    consumer.play(7 * 60)
    consumer.happens = plainly
    consumer.play(30)
    assert consumer.has == (True, consumer.former, {})


@given(
    note=st.builds(
        Note,
        phase=st.sampled_from(PHASES),
        since=st.integers(0, 10**10).map(float),
        at=st.integers(0, 10**10).map(float),
        former=st.none() | st.integers(2, 1000),
        setting=st.builds(Setting, st.booleans(), st.none() | st.integers(2, 1000)),
        before=st.builds(Setting, st.booleans(), st.none() | st.integers(2, 1000)),
        doublings=st.integers(0, 9),
        ended=st.integers(0, 10**9),
        failed=st.integers(0, 10**9),
    )
)
def test_a_note_is_read_as_it_was_written_and_fits_a_tag(note: Note) -> None:
    assert Note.read(note.text()) == note
    assert len(note.text()) <= 256
    assert all(each.isalnum() or each in " +-=._:/@" for each in note.text())
