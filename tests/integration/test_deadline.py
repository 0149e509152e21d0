"""The deadline: messages that start before it, and messages that are released."""

import math
import signal
import sys
from typing import Any

import pytest

from tarry import Consumer, Fixed, LocalRetry, Message, RetryInPlace, batch_consumer, consumer
from tarry.world import current
from tests.loglines import field, lines
from tests.records import batch_of, event, failed, record
from tests.settled import orders, settle
from tests.wire import TestClock


def consumer_that_takes(seconds: dict[str, float] | float, ran: list[str], **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler takes these seconds, by message id or for each message."""

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        current().clock.sleep(seconds.get(message.id, 0) if isinstance(seconds, dict) else seconds)

    return handler.replace(**settings)


GROUPS = event(*(record("{}", f"m{index}", "orders.fifo", group=f"g{index % 2}") for index in range(10)))


@pytest.mark.parametrize("batch", [batch_of(10), GROUPS], ids=["standard", "fifo"])
def test_messages_without_time_to_run_are_released_and_a_warning_names_the_batch_size_that_would_have_fitted(
    batch: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC H1, I2
    """They do not count as failed."""
    ran: list[str] = []
    reported, wire = settle(consumer_that_takes(7, ran), batch)
    assert ran == ["m0", "m1", "m2", "m3"]
    assert reported == ["m4", "m5", "m6", "m7", "m8", "m9"]
    assert wire.visibilities() == {f"handle-{message_id}": 0 for message_id in reported}
    assert not lines(caplog, "waiting_retry")
    [line] = lines(caplog, "out_of_time")
    assert line.levelname == "WARNING"
    assert "6 of 10 messages were not started" in field(line, "text")
    assert "BatchSize of 4 would have fitted" in field(line, "text")


LONG = [10**15, sys.maxsize, 10**400, math.inf, math.nan, None, "30000"]


@pytest.mark.parametrize("milliseconds", LONG, ids=lambda value: f"{value!s:.20}")
@pytest.mark.parametrize("way", [{}, {"concurrency": 2}], ids=["one by one", "threads"])
def test_a_remaining_time_beyond_any_timer_is_no_deadline(milliseconds: object, way: dict[str, Any]) -> None:
    """SPEC I2. A context of a test may say it; the signal handler of the alarm is not left behind."""

    class Context:
        def get_remaining_time_in_millis(self) -> object:
            return milliseconds

    before, ran = signal.getsignal(signal.SIGALRM), list[str]()
    with orders():
        assert failed(consumer_that_takes(0, ran, **way)(batch_of(2), Context())) == []
    assert sorted(ran) == ["m0", "m1"]  # threads start in any order
    assert signal.getsignal(signal.SIGALRM) is before


class SlowClock(TestClock):
    """A clock on which each reading takes 0.1 s from the 20th second on."""

    def monotonic(self) -> float:
        if self.now > 1_800_000_020:
            self.now += 0.1
        return super().monotonic()


def test_messages_that_there_is_no_time_to_release_are_only_reported(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I2. Otherwise there would be no time left to settle those that were released."""
    ran: list[str] = []
    reported, wire = settle(consumer_that_takes(24, ran), batch_of(100), orders(clock=SlowClock()))
    assert ran == ["m0"]
    assert reported == [f"m{number}" for number in range(1, 100)]
    assert 0 < len(wire.visibilities()) <= 20  # measuring a request reads the clock too
    assert "99 of 100 messages were not started" in field(lines(caplog, "out_of_time")[0], "text")
    assert "79 messages were not settled" in field(lines(caplog, "out_of_time")[1], "text")


@pytest.mark.parametrize(
    ("seconds", "count", "remaining", "last"),
    [
        pytest.param(0.15, 3, 0.3, 0, id="the first message starts however short the time is"),
        pytest.param({"m500": 28}, 600, 30, 500, id="many fast messages and a slow one: the clock is read rarely"),
        pytest.param(0.1, 400, 30, 289, id="fast messages run until only the margin is left"),
    ],
)
def test_no_message_starts_too_late(seconds: Any, count: int, remaining: float, last: int) -> None:  # SPEC I2
    ran: list[str] = []
    reported, _ = settle(consumer_that_takes(seconds, ran), batch_of(count), remaining=remaining)
    assert ran[-1] == f"m{last}"
    assert reported == [f"m{number}" for number in range(last + 1, count)]


def test_an_invocation_that_begins_too_late_runs_no_message(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I2
    ran: list[str] = []
    of_batch = batch_consumer(lambda batch: ran.append("batch"))
    for handler in (consumer_that_takes(0, ran), of_batch):
        reported, wire = settle(handler, batch_of(3), remaining=0.19)
        assert (reported, wire.requests) == (["m0", "m1", "m2"], [])
    assert ran == []
    assert [line.levelname for line in lines(caplog)] == ["WARNING", "WARNING"]
    assert "began with 0.19 s left" in field(lines(caplog, "out_of_time")[0], "text")


def test_without_a_context_there_is_no_deadline() -> None:  # SPEC I2
    ran: list[str] = []
    with orders():
        assert failed(consumer_that_takes(3_600, ran)(batch_of(3))) == []
    assert ran == ["m0", "m1", "m2"]


def test_a_message_that_failed_before_time_ran_out_waits_for_its_delay() -> None:  # SPEC I2, G1
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        current().clock.sleep(20)
        raise ValueError

    reported, wire = settle(handler, batch_of(2))
    assert (reported, wire.visibilities()) == (["m0", "m1"], {"handle-m0": 60, "handle-m1": 0})


def test_a_local_retry_without_time_is_not_made() -> None:  # SPEC I2, I5
    """Two seconds are kept for the run and its settlement.

    There were enough when the step was asked, before the other message ran.
    """
    ran: list[str] = []

    @consumer(on_failure=[LocalRetry(5, delay=5), RetryInPlace()], backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        if message.body == "fails":
            current().clock.sleep(5)
            raise ValueError
        current().clock.sleep(23.5)

    assert settle(handler, event(record("fails", "m0")))[0] == ["m0"]
    assert ran == ["m0"] * 3
    ran.clear()
    reported, wire = settle(handler, event(record("fails", "m0"), record("slow", "m1")), remaining=35)
    assert (reported, ran) == (["m0"], ["m0", "m1"])
    assert wire.visibilities() == {"handle-m0": 37}
