"""One batch through the handler, message by message or all at once, sequentially."""

from __future__ import annotations

import math
from contextvars import copy_context
from itertools import chain
from typing import TYPE_CHECKING, Any

from tarry.batch import Batch, said_of
from tarry.execution import driver
from tarry.execution.deadline import Deadline, out_of_time, timeout_cut
from tarry.execution.intake import Records, any_attributes, any_fifo, message_of, read_attributes
from tarry.execution.order import fresh_first
from tarry.execution.return_values import take
from tarry.execution.timeouts import Watch
from tarry.message import Message, delivery_of
from tarry.support.causes import free_memory_of, is_a
from tarry.support.forks import leave_if_forked, watches
from tarry.telemetry.logs import WARNING
from tarry.verdict import ACK, BatchVerdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tarry.delivery import Delivery
    from tarry.execution.isolation import Suspects
    from tarry.execution.order import Item
    from tarry.execution.verdicts import Again, Handling, LazySettlement, Verdicts
    from tarry.invocation import Invocation
    from tarry.world import Interruption


STUCK_TASKS = "async handlers did not end when they were cancelled, and must never wake up in another invocation"
CANNOT_INTERRUPT = (
    "timeout= is not kept here: a sync handler can only be interrupted on the main thread, where Lambda calls it; "
    "it runs to its end"
)


def is_acknowledged(delivery: Delivery | None) -> bool:
    """Whether a message whose handler has returned is acknowledged: by a verdict, or without one."""
    return delivery is None or delivery.verdict is None or delivery.verdict is ACK


def ends_batch(raised: BaseException) -> bool:
    """Whether it is no failure of its message alone, but a `SystemExit` or its like (SPEC A5)."""
    return not (is_a(raised, Exception) or driver.is_cancelled_error(raised))


class Run:
    """One run, one message after the other. ``pending`` loses what is done; ``verdicts`` what becomes of the rest."""

    # Defaults of the class: most runs never set any of these.
    _late: Iterator[Item] = iter(())
    """What was not started yet of what was delivered before, which runs behind all others."""
    _suspects: Suspects | None = None
    _not_started = 0
    _verdicts: Verdicts | None = None
    _is_ended = False
    must_end_process: str | None = None
    """Why the process is not to take another invocation, if so: something runs in it that cannot be ended."""

    def __init__(
        self, handling: Handling, invocation: Invocation, pending: Records, settlement: LazySettlement
    ) -> None:
        self._handling = handling
        self._invocation = invocation
        self._pending = pending
        self._settlement = settlement
        self._records = invocation.records = pending.copy()
        self._is_fifo = not invocation.are_plain and any_fifo(pending)
        self._todo: Iterator[Item] = iter(self._records.items())
        """What was not started yet."""
        self._monotonic = invocation.world.clock.monotonic
        is_loaded = invocation.world.is_loaded
        self._deadline = Deadline(invocation.deadline, invocation.began_with, is_loaded, handling.timeout)
        self._watch = Watch(self._deadline, self._monotonic)
        self._interruption: Interruption | None = None

    @property
    def verdicts(self) -> Verdicts:
        """What was decided of messages that are not simply done; a clean batch does not even load it."""
        if self._verdicts is None:
            from tarry.execution.verdicts import Verdicts

            blocks = self._is_batch or not self._handling.is_async
            self._verdicts = Verdicts(
                self._handling, self._pending, self._settlement, waits=self._runs_alone, blocks=blocks
            )
        return self._verdicts

    @property
    def has_verdicts(self) -> bool:
        """Whether anything was decided but plain successes."""
        return self._verdicts is not None

    _is_batch = False
    _runs_alone = True
    """Whether nothing of the user's runs while a verdict is dealt with."""

    def close(self) -> None:
        """Decide what is not decided yet."""
        if self._verdicts is not None:
            self._verdicts.close()

    def each(self) -> None:
        """Runs a handler of one message over the batch."""
        if not self._invocation.are_plain:
            self._renew(self._put_in_order())
        self._watched(self._each)
        if self._not_started:
            self._tell_of_time()

    def batch(self) -> None:
        """Runs a handler of the whole batch."""
        self._is_batch = True
        self._renew()
        self._watched(self._batch)

    def acknowledged(self) -> list[Delivery]:
        """The messages that are done and still in their queue, until Lambda deletes them after the answer."""
        records, pending, invocation = self._records, self._pending, self._invocation
        done = [invocation.delivery(*item) for item in records.items() if item[0] not in pending]
        return [delivery for delivery in done if not delivery.is_gone]

    def _renew(self, apart: Sequence[Sequence[Item]] = ()) -> None:
        """On FIFO, before anything runs: makes sure of the leases."""
        if self._is_fifo:
            from tarry.visibility.renewal import renew

            renew(self._records, self._invocation, self._deadline.margin, self._handling.log, apart)

    def _put_in_order(self) -> Sequence[Sequence[Item]]:
        """Has what was delivered before run last; that, in what must run in one go."""
        if not self._handling.isolate:
            return ()
        self._todo, suspects = fresh_first(self._records)
        if suspects:
            from tarry.execution.isolation import Suspects

            self._late = chain.from_iterable(suspects)
            self._suspects = Suspects(suspects, self._records, self._invocation, self._handling.log)
        return suspects

    def _watched(self, steps: Callable[[], None]) -> None:
        """Takes the steps, with what runs in them interrupted when its time is up."""
        deadline, watch, interruption = self._deadline, self._watch, None
        if deadline.is_timeout_cut:
            self._tell_of_timeout()
        if (due := deadline.due(now := self._monotonic())) != math.inf:
            interruption = self._interruption = self._invocation.world.threads.interrupt(due - now, watch.fire)
            if interruption is None and self._handling.timeout is not None:
                self._handling.log.once(self._invocation.world, "cannot_interrupt", CANNOT_INTERRUPT)
        watches.add(watch)
        try:
            steps()
        except BaseException as error:  # noqa: BLE001 a fault of our own
            leave_if_forked(self._invocation.began_in, error)
            self._end(None, error)
        finally:
            watches.discard(watch)
            if interruption is not None:
                interruption.cancel()

    def _tell_of_timeout(self) -> None:
        if self._deadline.is_timeout_cut and self._handling.timeout is not None:
            self._handling.log.once(self._invocation.world, "timeout_cut", timeout_cut(self._handling.timeout))

    def _after_validation(self) -> Callable[[Message[Any]], Any]:
        """The handler, which meets only messages whose bodies fit the model, if there is one."""
        function = self._handling.function
        if self._invocation.payload_reader is None:
            return function

        def validated(message: Message[Any]) -> Any:
            _ = message.payload
            return function(message)

        return validated

    def _each(self) -> None:  # noqa: C901, PLR0912 one loop with no call of ours in it: it runs for every message
        invocation, pending, watch = self._invocation, self._pending, self._watch
        function = self._handling.function if invocation.payload_reader is None else self._after_validation()
        is_fifo, deadline, monotonic = self._is_fifo, self._deadline, self._monotonic
        interruption: Interruption | None = None  # the one there is has just been set, for the first message
        look_at, acks, suspects = deadline.look_at, invocation.acks, self._suspects
        before, have_attributes = copy_context(), not invocation.are_plain and any_attributes(self._records)
        deliveries = invocation.deliveries
        for message_id, record in self._todo if suspects is None else chain(self._todo, self._late):
            message: Message[Any] = Message(record, message_id, invocation)
            if have_attributes and record.get("messageAttributes") and self._waits_by_its_record(message, record):
                continue
            if is_fifo and not self.verdicts.may_run(delivery_of(message)):
                continue
            if (now := monotonic()) >= look_at:
                if not deadline.look(now, 0 if suspects is None else suspects.waiting_behind(message_id)):
                    self._out_of_time(message)
                    look_at = now  # who comes next has its own to give way to
                    continue
                if self._verdicts is not None and self._verdicts.advance():  # a look-up has ended meanwhile
                    deadline.owed = self._verdicts.owed_seconds()
                    deadline.resume(monotonic())
                look_at = deadline.look_at
                if interruption is not None:
                    interruption.renew()
                interruption = self._interruption
            if suspects is not None and message_id in suspects:
                if not self._may_start(message, suspects):
                    look_at = now
                    continue
                acks, look_at = invocation.acks, deadline.look_at
            raised: BaseException | None = None
            try:
                context = before.copy()  # what a message sets there, no other message sees
                watch.running = message
                result = context.run(function, message)
                if result is not None:
                    context.run(self._complete, result, message)
                watch.running = None
            except BaseException as error:  # noqa: BLE001 whatever it is, it is this message's failure
                watch.running = None
                raised = error
            if raised is None and (not deliveries or is_acknowledged(deliveries.get(message_id))):
                del pending[message_id]
                if acks is not None:
                    acks.add(delivery_of(message))
            elif not self._repeat(self._decided(message, raised)):
                return
        while self._verdicts is not None and (again := self._verdicts.next_again()) is not None:
            if not self._repeat(again):
                return

    def _may_start(self, message: Message[Any], suspects: Suspects) -> bool:
        """Whether there is time for a message that was delivered before. What that takes comes before the first one."""
        deadline = self._deadline
        if not suspects.are_set_apart and deadline.may_start(self._monotonic()):
            self._set_apart(suspects)
            deadline.resume(now := self._monotonic())
            if not (suspects.are_all or deadline.may_start(now, suspects.waiting_behind(message.delivery_id))):
                self._out_of_time(message)
                return False
        suspects.starts(delivery_of(message))
        return True

    def _set_apart(self, suspects: Suspects) -> None:
        beyond = self._invocation.time_left() + self._deadline.margin
        suspects.set_apart(self._pending, beyond, waits=not self._handling.is_async)

    def _decided(self, message: Message[Any], raised: BaseException | None, tries: int = 1) -> Again | None:
        """Takes down what becomes of a message that has run; whether it is to run again within this delivery."""
        if raised is not None:
            free_memory_of(raised)
        leave_if_forked(self._invocation.began_in, raised)
        raised = self._watch.over(message, raised)
        if raised is not None and ends_batch(raised):
            self._end(message, raised)
            return None
        verdicts = self.verdicts
        delivery = delivery_of(message)
        again = verdicts.on_message(delivery, delivery.verdict, raised, tries)
        self._deadline.owed = verdicts.owed_seconds()
        return again

    def _repeat(self, again: Again | None) -> bool:
        """Runs a message until it is decided; False once the batch has ended."""
        while again is not None:
            again = self._run_again(again)
        return not self._is_ended

    def _run_again(self, again: Again) -> Again | None:
        if again.delay:
            self._invocation.world.clock.sleep(again.delay)
        message, raised = again.failure.message, None
        again.failure.delivery.is_closed = False
        self._deadline.look(self._monotonic())
        if self._interruption is not None:
            self._interruption.renew()
        try:
            self._watch.running = message
            context = copy_context()
            result = context.run(self._after_validation(), message)
            if result is not None:
                context.run(self._complete, result, message)
            self._watch.running = None
        except BaseException as error:  # noqa: BLE001 as for a first run
            self._watch.running = None
            raised = error
        return self._decided(message, raised, again.failure.tries + 1)

    def _batch(self) -> None:
        self._deadline.look(self._monotonic())
        batch = self._filled()
        if batch is None:
            return
        raised: BaseException | None = None
        self._deadline.look(self._monotonic())
        try:
            context = copy_context()  # what a handler sets there, no later invocation sees
            self._watch.running = batch
            result = context.run(self._handling.function, batch)
            if result is not None:
                context.run(self._complete, result, batch)
            self._watch.running = None
        except BaseException as error:  # noqa: BLE001 all were running: what nothing was said about has failed
            self._watch.running = None
            raised = error
        self._note_batch(batch, self._watch.over(batch, raised))

    def _note_batch(self, batch: Batch[Any], raised: BaseException | None) -> None:
        if raised is not None:
            free_memory_of(raised)
        leave_if_forked(self._invocation.began_in, raised)
        if raised is not None or not self._is_clean(batch):
            self.verdicts.on_batch(batch, raised)
        elif len(batch) == len(self._pending):
            self._pending.clear()
        else:  # others were settled before the handler ran, or are not due yet
            for message in batch:
                del self._pending[message.delivery_id]

    def _is_clean(self, batch: Batch[Any]) -> bool:
        """Whether all messages of a batch are acknowledged, by a verdict or without one."""
        said, deliveries = said_of(batch), self._invocation.deliveries
        if said.answer is not None or (said.verdict is not None and said.verdict is not ACK):
            return False
        if self._handling.unsaid_fails and said.verdict is None:
            given = [deliveries.get(message.delivery_id) for message in batch]
            return all(delivery is not None and delivery.verdict is ACK for delivery in given)
        return all(map(is_acknowledged, list(deliveries.values())))

    def _filled(self) -> Batch[Any] | None:
        """The batch as its handler is to see it; None if there is nothing in it."""
        invocation = self._invocation
        invocation.batch = BatchVerdict(deletes_at_once=invocation.acks is not None)
        messages = self._fitting()
        invocation.on_verdict = self._on_verdict
        return Batch(invocation.context, messages, invocation.batch) if messages else None

    def _on_verdict(self, delivery: Delivery) -> None:
        verdicts, deadline = self.verdicts, self._deadline
        if deadline.ends_at - self._monotonic() > deadline.margin + verdicts.owed_seconds():
            verdicts.on_verdict(delivery)  # else it is left for the end, which tells how many there is no time for

    def _fitting(self) -> list[Message[Any]]:
        """The messages that the handler of a batch is to see."""
        messages: list[Message[Any]] = []
        is_fifo, is_validated = self._is_fifo, self._invocation.payload_reader is not None
        for message_id, record in self._todo:
            message = message_of(record, message_id, self._invocation, self._handling.log)
            if self._waits(message):
                continue
            if is_fifo and not self.verdicts.may_run(delivery_of(message)):
                continue
            if is_validated and not self._is_valid(message, messages):
                continue
            messages.append(message)
        return messages

    def _is_valid(self, message: Message[Any], messages: list[Message[Any]]) -> bool:
        """Whether a message may join its batch; one without a payload is settled before the handler runs."""
        self._deadline.resume(self._monotonic())
        try:
            context = copy_context()
            self._watch.running = message
            context.run(getattr, message, "payload")
            self._watch.running = None
            leave_if_forked(self._invocation.began_in, None)
            return True
        except BaseException as error:  # noqa: BLE001 the body's fault or a validator's: this message's failure
            self._watch.running = None
            leave_if_forked(self._invocation.began_in, error)
            raised = self._watch.over(message, error)
        if raised is None or not ends_batch(raised):
            self.verdicts.on_message(delivery_of(message), None, raised)
            return False
        for earlier in messages:  # the handler saw none of them
            self.verdicts.give_back(delivery_of(earlier))
        messages.clear()
        self._end(message, raised)
        return False

    def _waits_by_its_record(self, message: Message[Any], record: dict[str, Any]) -> bool:
        return read_attributes(
            record, message.delivery_id, self._invocation, self._handling.log
        ) is not None and self._waits(message)

    def _waits(self, message: Message[Any]) -> bool:
        """Whether it is not due yet; if so, it does not run, and is hidden until it is."""
        made = self._invocation.deliveries.get(message.delivery_id)
        if made is None or made.envelope is None or (seconds := made.seconds_until_due()) is None:
            return False
        self.verdicts.wait(delivery_of(message), seconds)
        return True

    def _complete(self, result: Any, subject: Message[Any] | Batch[Any]) -> None:
        """Takes over what a handler returned; what has not run yet must run."""
        if driver.is_awaitable(result):
            self._wait_for(result, subject)
        else:
            take(result, subject)

    def _wait_for(self, awaitable: Awaitable[Any], subject: Message[Any] | Batch[Any]) -> None:
        """Runs to its end what a sync handler returned unawaited. Where it is watched, the event loop does that now."""
        from tarry.execution.jobs import Job
        from tarry.execution.tasks import run_alone

        async def wait(_: Job) -> None:
            take(await driver.completed(awaitable), subject)

        self._watch.running = None
        job = Job(wait, subject)
        run_alone(job, wait, self._deadline, self._invocation.world)
        if job.is_left:
            self.must_end_process = STUCK_TASKS
        if (raised := job.error if job.is_left else job.outcome()) is not None:
            raise raised

    def _end(self, running: Message[Any] | None, error: BaseException) -> None:
        """A `SystemExit` and its like: what was running has failed, what was not started is given back."""
        self._is_ended = True
        if running is None:
            text = "tarry itself failed; what was not started is given back"
            self._handling.log.problem("runtime_failed", text, error=error)
        elif running.delivery_id in self._pending:
            delivery = delivery_of(running)
            again = self.verdicts.on_message(delivery, delivery.verdict, error)
            if again is not None:
                self.verdicts.give_up(again)
        self._give_back_rest()

    def _out_of_time(self, message: Message[Any]) -> None:
        """Gives back a message for which there is no time, and what stands behind it.

        But not those to which it gives way, with more deliveries, as long as there is time for these.
        """
        self.verdicts.give_back(delivery_of(message))
        self._not_started += 1
        suspects, message_id = self._suspects, message.delivery_id
        is_suspect = suspects is not None and message_id in suspects
        if suspects is not None and is_suspect:
            suspects.leaves(message_id)
        if suspects is None or not suspects.waiting_behind(message_id):
            self._not_started += self._give_back_todo() + self._give_back(self._late)
        elif not is_suspect:
            self._not_started += self._give_back_todo()

    def _tell_of_time(self) -> None:
        if self._not_started:
            text = out_of_time(len(self._records), self._not_started)
            self._handling.log.problem("out_of_time", text, level=WARNING)

    def _give_back_rest(self) -> None:
        """Gives back what was not started."""
        self._give_back_todo()
        self._give_back(self._late)

    def _give_back_todo(self) -> int:
        """Those before the ones that were delivered before; how many they are."""
        return self._give_back(self._todo)

    def _give_back(self, items: Iterator[Item]) -> int:
        given_back = 0
        for message_id, record in items:
            message = message_of(record, message_id, self._invocation, self._handling.log)
            if not self._waits(message):
                self.verdicts.release(delivery_of(message))
                given_back += 1
        return given_back
