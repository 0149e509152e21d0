"""Running a test of pytest again with parts of its run left out, to shrink the case that it found."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tarry.tools.testing.parts import Parts
from tarry.tools.testing.report import RuleBroken
from tarry.tools.testing.shrinking import rule_to_shrink, shrink

if TYPE_CHECKING:
    from collections.abc import Callable

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
