"""Several messages at once: threads for sync handlers, tasks for async ones.

One coordinator decides; what runs the handlers does nothing else. So nothing depends on which of them ends first, and
the verdicts of a batch need no locks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tarry.execution import driver
from tarry.execution.group_queues import Lanes, Line
from tarry.execution.intake import Records, message_of
from tarry.execution.jobs import Job, Jobs
from tarry.execution.return_values import take
from tarry.execution.run import STUCK_TASKS, Run, ends_batch, is_acknowledged
from tarry.execution.threads import Crew, Shift
from tarry.message import delivery_of
from tarry.sqs.client import result_of
from tarry.support.causes import free_memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tarry.delivery import Delivery
    from tarry.execution.isolation import Suspects
    from tarry.execution.verdicts import Again, Handling, LazySettlement, Verdicts
    from tarry.invocation import Invocation
    from tarry.message import Message

STUCK_ON_FIFO = "a sync handler of a FIFO message did not end in time, and the next of its group must not run beside it"
LEFT_BEHIND = "tarry itself failed beside handlers that still run, and must not meet another batch"
STUCK_THREADS = "as many sync handlers as may run at once did not end in time, and no place is free for another"


class Pool(Run):
    """One run, several messages beside each other."""

    _runs_alone = False

    def __init__(
        self, handling: Handling, invocation: Invocation, pending: Records, settlement: LazySettlement
    ) -> None:
        super().__init__(handling, invocation, pending, settlement)
        self._line = Line(iter(()))
        self._again: deque[Again] = deque()
        self._function = self._after_validation()
        self._has_started = self._is_last_part = self._have_all_run = self._is_out_of_time = False
        self._jobs: Jobs | None = None
        self._answers: deque[tuple[Callable[[object], None], object]] = deque()
        """Of requests that were made in the background."""
        self._requests_under_way = 0

    def each(self) -> None:
        self._renew(self._put_in_order())
        self._drive(self._several)
        self._tell_of_time()

    def batch(self) -> None:
        """Of async handlers alone: a sync one is not run beside others."""
        self._is_batch = True
        self._renew()
        self._drive(self._alone)

    def _drive(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tell_of_timeout()
        try:
            if self._handling.is_async:
                driver.run_async(self._in_tasks(steps), self._on_exit)
            else:
                driver.run_sync(self._in_threads(steps))
        except BaseException as error:  # noqa: BLE001 a fault of our own
            if self._jobs is not None and len(self._jobs):
                self._jobs.leave_all()
                self.must_end_process = LEFT_BEHIND
            self._end(None, error)

    async def _in_tasks(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        from tarry.execution.tasks import jobs_in_tasks

        with jobs_in_tasks(self._run_async, self._deadline, self._invocation.world) as jobs:
            self._jobs = jobs
            jobs.between = self._advance
            await steps()
        if jobs.left:
            driver.drop_event_loop(job.handle for job in jobs.left)
            self.must_end_process = STUCK_TASKS

    async def _in_threads(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        crew = self._invocation.world.keep(Crew)
        self._jobs = Jobs(Shift(crew, self._run_sync), self._deadline, self._monotonic)
        self._jobs.between = self._advance
        await steps()
        if self._jobs.left and self._is_fifo:
            self.must_end_process = STUCK_ON_FIFO
        elif self._jobs.taken >= self._handling.concurrency:
            self.must_end_process = STUCK_THREADS

    async def _several(self) -> None:
        if self._suspects is not None:
            await self._run_todo()
            if not self._is_ended:
                self._turn_to(self._suspects)
        self._is_last_part = True
        await self._run_todo()
        for again in self._again:
            self.verdicts.give_up(again)
        self._give_back_rest()
        self._sort()

    async def _run_todo(self) -> None:
        messages = self._messages()
        self._line = Lanes(messages) if self._is_fifo else Line(messages)
        jobs = self._running
        while self._start_what_may(jobs):
            for job in await jobs.ended():
                try:
                    self._note_end(job)
                except BaseException as error:  # noqa: BLE001 a fault of our own, or of a hook: the others still end
                    self._end(None, error)

    def _advance(self) -> bool:
        """Go on with what waited for a request; whether anything did."""
        has_progress = False
        while self._answers:
            then, answer = self._answers.popleft()
            self._requests_under_way -= 1
            has_progress = True
            then(answer)
        if self._verdicts is not None and self._verdicts.advance():
            has_progress = True
        return has_progress

    def _in_background(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Make a request in a thread of its own, so that the handlers on the event loop run on."""

        def make() -> None:
            answer = result_of(work)
            if isinstance(answer, Exception):
                self._handling.log.problem("runtime_failed", "tarry itself failed to settle a message", error=answer)
            self._answers.append((then, answer))
            self._running.wake()

        self._requests_under_way += 1
        try:
            self._invocation.world.threads.start(make)
        except RuntimeError:  # the process may have no more threads
            make()

    def _settled(self, delivery: Delivery, again: Again | None) -> None:
        if again is not None:
            self._again.append(again)
        else:
            self._line.free(delivery)

    def _on_verdict(self, delivery: Delivery) -> None:
        self._prepared(self.verdicts)
        super()._on_verdict(delivery)

    def _prepared(self, verdicts: Verdicts) -> Verdicts:
        verdicts.wake = self._running.wake
        if self._handling.is_async:
            verdicts.settled = self._settled
            verdicts.in_background = self._in_background
        return verdicts

    def _turn_to(self, suspects: Suspects) -> None:
        """Makes ready for those that were delivered before: nothing else runs any more."""
        self._todo, self._late = self._late, iter(())
        self._is_out_of_time = False
        if not suspects.are_set_apart and self._deadline.may_start(self._monotonic()):
            self._set_apart(suspects)

    async def _alone(self) -> None:
        if (batch := self._filled()) is not None:
            self._running.start(Job(self._handling.function, batch))
            ended: list[Job] = []
            while not ended:  # it may have waited for the answer to a request
                ended = await self._running.ended()
            self._note_batch(batch, ended[0].outcome())
            while self._requests_under_way:  # for messages on which it gave a verdict: they end before the answer
                await self._running.ended()

    def _messages(self) -> Iterator[Message[Any]]:
        """Those that are due, in order; made when they are asked for."""
        for message_id, record in self._todo:
            message = message_of(record, message_id, self._invocation, self._handling.log)
            if self._waits(message):
                continue
            if self._is_fifo:
                self.verdicts.enter(delivery_of(message))
            yield message

    def _start_what_may(self, jobs: Jobs) -> bool:
        """Starts as many as may be beside those that run; whether any run then."""
        while jobs.taken < self._handling.concurrency and (job := self._next()) is not None:
            jobs.start(job)
        return len(jobs) > 0 or self._requests_under_way > 0 or self._is_held

    @property
    def _is_held(self) -> bool:
        """Whether a FIFO group waits for the look-up of its queue."""
        return self._verdicts is not None and self._verdicts.holds_groups

    def _next(self) -> Job | None:
        """The next run of the handler, if there is to be one now."""
        if self._is_ended:
            return None
        again = self._again.popleft() if self._again else None
        if again is None and (message := self._next_message()) is not None:
            return Job(self._function, message)
        if again is None and self._may_ask() and self._verdicts is not None:
            again = self._verdicts.next_again()
        if again is None:
            return None
        again.failure.delivery.is_closed = False
        return Job(self._function, again.failure.message, again.delay, again.failure.tries + 1)

    def _may_ask(self) -> bool:
        """Whether it may be asked what has failed: when all messages have run (see `Verdicts.next_again`)."""
        if self._requests_under_way or self._is_held:
            return False
        if self._is_last_part and not self._have_all_run and not len(self._running):
            self._have_all_run = True
            self._sort()
        return self._have_all_run

    def _sort(self) -> None:
        if self._verdicts is not None:
            self._verdicts.sort(list(self._records))

    def _next_message(self) -> Message[Any] | None:
        while not self._is_out_of_time and (message := self._line.next()) is not None:
            if self._is_fifo and self.verdicts.is_stopped(delivery := delivery_of(message)):
                self.verdicts.give_back(delivery)
                self._line.free(delivery)
            elif self._has_started and not self._deadline.may_start(self._monotonic(), self._waiting_behind(message)):
                self._out_of_time(message)
                self._is_out_of_time = not (self._is_last_part and self._waiting_behind(message))
                self._line.free(delivery_of(message))
            else:
                self._has_started = True
                if self._suspects is not None and message.delivery_id in self._suspects:
                    self._suspects.starts(delivery_of(message))
                return message
        return None

    def _waiting_behind(self, message: Message[Any]) -> int:
        """How many times as long as one those take, together, that a message gives way to."""
        waiting = 0 if self._suspects is None else self._suspects.waiting_behind(message.delivery_id)
        return -(-waiting // self._handling.concurrency)

    async def _run_async(self, job: Job) -> None:
        clock = self._invocation.world.clock
        if job.delay:
            await clock.asleep(job.delay)
        try:
            result = job.run(job.subject)
            take(await driver.completed(result), job.subject)
        finally:
            job.ended_at = self._invocation.now()

    def _run_sync(self, job: Job) -> None:
        clock = self._invocation.world.clock
        if job.delay:
            clock.sleep(job.delay)
        try:
            if (result := job.run(job.subject)) is not None:
                self._complete(result, job.subject)
        finally:
            job.ended_at = self._invocation.now()

    def _on_exit(self, error: BaseException) -> None:
        """The event loop was ended below the handlers that run: all of them were at hand."""
        self._running.end_all(error, driver.CLEAN_UP_SECONDS)

    def _note_end(self, job: Job) -> None:
        """Takes down what becomes of a message whose run has ended, or was left behind."""
        message, raised = job.subject, job.outcome()
        if raised is not None:
            free_memory_of(raised)
        if raised is None and is_acknowledged(self._invocation.deliveries.get(message.delivery_id)):
            del self._pending[message.delivery_id]
            if (acks := self._invocation.acks) is not None:
                acks.add(delivery_of(message))
        elif raised is not None and ends_batch(raised):
            self._end(message, raised)
        else:
            verdicts, early = self._prepared(self.verdicts), not job.is_left
            ended_at = job.ended_at or None
            delivery = delivery_of(message)
            again = verdicts.on_message(delivery, delivery.verdict, raised, job.tries, ended_at=ended_at, early=early)
            self._deadline.owed = verdicts.owed_seconds()
            if again is not None:
                return self._again.append(again)
        is_open = self._verdicts is not None and self._verdicts.is_under_way(message.delivery_id)
        if self._is_fifo and not (job.is_left or is_open):  # else the next of its group would run beside it
            self._line.free(delivery_of(message))

    def _give_back_todo(self) -> int:
        given_back = 0
        for message in self._line.rest():
            self.verdicts.give_back(delivery_of(message))
            given_back += 1
        return given_back + super()._give_back_todo()

    @property
    def _running(self) -> Jobs:
        assert self._jobs is not None
        return self._jobs
