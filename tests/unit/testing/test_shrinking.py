"""Shrinking a case: the fewest parts that still break a rule, in few runs."""

from collections.abc import Sequence

import pytest

from tarry.tools.testing import shrinking
from tarry.tools.testing.checkers import Violation
from tarry.tools.testing.faults import FAULTS, MESSAGES, Part, Parts
from tarry.tools.testing.report import Report, RuleBroken
from tarry.tools.testing.shrinking import fewest, shrink

PARTS: list[Part] = [(MESSAGES, number) for number in range(1_000)]


@pytest.mark.parametrize("needed", [[], [7], [0, 999], [3, 4, 500, 998]])
def test_the_parts_that_a_case_needs_are_found_in_few_runs(needed: list[int]) -> None:
    runs: list[int] = []

    def broken_by(kept: Sequence[Part]) -> Sequence[Part] | None:
        runs.append(len(kept))
        return kept if all((MESSAGES, number) in kept for number in needed) else None

    assert fewest(PARTS, broken_by) == [(MESSAGES, number) for number in needed]
    assert len(runs) < 150


def test_parts_that_no_longer_occur_are_left_out_too() -> None:
    """Without its message, a fault does not occur."""
    faults: list[Part] = [(FAULTS, number, 1) for number in range(10)]

    def broken_by(kept: Sequence[Part]) -> Sequence[Part] | None:
        had = [part for part in kept if part[0] == MESSAGES or (MESSAGES, part[1]) in kept]
        return had if (MESSAGES, 4) in had else None

    assert fewest([*PARTS[:10], *faults], broken_by) == [(MESSAGES, 4)]


class Case:
    """A case whose rule is broken by the first of ten messages, once it has the parts in ``needed``."""

    def __init__(self, *needed: int) -> None:
        self.needed = needed
        self.runs = 0

    def run(self, parts: Parts) -> RuleBroken | None:
        self.runs += 1
        had = [number for number in range(10) if parts.keep(MESSAGES, number)]
        return Broken() if set(self.needed) <= set(had) else None


class Broken(RuleBroken):
    def __init__(self) -> None:
        super().__init__(Report([], began=0, now=0, settled=True, seed=0))
        self.violations = [Violation("it is broken", "", "a text", 0)]


def test_a_case_that_does_not_break_the_rule_again_is_not_shrunk() -> None:
    assert shrink("it is broken", Case(11).run) is None
    assert shrink("another rule", Case(3).run) is None


def test_shrinking_stops_after_a_number_of_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 7)
    shrunk = shrink("it is broken", case.run)
    assert shrunk is not None
    assert shrunk.parts == [(MESSAGES, 2), (MESSAGES, 7)]
    assert str(shrunk).startswith(f"the smallest case found, after {case.runs} runs: 2 of 10 messages\n")
    monkeypatch.setattr(shrinking, "MOST_RUNS", 3)
    stopped = shrink("it is broken", Case(2, 7).run)
    assert stopped is not None
    assert str(stopped).startswith("the smallest case found so far, after 3 runs: 10 of 10 messages\n")
