"""Concurrent runs of a handler: when each must end, is stopped and is abandoned, on a clock that only waits advance."""

import asyncio
import math
import sys
import threading
from functools import partial
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any

import pytest

from tarry import consumer
from tarry.observe import tracing
from tarry.run import jobs as jobs_module
from tarry.run.concurrent import Background
from tarry.run.deadline import Deadline
from tarry.run.eager_tasks import EagerTasks
from tarry.run.jobs import PAUSE_SECONDS, Job, JobExecutor, Jobs
from tarry.run.tasks import TaskExecutor, eager_start, event_loop
from tarry.testing import message
from tarry.world import INTERRUPT_AGAIN_SECONDS, Interrupted, RealThreads, World, use
from tests.loglines import Caplog, field, lines
from tests.wire import NoThreads

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
        self.stopped: list[Job] = []
        self.abandoned_at: dict[Job, float] = {}
        self.blocking: Job | bool = False
        self.ending: set[Job] = set()  # the jobs whose end is being noted
        self.wakes = 0
        self.takes: float | None = None  # the seconds after which a job ends while it starts
        self.in_start: Any = lambda: None  # called when a job starts

    def start(self, job: Job) -> bool:
        self.in_start()
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
        self.stopped.append(job)

    def abandon(self, job: Job) -> None:
        job.is_abandoned = True
        self.abandoned_at[job] = self.now

    def wake(self) -> None:
        self.wakes += 1

    def is_ending(self, job: Job) -> bool:
        return job in self.ending or super().is_ending(job)

    def is_blocked_by(self, frame: FrameType | None) -> Job | bool:
        return self.blocking or super().is_blocked_by(frame)


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

    def fire_at(self, seconds: float) -> Any:
        self.executor.now = BEGAN + seconds
        return self.jobs.fire(None)

    @property
    def stops(self) -> list[tuple[Job, float]]:
        """Each stop of a job, with the seconds after which it was stopped."""
        return [(job, at - BEGAN) for job, at in zip(self.executor.stopped, self.executor.stops, strict=True)]


def frame_in(module: Any, function: str) -> FrameType:
    """Return the frame of a function with this name in a module."""
    namespace: dict[str, Any] = {}
    exec(compile(f"import sys\ndef {function}(): return sys._getframe()", module.__file__, "exec"), namespace)
    frame: FrameType = namespace[function]()
    return frame


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
    job, other = invocation.start(), invocation.start()
    invocation.executor.ends = [(BEGAN + 10.05, job), (BEGAN + 10.25, other)]
    assert [invocation.ended(), invocation.ended()] == [[job], [other]]
    assert invocation.stops == [(job, 10), (other, 10), *((other, pytest.approx(at)) for at in (10.1, 10.2))]
    assert invocation.executor.abandoned_at == {}
    last = invocation.start()
    invocation.jobs.end_all(SystemExit(), 0.05)
    assert invocation.ended() == [last]
    assert invocation.stops[4:] == [(last, 10.25)]  # its next stop does not follow from those of the other jobs
    assert not invocation.deadline.may_start(BEGAN + 18.78, waiting=1)  # 11.22 s: the margin, the timeout, and the run


def test_a_job_is_stopped_at_its_own_time_unless_it_has_ended_or_its_end_is_being_noted() -> None:  # SPEC I3
    invocation = Invocation(timeout=10)
    executor = invocation.executor
    early, in_time, noted, in_a_hook, late = (invocation.start(delay=delay) for delay in (0, 1, 1, 1, 4))
    executor.ends = [(BEGAN + 7, early), (BEGAN + 11, in_time), (BEGAN + 14.025, late)]
    executor.ending, in_a_hook.has_ended = {noted}, True
    assert [invocation.ended(), invocation.ended()] == [[early], [in_time]]
    assert executor.waits == [10, 4]
    executor.ends.append((BEGAN + 11.125, noted))
    assert invocation.ended() == [noted]
    assert executor.waits[2:] == pytest.approx([0.05] * 3)
    assert (invocation.ended(), invocation.stops) == ([late], [(late, 14)])
    assert [early.error, in_time.error, noted.error, in_a_hook.error] == [None] * 4
    assert isinstance(late.error, TimeoutError)


def test_the_wait_for_the_next_job_is_at_least_a_millisecond_and_none_if_its_time_is_up() -> None:  # SPEC I3
    for timeout, passed, wait in ((0.0004, 0, 0.001), (0.5, 0, 0.5), (5, 5, 0), (5, 5.5, 0)):
        invocation = Invocation(timeout)
        invocation.start()
        invocation.executor.now += passed
        invocation.ended()
        assert invocation.executor.waits[0] == wait


def test_an_interrupted_job_has_exceeded_its_time_and_its_error_shows_where() -> None:  # SPEC I3, F2
    invocation, interruption = Invocation(timeout=10), Interrupted()
    interruption.__traceback__ = traceback = TracebackType(None, frame_in(asyncio, "handler"), 0, 1)
    one, abandoned, plain = (invocation.start(raised=raised) for raised in (interruption, ValueError(), KeyError()))
    invocation.executor.ends = [(BEGAN + 5, one), (BEGAN + 5, plain)]
    invocation.ended()
    error = one.outcome()
    assert isinstance(error, TimeoutError)
    assert (error.__traceback__, one.raised) == (traceback, None)
    assert isinstance(plain.outcome(), KeyError)
    abandoned.is_abandoned = True
    assert abandoned.outcome() is None
    given = invocation.start(error=TimeoutError())
    assert given.outcome() is None  # it has returned, with a verdict of its own
    given.raised = raised = KeyError()
    raised.__traceback__ = traceback
    given.fail(KeyError())
    assert (given.outcome(), type(given.error)) == (raised, TimeoutError)
    assert given.error.__traceback__ is None
    assert given.tries == 1


def test_the_time_of_a_job_begins_after_its_delay_and_its_claim_and_a_claim_may_end_until_the_last_moment() -> None:
    """SPEC I3, I5, K4."""
    claiming, delayed, claimed = Invocation(), Invocation(timeout=10), Invocation(timeout=10)
    claiming.start(is_claiming=True)
    delayed.start(delay=5)
    job = claimed.start(is_claiming=True)
    claimed.executor.now += 4
    claimed.jobs.on_claim(job, False)
    assert (job.is_claiming, claimed.executor.wakes) == (False, 0)
    for invocation, due in ((claiming, 29.5), (delayed, 15), (claimed, 14)):
        invocation.ended()
        assert invocation.executor.stops[0] == BEGAN + due


def test_a_job_has_less_time_if_claims_take_more_and_more_if_a_hook_has_kept_it_from_running() -> None:  # SPEC I3, K4
    for ending, in_hooks, shares_thread, due in (
        *((0.5, 0, False, 28.5), (4, 0, False, 25), (20, 0, False, 9)),
        *((0, 3, True, 13), (0, 0.05, True, 10.05), (0, 0.04, True, 10), (0, 3, False, 10), (4, 3, True, 13)),
    ):
        invocation = Invocation(None if due > 15 else 10)
        if shares_thread:
            invocation.executor.shares_thread = True
        job = invocation.start()
        invocation.deadline.ending, invocation.deadline.in_hooks = ending, in_hooks
        invocation.ended()
        assert invocation.stops[0] == (job, pytest.approx(due))


def test_jobs_are_stopped_in_the_order_of_their_times_after_a_claim_or_a_hook_has_changed_these() -> None:
    """SPEC I3, K4. When claims become slower, the wait of the jobs ends, so that all are stopped in time."""
    invocation = Invocation(timeout=10)
    claiming, job = invocation.start(is_claiming=True), invocation.start(delay=1)
    jobs, executor, deadline = invocation.jobs, invocation.executor, invocation.deadline
    executor.now += 5
    deadline.ending = 1
    jobs.on_claim(claiming, True)
    assert (claiming.is_claiming, executor.wakes) == (True, 1)
    jobs.on_claim(claiming, True)
    invocation.ended()
    assert invocation.stops[0] == (job, 11)
    jobs.on_claim(claiming, True)
    assert executor.wakes == 2  # the slower claims are considered by now

    def hook() -> bool:
        invocation.deadline.in_hooks = 3
        return False

    invocation = Invocation(timeout=10)
    invocation.executor.shares_thread, invocation.jobs.between = True, hook
    job = invocation.start()
    invocation.ended()
    assert invocation.stops[0] == (job, 13)


def test_the_wait_for_jobs_ends_with_an_answer_to_a_request() -> None:  # SPEC I1
    invocation = Invocation(timeout=10)
    job = invocation.start()
    invocation.jobs.between = lambda: invocation.executor.now > BEGAN + 10
    assert (invocation.ended(), invocation.executor.now) == ([], pytest.approx(BEGAN + 10 + INTERRUPT_AGAIN_SECONDS))
    assert (len(invocation.jobs), job.is_abandoned) == (1, False)


def test_a_job_that_blocks_the_others_beyond_its_time_has_failed_although_it_catches_the_interruption() -> None:
    """SPEC I3. It is interrupted a moment after it could have been stopped."""
    invocation = Invocation(timeout=10)
    job, executor = invocation.start(), invocation.executor
    executor.blocking = job
    for passed in (0, 9.5):
        assert invocation.fire_at(passed) == pytest.approx(10 - passed + INTERRUPT_AGAIN_SECONDS)
    assert isinstance(invocation.fire_at(10 + INTERRUPT_AGAIN_SECONDS), Interrupted)
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
    executor.takes = PAUSE_SECONDS
    invocation.start()
    assert jobs.needs_pause
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
    executor.now = BEGAN + 15
    for module, function in ((jobs_module, "_on_verdict"), (tracing, "_handler_ended")):
        assert fire(frame_in(module, function)) == 0.05
    executor.blocking = True
    assert isinstance(fire(None), Interrupted)
    executor.blocking = second
    assert isinstance(fire(frame_in(tracing, "_end")), Interrupted)
    assert [first.error, second.error] == [None, None]
    assert isinstance(fire(None), Interrupted)
    assert isinstance(second.error, TimeoutError)


def test_a_job_that_blocks_while_it_starts_is_interrupted_when_its_time_or_that_of_another_job_is_up() -> None:
    """SPEC I3."""
    answers: list[Any] = []
    for starts, passed in (([0], 4), ([0, 6], 7), ([0], 10 + INTERRUPT_AGAIN_SECONDS)):
        invocation = Invocation(timeout=10)
        executor = invocation.executor
        executor.blocking = True
        for at in starts:
            executor.now = BEGAN + at
            executor.in_start = lambda: answers.append(invocation.fire_at(passed))  # noqa: B023 called in this turn
            invocation.start()
    assert answers[0:3:2] == pytest.approx([6 + INTERRUPT_AGAIN_SECONDS, 3 + INTERRUPT_AGAIN_SECONDS])
    assert isinstance(answers[3], Interrupted)


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
