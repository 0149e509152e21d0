"""The deadline: how long messages of an invocation may still be started."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.message.message import delivery_of
from tarry.observe import tracing
from tarry.run import deadline as deadline_module
from tarry.run.deadline import Deadline, Watch, reserve
from tarry.testing import message
from tarry.world import Interrupted, World


def deadline(seconds: float = 30, *, wanted: float = 1, timeout: float | None = None) -> Deadline:
    """Return the deadline of an invocation that began at 1,000 and has ``seconds``."""
    return Deadline(1_000 + seconds, seconds, wanted, timeout)


@pytest.mark.parametrize(
    ("seconds", "wanted", "margin"), [(30, 1, 1), (30, 3, 3), (9, 3, 3), (6, 3, 2), (3, 1, 1), (1.5, 1, 0.5)]
)
def test_the_margin_is_what_settling_takes_but_at_most_a_third_and_claims_and_stopped_runs_end_within_half_of_it(
    seconds: float, wanted: float, margin: float
) -> None:  # SPEC I2, I3, K4
    some_seconds = deadline(seconds, wanted=wanted)
    assert some_seconds.margin == pytest.approx(margin)
    assert some_seconds.last_moment - some_seconds.interrupt_at == pytest.approx(min(0.5, margin / 2))


@pytest.mark.parametrize(
    ("loading", "request_seconds", "share", "has_boto3", "kept"),
    [
        (0.5, 0.0, 1, True, 1),
        (0.5, 0.25, 1, True, 1),
        (0.5, 0.6, 1, True, 2.4),
        (None, 0.0, 1, False, 1.6),
        (None, 0.0, 1, True, 1.25),
        (None, 0.0, 1 / 4, False, 3.4),
        (None, 0.0, 1 / 14, False, 9.4),
    ],
)
def test_a_second_is_kept_for_settling_or_four_requests_and_the_time_to_make_a_client_by_the_share_of_a_core(
    loading: float | None,
    request_seconds: float,
    share: float,
    has_boto3: bool,
    kept: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC I2
    monkeypatch.setattr("tarry.world.CORE_SHARE", share)
    monkeypatch.setattr("tarry.world.modules", {"botocore.session": None} if has_boto3 else {})
    measured = World()
    measured.loading_seconds, measured.request_seconds = loading, request_seconds
    assert reserve(measured) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("timeout", "checks", "last"),
    [
        (None, [1_000, 1_008, 1_012, 1_020], 1_021),  # 9 s are left: 8, as the first message took, and the margin
        (10, [1_000], 1_019),
        (60, [1_000, 1_005], 1_017),  # the timeout never fits: 13 s are left for 12, as the second took, and the margin
        (None, [1_029.9], 1_029.9),  # the first message is always started
        (None, [2_000], 2_000),
    ],
)
def test_a_message_is_started_if_the_timeout_or_the_longest_run_so_far_fits_before_the_margin(
    timeout: float | None, checks: list[float], last: float
) -> None:  # SPEC I2, I3
    thirty_seconds = deadline(timeout=timeout)
    assert all(thirty_seconds.check(now) for now in checks)
    assert last == checks[-1] or thirty_seconds.check(last)
    assert not thirty_seconds.check(last + 0.1)


@pytest.mark.parametrize(
    ("timeout", "took", "waiting", "last"),
    [
        (None, 5, 3, 1_009),  # 21 s are left: four messages and the margin
        (None, 5, 2, 1_014),
        (10, 0.1, 9, 1_018.1),  # the timeout, nine messages as short as the first, and the margin
    ],
)
def test_a_message_does_not_start_if_the_messages_before_it_need_the_time_as_earlier_ones_did(
    timeout: float | None, took: float, waiting: int, last: float
) -> None:
    """SPEC I2. If each were expected to take a generous timeout, none would start behind them."""
    thirty_seconds = deadline(timeout=timeout)
    thirty_seconds.took(took)
    assert thirty_seconds.may_start(last - 0.01, waiting=waiting)
    assert not thirty_seconds.may_start(last + 0.01, waiting=waiting)


def test_without_a_deadline_there_is_always_time() -> None:  # SPEC I2
    endless = Deadline(math.inf, math.inf)
    assert endless.check_at == endless.interrupt_at == math.inf
    assert endless.due(5) == math.inf
    assert endless.may_start(1e9, waiting=1_000)


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
    some_seconds.hook_share *= hook_share
    assert some_seconds.hook_seconds(1_000 + now) == pytest.approx(allowed)


def test_what_is_kept_for_failed_messages_and_claims_is_kept_from_hooks_and_handlers() -> None:  # SPEC I2, K4
    thirty_seconds = deadline(timeout=25)
    thirty_seconds.owed, thirty_seconds.ending, thirty_seconds.most_ending = 2, 3, 5
    assert thirty_seconds.hook_seconds(1_000) == pytest.approx(23.5)
    assert not thirty_seconds.may_start(1_000)  # 31 s would be needed
    assert (thirty_seconds.interrupt_at, thirty_seconds.last_moment) == (1_026, 1_026.5)
    assert [thirty_seconds.due(1_000), thirty_seconds.due(1_002)] == [1_025, 1_026]
    assert thirty_seconds.first_due(1_000) == 1_021  # `ending` may still grow by `most_ending`
    thirty_seconds.settled()
    assert thirty_seconds.may_start(1_005)
    assert not thirty_seconds.may_start(1_005.1)


@pytest.mark.parametrize(
    ("timeout", "is_named", "is_cut"),
    [(10, True, False), (29, True, False), (29.1, False, True), (31, False, True), (None, False, False)],
)
def test_a_timeout_beyond_the_time_for_messages_is_cut_and_the_error_names_the_limit_that_was_exceeded(
    timeout: float | None, is_named: bool, is_cut: bool
) -> None:  # SPEC I3
    thirty_seconds = deadline(timeout=timeout)
    text = str(thirty_seconds.timed_out(1_000, 1_029.25))
    assert ("longer than its timeout" in text) is is_named
    assert ("still running after 29.2 s, 0.8 s before the function's own timeout" in text) is not is_named
    assert thirty_seconds.is_timeout_cut is is_cut


def test_the_clock_is_read_between_messages_once_in_a_millisecond_unless_there_is_no_limit() -> None:  # SPEC I2
    thirty_seconds = deadline()
    assert [thirty_seconds.may_start(at, waiting=5) for at in (1_029, 1_029.1)] == [True, False]  # none has run yet
    assert [thirty_seconds.check_at, Deadline(math.inf, math.inf, timeout=5).check_at] == [-math.inf, -math.inf]
    thirty_seconds.check(1_000)
    assert thirty_seconds.check_at == 1_000.001
    thirty_seconds.resume(1_005)
    assert thirty_seconds.check_at == 1_005.001
    thirty_seconds.check(1_007)
    assert thirty_seconds.may_start(1_027)  # 3 s are left: 2, as the message took since then, and the margin
    assert not thirty_seconds.may_start(1_027.1)


# interrupting a handler

OF_RUN, OF_OBSERVE, OF_USER = deadline_module.__file__, tracing.__file__, "app.py"


def frame(*functions: tuple[str, str]) -> Any:
    """Return a frame of the last function, called by those before it, each with its file."""
    made = None
    for function, file in functions:
        made = SimpleNamespace(f_code=SimpleNamespace(co_name=function, co_filename=file), f_back=made)
    return made


class WatchedMessage:
    """A message that runs from 1,000 on, with a timeout of 5 of 30 seconds, and its watch."""

    def __init__(self) -> None:
        self.now, self.message = 1_000.0, message()
        some_seconds = deadline(timeout=5)
        some_seconds.check(self.now)
        self.watch = Watch(some_seconds, lambda: self.now)
        self.watch.running = self.message

    def fire(self, at: float = 1_005, frame: Any = None) -> Any:
        self.now = at
        return self.watch.fire(frame)

    @property
    def verdict(self) -> Any:
        return delivery_of(self.message).verdict


@pytest.mark.parametrize(
    ("is_claiming", "waits", "ends"),
    [
        (False, {1_001: 4, 1_004.5: 0.5}, 1_005),
        (True, {1_010: 5, 1_028: 1, 1_029: 0.05, 1_029.25: 0.05}, 1_029.5),  # a claim may end within the margin
    ],
)
def test_a_message_is_interrupted_when_its_time_is_up_and_has_failed(
    is_claiming: bool, waits: dict[float, float], ends: float
) -> None:  # SPEC I3, K4
    watched = WatchedMessage()
    if is_claiming:
        watched.watch.is_claiming = True
    assert watched.watch.on_end(watched.message, own := ValueError()) is own
    assert {at: watched.fire(at) for at in waits} == pytest.approx(waits)
    assert watched.verdict is None
    assert isinstance(watched.fire(ends), Interrupted)
    error = watched.verdict
    assert isinstance(error, TimeoutError)
    again = watched.fire(ends + 1)  # its handler has caught the first one
    assert (type(again), str(again), watched.verdict) == (Interrupted, str(error), error)
    assert watched.watch.on_end(watched.message, again) is error
    assert watched.watch.on_end(watched.message, None) is None
    assert watched.verdict is None  # the message may run again within this delivery, and has the whole time
    assert isinstance(watched.fire(ends), Interrupted)
    assert watched.verdict not in (None, error)


@pytest.mark.parametrize(
    ("functions", "is_interrupted", "has_failed"),
    [
        ([("handler", OF_USER)], True, True),
        ([("_end", OF_USER), ("_on_verdict", OF_USER), ("_handler_ended", OF_USER)], True, True),
        ([("_on_verdict", OF_OBSERVE), ("handler", OF_RUN), ("_end", OF_RUN)], True, True),
        ([("_end", OF_OBSERVE), ("export", OF_USER)], True, False),  # the exporter of spans, not the handler
        ([("_on_verdict", OF_RUN)], False, False),
        ([("handler", OF_USER), ("_on_verdict", OF_RUN), ("step", OF_USER)], False, False),
        ([("_handler_ended", OF_RUN), ("now", OF_USER)], False, False),
        ([("_handler_ended", OF_OBSERVE)], False, False),
    ],
)
def test_a_message_does_not_fail_while_tarry_decides_on_it_or_notes_its_end(
    functions: list[tuple[str, str]], is_interrupted: bool, has_failed: bool
) -> None:  # SPEC I3, L4
    found = (watched := WatchedMessage()).fire(frame=frame(*functions))
    assert isinstance(found, Interrupted) if is_interrupted else found == 0.05
    assert (watched.verdict is not None) is has_failed
    watched.watch.running = None
    assert watched.fire() == 0.05
