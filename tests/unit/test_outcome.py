"""Outcomes as values, and their states."""

from datetime import timedelta
from typing import Any

import pytest

from tarry import Outcome, State


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.ack(), State.COMMITTED),
        (Outcome.retry(), State.WAITING_RETRY),
        (Outcome.retry(60), State.WAITING_RETRY),
        (Outcome.dead_letter("fatal"), State.DEAD_LETTERED),
        (Outcome.discard(), State.DISCARDED),
        (Outcome.defer(60), State.DEFERRED),
        (Outcome.wait(60), State.DEFERRED),
        (Outcome.release(), State.READY),
        (Outcome.unhandled(), State.WAITING_RETRY),
    ],
    ids=repr,
)
def test_each_outcome_has_a_state(outcome: Outcome, state: State) -> None:  # SPEC L1
    assert outcome.state is state


@pytest.mark.parametrize(
    ("outcome", "delay"),
    [
        (Outcome.retry(), None),
        (Outcome.retry(0), 0),
        (Outcome.retry(1.2), 2),
        (Outcome.retry(timedelta(minutes=2)), 120),
        (Outcome.defer(0), 1),
        (Outcome.defer(0.5), 1),
        (Outcome.defer(30), 30),
        (Outcome.release(), 0),
    ],
    ids=repr,
)
def test_a_delay_is_in_whole_seconds_and_0_differs_from_none(
    outcome: Outcome, delay: int | None
) -> None:  # SPEC B6, J5
    assert outcome.delay == delay


@pytest.mark.parametrize("delay", [-1, float("nan"), True, "60"], ids=repr)
@pytest.mark.parametrize("make", [Outcome.retry, Outcome.defer], ids=["retry", "defer"])
def test_an_invalid_delay_is_refused(make: Any, delay: Any) -> None:  # SPEC B6
    with pytest.raises(ValueError, match="delay"):
        make(delay)


def test_outcomes_are_equal_by_value() -> None:  # SPEC B2
    assert Outcome.retry(60) == Outcome.retry(timedelta(minutes=1))
    assert Outcome.retry(0) != Outcome.retry()
    assert Outcome.dead_letter("fatal") != Outcome.dead_letter("fatal", "graveyard")
    assert len({Outcome.ack(), Outcome.ack()}) == 1


def test_an_outcome_is_frozen() -> None:  # SPEC B2
    with pytest.raises(AttributeError):
        Outcome.ack().kind = "retry"
