"""The background requests of one run, which must not block its event loop or the thread that starts its handlers."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tarry.run.jobs import nothing_done
from tarry.sqs.client import result_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.message.delivery import Delivery
    from tarry.run.jobs import Jobs
    from tarry.run.outcomes import Rerun
    from tarry.run.run import Run
    from tarry.run.verdicts import Verdicts


class Background:
    """The background requests of one run. The coordinator handles their answers whenever it waits for its jobs."""

    def __init__(self, run: Run, jobs: Jobs, settled: Callable[[Delivery, Rerun | None], None] | None = None) -> None:
        self._run = run
        self._jobs = jobs
        self._settled = settled
        self._answers: deque[tuple[Callable[[object], None], object]] = deque()
        self._open = 0
        jobs.between = self._advance

    @property
    def under_way(self) -> int:
        """The number of requests to wait for: those whose answer has not come, or was not handled yet."""
        return 0 if self._jobs.is_over else self._open

    def connect(self, verdicts: Verdicts) -> None:
        """Have ``verdicts`` make its requests here if the handler is async."""
        verdicts.awaiting.wake = self._jobs.wake
        if self._run.claims is not None and (settled := self._settled) is not None:
            verdicts.outcomes.ending = lambda claim, outcome, then: self._make(partial(claim.end, outcome), then)
            verdicts.outcomes.claim_ended = lambda delivery: settled(delivery, None)
        if self._run.handling.is_async:
            verdicts.outcomes.in_background = self._make
            if self._settled is not None:
                verdicts.outcomes.settled = self._settled

    def close(self) -> None:
        """Give up the requests that are still open: their messages are only reported as failed.

        This also breaks the reference cycles with the run's other objects, which would keep its batch in memory.
        """
        if self._open:
            self._run.verdicts.outcomes.settlement.report_only(self._open)
        self._jobs.between, self._settled = nothing_done, None

    def _make(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Implement `tarry.run.outcomes.InBackground`."""

        def make() -> None:
            answer = result_of(work)
            if isinstance(answer, Exception):
                text = "tarry itself failed to settle a message, which is reported as failed."
                self._run.handling.log.problem("runtime_failed", text, error=answer)
            self._answers.append((then, answer))
            self._jobs.wake()

        self._open += 1
        try:
            self._run.invocation.world.threads.start(make)
        except RuntimeError:  # the process may have no more threads
            make()

    def _advance(self) -> bool:
        """Continue with messages that waited for a request; return whether there were any."""
        has_progress = False
        while self._answers:
            then, answer = self._answers.popleft()
            self._open -= 1
            has_progress = True
            then(answer)
        if (verdicts := self._run.made_verdicts) is not None and verdicts.advance():
            has_progress = True
        return has_progress
