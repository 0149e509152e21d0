"""Running a batch handler, sync or async: its batch is filled, run once, and decided message by message."""

from __future__ import annotations

from tarry.message.batch import Batch, batch_verdict_of
from tarry.message.invocation import message_of
from tarry.message.message import delivery_of
from tarry.message.outcomes import ACK, BatchVerdict
from tarry.run.run import NotStarted, ends_batch, is_acknowledged, validate
from tarry.support.guards import exit_if_forked, free_memory_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tarry.message.delivery import Delivery
    from tarry.message.message import Message
    from tarry.run.batch_verdicts import BatchVerdicts
    from tarry.run.concurrent import Background
    from tarry.run.idempotency import Claims
    from tarry.run.jobs import Jobs
    from tarry.run.run import Run


class WholeBatch:
    _background: Background | None = None
    _began: float  # when the handler began, on the monotonic clock
    _made_verdicts: BatchVerdicts | None = None

    def __init__(self, run: Run) -> None:
        self._run = run
        self._not_started = NotStarted(run)
        run.may_wait = not run.handling.is_async

    def run(self) -> None:
        run = self._run
        self._not_started.prepare(runs_batch=True)
        try:
            if run.handling.is_async:
                from tarry.run.tasks import run_in_tasks

                run.log_cut_timeout()
                run_in_tasks(self._run_as_task, run.invocation, run.deadline)
            else:
                run.watched(self._run_here)
        except BaseException as error:  # noqa: BLE001 a defect of tarry
            self._not_started.release_after_defect(error)
        run.invocation.on_verdict = None  # breaks a reference cycle, which would keep the batch in memory

    def _run_here(self) -> None:
        run = self._run
        run.deadline.check(run.monotonic())
        if (batch := self._fill()) is not None:
            run.deadline.check(run.monotonic())
            function = run.traced(run.handler(), takes_batch=True)
            self._decide(batch, run.watch.on_end(batch, run.call(function, batch)))  # a traceback may hold this frame

    async def _run_as_task(self, jobs: Jobs) -> None:
        from tarry.run.concurrent import Background
        from tarry.run.jobs import Job

        background = self._background = Background(self._run, jobs)
        try:
            if (batch := self._fill()) is None:
                return
            job = Job(self._run.traced(self._run.handler(), takes_batch=True), batch)
            has_ended = jobs.start(job)
            while not has_ended:  # a wait also ends with the answer to a request
                has_ended = bool(await jobs.ended())
            if job.is_abandoned:
                for message in batch:
                    if (claim := delivery_of(message).claim) is not None:
                        claim.is_abandoned = True
            self._decide(batch, job.outcome())
            while background.under_way:  # requests for the handler's verdicts end before the response
                await jobs.ended()
        finally:
            background.close()

    # the batch

    def _fill(self) -> Batch[Any] | None:
        """Return the batch for the handler; None if no message of it may run."""
        invocation = self._run.invocation
        invocation.batch = BatchVerdict(deletes_at_once=invocation.acks is not None)
        if (claims := self._run.claims) is not None:
            claims.begin_batch(in_order=self._run.is_fifo)
        messages = self._messages()
        self._began = self._run.monotonic()
        if claims is None:  # else a message could come back while its record says that it runs
            invocation.on_verdict = self._on_verdict
        return Batch(invocation.context, messages, invocation.batch) if messages else None

    def _messages(self) -> list[Message[Any]]:
        run = self._run
        messages: list[Any] = []
        is_validated = run.invocation.payload_reader is not None
        for message_id, record in self._not_started.current:
            message = message_of(record, message_id, run.invocation, run.handling.log)
            if run.waits(message):
                continue
            if run.may_be_stopped and not run.verdicts.may_run(delivery_of(message)):
                continue
            if is_validated and not self._is_valid(message, messages):
                continue
            if not run.is_fifo or run.claims is None or self._claimed(run.claims, [message]):
                messages.append(message)
        return messages if run.is_fifo or run.claims is None else self._claimed(run.claims, messages)

    def _claimed(self, claims: Claims, messages: list[Message[Any]]) -> list[Message[Any]]:
        """Return the messages that may run; decide on the others: already processed, running elsewhere, no time ..."""
        claimed: list[Message[Any]] = []
        for message, error in zip(messages, claims.claim_all(messages), strict=True):
            delivery = delivery_of(message)
            if error is None and delivery.claim is not None and delivery.claim.is_held:
                claimed.append(message)
            else:
                self._run.verdicts.on_message(delivery, None, error)
        return claimed

    def _is_valid(self, message: Message[Any], messages: list[Message[Any]]) -> bool:
        """Return whether a message's body matches the model; if not, decide on the message before the handler runs."""
        run = self._run
        run.deadline.resume(run.monotonic())
        raised = run.call(validate, message)
        exit_if_forked(run.invocation.began_in, raised)
        if raised is None:
            return True
        raised = run.watch.on_end(message, raised)
        if raised is None or not ends_batch(raised):
            run.verdicts.on_message(delivery_of(message), None, raised)
            return False
        for earlier in messages:  # the handler has not run for any of them
            run.verdicts.release(delivery_of(earlier))
        messages.clear()
        run.decide_last(message, raised)
        self._not_started.release_all()
        return False

    # the verdicts

    @property
    def _verdicts(self) -> BatchVerdicts:
        """The decisions on the batch; a clean batch does not load the class."""
        if self._made_verdicts is None:
            from tarry.run.batch_verdicts import BatchVerdicts

            made = BatchVerdicts(self._run.verdicts, self._run.handling, self._run.invocation)
            # Another thread of the handler may have made it meanwhile.
            first: BatchVerdicts = vars(self).setdefault("_made_verdicts", made)
            return first
        return self._made_verdicts

    def _on_verdict(self, delivery: Delivery) -> None:
        """Decide on a message while the handler runs; if time is short, leave it for the end."""
        verdicts, deadline = self._run.verdicts, self._run.deadline
        if self._background is not None:
            self._background.connect(verdicts)
        if deadline.ends_at - self._run.monotonic() > deadline.margin + verdicts.outcomes.owed_seconds():
            self._verdicts.on_verdict(delivery)

    def _decide(self, batch: Batch[Any], raised: BaseException | None) -> None:
        run = self._run
        if raised is not None:
            free_memory_of(raised)
        exit_if_forked(run.invocation.began_in, raised)
        if run.claims is not None:
            run.claims.ran(run.monotonic() - self._began, len(batch))
            run.verdicts.outcomes.collect_claims()
            self._verdicts.on_end(batch, raised)
            run.verdicts.outcomes.end_claims()
        elif raised is not None or not self._is_clean(batch):
            self._verdicts.on_end(batch, raised)
        elif len(batch) == len(run.pending):
            run.pending.clear()
        else:  # others were decided before the handler ran, or are not due yet
            for message in batch:
                del run.pending[message.delivery_id]

    def _is_clean(self, batch: Batch[Any]) -> bool:
        """Return whether all messages of a batch are acknowledged, by a verdict or without one."""
        whole, deliveries = batch_verdict_of(batch), self._run.invocation.deliveries
        if whole.answer is not None or (whole.verdict is not None and whole.verdict is not ACK):
            return False
        if self._run.handling.fails_without_verdict and whole.verdict is None:
            given = [deliveries.get(message.delivery_id) for message in batch]
            return all(delivery is not None and delivery.verdict is ACK for delivery in given)
        return all(map(is_acknowledged, list(deliveries.values())))
