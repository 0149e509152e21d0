"""Running a sync handler for one message of a batch after the other, on the main thread."""

from __future__ import annotations

from contextvars import copy_context
from itertools import chain

from tarry.message.message import Message, delivery_of
from tarry.run.run import NotStarted, ends_batch, is_acknowledged
from tarry.support.guards import exit_if_forked, free_memory_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tarry.run.order import Isolation
    from tarry.run.outcomes import Rerun
    from tarry.run.run import Run


class Sequential:
    _has_ended = False  # whether a `SystemExit` or its like has ended the batch

    def __init__(self, run: Run) -> None:
        self._run = run
        self._not_started = NotStarted(run)

    def run(self) -> None:
        if self._run.is_fifo or not self._run.invocation.are_plain:
            self._not_started.prepare()
        try:
            self._run.watched(self._each)
        except BaseException as error:  # noqa: BLE001 a defect of tarry
            self._not_started.release_after_defect(error)
        if self._not_started.out_of_time:
            self._not_started.log_out_of_time()

    def _each(self) -> None:  # noqa: C901, PLR0912, PLR0915 one loop without calls of its own: it runs for every message
        run, items, isolation = self._run, self._not_started.current, self._not_started.isolation
        invocation, pending, watch, is_fifo = run.invocation, run.pending, run.watch, run.is_fifo
        function, interruption = run.validating(), None  # the current one was just set, for the first message
        deadline, monotonic, check_at = run.deadline, run.monotonic, run.deadline.check_at
        deliveries, acks, before = invocation.deliveries, invocation.acks, copy_context()
        may_have_attributes = not invocation.are_plain
        for message_id, record in items if isolation is None else chain(items, self._not_started.redelivered):
            message: Message[Any] = Message(record, message_id, invocation)
            if may_have_attributes and record.get("messageAttributes") and run.waits_by_attribute(message, record):
                continue
            if is_fifo and run.may_be_stopped and not run.verdicts.may_run(delivery_of(message)):
                continue
            if (now := monotonic()) >= check_at:
                if not deadline.check(now, 0 if isolation is None else isolation.waiting_behind(message_id)):
                    self._not_started.release_out_of_time(message)
                    check_at = now  # for the next message, other messages may take precedence
                    continue
                if run.made_verdicts is not None and run.made_verdicts.advance():  # a look-up has ended in the meantime
                    deadline.owed = run.made_verdicts.outcomes.owed_seconds()
                    deadline.resume(monotonic())
                check_at = deadline.check_at
                if interruption is not None:
                    interruption.renew()
                interruption = watch.interruption
            if isolation is not None and message_id in isolation:
                if not self._may_start(message, isolation):
                    check_at = now
                    continue
                acks, check_at = invocation.acks, deadline.check_at
            try:
                context = before.copy()  # a context variable that the handler sets is not seen by other messages
                watch.running = message
                result = context.run(function, message)
                if result is not None:
                    context.run(run.complete, result, message)
                watch.running = None
            except BaseException as error:  # noqa: BLE001 whatever the error, this message has failed
                watch.running = None
                raised: BaseException | None = error
            else:
                if not deliveries or is_acknowledged(deliveries.get(message_id)):
                    del pending[message_id]
                    if acks is not None:
                        acks.add(delivery_of(message))
                    continue
                raised = None
            rerun, raised = self._decide(message, raised), None  # its traceback holds this frame
            while rerun is not None:
                rerun = self._rerun(rerun)
            if self._has_ended:
                return
        if (verdicts := run.made_verdicts) is not None:
            while not self._has_ended and (rerun := verdicts.next_rerun()) is not None:
                while rerun is not None:
                    rerun = self._rerun(rerun)

    def _may_start(self, message: Message[Any], isolation: Isolation) -> bool:
        """Return whether a redelivered message may run now; isolate all of them before the first one."""
        run, deadline = self._run, self._run.deadline
        if not isolation.is_done and deadline.may_start(run.monotonic()):
            isolation.isolate()
            deadline.resume(now := run.monotonic())
            has_time = deadline.may_start(now, isolation.waiting_behind(message.delivery_id))
            if not (isolation.has_whole_batch or has_time):
                self._not_started.release_out_of_time(message)
                return False
        may_run = isolation.start(delivery_of(message))
        deadline.resume(run.monotonic())
        return may_run

    def _decide(self, message: Message[Any], raised: BaseException | None, tries: int = 1) -> Rerun | None:
        run = self._run
        if raised is not None:
            free_memory_of(raised)
        exit_if_forked(run.invocation.began_in, raised)
        raised = run.watch.on_end(message, raised)
        if raised is not None and ends_batch(raised):
            self._has_ended = True
            run.decide_last(message, raised)
            self._not_started.release_all()
            return None
        if run.claims is None:
            return run.decide(message, raised, tries)
        run.deadline.check(run.monotonic())  # what follows, with the end of the claim, is not the handler's time
        rerun = run.decide(message, raised, tries)
        run.deadline.resume(run.monotonic())
        return rerun

    def _rerun(self, rerun: Rerun) -> Rerun | None:
        run = self._run
        if rerun.delay:
            run.invocation.world.clock.sleep(rerun.delay)
        rerun.failure.delivery.is_closed = False
        run.deadline.check(run.monotonic())
        if run.watch.interruption is not None:
            run.watch.interruption.renew()
        message = rerun.failure.message
        return self._decide(message, run.call(run.validating(), message), rerun.failure.tries + 1)
