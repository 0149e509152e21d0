"""The deadline: how long messages of an invocation may still be started."""

import math

import pytest

from tarry.execution.deadline import Deadline


def deadline(seconds: float = 30, *, is_loaded: bool = True, timeout: float | None = None) -> Deadline:
    """Return the deadline of an invocation that began at 1,000 and has ``seconds``."""
    return Deadline(1_000 + seconds, seconds, is_loaded, timeout)


@pytest.mark.parametrize(
    ("seconds", "is_loaded", "margin"),
    [(30, True, 1), (30, False, 3), (9, False, 3), (6, False, 2), (3, True, 1), (1.5, True, 0.5), (0.3, False, 0.1)],
)
def test_the_margin_is_a_second_and_two_more_for_loading_boto3_but_at_most_a_third(
    seconds: float, is_loaded: bool, margin: float
) -> None:  # SPEC I2
    assert deadline(seconds, is_loaded=is_loaded).margin == pytest.approx(margin)


@pytest.mark.parametrize("now", [1_000, 1_029.9, 2_000])
def test_the_first_message_is_always_started(now: float) -> None:  # SPEC I2
    assert deadline().check(now)


def test_a_message_is_started_if_the_longest_run_so_far_fits_before_the_margin() -> None:  # SPEC I2
    thirty_seconds = deadline()
    assert thirty_seconds.check(1_000)
    assert thirty_seconds.check(1_008)  # the first took 8 s
    assert thirty_seconds.check(1_012)
    assert thirty_seconds.check(1_020)
    assert thirty_seconds.check(1_021)  # 9 s are left: 8 and the margin
    assert not thirty_seconds.check(1_021.1)


def test_with_a_timeout_a_message_is_started_if_the_timeout_fits() -> None:  # SPEC I2
    thirty_seconds = deadline(timeout=10)
    assert thirty_seconds.check(1_000)
    assert thirty_seconds.check(1_019)
    assert not thirty_seconds.check(1_019.1)


def test_a_timeout_longer_than_the_invocation_does_not_keep_messages_from_starting() -> None:  # SPEC I3
    thirty_seconds = deadline(timeout=60)
    assert thirty_seconds.check(1_000)
    assert thirty_seconds.check(1_005)


def test_a_message_does_not_start_if_the_messages_before_it_need_the_time() -> None:  # SPEC I2
    thirty_seconds = deadline()
    thirty_seconds.took(5)
    assert thirty_seconds.may_start(1_009, waiting=3)  # 21 s are left: four messages and the margin
    assert not thirty_seconds.may_start(1_009.1, waiting=3)
    assert thirty_seconds.may_start(1_009.1, waiting=2)


def test_the_messages_before_it_are_expected_to_take_as_long_as_earlier_ones_and_not_a_timeout_each() -> None:
    """SPEC I2. Otherwise a generous timeout would keep every later message from starting."""
    thirty_seconds = deadline(timeout=10)
    thirty_seconds.took(0.1)
    assert thirty_seconds.may_start(1_018, waiting=9)  # 12 s are left: the timeout, nine short messages, and the margin
    assert not thirty_seconds.may_start(1_018.2, waiting=9)


def test_without_a_deadline_there_is_always_time() -> None:  # SPEC I2
    endless = Deadline(math.inf, math.inf, is_loaded=False)
    assert endless.check_at == math.inf
    assert endless.may_start(1e9, waiting=1_000)
    assert endless.interrupt_at == math.inf


def test_messages_are_released_for_a_third_of_the_time_left() -> None:  # SPEC I2
    """The rest is for settling: a batch may have 10,000 messages to release."""
    assert deadline().release_until(1_027) == 1_028
    assert deadline().release_until(1_029.7) == pytest.approx(1_029.8)
