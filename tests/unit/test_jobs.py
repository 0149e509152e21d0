"""Concurrent runs of a handler: when each must end, is stopped and is abandoned, on a clock that only waits advance."""

import asyncio
import math
import sys
import threading
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tarry import consumer
from tarry.run.concurrent import Background
from tarry.run.deadline import Deadline
from tarry.run.eager_tasks import EagerTasks
from tarry.run.jobs import Job, JobExecutor, Jobs
from tarry.run.tasks import TaskExecutor, eager_start, event_loop
from tarry.testing import message
from tarry.world import INTERRUPT_AGAIN_SECONDS, Interrupted, RealThreads, World, use
from tests.loglines import Caplog, field, lines

BEGAN = 1_000.0


def raises(error: Exception) -> None:
    raise error


class Executor(JobExecutor):
    """Runs nothing: a job ends when the test says so, and ignores every stop."""

    abandoned = 0

    def __init__(self) -> None:
        self.now = BEGAN
        self.ends: list[tuple[float, Job]] = []
        self.stops, self.waits = list[float](), list[float]()
        self.abandoned_at: dict[Job, float] = {}
        self.blocking: Job | bool = False
        self.takes: float | None = None  # the seconds after which a job ends while it starts

    def start(self, job: Job) -> bool:
        self.now += self.takes or 0
        return self.takes is not None

    async def ended(self, seconds: float) -> list[Job]:
        self.waits.append(seconds)
        self.now = min([self.now + seconds, *(at for at, _ in self.ends)])
        ended = [job for at, job in self.ends if at <= self.now]
        self.ends = [each for each in self.ends if each[1] not in ended]
        return ended

    def stop(self, job: Job) -> None:
        self.stops.append(self.now)

    def abandon(self, job: Job) -> None:
        job.is_abandoned = True
        self.abandoned_at[job] = self.now

    def wake(self) -> None: ...

    def is_blocked_by(self, frame: FrameType | None) -> Job | bool:
        return self.blocking


class Invocation:
    """The jobs of an invocation of 30 seconds, of which the last one is kept for settling."""

    def __init__(self, timeout: float | None = None) -> None:
        self.executor = Executor()
        self.deadline = Deadline(BEGAN + 30, 30, timeout=timeout)
        self.jobs = Jobs(self.executor, self.deadline, lambda: self.executor.now)

    def start(self, **fields: Any) -> Job:
        job = Job(lambda _: None, message())
        vars(job).update(fields)
        assert self.jobs.start(job) is (self.executor.takes is not None)
        return job

    def ended(self) -> list[Job]:
        return asyncio.run(self.jobs.ended())


@pytest.mark.parametrize(("timeout", "due"), [(None, 29), (10, 10), (60, 29)])
def test_a_job_is_stopped_when_its_time_is_up_until_it_is_abandoned(timeout: float | None, due: float) -> None:
    # SPEC I3
    invocation = Invocation(timeout)
    job = invocation.start()
    assert invocation.ended() == [job]
    assert isinstance(job.error, TimeoutError)
    stops = invocation.executor.stops
    assert stops[:2] == pytest.approx([BEGAN + due, BEGAN + due + INTERRUPT_AGAIN_SECONDS])
    assert invocation.executor.abandoned_at == {job: pytest.approx(BEGAN + 29.5, abs=0.01)}
    assert (invocation.jobs.abandoned, len(invocation.jobs)) == ([job], 0)


def test_when_the_batch_ends_all_jobs_fail_and_have_only_a_short_time_left() -> None:  # SPEC A5, I3
    invocation, error = Invocation(), SystemExit()
    jobs = [invocation.start(), invocation.start()]
    invocation.jobs.end_all(error, 2)
    assert sorted(invocation.ended(), key=jobs.index) == jobs
    assert [job.error for job in jobs] == [error, error]
    assert invocation.executor.abandoned_at == dict.fromkeys(jobs, pytest.approx(BEGAN + 2, abs=0.01))


def test_a_job_that_ends_after_it_was_stopped_is_not_abandoned_and_its_time_counts() -> None:  # SPEC I2, I3
    invocation = Invocation(timeout=10)
    job = invocation.start()
    invocation.executor.ends = [(BEGAN + 10.05, job)]
    assert invocation.ended() == [job]
    assert (invocation.executor.stops, invocation.executor.abandoned_at) == ([BEGAN + 10], {})
    assert not invocation.deadline.may_start(BEGAN + 18.98, waiting=1)  # 11.02 s: the margin, the timeout, and the run


def test_the_time_of_a_job_begins_after_its_delay_and_its_claim_and_a_claim_may_end_until_the_last_moment() -> None:
    """SPEC I3, I5, K4."""
    claiming, delayed, claimed = Invocation(), Invocation(timeout=10), Invocation(timeout=10)
    claiming.start(is_claiming=True)
    delayed.start(delay=5)
    job = claimed.start(is_claiming=True)
    claimed.executor.now += 4
    claimed.jobs.on_claim(job, False)
    for invocation, due in ((claiming, 29.5), (delayed, 15), (claimed, 14)):
        invocation.ended()
        assert invocation.executor.stops[0] == BEGAN + due


def test_a_job_has_less_time_if_claims_take_more_and_more_if_a_hook_has_kept_it_from_running() -> None:  # SPEC I3, K4
    with_claims, delayed, in_threads = Invocation(), Invocation(timeout=10), Invocation(timeout=10)
    delayed.executor.shares_thread = True
    for invocation in (with_claims, delayed, in_threads):
        invocation.start()
    with_claims.deadline.ending = 4
    for invocation in (delayed, in_threads):
        invocation.deadline.in_hooks += 3
    for invocation, due in ((with_claims, 25), (delayed, 13), (in_threads, 10)):
        invocation.ended()
        assert invocation.executor.stops[0] == BEGAN + due


def test_a_job_that_blocks_the_others_beyond_its_time_has_failed_although_it_catches_the_interruption() -> None:
    """SPEC I3. It is interrupted a moment after it could have been stopped."""
    invocation = Invocation(timeout=10)
    job, executor = invocation.start(), invocation.executor
    executor.blocking = job
    assert invocation.jobs.fire(None) == pytest.approx(10 + INTERRUPT_AGAIN_SECONDS)
    executor.now = BEGAN + 10 + INTERRUPT_AGAIN_SECONDS
    assert isinstance(invocation.jobs.fire(None), Interrupted)
    assert isinstance(job.error, TimeoutError)
    assert "its timeout of 10 s" in str(job.error)


def test_without_jobs_a_wait_for_requests_ends_when_messages_must_and_then_shortly_before_the_response() -> None:
    """SPEC I2."""
    invocation = Invocation()
    for at, is_over in ((BEGAN + 29, False), (BEGAN + 29.75, True)):
        invocation.ended()
        assert (invocation.executor.now, invocation.jobs.is_over) == (at, is_over)


def test_jobs_that_end_as_they_start_leave_a_turn_to_other_tasks_once_in_a_millisecond() -> None:  # SPEC I1, I2
    invocation = Invocation()
    jobs, executor = invocation.jobs, invocation.executor
    executor.takes = 0.0006
    pauses = []
    for _ in range(4):
        invocation.start()
        pauses.append(jobs.needs_pause)
        if jobs.needs_pause:
            assert invocation.ended() == []
    assert pauses == [False, True, False, True]
    asyncio.run(jobs.pause())
    assert executor.waits == [0, 0, 0]
    executor.takes = 5
    invocation.start()
    assert not invocation.deadline.may_start(BEGAN + 24.1)  # the longest took 5 s


def test_a_wait_of_0_seconds_is_one_turn_of_the_event_loop() -> None:  # SPEC I1
    async def other() -> None:
        for step in range(4):
            steps.append(step)
            await asyncio.sleep(0)

    async def coordinate() -> None:
        task = asyncio.create_task(other())
        assert await TaskExecutor(invocation).ended(0) == []
        assert steps == [0]
        await task

    invocation: Any = None  # only a job needs it
    steps: list[int] = []
    asyncio.run(coordinate())


def test_a_wait_leaves_one_timer_at_most_and_a_closed_executor_none() -> None:
    async def coordinate() -> None:
        executor, loop = TaskExecutor(invocation), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        for seconds, left in ((60, 60), (30, 30), (40, 30), (math.inf, 30)):
            for _ in range(2):
                executor.wake()
            assert await executor.ended(seconds) == []
            [timer] = [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
            assert left - 10 < timer.when() - loop.time() <= left
        assert errors == []
        executor.close()
        assert all(timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]

    invocation: Any = None  # only a job needs it
    errors: list[Any] = []
    asyncio.run(coordinate())


@pytest.mark.parametrize(("version", "is_eager"), [((3, 11, 9), False), ((3, 12), True), ((3, 14, 1), True)])
def test_since_python_3_12_asyncio_itself_starts_tasks_with_their_first_step(
    version: tuple[int, ...], is_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = object()
    monkeypatch.setattr(sys, "version_info", version)
    start: Any = eager_start(loop)
    if is_eager:
        assert (start.func, start.keywords) == (asyncio.Task, {"loop": loop, "eager_start": True})
    else:
        assert isinstance(start.__self__, EagerTasks)


def test_another_world_has_another_event_loop_and_that_of_the_one_before_it_is_closed() -> None:  # SPEC A6
    first = event_loop()
    with use(World(threads=RealThreads())):
        second = event_loop()
        assert (event_loop(), first.is_closed(), second.is_closed()) == (second, True, False)
    event_loop()
    assert second.is_closed()


def test_abandoned_jobs_take_places_and_all_are_abandoned_after_a_defect() -> None:  # SPEC I3
    invocation = Invocation()
    invocation.executor.abandoned = 2
    assert not invocation.jobs.abandon_all()
    job = invocation.start()
    assert (len(invocation.jobs), invocation.jobs.taken) == (1, 3)
    assert invocation.jobs.abandon_all()
    assert invocation.executor.abandoned_at == {job: BEGAN}
    assert len(invocation.jobs) == 0


@pytest.mark.parametrize(
    ("after", "blocks", "answer"),
    [(0, True, 29), (28.97, True, 0.05), (29, False, 0.05), (29, True, "stop"), (29.5, True, "stop")],
)
def test_a_task_left_behind_is_interrupted_when_messages_must_end(after: float, blocks: bool, answer: object) -> None:
    # SPEC I3
    invocation = Invocation()
    invocation.executor.now, invocation.executor.blocking = BEGAN + after, blocks
    found = invocation.jobs.fire(None)
    assert ("stop" if isinstance(found, Interrupted) else pytest.approx(found)) == answer


def test_a_job_within_its_time_and_a_step_between_jobs_are_not_interrupted() -> None:  # SPEC I3
    invocation = Invocation(timeout=10)
    executor, fire = invocation.executor, invocation.jobs.fire
    first = invocation.start()
    executor.now += 5
    second = invocation.start()
    executor.now += 5 + INTERRUPT_AGAIN_SECONDS
    assert fire(None) == 0.05
    executor.blocking = second
    for left in (5 - INTERRUPT_AGAIN_SECONDS, 0.5):
        executor.now = BEGAN + 15 - left
        assert fire(None) == pytest.approx(left)
    executor.blocking = True
    assert isinstance(fire(None), Interrupted)
    assert [first.error, second.error] == [None, None]


class NoThreads(RealThreads):
    def start(self, work: Any) -> Any:
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("threads", [RealThreads(), NoThreads()])
def test_the_coordinator_is_woken_when_the_answer_to_a_background_request_has_come(
    threads: Any, caplog: Caplog
) -> None:
    """A defect of tarry is logged, and is an answer too."""
    woken, answers, defect = threading.Event(), list[object](), ValueError("a defect")
    jobs: Any = SimpleNamespace(wake=woken.set, is_over=False)
    world, handling = World(threads=threads), SimpleNamespace(log=consumer(print).log)
    run: Any = SimpleNamespace(invocation=SimpleNamespace(world=world), made_verdicts=None, handling=handling)
    background = Background(run, jobs)
    for work, answer in ((lambda: "the answer", "the answer"), (partial(raises, defect), defect)):
        background._make(work, answers.append)
        assert woken.wait(60)
        woken.clear()
        assert (background.under_way, answers) == (1, [])  # it is handled by the coordinator alone
        assert jobs.between()
        assert (background.under_way, answers.pop()) == (0, answer)
        assert not jobs.between()
    assert [field(line, "error") for line in lines(caplog, "runtime_failed")] == ["ValueError: a defect"]
    run.made_verdicts = SimpleNamespace(advance=lambda: True)
    assert jobs.between()
