"""The runs of a sandbox: letting virtual time pass, and checking what happened."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, NoReturn

from tarry.tools.simulator.batch_errors import SeenKeys
from tarry.tools.testing.log_recorder import ignored_failures
from tarry.tools.testing.misuse import Endless, Misuse, stuck
from tarry.tools.testing.report import NOT_KEPT, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.simulation import Simulation
    from tarry.tools.simulator.sqs import Sqs


GIVE_UP_SECONDS = 15 * 86_400
"""The virtual time after which an endless run is stopped: longer than any queue keeps a message."""
MOST_EVENTS = 1_000_000
"""The most events of one run that keeps its history; 100,000 deliveries have half as many."""
OF_THE_TEST = 4
"""The place of the test's code in the stack of `Runs._warn`, for the warnings: above `Sandbox.run` and `Runs.run`."""


class Runs:
    """The runs of one sandbox, which began at ``start``."""

    def __init__(self, simulation: Simulation, sqs: Sqs, history: History, start: float, seed: int) -> None:
        self._simulation = simulation
        self._sqs = sqs
        self._history = history
        self._began = start
        self._seed = seed
        self._checked = 0
        self._warned = 0
        self._shown = SeenKeys()
        self.is_over = False
        """Whether the sandbox is closed."""

    def run(self, until: Callable[[], bool] | None, for_: float | None, *, check: bool) -> Report:
        """Run: see `Sandbox.run`."""
        __tracebackhide__ = True
        if for_ is not None and not 0 <= for_ < math.inf:
            raise ValueError(f"for_ is a number of seconds from 0, got {for_!r}")
        if self._simulation.scheduler.running:
            self._refuse_to_run()
        if self.is_over:
            raise RuntimeError("the sandbox is closed")
        if check and not self._history.keeps:
            raise ValueError(f"{NOT_KEPT}, so no rule can be checked: call run(check=False)")
        self._play(until, for_)
        self._sqs.catch_up()
        report = self.report()
        if check and self._checked < len(report.events):
            self._checked = len(report.events)
            report.check()
        if check and until is None and for_ is None and not report.settled and (text := stuck(report.history)):
            raise AssertionError(text)
        if check:
            self._warn()
        return report

    def report(self) -> Report:
        """Return the report of everything until now."""
        scheduler = self._simulation.scheduler
        settled = math.isinf(scheduler.next_at())
        events = tuple(self._history.events) if self._history.keeps else None
        return Report(events, self._began, scheduler.now, settled, self._seed)

    def _play(self, until: Callable[[], bool] | None, seconds: float | None) -> None:
        scheduler, history = self._simulation.scheduler, self._history
        most = history.recorded + MOST_EVENTS if history.keeps else math.inf
        ends_at = scheduler.now + (GIVE_UP_SECONDS if seconds is None else seconds)
        scheduler.run(lambda: history.recorded > most or (until is not None and until()), ends_at)
        if history.recorded > most:
            raise Endless(f"more than {MOST_EVENTS:,} events in one run: does a function send to itself, on and on?")
        if seconds is not None and until is None:
            scheduler.run(ends_at)  # nothing is left to happen by then, and it is that time

    def _warn(self) -> None:
        """Warn about mappings that AWS may treat differently, and about failures that mappings ignore."""
        events, self._warned = self._history.events[self._warned :], len(self._history.events)
        for event in events:
            match event.what:
                case "connected":
                    for text in event.fields["warnings"]:
                        warnings.warn(f"the mapping of {event.fields['queue']}: {text}", stacklevel=OF_THE_TEST)
                case "answered" if text := ignored_failures(event.fields, self._shown):
                    warnings.warn(text, stacklevel=OF_THE_TEST)

    def _refuse_to_run(self) -> NoReturn:
        """Only a test lets time pass. In a handler an ordinary error would be one more failure to retry."""
        misuse = Misuse("a handler calls run() or advance() of the sandbox it runs in: let it call sandbox.sleep()")
        if self._simulation.actors.running is not None:
            self._simulation.actors.fail(misuse)
        raise misuse
