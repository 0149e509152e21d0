"""The shipped template with its guard, in outages. `python -m tests.simulation.outages` plays longer ones."""

from __future__ import annotations

import pytest

from tests.simulation.outages import BEFORE, HOUR, MINUTE, UNTOUCHED, Outage, Run, between, judge


def test_with_the_guard_an_outage_leaves_no_dead_letters_and_the_mapping_as_it_was() -> None:
    outage = between(15, "15 minutes", 0.4)
    guarded, alone = (Run(outage, is_guarded=each).play() for each in (True, False))
    assert (guarded.violations, alone.violations) == ([], [])
    assert alone.dead > 15 > 2 * guarded.dead
    assert [phase for _, phase, _ in guarded.acts][-2:] == ["resuming", "resumed"]
    assert guarded.acts[0][1] == "suspended"
    assert guarded.acts[0][0] < BEFORE + 4 * MINUTE
    assert guarded.setting == alone.setting == UNTOUCHED
    assert guarded.worked_off is not None
    assert guarded.worked_off < 20 * MINUTE


def test_poison_messages_without_an_outage_suspend_nothing() -> None:
    poisoned = Run(Outage("poison", 0.5, lambda at: False, HOUR / 2, poison=50)).play()
    assert (poisoned.violations, poisoned.acts, poisoned.setting) == ([], [], UNTOUCHED)
    assert poisoned.dead > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_guard_that_is_killed_at_its_requests_leaves_the_mapping_as_it_was(seed: int) -> None:
    assert judge(seed).text == ""
