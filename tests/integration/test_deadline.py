"""The deadline: messages that start before it, and messages that are released."""

import math
import signal
import sys
from typing import Any

import pytest

from tarry import Consumer, Fixed, LocalRetry, Message, RetryInPlace, batch_consumer, consumer
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, TestClock, Wire


def orders(**more: Any) -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead") for name in ("orders", "orders.fifo")}, **more)


def consumer_that_takes(seconds: dict[str, float] | float, ran: list[str], **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler takes these seconds, by message id or for each message."""

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        current().clock.sleep(seconds.get(message.id, 0) if isinstance(seconds, dict) else seconds)

    return handler.replace(**settings)


def test_a_message_released_for_lack_of_time_does_not_count_as_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC I2
    ran: list[str] = []
    with orders() as wire:
        answer = consumer_that_takes(7, ran)(batch_of(10), Context(remaining=30))
    assert ran == ["m0", "m1", "m2", "m3"]
    assert failed(answer) == ["m4", "m5", "m6", "m7", "m8", "m9"]
    assert wire.visibilities() == {f"handle-{message_id}": 0 for message_id in failed(answer)}
    assert not lines(caplog, "waiting_retry")


def test_a_warning_names_the_batch_size_that_would_have_fitted(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I2
    with orders():
        consumer_that_takes(7, [])(batch_of(10), Context(remaining=30))
    [line] = lines(caplog, "out_of_time")
    assert line.levelname == "WARNING"
    assert "6 of 10 messages were not started" in field(line, "text")
    assert "BatchSize of 4 would have fitted" in field(line, "text")


class ContextOf:
    def __init__(self, milliseconds: object) -> None:
        self.get_remaining_time_in_millis = lambda: milliseconds


LONG = [10**15, sys.maxsize, 10**400, math.inf, math.nan, None, "30000"]


@pytest.mark.parametrize("milliseconds", LONG, ids=lambda value: f"{value!s:.20}")
@pytest.mark.parametrize("way", [{}, {"concurrency": 2}], ids=["one by one", "threads"])
def test_a_remaining_time_beyond_any_timer_is_no_deadline(milliseconds: object, way: dict[str, Any]) -> None:
    """SPEC I2. A context of a test may say it; the signal handler of the alarm is not left behind."""
    before, ran = signal.getsignal(signal.SIGALRM), list[str]()
    with orders():
        handler = consumer_that_takes(0, ran, **way)
        assert failed(handler(batch_of(2), ContextOf(milliseconds))) == []
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
    with orders(clock=SlowClock()) as wire:
        answer = consumer_that_takes(24, ran)(batch_of(100), Context(remaining=30))
    assert ran == ["m0"]
    assert failed(answer) == [f"m{number}" for number in range(1, 100)]
    assert 0 < len(wire.visibilities()) <= 20  # measuring a request reads the clock too
    assert "79 messages were not settled" in field(lines(caplog, "out_of_time")[1], "text")


def test_the_first_message_starts_however_short_the_time_is() -> None:  # SPEC I2
    ran: list[str] = []
    with orders():
        assert failed(consumer_that_takes(0.15, ran)(batch_of(3), Context(remaining=0.3))) == ["m1", "m2"]
    assert ran == ["m0"]


def test_no_message_starts_too_late_after_many_fast_ones_and_a_slow_one() -> None:  # SPEC I2
    """The clock is not read for each message."""
    ran: list[str] = []
    with orders():
        answer = consumer_that_takes({"m500": 28}, ran)(batch_of(600), Context(remaining=30))
    assert ran[-1] == "m500"
    assert len(failed(answer)) == 99


def test_fast_messages_run_until_only_the_margin_is_left() -> None:  # SPEC I2
    ran: list[str] = []
    with orders():
        consumer_that_takes(0.01, ran)(batch_of(4_000), Context(remaining=30))
    assert len(ran) == pytest.approx(2_899, abs=2)


def test_an_invocation_that_begins_too_late_runs_no_message(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I2
    ran: list[str] = []

    @batch_consumer
    def of_batch(batch: Any) -> None:
        ran.append("batch")

    with orders() as wire:
        for handler in (consumer_that_takes(0, ran), of_batch):
            assert failed(handler(batch_of(3), Context(remaining=0.19))) == ["m0", "m1", "m2"]
    assert ran == wire.requests == []
    assert [line.levelname for line in lines(caplog)] == ["WARNING", "WARNING"]
    assert "began with 0.19 s left" in field(lines(caplog, "out_of_time")[0], "text")


def test_without_a_context_there_is_no_deadline() -> None:  # SPEC I2
    ran: list[str] = []
    with orders():
        assert failed(consumer_that_takes(3_600, ran)(batch_of(3))) == []
    assert ran == ["m0", "m1", "m2"]


def test_on_fifo_messages_without_time_to_run_are_released() -> None:  # SPEC I2, H1
    ran: list[str] = []
    records = [record("{}", f"m{index}", "orders.fifo", group=f"g{index % 2}") for index in range(6)]
    with orders() as wire:
        answer = consumer_that_takes(12, ran)(event(*records), Context(remaining=30))
    assert ran == ["m0", "m1"]
    assert failed(answer) == ["m2", "m3", "m4", "m5"]
    assert wire.visibilities() == {f"handle-m{index}": 0 for index in range(2, 6)}


def test_a_message_that_failed_before_time_ran_out_waits_for_its_delay() -> None:  # SPEC I2, G1
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        current().clock.sleep(20)
        raise ValueError

    with orders() as wire:
        assert failed(handler(batch_of(2), Context(remaining=30))) == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m1": 0}


def test_a_local_retry_without_time_is_not_made() -> None:  # SPEC I2, I5
    ran: list[str] = []

    @consumer(on_failure=[LocalRetry(5), RetryInPlace()])
    def handler(message: Message) -> None:
        ran.append(message.id)
        current().clock.sleep(10)
        raise ValueError

    with orders():
        assert failed(handler(batch_of(1), Context(remaining=30))) == ["m0"]
    assert ran == ["m0"] * 3


def test_a_local_retry_for_which_other_messages_leave_no_reserve_goes_to_the_next_failure_step() -> None:
    """SPEC I5. Two seconds are kept for the run and its settlement; there were enough when its step was asked."""
    ran: list[str] = []

    @consumer(on_failure=[LocalRetry(1, delay=5), RetryInPlace()], backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        if message.id == "m0":
            raise ValueError
        current().clock.sleep(23.5)

    with orders() as wire:
        assert failed(handler(batch_of(2), Context(remaining=30))) == ["m0"]
    assert ran == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 37}
