"""Running async handlers as tasks of the event loop, which is kept between invocations; asyncio cancels them."""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import threading
from contextlib import contextmanager
from functools import partial
from os.path import dirname, join
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.run.handlers import apply_result, is_awaitable
from tarry.run.jobs import ABANDONED, Job, JobExecutor, Jobs
from tarry.support.guards import exit_if_forked, generation
from tarry.world import INTERRUPT_AGAIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from types import FrameType

    from tarry.message.batch import Batch
    from tarry.message.invocation import Invocation
    from tarry.message.message import Message
    from tarry.run.deadline import Deadline
    from tarry.run.jobs import Coordinator

CLEAN_UP_SECONDS = 1.0  # the time for handlers to end after a `SystemExit` has ended their event loop

_local = threading.local()
_dropped: list[object] = []  # tasks that ignore their cancellation: they may also block the garbage collector


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread, which is kept between invocations."""
    threads = world.current().threads
    loop: asyncio.AbstractEventLoop | None = getattr(_local, "loop", None)
    if loop is not None and _local.threads is not threads:
        loop.close()  # it belongs to another world, with another clock
    if loop is None or loop.is_closed():
        loop = _local.loop = threads.new_event_loop()
        _local.threads = threads
    return loop


def run_in_event_loop(steps: Coroutine[Any, Any, None], on_exit: Callable[[BaseException], None]) -> None:
    """Run a coroutine on the event loop. ``on_exit`` gets a `SystemExit` of a handler's task: it ends the loop."""

    def run() -> None:
        loop = event_loop()
        earlier = asyncio.all_tasks(loop)
        task = asyncio.Task(steps, loop=loop)  # ignores a task factory that a handler has set
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                ended = [other for other in earlier if other.done() and not other.cancelled()]
                if not any(other.exception() is error for other in ended):
                    on_exit(error)  # otherwise the error is that of a task from an earlier invocation

    _outside_loop(run)


def _outside_loop(run: Callable[[], None]) -> None:
    """Call ``run`` here, or in another thread if the caller is in an event loop, as in an async test."""
    if asyncio._get_running_loop() is None:
        return run()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 raised below, in the caller
            errors.append(error)
        finally:
            event_loop().close()

    world.current().threads.start(work).join()
    for error in errors:
        raise error


STUCK = "async handlers did not end when they were cancelled, and must never wake up in another invocation"
HOOK_SHARE = 0.5  # the largest share of the time left for a hook on the event loop: other handlers wait for it
_MACHINERY = (join(dirname(asyncio.__file__), ""), join(dirname(__file__), ""), selectors.__file__)
"""Files in whose frames no exception may be raised: it would break the loop, not the handler."""


def eager_start(loop: asyncio.AbstractEventLoop) -> Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]:
    """Return a function that starts a task with its first step; a handler that never waits ends with that step."""
    if sys.version_info >= (3, 12):
        return partial(asyncio.Task, loop=loop, eager_start=True)  # ignores a task factory that a handler has set
    from tarry.run.eager_tasks import EagerTasks

    return EagerTasks(loop).start


class TaskExecutor(JobExecutor):
    """The executor that runs jobs as tasks of the running loop."""

    abandoned = 0  # an abandoned task never runs again
    shares_thread = True

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._loop = asyncio.get_running_loop()
        self._coordinator = asyncio.current_task()
        self._jobs: dict[asyncio.Task[Any], Job] = {}
        self._ended: list[Job] = []
        self._starting: Job | None = None  # the job whose task is being made
        self._awake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began_in = generation()
        self._start_task = eager_start(self._loop)

    def start(self, job: Job) -> bool:
        self._starting = job
        task = self._start_task(self._body(job))
        self._starting = None
        if job.has_ended:
            return True
        job.handle = task
        self._jobs[task] = job
        return False

    async def ended(self, seconds: float) -> list[Job]:
        if not self._ended:
            await self._wait(seconds)
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job) -> None:
        job.handle.cancel()

    def abandon(self, job: Job) -> None:
        job.is_abandoned = True

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return  # the loop is closed, so no wait is left

    def is_blocked_by(self, frame: FrameType | None) -> Job | bool:
        task = asyncio.current_task(self._loop)
        if task is None or task is self._coordinator:
            return False
        if frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
            return False  # between two steps
        job = self._jobs.get(task) or self._starting
        if job is not None and job.has_ended:
            return False  # its end is being noted
        return job or True

    async def _wait(self, seconds: float) -> None:
        """Wait until a job has ended, at most for ``seconds``; with 0, let the other tasks run once."""
        try:
            if seconds == 0:
                await asyncio.sleep(0)
            else:
                self._awake = self._loop.create_future()
                self._wake_in(seconds)
                await self._awake
        except asyncio.CancelledError:
            pass  # a handler may cancel all tasks of the loop

    def _wake_in(self, seconds: float) -> None:
        """Wake after at most ``seconds``; a timer that is already set is kept, since most waits end earlier."""
        when = self._loop.time() + seconds
        if self._timer is not None and self._loop.time() < self._timer.when() <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when == math.inf else self._loop.call_at(when, self._wake)

    def close(self) -> None:
        """Cancel the timer: the loop is used by later invocations."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._awake is not None and not self._awake.done():
            self._awake.set_result(None)

    async def _body(self, job: Job) -> None:
        try:
            if job.delay:
                await self._invocation.world.clock.asleep(job.delay)
            if (result := await job.run(job.subject)) is not None:
                while is_awaitable(result):  # one awaitable may result in another
                    result = await result
                apply_result(result, job.subject)
        except BaseException as error:  # noqa: BLE001 a SystemExit would end the loop
            job.raised = error
        job.has_ended = True
        exit_if_forked(self._began_in, job.raised)
        self._on_end(job)

    def _on_end(self, job: Job) -> None:
        job.has_ended = True
        if self._starting is job:
            return
        job.ended_at = self._invocation.now()
        del self._jobs[job.handle]
        if not job.is_abandoned:
            self._ended.append(job)
            self._wake()


def run_in_tasks(coordinator: Coordinator, invocation: Invocation, deadline: Deadline) -> None:
    made: list[Jobs] = []

    async def steps() -> None:
        with _jobs_in_tasks(invocation, deadline) as jobs:
            made.append(jobs)
            await coordinator(jobs)
            if not jobs.abandoned:
                await jobs.pause()
        if jobs.abandoned:
            _dropped.extend(job.handle for job in jobs.abandoned)
            _local.loop = None  # with the tasks that do not end, it must never run in another invocation
            invocation.must_end_process = STUCK

    def on_exit(error: BaseException) -> None:
        for jobs in made:
            jobs.end_all(error, CLEAN_UP_SECONDS)

    try:
        run_in_event_loop(steps(), on_exit)
    except BaseException:
        if any(jobs.abandon_all() for jobs in made):
            invocation.must_end_process = ABANDONED
        raise


def wait_for(
    awaitable: Awaitable[Any], subject: Message[Any] | Batch[Any], invocation: Invocation, deadline: Deadline
) -> None:
    """Run an awaitable that a sync handler returned, and apply its result; raise its exception."""
    job = Job(lambda _: awaitable, subject)

    async def alone(jobs: Jobs) -> None:
        if not jobs.start(job):
            await jobs.ended()

    run_in_tasks(alone, invocation, deadline)
    if (raised := job.error if job.is_abandoned else job.outcome()) is not None:
        raise raised


@contextmanager
def _jobs_in_tasks(invocation: Invocation, deadline: Deadline) -> Iterator[Jobs]:
    """Provide jobs on the running loop; a job that blocks it beyond its time is interrupted in the loop's thread."""
    clock, threads = invocation.world.clock, invocation.world.threads
    tasks, now = TaskExecutor(invocation), clock.monotonic()
    jobs = Jobs(tasks, deadline, clock.monotonic)
    deadline.hook_share = HOOK_SHARE
    due, interruption = deadline.first_due(now), None
    if due != math.inf:
        interruption = threads.interrupt(due - now + INTERRUPT_AGAIN_SECONDS, jobs.fire)
    try:
        yield jobs
    finally:
        deadline.hook_share = 1.0
        if interruption is not None:
            interruption.cancel()
        tasks.close()
