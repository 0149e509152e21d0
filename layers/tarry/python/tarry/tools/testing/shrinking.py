"""Shrinking: finding the fewest parts of a run that still break a rule, by leaving parts out and running it again."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tarry.tools.testing.checkers.violation import RULE as FAULTS_STRIKE
from tarry.tools.testing.faults import FAULTS, MESSAGES, Part, Parts
from tarry.tools.testing.report import RuleBroken

MOST_RUNS = 300
MOST_SECONDS = 5.0
"""The limit of CPU time for one case: a busy machine finds the same case. The run that exceeds it is completed."""
Run = Callable[[Parts], RuleBroken | None]
"""Runs the case with the parts that are kept; returns the error if a rule is broken."""


@dataclass(frozen=True)
class Shrunk:
    """The smallest case found that breaks a rule, and the error of its run."""

    rule: str
    error: RuleBroken
    parts: Sequence[Part]
    all_parts: Sequence[Part]
    runs: int
    was_stopped: bool
    """Whether the limit of runs or of time was reached."""

    def __str__(self) -> str:
        found = "the smallest case found so far" if self.was_stopped else "the smallest case found"
        runs = f"after {self.runs} run{'s'[: self.runs != 1]}"
        report = self.error.report
        kept, of = (Counter(str(part[0]) for part in parts) for parts in (self.parts, self.all_parts))
        kinds = sorted(of, key=lambda kind: (kind != MESSAGES, kind != FAULTS))
        counts = ", ".join(f"{kept[kind]} of {of[kind]} {kind}" for kind in kinds) or "nothing to leave out"
        lines = [f"{found}, {runs}: {counts}", *report.sent(), *report.faults()]
        return "\n".join([*lines, "", report.explain(each for each in self.error.violations if each.rule == self.rule)])


def rule_to_shrink(error: RuleBroken) -> str | None:
    """Return the first rule that an error reports; None if it is that all faults occur, which has no smaller case."""
    return next((each.rule for each in error.violations if each.rule != FAULTS_STRIKE), None)


def shrink(rule: str, run: Run) -> Shrunk | None:
    """Return the smallest case found that breaks a rule; None if the whole case does not break it again."""
    ends_at = time.process_time() + MOST_SECONDS
    runs, was_stopped, smallest = 0, False, cast("RuleBroken | None", None)

    def broken_by(kept: Sequence[Part] | None) -> list[Part] | None:
        """Run the case with these parts; return those that the run had if it breaks the rule, else None."""
        nonlocal runs, was_stopped, smallest
        if runs >= MOST_RUNS or time.process_time() > ends_at:
            was_stopped = True
            return None
        runs += 1
        parts = Parts(None if kept is None else frozenset(kept))
        error = run(parts)
        if error is None or all(each.rule != rule for each in error.violations):
            return None
        smallest = error
        return parts.met

    everything = broken_by(None)
    if everything is None:
        return None
    kept = fewest(everything, broken_by)
    assert smallest is not None
    return Shrunk(rule, smallest, kept, everything, runs, was_stopped)


def fewest(parts: Sequence[Part], broken_by: Callable[[Sequence[Part]], Sequence[Part] | None]) -> list[Part]:
    """Return as few of the parts as possible, such that leaving any one out breaks no rule.

    ``broken_by`` runs the case with some of the parts; it returns those that the run had, or None if no rule is broken.
    Halves are left out first, then ever smaller slices, then single parts.
    """
    kept, size = list(parts), len(parts)
    while kept and size:
        first, was_shrunk = 0, False
        while first < len(kept):
            rest = kept[:first] + kept[first + size :]
            had = broken_by(rest)
            if had is None:
                first += size
            else:
                met = frozenset(had)
                kept, was_shrunk = [part for part in rest if part in met], True
        if size > 1 or not was_shrunk:
            size //= 2
    return kept


PARTS = pytest.StashKey[Parts]()
"""The parts of a test that runs again; the fixture `sandbox` reads them."""
NOT_AGAIN = (
    "the test did not break the rule when it ran again with the same seed, so the case cannot be shrunk: "
    "does it keep state outside its fixtures, or depend on real time or on another random generator?"
)


def smallest_case(item: pytest.Function, nextitem: pytest.Item | None, error: RuleBroken) -> str:
    """Return the smallest case that breaks the rule, as text; empty for an error that cannot be shrunk.

    The test has been torn down. It is set up, called and torn down for each run, with its fixtures.
    """
    if (rule := rule_to_shrink(error)) is None:
        return ""

    def run(parts: Parts) -> RuleBroken | None:
        item.stash[PARTS] = parts
        return _run(item, nextitem)

    sections = list(item._report_sections)
    try:
        with warnings.catch_warnings(record=True):  # pytest has the test's warnings of its first run
            shrunk = shrink(rule, run)
    finally:
        del item.stash[PARTS]
        item._report_sections[:] = sections  # without the output of all runs
    return NOT_AGAIN if shrunk is None else str(shrunk)


def _run(item: pytest.Function, nextitem: pytest.Item | None) -> RuleBroken | None:
    """Run the test once, with new fixtures; return the error of a broken rule."""
    item._initrequest()
    setup = _phase("setup", lambda: item.ihook.pytest_runtest_setup(item=item))
    call = setup if setup is not None else _phase("call", lambda: item.ihook.pytest_runtest_call(item=item))
    _phase("teardown", lambda: item.ihook.pytest_runtest_teardown(item=item, nextitem=nextitem))
    return call if isinstance(call, RuleBroken) else None


def _phase(when: Any, act: Callable[[], Any]) -> BaseException | None:
    info = pytest.CallInfo.from_call(act, when, reraise=(KeyboardInterrupt, pytest.exit.Exception))
    return None if info.excinfo is None else info.excinfo.value
