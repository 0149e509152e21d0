"""Running a handler for several messages of a batch at once: sync handlers in threads, async handlers as tasks.

One coordinator starts the runs and decides on each message when its run has ended; a thread or task only runs the
handler. So the verdicts of a batch need no locks.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.message.message import Message, delivery_of
from tarry.run.jobs import Job, nothing_done
from tarry.run.run import NotStarted, ends_batch, is_acknowledged
from tarry.run.threads import run_in_threads
from tarry.support.guards import free_memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Group
    from tarry.run.jobs import Jobs
    from tarry.run.order import Isolation
    from tarry.run.outcomes import Rerun
    from tarry.run.run import Run
    from tarry.run.verdicts import Verdicts


class Concurrent:
    """The coordinator of one batch: it starts the next message, and decides on a message whose run has ended."""

    _jobs: Jobs
    _background: Background

    def __init__(self, run: Run) -> None:
        self._run = run
        self._not_started = NotStarted(run)
        self._queue = MessageQueue(iter(()))
        self._reruns: deque[Rerun] = deque()
        self._handler = run.validating()
        self._has_started = self._is_last_part = self._have_all_run = self._is_out_of_time = False
        self._has_ended = False  # whether a `SystemExit` or its like has ended the batch
        self._claiming: dict[str, Job] = {}  # the runs whose messages are claimed first, by delivery id
        run.may_wait, run.may_block = False, not run.handling.is_async

    def run(self) -> None:
        run = self._run
        if run.is_fifo or not run.invocation.are_plain:
            self._not_started.prepare()
        run.log_cut_timeout()
        try:
            if run.handling.is_async:
                from tarry.run.tasks import run_in_tasks

                run_in_tasks(self._coordinate, run.invocation, run.deadline)
            else:
                run_in_threads(self._coordinate, run)
        except BaseException as error:  # noqa: BLE001 a defect of tarry
            self._not_started.release_after_defect(error)
        if self._not_started.out_of_time:
            self._not_started.log_out_of_time()

    async def _coordinate(self, jobs: Jobs) -> None:
        self._jobs, self._background = jobs, Background(self._run, jobs, self._settled)
        if self._run.claims is not None:
            self._run.on_claim = self._on_claim  # type: ignore[method-assign]
        try:
            await self._run_all()
        finally:
            self._background.close()
            vars(self._run).pop("on_claim", None)  # breaks a reference cycle

    def _on_claim(self, message: Message[Any], begins: bool) -> None:
        """Implement `Run.on_claim`, in the thread or task of a run."""
        self._jobs.on_claim(self._claiming[message.delivery_id], begins)

    async def _run_all(self) -> None:
        if (isolation := self._not_started.isolation) is not None:
            if self._run.is_fifo:
                self._background.connect(self._run.verdicts)
            await self._run_current()
            if not self._has_ended:  # all others have run: continue with the redelivered messages
                self._not_started.current, self._not_started.redelivered = self._not_started.redelivered, iter(())
                self._is_out_of_time = False
                if not isolation.is_done and self._run.deadline.may_start(self._run.monotonic()):
                    isolation.isolate()
        self._is_last_part = True
        await self._run_current()
        while self._reruns or self._background.under_way:
            if self._reruns:  # a `SystemExit` has ended the batch
                self._run.verdicts.cancel(self._reruns.popleft())
            else:  # claims are ended, and copies sent, before the response
                await self._jobs.ended()
        self._not_started.release_all()
        self._sort()

    async def _run_current(self) -> None:
        """Run the current messages: all of them, or first the fresh and then the redelivered ones."""
        messages = self._messages()
        self._queue = GroupQueues(messages) if self._run.is_fifo else MessageQueue(messages)
        self._not_started.remove_queued = self._queue.remove_all
        while self._start_jobs():
            for job in await self._jobs.ended():
                self._on_end(job)

    def _messages(self) -> Iterator[Message[Any]]:
        """Yield the current messages that are due, in order, each made when it is needed."""
        run = self._run
        for message_id, record in self._not_started.current:
            message: Message[Any] = Message(record, message_id, run.invocation)
            if not (record.get("messageAttributes") and run.waits_by_attribute(message, record)):
                yield message

    # the next run

    def _start_jobs(self) -> bool:
        """Start runs up to the limit of ``concurrency``; return whether there is anything to wait for."""
        jobs = self._jobs
        while not jobs.needs_pause and self._has_place and (job := self._next()) is not None:
            if jobs.start(job):
                self._on_end(job)
        return jobs.needs_pause or len(jobs) > 0 or self._background.under_way > 0 or self._has_waiting_groups

    @property
    def _has_place(self) -> bool:
        """Whether fewer messages than ``concurrency`` run, or have run and their claims are being ended."""
        run = self._run
        ending = 0 if run.claims is None else self._background.under_way
        return self._jobs.taken + ending < run.handling.concurrency

    @property
    def _has_waiting_groups(self) -> bool:
        """Whether a FIFO group waits for the look-up of its queue, and there is time to wait."""
        run, verdicts = self._run, self._run.made_verdicts
        if not run.is_fifo or verdicts is None:
            return False
        any_waits = any(waiting.decided.delivery.source.is_fifo for waiting in verdicts.awaiting.messages)
        return any_waits and run.monotonic() < run.deadline.interrupt_at

    def _next(self) -> Job | None:
        if self._has_ended:
            return None
        rerun = self._reruns.popleft() if self._reruns else None
        if rerun is None and (message := self._next_message()) is not None:
            return self._job(Job(self._handler, message))
        if rerun is None and self._may_ask_for_reruns() and (verdicts := self._run.made_verdicts) is not None:
            rerun = verdicts.next_rerun()
        if rerun is None:
            return None
        rerun.failure.delivery.is_closed = False
        return self._job(Job(self._handler, rerun.failure.message, rerun.delay, rerun.failure.tries + 1))

    def _job(self, job: Job) -> Job:
        if self._run.claims is not None:
            job.is_claiming = True  # from now on: a message whose claim has not begun must not fail for lack of time
            self._claiming[job.subject.delivery_id] = job
        return job

    def _next_message(self) -> Message[Any] | None:
        run, queue, isolation = self._run, self._queue, self._not_started.isolation
        if isolation is not None and self._is_last_part and isolation.is_one_by_one:
            ending = 0 if run.claims is None else self._background.under_way  # a thread writes the next start
            if len(self._jobs) or ending:
                return None
        while not self._is_out_of_time and (message := queue.next()) is not None:
            if run.may_be_stopped and not run.verdicts.may_run(delivery_of(message)):
                queue.free(delivery_of(message))
            elif self._has_started and not run.deadline.may_start(run.monotonic(), self._waiting_behind(message)):
                self._is_out_of_time = self._not_started.release_out_of_time(message)
                queue.free(delivery_of(message))
            else:
                self._has_started = True
                if isolation is None or message.delivery_id not in isolation or self._may_start(message, isolation):
                    return message
        return None

    def _may_start(self, message: Message[Any], isolation: Isolation) -> bool:
        """Return whether a redelivered message runs; if not, its group goes on when it is settled."""
        if isolation.start(delivery_of(message)):
            return True
        self._free(message)
        return False

    def _waiting_behind(self, message: Message[Any]) -> int:
        """Return for how many successive runs of waiting messages a message must leave time."""
        isolation = self._not_started.isolation
        waiting = 0 if isolation is None else isolation.waiting_behind(message.delivery_id)
        return -(-waiting // self._run.handling.concurrency)

    def _may_ask_for_reruns(self) -> bool:
        """Return whether all messages have run, so that `next_rerun` may decide on those that wait for a look-up."""
        if self._background.under_way or self._has_waiting_groups:
            return False
        if self._is_last_part and not self._have_all_run and not len(self._jobs):
            self._have_all_run = True
            self._sort()
        return self._have_all_run

    # the end of a run

    def _on_end(self, job: Job) -> None:
        try:
            self._decide(job)
        except BaseException as error:  # noqa: BLE001 a defect of tarry or a hook: the other runs still end
            self._has_ended = True
            self._not_started.release_after_defect(error)

    def _decide(self, job: Job) -> None:
        run, message, raised = self._run, job.subject, job.outcome()
        if raised is not None:
            free_memory_of(raised)
        if raised is None and is_acknowledged(run.invocation.deliveries.get(message.delivery_id)):
            del run.pending[message.delivery_id]
            if (acks := run.invocation.acks) is not None:
                acks.add(delivery_of(message))
        elif raised is not None and ends_batch(raised):
            self._has_ended = True
            run.decide_last(message, raised)
            self._not_started.release_all()
        else:
            self._background.connect(run.verdicts)
            if job.is_abandoned and (claim := delivery_of(message).claim) is not None:
                claim.is_abandoned = True
            rerun = run.decide(message, raised, job.tries, ended_at=job.ended_at, early=not job.is_abandoned)
            if rerun is not None:
                return self._reruns.append(rerun)
        if run.is_fifo and not job.is_abandoned:  # else the next of its group would run beside it
            self._free(message)

    def _free(self, message: Message[Any]) -> None:
        """Let the next message of a group start, unless the group waits for a request."""
        verdicts = self._run.made_verdicts
        if verdicts is None or not verdicts.outcomes.is_under_way(message.delivery_id):
            self._queue.free(delivery_of(message))

    def _settled(self, delivery: Delivery, rerun: Rerun | None) -> None:
        """Continue after a request for a FIFO message: its group may run on, or it runs again."""
        if rerun is not None:
            self._reruns.append(rerun)
        elif all(job.subject.delivery_id != delivery.delivery_id for job in self._jobs.abandoned):  # as in `_decide`
            self._queue.free(delivery)

    def _sort(self) -> None:
        if (verdicts := self._run.made_verdicts) is not None:
            verdicts.sort(list(self._run.records))


class MessageQueue:
    """The messages of standard queues, any number of which may run at once."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._messages = messages

    def next(self) -> Message[Any] | None:
        """Remove and return the next message that may start; None if there is none now."""
        return next(self._messages, None)

    def free(self, delivery: Delivery) -> None:
        """Let the next message of a group start, after ``delivery`` was decided."""

    def remove_all(self) -> Iterable[Message[Any]]:
        """Remove and return the queued messages; on standard queues there are none, since `next` makes them."""
        return ()


class GroupQueues(MessageQueue):
    """The messages of FIFO queues, in one queue per group: the next one waits until the one before is decided."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._queues: dict[Group, deque[Message[Any]]] = {}
        for message in messages:
            self._queues.setdefault(delivery_of(message).group, deque()).append(message)
        self._free = deque(self._queues)  # the groups whose next message may start

    def next(self) -> Message[Any] | None:
        return self._queues[self._free.popleft()].popleft() if self._free else None

    def free(self, delivery: Delivery) -> None:
        if self._queues.get(group := delivery.group):
            self._free.append(group)

    def remove_all(self) -> Iterable[Message[Any]]:
        queues, self._queues, self._free = self._queues, {}, deque()
        return [message for queue in queues.values() for message in queue]


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
        """Give up open requests: their messages are only reported as failed. This breaks cycles with the run, too."""
        if self._open:
            self._run.verdicts.outcomes.settlement.report_only(self._open)
        self._jobs.between, self._settled = nothing_done, None

    def _make(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Implement `Outcomes.in_background`."""
        from tarry.sqs.client import result_of, start

        def make() -> None:
            answer = result_of(work)
            if isinstance(answer, Exception):
                text = "tarry itself failed to settle a message, which is reported as failed."
                self._run.handling.log.problem("runtime_failed", text, error=answer)
            self._answers.append((then, answer))
            self._jobs.wake()

        self._open += 1
        if not start(self._run.invocation.world, make):
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
