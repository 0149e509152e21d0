"""Running several sync handlers at once in worker threads.

The workers are kept between invocations, with thread-local objects of the handler such as connections. A worker whose
job was abandoned returns to the pool when its handler ends.
"""

from __future__ import annotations

import math
import sys
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING

from tarry.run.deadline import current_traceback, is_ending
from tarry.run.jobs import ABANDONED, JobExecutor, Jobs
from tarry.support.guards import exit_if_forked, generation
from tarry.support.hooks import WorkerPool

if TYPE_CHECKING:
    from tarry.run.jobs import Coordinator, Job
    from tarry.run.run import Run
    from tarry.world import World

STUCK_ON_FIFO = "A sync handler did not end in time, and the next message of its FIFO group must not run beside it"
STUCK = "Sync handlers did not end in time and take all places of concurrency="


class HandlerWorkers(WorkerPool):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lock = threading.Lock()  # held while a job ends or is abandoned
        self.abandoned: list[int] = []  # the handlers' ids of abandoned jobs: each takes a place of its handler only


class ThreadExecutor(JobExecutor):
    """The executor that runs the jobs of one invocation in the workers."""

    def __init__(self, pool: HandlerWorkers, run: Run) -> None:
        self._pool = pool
        self._run = run
        self._handler = id(run.handling.function)
        self._some_ended = pool.threads.event()
        self._ended: list[Job] = []
        self._began_in = generation()

    @property
    def abandoned(self) -> int:
        """The number of places that abandoned jobs occupy, of this invocation or an earlier one."""
        return self._pool.abandoned.count(self._handler)

    def start(self, job: Job) -> bool:
        context, began_in = copy_context(), self._began_in

        def work() -> None:
            try:
                context.run(self._run_job, job)
            except BaseException as error:  # noqa: BLE001 whatever the error, this message has failed
                job.raised = error
            exit_if_forked(began_in, job.raised)
            self._on_end(job)

        try:
            job.handle = self._pool.take()
        except RuntimeError:  # the process may have no more threads: run the job here while the others wait
            work()
        else:
            job.handle.give(work)
        return False

    async def ended(self, seconds: float) -> list[Job]:
        if not self._ended and seconds > 0:
            self._some_ended.wait(None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX))
        self._some_ended.clear()
        with self._pool.lock:
            ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job) -> None:
        """Abandon a job, since a thread cannot be stopped."""
        self.abandon(job)

    def abandon(self, job: Job) -> None:
        with self._pool.lock:
            if job.has_ended or job.is_abandoned:
                return
            job.is_abandoned = True
            self._pool.abandoned.append(self._handler)
        if job.error is not None:
            job.error.__traceback__ = current_traceback(job.handle.ident)

    def is_ending(self, job: Job) -> bool:
        return is_ending(sys._current_frames().get(job.handle.ident))

    def wake(self) -> None:
        self._some_ended.set()

    def _run_job(self, job: Job) -> None:
        run = self._run
        if job.delay:
            run.invocation.world.clock.sleep(job.delay)
        try:
            if (result := job.run(job.subject)) is not None:
                run.complete(result, job.subject)
        finally:
            self._handler_ended(job)

    def _handler_ended(self, job: Job) -> None:
        job.ended_at = self._run.invocation.now()

    def _on_end(self, job: Job) -> None:
        with self._pool.lock:
            job.has_ended = True
            if job.is_abandoned:
                self._pool.abandoned.remove(self._handler)
            else:
                self._ended.append(job)
        self._some_ended.set()


def run_in_threads(coordinator: Coordinator, run: Run) -> None:
    """Run a coordinator in this thread, with its jobs in the workers. It must not await anything else."""
    pool = run.invocation.world.keep(HandlerWorkers)
    jobs = Jobs(ThreadExecutor(pool, run), run.deadline, run.monotonic)
    try:
        coordinator(jobs).send(None)  # without an event loop, since it never suspends
    except StopIteration:
        pass
    except BaseException:
        if jobs.abandon_all():
            run.invocation.must_end_process = ABANDONED
        raise
    if jobs.abandoned and run.is_fifo:
        run.invocation.must_end_process = STUCK_ON_FIFO
    elif jobs.taken >= run.handling.concurrency:
        run.invocation.must_end_process = STUCK
