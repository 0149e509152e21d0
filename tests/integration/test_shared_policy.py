"""``policy=RetryPolicy(...)``, which several consumers can share, and backoffs written by the user."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    DeadLetter,
    Fixed,
    LocalRetry,
    Message,
    RetryInPlace,
    RetryPolicy,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire

PATIENT = RetryPolicy(max_attempts=8, backoff=Fixed(77), fatal=KeyError)


def fails(_: Any) -> None:
    raise ValueError("out of order")


def orders() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq"), "orders.fifo": Queue(dead_letter="dlq.fifo")})


# policy=


def test_consumers_of_messages_and_batches_share_a_policy_whatever_their_failure_steps() -> None:  # SPEC C1, B7, E1
    first, second = consumer(policy=PATIENT)(fails), batch_consumer(policy=PATIENT)(fails)
    assert consumer(policy=PATIENT, on_failure=NOT_IN_PLACE)(fails).policy is first.policy is second.policy is PATIENT
    with orders() as wire:
        assert failed(first(batch_of(1), Context())) == ["m0"]
        assert failed(second(event(record()), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m0": 77, "handle-m1": 77}


def test_a_shared_policy_decides_which_errors_are_fatal() -> None:  # SPEC C1, D1
    @consumer(policy=PATIENT)
    def handler(message: Message) -> None:
        raise KeyError("customer")

    with orders() as wire:
        assert failed(handler(batch_of(1), Context())) == []
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == ["fatal"]


NOT_IN_PLACE = [SendAgain("slow"), DeadLetter()]
SINGLE = {
    "max_attempts": 3,
    "backoff": Fixed(1),
    "fatal": KeyError,
    "retry_on": OSError,
    "retry_when": lambda failure: None,
    "traverse_causes": True,
}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("make", [consumer, batch_consumer])
def test_a_policy_beside_a_single_setting_is_refused_with_both_names(make: Any, name: str) -> None:  # SPEC C1
    with pytest.raises(ConfigurationError) as caught:
        make(**{"policy": PATIENT, name: SINGLE[name]})
    assert str(caught.value) == f"policy and {name} are both given: set {name} in the RetryPolicy, or remove policy"


def test_settings_that_are_none_count_as_not_given() -> None:  # SPEC C1
    assert consumer(policy=PATIENT, backoff=None, retry_on=None, retry_when=None)(fails).policy is PATIENT
    assert consumer(policy=None, max_attempts=3)(fails).policy == RetryPolicy(3)


@pytest.mark.parametrize("odd", [5, {"max_attempts": 3}, RetryPolicy, Fixed(3)])
def test_an_invalid_policy_is_refused(odd: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=r"policy takes a RetryPolicy\(\.\.\.\), got "):
        consumer(policy=odd)


# replace


def test_replacing_a_single_setting_changes_a_shared_policy_only_for_that_consumer() -> None:  # SPEC C1
    before = consumer(policy=PATIENT)(fails)
    assert before.replace(timeout=3).policy is PATIENT
    after = before.replace(max_attempts=2)
    assert after.policy == RetryPolicy(max_attempts=2, backoff=Fixed(77), fatal=KeyError)
    assert before.policy is PATIENT
    assert PATIENT.max_attempts == 8
    assert after.replace(timeout=3).policy == after.policy


def test_replacing_the_policy_replaces_all_single_settings() -> None:  # SPEC C1
    handler = consumer(max_attempts=2, fatal=OSError, timeout=3)(fails).replace(policy=PATIENT)
    assert handler.policy is PATIENT
    assert handler.timeout == 3
    assert handler.replace(policy=RetryPolicy()).policy == RetryPolicy()
    assert handler.replace(policy=None).policy == RetryPolicy()
    assert handler.replace(policy=None, max_attempts=2).policy == RetryPolicy(2)
    with pytest.raises(ConfigurationError, match="policy and max_attempts are both given"):
        handler.replace(policy=RetryPolicy(), max_attempts=2)


@pytest.mark.parametrize("settings", [{"max_attempts": 5}, {"policy": RetryPolicy(5)}], ids=["single", "policy"])
def test_replacing_another_setting_keeps_a_max_attempts_that_equals_the_default(settings: Any) -> None:  # SPEC B7
    seen: list[int | None] = []
    handler = consumer(on_failure=NOT_IN_PLACE, **settings)(lambda message: seen.append(message.max_attempts))
    for each in (handler, handler.replace(timeout=3), handler.replace(fatal=KeyError), handler.replace(policy=None)):
        each(event(record()), Context())
    assert seen == [5, 5, 5, None]


# backoffs written by the user


class ChangeableBackoff:
    """A backoff that is valid at first; the test changes its answer later."""

    def __init__(self, seconds: Any = 40.0) -> None:
        self.seconds = seconds

    def delay(self, attempt: int, rng: Random | None = None) -> Any:
        if isinstance(self.seconds, Exception):
            raise self.seconds
        return self.seconds


def consumer_with_changed_backoff(make: Callable[[ChangeableBackoff], Any], answer: Any) -> Any:
    """Return a consumer whose backoff gives ``answer`` after the consumer was made."""
    backoff = ChangeableBackoff()
    handler = consumer(**make(backoff))(fails)
    backoff.seconds = answer
    return handler


def test_a_backoff_of_the_user_sets_the_delay_in_place_and_that_of_a_copy() -> None:  # SPEC C1, E3
    with orders() as wire:
        consumer(backoff=ChangeableBackoff(41.2))(fails)(batch_of(1), Context())
        consumer(on_failure=[SendAgain("slow", delay=ChangeableBackoff(7.1))])(fails)(batch_of(1), Context())
    assert wire.visibilities() == {"handle-m0": 42}
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [8]


@pytest.mark.parametrize("answer", [-1, float("nan"), "60", OSError("no table")], ids=repr)
def test_a_failing_backoff_is_logged_and_the_default_sets_the_delay(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C1, A2
    handler = consumer_with_changed_backoff(lambda backoff: {"backoff": backoff}, answer)
    batch = event(record("{}", "m1"), record("{}", "m2", "orders.fifo", group="g"))
    with orders() as wire:
        assert failed(handler(batch, Context())) == ["m1", "m2"]
    assert 15 <= wire.visibilities()["handle-m1"] <= 30
    assert wire.visibilities()["handle-m2"] == 30
    failures = lines(caplog, "backoff_failed")
    assert {(field(line, "message_id"), line.levelname) for line in failures} == {("m1", "ERROR"), ("m2", "ERROR")}
    assert field(failures[0], "text").startswith("The consumer's backoff failed: delay(1) r")
    assert field(failures[0], "text").endswith(". The default backoff sets this delay.")


def test_a_backoff_is_checked_once_for_each_attempt_when_the_consumer_is_made() -> None:  # SPEC C1
    asked: list[int] = []

    class RecordingBackoff:
        def delay(self, attempt: int, rng: Random | None = None) -> float:
            asked.append(attempt)
            return 1.0

    consumer(max_attempts=4, backoff=RecordingBackoff())(fails).replace(name="another")
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(("answer", "seconds"), [(-1, 45), (600, 1_200)], ids=["fails", "has no bounds"])
def test_the_sandbox_runs_a_consumer_with_a_backoff_of_the_user_up_to_the_dead_letter(
    answer: float, seconds: float, sandbox: Sandbox
) -> None:  # SPEC A2, C1, N4
    sandbox.queue("orders", dead_letter="orders-dlq")
    handler = consumer_with_changed_backoff(lambda backoff: {"max_attempts": 3, "backoff": backoff}, answer)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", {})
    sandbox.run()
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.attempts, dead_letter.failure.reason) == (3, "exhausted")
    assert sandbox.elapsed >= seconds


def test_the_default_backoff_sets_the_delay_of_a_copy_whose_backoff_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E3
    handler = consumer_with_changed_backoff(lambda backoff: {"on_failure": [SendAgain("slow", delay=backoff)]}, "60")
    with orders() as wire:
        assert failed(handler(batch_of(1), Context())) == []
    assert 15 <= wire.sent_entries()[0]["DelaySeconds"] <= 30
    [line] = lines(caplog, "backoff_failed")
    assert field(line, "text") == (
        "SendAgain('slow')'s delay failed: delay(1) returned '60', which is not a number of seconds, 0 or more. The "
        "default backoff delays this copy."
    )


def test_a_copy_with_a_delay_beyond_12_hours_is_passed_on_to_the_next_failure_step(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E7
    handler = consumer_with_changed_backoff(
        lambda backoff: {"on_failure": [SendAgain("slow", delay=backoff), DeadLetter()]}, 43_201
    )
    with orders() as wire:
        handler(batch_of(1), Context())
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    assert lines(caplog, "step_passed_on")


def test_a_backoff_sets_the_delays_of_local_retries() -> None:  # SPEC E3, I5
    at: list[float] = []

    class QuadraticBackoff:
        def delay(self, attempt: int, rng: Random | None = None) -> float:
            return attempt**2 / 2

    wire = orders()

    @consumer(on_failure=[LocalRetry(3, QuadraticBackoff()), RetryInPlace()], backoff=Fixed(60))
    def handler(message: Message) -> None:
        at.append(wire.clock.now)
        raise ValueError

    with wire:
        handler(batch_of(1), Context())
    assert [moment - at[0] for moment in at] == [0, 0.5, 2.5, 7]


def test_a_local_retry_whose_backoff_fails_passes_the_failure_on(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I5
    steps = lambda backoff: {"on_failure": [LocalRetry(3, backoff), RetryInPlace()], "backoff": Fixed(60)}  # noqa: E731
    with orders() as wire:
        assert failed(consumer_with_changed_backoff(steps, -1)(batch_of(1), Context())) == ["m0"]
    assert wire.visibilities() == {"handle-m0": 60}
    [line] = lines(caplog, "backoff_failed")
    assert field(line, "text").startswith("LocalRetry's delay failed: delay(1) returned -1, which")
