"""Runs of a handler beside each other: each is a job, and is told to end when its time is up.

`Jobs` keeps their time. An `Executor` runs them: in threads (`threads`), or as tasks of an event loop (`tasks`).
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from tarry.execution.timeouts import (
    ASK_AGAIN_SECONDS,
    Interrupted,
    close,
    deals_with_verdict,
    taken_for,
    was_told,
    where,
)
from tarry.support.causes import is_a
from tarry.world import INTERRUPT_AGAIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from tarry.execution.deadline import Deadline

    Coordinator = Callable[["Jobs"], Coroutine[Any, Any, None]]
    """Starts jobs, and awaits their ends."""

LAST_SECONDS = 0.5
"""Of the margin, but at most half of it: for runs that were told to end."""

SHORTEST_WAIT_SECONDS = 0.001
"""A shorter wait may be within the resolution of a clock, and then does not move its time on."""

LEFT_BEHIND = "tarry itself failed while handlers still run, and these must not meet another batch"


class Job:
    """One run of the handler."""

    __slots__ = (
        "delay", "ended_at", "error", "handle", "has_ended", "is_left", "raised", "run", "started_at", "subject",
        "tries",
    )  # fmt: skip

    def __init__(self, run: Callable[[Any], Any], subject: Any, delay: float = 0, tries: int = 1) -> None:
        self.run = run
        self.subject = subject
        """The message, or the batch."""
        self.delay = delay
        """Seconds to wait before it."""
        self.tries = tries
        """Which run on this message it is within this delivery, from 1."""
        self.started_at = 0.0
        self.ended_at = 0.0
        """When the handler ended, in epoch seconds."""
        self.has_ended = False
        self.raised: BaseException | None = None
        """What it ended with."""
        self.error: BaseException | None = None
        """What it has failed with, whatever it does: set when its time is up."""
        self.is_left = False
        """Whether it was left behind: it may go on, to no effect."""
        self.handle: Any = None
        """The task or the worker that runs it."""

    def fail(self, error: BaseException) -> None:
        """Make it a failure whatever it does from now on, unless it has given a verdict before."""
        if self.error is None:
            self.error = error
            close(self.subject, error)

    def outcome(self) -> BaseException | None:
        """The error that its run counts as; None for a success."""
        if self.is_left:
            return None  # its verdict is given, and stays
        if self.error is not None and self.raised is not None and was_told(self.raised):
            self.error.__traceback__ = where(self.raised)
        return taken_for(self.subject, self.raised, self.error)


class Executor(Protocol):
    """Runs jobs: in threads, or as tasks of an event loop."""

    @property
    def lost(self) -> int:
        """The number of places that are taken by jobs that were left behind."""

    def start(self, job: Job) -> None:
        """Begin to run a job."""

    async def ended(self, seconds: float) -> list[Job]:
        """Return the jobs that have ended since the last call; wait at most ``seconds`` for the first."""

    def stop(self, job: Job) -> None:
        """Tell a job to end. One that cannot be told is left behind."""

    def leave(self, job: Job) -> None:
        """Leave a job behind that was told to end and still runs."""

    def wake(self) -> None:
        """End a wait of `ended`; may be called in any thread."""

    def is_blocked_by(self, frame: FrameType | None) -> Job | bool:
        """Whether a job keeps the others from running: the job, or True if it is not known which."""


class Jobs:
    """The jobs of one invocation that run at the moment."""

    def __init__(self, executor: Executor, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self._executor = executor
        self._deadline = deadline
        self._monotonic = monotonic
        self._running: dict[Job, None] = {}
        self._dues: list[tuple[float, int, Job]] = []
        """When the time of each is up: a heap. A job that has ended stays in it until it comes up."""
        self._started = 0
        self._stopped: dict[Job, None] = {}
        self._stop_again_at = math.inf
        self._leave_at = deadline.interrupt_at + min(LAST_SECONDS, deadline.margin / 2)
        self.left: list[Job] = []
        """The jobs that were left behind."""
        self.between: Callable[[], bool] = _nothing
        """Called whenever a wait of `ended` is over, also by `wake`; returns whether it made any progress."""

    @property
    def taken(self) -> int:
        """How many places are taken, also by jobs that were left behind."""
        return len(self._running) + self._executor.lost

    def __len__(self) -> int:
        return len(self._running)

    def start(self, job: Job) -> None:
        """Begin to run a job; its time counts from the end of its delay."""
        job.started_at = self._monotonic() + job.delay
        self._executor.start(job)
        self._running[job] = None
        self._started += 1
        if (due := self._deadline.due(job.started_at)) != math.inf:
            heappush(self._dues, (due, self._started, job))

    async def ended(self) -> list[Job]:
        """Wait for the next jobs to end, or to be left behind; tell the ones whose time is up meanwhile to end.

        Returns none of them if `between` made progress.
        """
        while True:
            seconds = self._look_at() - self._monotonic()
            ended = await self._executor.ended(0 if seconds <= 0 else max(seconds, SHORTEST_WAIT_SECONDS))
            has_progress = self.between()
            now = self._monotonic()
            for job in ended:
                self._forget(job)
                self._deadline.took(max(0.0, now - job.started_at))
                if is_a(job.raised, Interrupted):
                    job.fail(self._deadline.timed_out(job.started_at, now))
            self._stop_jobs_that_are_due(now)
            ended += [job for job in self._stopped if job.is_left]
            for job in ended:
                self._forget(job)
            if ended or has_progress:
                self.left += [job for job in ended if job.is_left]
                return ended

    def wake(self) -> None:
        """Have `between` called soon; may be called in any thread."""
        self._executor.wake()

    def end_all(self, error: BaseException, seconds: float) -> None:
        """Fail all jobs that run with ``error``, and give them ``seconds`` to end."""
        now = self._monotonic()
        self._leave_at = min(self._leave_at, now + seconds)
        for job in self._running:
            job.fail(error)
            self._stop(job, now)

    def leave_all(self) -> bool:
        """Leave all jobs behind that run; return whether there were any."""
        any_run = bool(self._running)
        for job in self._running:
            self._executor.leave(job)
        self._running.clear()
        return any_run

    def fire(self, frame: FrameType | None) -> BaseException | float:
        """Return the error to raise in the thread of an event loop that a job blocks. `tarry.world.Fire`.

        None is raised as long as the loop turns: then `ended` tells jobs to end.
        """
        now = self._monotonic()
        if not self._running:
            return max(ASK_AGAIN_SECONDS, self._deadline.due(now) - now)
        if (seconds := self._look_at() + INTERRUPT_AGAIN_SECONDS - now) > 0:
            return seconds
        job = self._executor.is_blocked_by(frame)
        if job is False or deals_with_verdict(frame):
            return ASK_AGAIN_SECONDS
        if isinstance(job, Job):
            if (seconds := self._deadline.due(job.started_at) - now) > 0:
                return seconds
            job.fail(self._deadline.timed_out(job.started_at, now))
        return Interrupted("its time is up")

    def _look_at(self) -> float:
        """When one of them is due, at the earliest, or is to be told again."""
        due = self._next_due()
        return min(due, self._stop_again_at, self._leave_at) if self._stopped else due

    def _next_due(self) -> float:
        while self._dues and (self._dues[0][2] not in self._running or self._dues[0][2] in self._stopped):
            heappop(self._dues)
        return self._dues[0][0] if self._dues else math.inf

    def _stop_jobs_that_are_due(self, now: float) -> None:
        if self._stopped and now >= self._leave_at:
            for job in self._stopped:
                self._executor.leave(job)
        elif now >= self._stop_again_at:
            self._stop_again_at = math.inf
            for job in list(self._stopped):
                self._stop(job, now)
        while self._next_due() <= now:
            job = self._dues[0][2]
            job.fail(self._deadline.timed_out(job.started_at, now))
            self._stop(job, now)

    def _stop(self, job: Job, now: float) -> None:
        self._stopped[job] = None
        self._stop_again_at = min(self._stop_again_at, now + INTERRUPT_AGAIN_SECONDS)
        self._executor.stop(job)

    def _forget(self, job: Job) -> None:
        self._running.pop(job, None)
        self._stopped.pop(job, None)
        if not self._stopped:
            self._stop_again_at = math.inf


def _nothing() -> bool:
    """For a coordinator that has nothing to do between."""
    return False
