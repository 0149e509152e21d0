"""The deadline: how long messages of an invocation may still be started."""

import math

import pytest

from tarry.run.deadline import Deadline, reserve
from tarry.world import World


def deadline(seconds: float = 30, *, wanted: float = 1, timeout: float | None = None) -> Deadline:
    """Return the deadline of an invocation that began at 1,000 and has ``seconds``."""
    return Deadline(1_000 + seconds, seconds, wanted, timeout)


@pytest.mark.parametrize(
    ("seconds", "wanted", "margin"), [(30, 1, 1), (30, 3, 3), (9, 3, 3), (6, 3, 2), (3, 1, 1), (1.5, 1, 0.5)]
)
def test_the_margin_is_what_settling_takes_but_at_most_a_third(
    seconds: float, wanted: float, margin: float
) -> None:  # SPEC I2
    assert deadline(seconds, wanted=wanted).margin == pytest.approx(margin)


def measured(loading: float | None = None, request: float = 0.0) -> World:
    made = World()
    made.loading_seconds, made.request_seconds = loading, request
    return made


@pytest.mark.parametrize(("request_seconds", "kept"), [(0.0, 1), (0.25, 1), (0.6, 2.4)])
def test_a_second_is_kept_for_settling_or_four_requests_as_they_take_in_this_process(
    request_seconds: float, kept: float
) -> None:  # SPEC I2
    assert reserve(measured(loading=0.5, request=request_seconds)) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("share", "has_boto3", "kept"), [(1, False, 1.6), (1, True, 1.25), (1 / 4, False, 3.4), (1 / 14, False, 9.4)]
)
def test_until_the_client_is_made_time_is_kept_for_it_by_the_functions_share_of_a_core(
    share: float, has_boto3: bool, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I2
    monkeypatch.setattr("tarry.world.CORE_SHARE", share)
    monkeypatch.setattr("tarry.world.modules", {"boto3": None} if has_boto3 else {})
    assert reserve(measured()) == pytest.approx(kept)


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
    endless = Deadline(math.inf, math.inf)
    assert endless.check_at == math.inf
    assert endless.may_start(1e9, waiting=1_000)
    assert endless.interrupt_at == math.inf


def test_messages_are_released_for_a_third_of_the_time_left() -> None:  # SPEC I2
    """The rest is for settling: a batch may have 10,000 messages to release."""
    assert deadline().release_until(1_027) == 1_028
    assert deadline().release_until(1_029.7) == pytest.approx(1_029.8)


@pytest.mark.parametrize(
    ("seconds", "now", "hook_share", "allowed"),
    [
        (30, 0, 1, 28.5),  # less half a second for the response, and the margin
        (30, 0, 1 / 2, 14.25),
        (6, 0, 1, 4.7),  # the response has a twentieth of a short invocation
        (30, 29, 1, 0.025),  # a late hook: a tenth of the time left beside a quarter of the margin
        (30, 29.5, 1, -0.025),
    ],
)
def test_a_hook_has_the_time_that_neither_the_response_nor_settling_needs(
    seconds: float, now: float, hook_share: float, allowed: float
) -> None:  # SPEC I2
    some_seconds = deadline(seconds)
    some_seconds.hook_share = hook_share
    assert some_seconds.hook_seconds(1_000 + now) == pytest.approx(allowed)


def test_what_is_kept_for_failed_messages_and_claims_is_kept_from_hooks_and_handlers() -> None:  # SPEC I2, K4
    thirty_seconds = deadline(timeout=25)
    thirty_seconds.owed, thirty_seconds.ending, thirty_seconds.most_ending = 2, 3, 5
    assert thirty_seconds.hook_seconds(1_000) == pytest.approx(23.5)
    assert not thirty_seconds.may_start(1_000)  # 31 s would be needed
    assert thirty_seconds.interrupt_at == 1_026
    assert thirty_seconds.last_moment == 1_026.5
    assert [thirty_seconds.due(1_000), thirty_seconds.due(1_002)] == [1_025, 1_026]
    assert thirty_seconds.first_due(1_000) == 1_021  # `ending` may still grow by `most_ending`
    thirty_seconds.settled()
    assert thirty_seconds.may_start(1_005)
    assert not thirty_seconds.may_start(1_005.1)


@pytest.mark.parametrize(("timeout", "is_timeout"), [(10, True), (29, True), (29.1, False), (None, False)])
def test_the_error_of_a_handler_names_the_limit_that_it_exceeded(timeout: float | None, is_timeout: bool) -> None:
    """SPEC I3."""
    text = str(deadline(timeout=timeout).timed_out(1_000, 1_029.25))
    assert ("longer than its timeout" in text) is is_timeout
    assert ("still running after 29.2 s, 0.8 s before the function's own timeout" in text) is not is_timeout


@pytest.mark.parametrize(("timeout", "is_cut"), [(None, False), (29, False), (29.5, True), (31, True)])
def test_a_timeout_is_cut_if_it_exceeds_the_time_for_messages(timeout: float | None, is_cut: bool) -> None:  # SPEC I3
    assert deadline(timeout=timeout).is_timeout_cut is is_cut


@pytest.mark.parametrize(("seconds", "wanted", "after"), [(30, 1, 0.5), (30, 3, 0.5), (1.5, 1, 0.25)])
def test_claims_and_stopped_runs_end_within_half_a_second_or_half_the_margin(
    seconds: float, wanted: float, after: float
) -> None:  # SPEC I3, K4
    some_seconds = deadline(seconds, wanted=wanted)
    assert some_seconds.last_moment - some_seconds.interrupt_at == pytest.approx(after)


def test_the_clock_is_read_between_messages_once_in_a_millisecond_unless_there_is_no_limit() -> None:  # SPEC I2
    thirty_seconds = deadline()
    assert [thirty_seconds.check_at, Deadline(math.inf, math.inf, timeout=5).check_at] == [-math.inf, -math.inf]
    thirty_seconds.check(1_000)
    assert thirty_seconds.check_at == 1_000.001
    thirty_seconds.resume(1_005)
    assert thirty_seconds.check_at == 1_005.001
    thirty_seconds.check(1_007)
    assert thirty_seconds.may_start(1_027)  # 3 s are left: 2, as the message took since then, and the margin
    assert not thirty_seconds.may_start(1_027.1)
