"""Concurrent runs of a handler: each is a job, which is stopped when its time is up.

`Jobs` watches their time. A `JobExecutor` runs them: in threads (`threads`), or as tasks of an event loop
(`tasks`).
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from tarry.run.deadline import (
    RECHECK_SECONDS,
    close_verdicts,
    effective_error,
    handler_traceback,
    is_deciding,
    is_ending,
    is_interruption,
    is_tracing_end,
)
from tarry.support.guards import is_a
from tarry.world import INTERRUPT_AGAIN_SECONDS, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from tarry.run.deadline import Deadline

    Coordinator = Callable[["Jobs"], Coroutine[Any, Any, None]]
    """A coroutine function that starts jobs and awaits their ends."""

GIVE_UP_SHARE = 1 / 4  # the part of the margin, at its end, in which no request is awaited any more

SHORTEST_WAIT_SECONDS = 0.001  # a shorter wait may be below the resolution of the clock, which would not advance

PAUSE_SECONDS = 0.001
"""For how long jobs that end as soon as they start may follow each other before the other tasks of the loop run."""

ABANDONED = "tarry itself failed while handlers still run, and these must not meet another batch"


class Job:
    """One run of the handler."""

    # Defaults of the class, and no __slots__: most runs set few of these.
    started_at: float  # set by `Jobs.start`
    ended_at: float | None = None  # when the handler ended, in epoch seconds; None if just now
    has_ended = False
    raised: BaseException | None = None
    error: BaseException | None = None
    """The error with which the run has failed, whatever the handler does now: set when its time is up."""
    is_claiming = False  # whether its message is being claimed: the time of its handler has not begun
    is_abandoned = False  # whether the run was abandoned: it may continue, without any effect
    handle: Any = None  # the task or the worker that runs it

    def __init__(self, run: Callable[[Any], Any], subject: Any, delay: float = 0, tries: int = 1) -> None:
        self.run = run
        self.subject = subject  # the message, or the batch
        self.delay = delay  # the seconds to wait before the run
        self.tries = tries  # the number of the run within this delivery, from 1

    def fail(self, error: BaseException) -> None:
        """Make the run a failure, unless the handler has given a verdict before."""
        if self.error is None:
            self.error = error
            close_verdicts(self.subject, error)

    def outcome(self) -> BaseException | None:
        """Return the error of the run; None for a success. Called once, when the run has ended."""
        if self.is_abandoned:
            return None  # the error was given as a verdict, which holds
        raised, self.raised = self.raised, None  # its traceback holds the frames that hold this job
        if self.error is not None and raised is not None and is_interruption(raised):
            self.error.__traceback__ = handler_traceback(raised)
        return effective_error(self.subject, raised, self.error)


class JobExecutor(Protocol):
    """A backend that runs jobs: in threads, or as tasks of an event loop."""

    shares_thread: bool = False
    """Whether jobs run in the thread that decides, so that a hook of the user's keeps them from running."""

    @property
    def abandoned(self) -> int:
        """The number of places that abandoned jobs occupy."""

    def start(self, job: Job) -> bool:
        """Start a job; return whether it has ended at once, so that `ended` does not return it."""

    async def ended(self, seconds: float) -> list[Job]:
        """Return the jobs that have ended; wait at most ``seconds`` for the first (0: one turn of an event loop)."""

    def stop(self, job: Job) -> None:
        """Stop a job; abandon it if it cannot be stopped."""

    def abandon(self, job: Job) -> None:
        """Abandon a job that was stopped and still runs."""

    def is_ending(self, job: Job) -> bool:
        """Return whether the end of a job's run is being noted: not if it ends in the thread that asks."""
        return False

    def wake(self) -> None:
        """End a wait of `ended`. Any thread may call it."""

    def is_blocked_by(self, frame: FrameType | None) -> Job | bool:
        """Return the job that blocks the others, True if it is not known which, False if none does."""
        return False


class Jobs:
    def __init__(self, executor: JobExecutor, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self._executor = executor
        self._deadline = deadline
        self._monotonic = monotonic
        self._running: dict[Job, None] = {}
        self._dues: list[tuple[float, int, Job]] = []
        """A heap of the times at which jobs must end. A job that has ended stays in it until its time comes."""
        self._numbers = count()
        self._starting: Job | None = None  # the job that takes its first step, before `start` has returned
        self._pause_at = monotonic() + PAUSE_SECONDS
        self.needs_pause = False  # before the next job, await `ended`: other tasks have waited long enough
        self._in_hooks = 0.0  # the seconds in the user's hooks for which no running job is to be blamed
        self._stopped: dict[Job, None] = {}
        self._next_stop_at = math.inf
        self._abandon_at = math.inf
        self._checks = (deadline.interrupt_at, deadline.ends_at - deadline.margin * GIVE_UP_SHARE)
        """When to return from a wait for requests: to settle what waits for a look-up, and for the response."""
        self._ending = 0.0  # the seconds for ending claims with which `_dues` was computed
        self.abandoned: list[Job] = []
        self.between: Callable[[], bool] = nothing_done
        """Called after each wait of `ended`, also one that `wake` ended; returns whether it made progress."""
        self.wake = executor.wake

    @property
    def taken(self) -> int:
        """The number of occupied places, those of abandoned jobs included."""
        return len(self._running) + self._executor.abandoned

    @property
    def is_over(self) -> bool:
        """Whether no job runs, and there is no time to wait for requests either."""
        return not self._running and self._monotonic() >= self._checks[-1]

    def __len__(self) -> int:
        return len(self._running)

    def start(self, job: Job) -> bool:
        """Start a job, whose time counts from the end of its delay. Return what `JobExecutor.start` does."""
        job.started_at = self._monotonic() + job.delay
        self._starting = job
        has_ended = self._executor.start(job)
        self._starting = None
        if has_ended:
            now = self._monotonic()
            self._note_end(job, now)
            self.needs_pause = now >= self._pause_at
            return True
        self._running[job] = None
        heappush(self._dues, (self._deadline.due(job.started_at), next(self._numbers), job))
        return False

    async def ended(self) -> list[Job]:
        """Wait for the next jobs to end or be abandoned, and return them; stop jobs whose time is up."""
        while True:
            self._renew_dues()
            is_pause, self.needs_pause = self.needs_pause, False
            until = self._next_check()
            seconds = until - self._monotonic()
            waits = seconds > 0 and not is_pause
            ended = await self._executor.ended(max(seconds, SHORTEST_WAIT_SECONDS) if waits else 0)
            has_progress = self.between()
            now = self._monotonic()
            self._pause_at = now + PAUSE_SECONDS
            for job in ended:
                self._forget(job)
                self._note_end(job, now)
            self._renew_dues()
            self._stop_jobs_that_are_due(now)
            ended += [job for job in self._stopped if job.is_abandoned]
            for job in ended:
                self._forget(job)
            # Empty if `between` made progress, after a pause, or if no job runs and time for requests is short.
            if ended or has_progress or is_pause or (not self._running and now >= until):
                self.abandoned += [job for job in ended if job.is_abandoned]
                return ended

    def on_claim(self, job: Job, begins: bool) -> None:
        """Note in a job's thread or task that the claim of its message begins, or has ended: its time begins then."""
        if not begins:
            job.started_at = max(job.started_at, self._monotonic())
        job.is_claiming = begins
        if self._deadline.ending > self._ending:
            self.wake()

    async def pause(self) -> None:
        """Let the other tasks of an event loop run once: a task that a handler has made starts in its invocation."""
        await self._executor.ended(0)

    def end_all(self, error: BaseException, seconds: float) -> None:
        """Fail all running jobs with ``error``, and give them ``seconds`` to end."""
        now = self._monotonic()
        self._abandon_at = min(self._abandon_at, now + seconds)
        for job in self._running:
            job.fail(error)
            self._stop(job, now)

    def abandon_all(self) -> bool:
        any_run = bool(self._running)
        for job in self._running:
            self._executor.abandon(job)
        self._running.clear()
        return any_run

    def fire(self, frame: FrameType | None) -> BaseException | float:
        """Return the error to raise where a job blocks the event loop, or when to call next (`tarry.world.Fire`)."""
        now, starting = self._monotonic(), self._starting
        if starting is None and not self._running:
            seconds = self._deadline.due(now) - now
            if seconds > 0 or self._executor.is_blocked_by(frame) is False or is_deciding(frame):
                return max(RECHECK_SECONDS, seconds)
            return Interrupted("its time is up")  # in a task that a handler has left behind
        check_at = self._next_check()
        if starting is not None:
            check_at = min(check_at, self._due(starting, now))
        if (seconds := check_at + INTERRUPT_AGAIN_SECONDS - now) > 0:
            return seconds
        job = self._executor.is_blocked_by(frame)
        if job is False or is_deciding(frame) or is_ending(frame):
            return RECHECK_SECONDS
        if isinstance(job, Job):
            if (seconds := self._due(job, now) - now) > 0:
                return seconds
            if not is_tracing_end(frame):
                job.fail(self._deadline.timed_out(job.started_at, now))
        return Interrupted("its time is up")

    def _next_check(self) -> float:
        """Return when to stop or abandon the next job, or without jobs, when to stop waiting for requests."""
        if not self._running:
            now = self._monotonic()
            return next((at for at in self._checks if at > now), now)
        due = self._next_due()
        return min(due, self._next_stop_at, self._abandon_at) if self._stopped else due

    def _next_due(self) -> float:
        while self._dues and (self._dues[0][2] not in self._running or self._dues[0][2] in self._stopped):
            heappop(self._dues)
        return self._dues[0][0] if self._dues else math.inf

    def _due(self, job: Job, now: float) -> float:
        """Return when a job must end; during a claim, which ends soon by itself, as if its handler began now."""
        due = self._deadline.due(now if job.is_claiming else job.started_at)
        return self._deadline.last_moment if job.is_claiming and due <= now else due

    def _renew_dues(self) -> None:
        """Have jobs end earlier if claims have become slower, and later if a hook kept them from running."""
        deadline = self._deadline
        lost = deadline.in_hooks - self._in_hooks
        was_kept = self._executor.shares_thread and lost >= RECHECK_SECONDS
        if deadline.ending <= self._ending and not was_kept:
            return
        if was_kept:
            self._in_hooks = deadline.in_hooks
            for job in self._running:
                job.started_at += lost
        self._ending, now = deadline.ending, self._monotonic()
        self._dues = [(self._due(job, now), number, job) for _, number, job in self._dues]
        heapify(self._dues)

    def _stop_jobs_that_are_due(self, now: float) -> None:
        if now >= self._abandon_at:
            for job in self._stopped:
                self._executor.abandon(job)
        elif now >= self._next_stop_at:
            self._next_stop_at = math.inf
            for job in list(self._stopped):
                self._stop(job, now)
        while self._next_due() <= now:
            _, number, job = self._dues[0]
            if job.has_ended:  # while a hook ran in this thread
                heappop(self._dues)
            elif (due := now + RECHECK_SECONDS if self._executor.is_ending(job) else self._due(job, now)) > now:
                # Its handler has just ended, or has started later than the job, after its claim.
                heapreplace(self._dues, (due, number, job))
            else:
                job.fail(self._deadline.timed_out(job.started_at, now))
                self._stop(job, now)

    def _stop(self, job: Job, now: float) -> None:
        self._stopped[job] = None
        self._abandon_at = min(self._abandon_at, self._deadline.last_moment)
        self._next_stop_at = min(self._next_stop_at, now + INTERRUPT_AGAIN_SECONDS)
        self._executor.stop(job)

    def _note_end(self, job: Job, now: float) -> None:
        self._deadline.took(max(0.0, now - job.started_at))
        if is_a(job.raised, Interrupted):
            job.fail(self._deadline.timed_out(job.started_at, now))

    def _forget(self, job: Job) -> None:
        self._running.pop(job, None)
        self._stopped.pop(job, None)
        if not self._stopped:
            self._next_stop_at = math.inf


def nothing_done() -> bool:
    return False
