"""The run of a handler over one batch: the state that all three runners share.

The runners are `sequential` (one message after the other), `concurrent` (several messages at once), and `whole_batch`
(a batch handler).
"""

from __future__ import annotations

import math
from contextvars import copy_context
from itertools import chain

from tarry.message.invocation import are_fresh, message_of, read_attributes, receives
from tarry.message.message import delivery_of
from tarry.message.outcomes import ACK
from tarry.run.deadline import Deadline, Watch, reserve
from tarry.run.handlers import apply_result, is_awaitable, is_cancelled_error
from tarry.support.guards import exit_if_forked, is_a, watches
from tarry.support.values import WARNING, epoch_seconds
from tarry.world import hook_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from tarry.message.batch import Batch
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation, Records
    from tarry.message.message import Message
    from tarry.observe.opentelemetry import RunSpans
    from tarry.observe.tracing import Subsegments
    from tarry.record.attempt_store import AttemptStore
    from tarry.run.handlers import Handling
    from tarry.run.idempotency import Claims
    from tarry.run.order import Isolation, Item, RunStarts
    from tarry.run.outcomes import Rerun
    from tarry.run.verdicts import Verdicts
    from tarry.world import Event


FETCH_SHARE = 1 / 3  # of the time left, at most, a redelivered message waits for what settling it may need
FRESH_SECONDS = 10  # A lease this old, or younger, needs no renewal
CANNOT_INTERRUPT = (
    "timeout= has no effect here: a sync handler can only be interrupted on the main thread, where Lambda calls it. "
    "The handler runs to its end."
)


def is_acknowledged(delivery: Delivery | None) -> bool:
    """Return whether a message is acknowledged, by a verdict or without one, and has no claim that must end first."""
    return delivery is None or ((delivery.verdict is None or delivery.verdict is ACK) and delivery.claim is None)


def ends_batch(raised: BaseException) -> bool:
    """Return whether an error ends the whole batch, as `SystemExit` does, not only its message's run (SPEC A5)."""
    return not (is_a(raised, Exception) or is_cancelled_error(raised))


class Run:
    """The state of one run. A message that is done leaves ``pending``; `verdicts` has the decisions on the others."""

    # Defaults of the class: most runs never set any of these.
    may_wait = True  # whether a decision may wait for the look-up of a queue: not while other handlers run
    may_block = True  # whether this thread may make the requests of a FIFO message: not if that blocks other handlers
    made_verdicts: Verdicts | None = None
    claims: Claims | None = None  # claims messages before they run; None without ``idempotency``
    starts: RunStarts | None = None
    """Writes redelivered FIFO messages to the attempt store before they run; None if there are none, or no store."""
    tracing: Sequence[RunSpans | Subsegments] = ()  # the spans of OpenTelemetry and X-Ray, usually none

    def __init__(self, handling: Handling, invocation: Invocation, pending: Records, is_fifo: bool) -> None:
        self.handling = handling
        self.invocation = invocation
        self.pending = pending
        self.records = invocation.records = pending.copy()
        self.is_fifo = is_fifo  # whether any message is from a FIFO queue
        self.monotonic = invocation.world.clock.monotonic
        wanted = reserve(invocation.world)
        self.deadline = Deadline(invocation.deadline, invocation.began_with, wanted, handling.timeout)
        hook_limit.set(self.deadline)
        self.watch = Watch(self.deadline, self.monotonic)

    @property
    def verdicts(self) -> Verdicts:
        """The decisions on messages that did not simply succeed; a clean batch does not load the class."""
        if self.made_verdicts is None:
            from tarry.run.verdicts import Verdicts

            # Another thread of a batch handler may make it meanwhile.
            first: Verdicts = vars(self).setdefault("made_verdicts", Verdicts(self))
            return first
        return self.made_verdicts

    @property
    def may_be_stopped(self) -> bool:
        """Whether a FIFO group may be stopped: a message of it was decided on, or has lost its lease."""
        return self.is_fifo and (self.made_verdicts is not None or bool(self.invocation.lost_groups))

    def decide(self, message: Message[Any], raised: BaseException | None, tries: int = 1, **how: Any) -> Rerun | None:
        """Decide on a message that has run; return a `Rerun` if it runs again (`Verdicts.on_message`)."""
        verdicts, delivery = self.verdicts, delivery_of(message)
        rerun = verdicts.on_message(delivery, delivery.verdict, raised, tries, **how)
        self.deadline.owed = verdicts.outcomes.owed_seconds()
        return rerun

    def decide_last(self, message: Message[Any], error: BaseException) -> None:
        """Decide on the message whose error has ended the batch; it does not run again within this delivery."""
        if message.delivery_id in self.pending:
            delivery = delivery_of(message)
            rerun = self.verdicts.on_message(delivery, delivery.verdict, error)
            if rerun is not None:
                self.verdicts.cancel(rerun)

    def finish(self) -> None:
        """Settle all messages that did not simply succeed; close the records of those that have ended."""
        self.starts = None  # breaks a reference cycle
        if self.invocation.tracking is not None:
            self.invocation.tracking.close_started(self.pending)
        if self.made_verdicts is not None:
            self.made_verdicts.finish()
        if self.invocation.tracking is not None:
            self.invocation.tracking.finish(self.pending)

    def acknowledged(self) -> list[Delivery]:
        """Return the acknowledged messages, which stay in their queue until Lambda deletes them after the response."""
        done = [self.invocation.delivery(*item) for item in self.records.items() if item[0] not in self.pending]
        return [delivery for delivery in done if not delivery.is_done]

    def count_attempts(self, store: AttemptStore) -> None:
        """Have a store count the attempts; read its records of redelivered messages."""
        invocation = self.invocation
        invocation.attempt_store = store
        if invocation.are_plain:
            return
        if redelivered := [item for item in self.records.items() if receives(item[1]) > 1]:
            from tarry.settle.attempts import tracking_of

            tracking_of(invocation, self.handling.log).read([invocation.delivery(*item) for item in redelivered])

    def watched(self, steps: Callable[[], None]) -> None:
        """Call ``steps``, and interrupt a handler that it runs in this thread when its time is up."""
        deadline, watch, interruption = self.deadline, self.watch, None
        if deadline.is_timeout_cut:
            self.log_cut_timeout()
        if (due := deadline.due(now := self.monotonic())) != math.inf:
            if deadline.most_ending:
                due = deadline.first_due(now)
            interruption = watch.interruption = self.invocation.world.threads.interrupt(due - now, watch.fire)
            if interruption is None and self.handling.timeout is not None:
                self.handling.log.once(self.invocation.world, "cannot_interrupt", CANNOT_INTERRUPT)
        watches.add(watch)
        try:
            steps()
        finally:
            watches.discard(watch)
            if interruption is not None:
                watch.interruption = None  # breaks a reference cycle, which only the garbage collector would free
                interruption.cancel()

    def call(self, function: Callable[[Any], Any], subject: Message[Any] | Batch[Any]) -> BaseException | None:
        """Call a handler in this thread and apply its result, in a context of its own; return the error it raised."""
        watch, context = self.watch, copy_context()  # a context variable that it sets is not seen by others
        try:
            watch.running = subject
            result = context.run(function, subject)
            if result is not None:
                context.run(self.complete, result, subject)
            watch.running = None
        except BaseException as error:  # noqa: BLE001 whatever the error, the message has failed, or the batch
            watch.running = None
            return error
        return None

    def log_cut_timeout(self) -> None:
        if self.deadline.is_timeout_cut and self.handling.timeout is not None:
            timeout, margin = self.handling.timeout, reserve(self.invocation.world)
            text = (
                f"timeout={timeout:g} is longer than an invocation of this function has for its messages, so it is cut."
                f" Give the function a Timeout of at least {math.ceil(timeout + margin)} s."
            )
            self.handling.log.once(self.invocation.world, "timeout_cut", text)

    def validating(self) -> Callable[[Message[Any]], Any]:
        """Return the handler of one message; where asked for, it first validates the body and claims the message."""
        invocation = self.invocation
        function = self.handler() if self.claims is None else self._claiming(self.claims)
        if invocation.payload_reader is not None:
            function = _validating(function)
        if self.tracing:
            function = self.traced(function)
        if invocation.logger_keys:
            from tarry.observe.logger_keys import with_keys

            return with_keys(function)
        return function

    def traced(self, function: Callable[[Any], Any], *, takes_batch: bool = False) -> Callable[[Any], Any]:
        for backend in self.tracing:
            function = backend.around(function, takes_batch=takes_batch)
        return function

    def handler(self) -> Callable[[Any], Any]:
        """Return the handler itself; with metrics, its runs are timed."""
        handling, observer = self.handling, self.invocation.observer
        return handling.function if observer is None else observer.timed(handling.function)

    def _claiming(self, claims: Claims) -> Callable[[Message[Any]], Any]:
        function = self.handler()

        def claiming(message: Message[Any]) -> Any:
            self.on_claim(message, True)
            try:
                may_run = claims.claim(message) and self._begins(message)
            finally:
                self.on_claim(message, False)
            return function(message) if may_run else None

        async def claiming_async(message: Message[Any]) -> Any:
            self.on_claim(message, True)
            try:
                may_run = await claims.claim_async(message) and self._begins(message)
            finally:
                self.on_claim(message, False)
            return await function(message) if may_run else None

        return claiming_async if self.handling.is_async else claiming

    def _begins(self, message: Message[Any]) -> bool:
        """Write that a claimed message is about to run; return whether it does, and was not abandoned meanwhile."""
        delivery = delivery_of(message)
        if (starts := self.starts) is not None and not delivery.is_closed:
            starts.write(delivery)
        return not delivery.is_closed

    def on_claim(self, message: Message[Any], begins: bool) -> None:
        """Note that the claim of a message begins, or has ended: the time of its handler begins then (SPEC K4)."""
        if not begins:
            self.deadline.resume(self.monotonic())
        self.watch.is_claiming = begins

    def waits(self, message: Message[Any]) -> bool:
        """Return whether a message is not due yet; if so, keep it invisible until then instead of running it."""
        made = self.invocation.deliveries.get(message.delivery_id)
        if made is None or made.envelope is None or (seconds := made.seconds_until_due()) is None:
            return False
        self.verdicts.wait(delivery_of(message), seconds)
        return True

    def waits_by_attribute(self, message: Message[Any], record: dict[str, Any]) -> bool:
        """Read the `Tarry` attribute of a message, then return `waits`."""
        return read_attributes(message, record, self.handling.log) and self.waits(message)

    def complete(self, result: Any, subject: Message[Any] | Batch[Any]) -> None:
        """Apply the return value of a sync handler; an awaitable is run first."""
        self.watch.running = None  # the handler has returned; an awaitable is interrupted as a task
        if is_awaitable(result):
            from tarry.run.tasks import wait_for

            wait_for(result, subject, self.invocation, self.deadline)
        else:
            apply_result(result, subject)


def validate(message: Message[Any]) -> None:
    """Raise the error of a body that does not match the model, or of a broken validator."""
    _ = message.payload


def _validating(function: Callable[[Message[Any]], Any]) -> Callable[[Message[Any]], Any]:
    def validated(message: Message[Any]) -> Any:
        _ = message.payload
        return function(message)

    return validated


class NotStarted:
    """The messages of a run that have not started, in the order in which they will."""

    # Defaults of the class: most batches have no redelivered messages.
    redelivered: Iterator[Item] = iter(())  # the messages that start after all of `current`
    isolation: Isolation | None = None
    remove_queued: Callable[[], Iterable[Message[Any]]] = tuple
    """Removes and returns messages from `current` that are queued: on FIFO, if several may run at once."""
    out_of_time = 0  # the number of messages released for lack of time

    def __init__(self, run: Run) -> None:
        self._run = run
        self.current: Iterator[Item] = iter(run.records.items())

    def prepare(self, *, runs_batch: bool = False) -> None:
        """Put redelivered messages last (SPEC G4), fetch what settling them needs (C8), and on FIFO renew leases."""
        run = self._run
        if run.invocation.are_plain or are_fresh(run.records):
            return self._renew_leases()
        from tarry.run.order import Isolation, fresh_first

        fresh, groups = fresh_first(run.records)
        if not groups:
            return self._renew_leases()
        until = run.monotonic() + run.invocation.time_left() * FETCH_SHARE
        fetching = self._fetch(groups)
        if runs_batch or not run.handling.isolate:
            self._renew_leases()
            comes_first = runs_batch or next(iter(run.records)) in {group[0][0] for group in groups}
        else:
            self.current, self.redelivered = fresh, chain.from_iterable(groups)
            self.isolation = Isolation(groups, run)
            self._renew_leases(groups)
            comes_first = self.isolation.has_whole_batch
        if fetching and comes_first:  # what takes too long is fetched while messages run
            for ended in fetching:
                ended.wait(until - run.monotonic())
            # The client is made by now, so less time must be kept for settling.
            run.deadline.keep(reserve(run.invocation.world))

    def _fetch(self, groups: Sequence[Sequence[Item]]) -> Sequence[Event]:
        """Start to fetch what settling redelivered messages may need: they are likely to fail again."""
        run = self._run
        if run.invocation.deadline == math.inf:
            return ()  # there will be time for it
        by_queue = {str(record.get("eventSourceARN")): (key, record) for group in groups for key, record in group}
        deliveries = [run.invocation.delivery(*item) for item in by_queue.values()]
        return run.verdicts.awaiting.fetch(deliveries, run.verdicts.outcomes.settlement)

    def _renew_leases(self, one_by_one: Sequence[Sequence[Item]] = ()) -> None:
        """On FIFO, extend leases that may be about to end; those of ``one_by_one`` so that they end one by one."""
        run, invocation = self._run, self._run.invocation
        if not run.is_fifo or invocation.deadline == math.inf or self._were_just_received():
            return
        deliveries = [invocation.delivery(*item) for item in run.records.items()]
        on_fifo = [delivery for delivery in deliveries if delivery.source.is_fifo]
        if any(_may_end_soon(delivery) for delivery in on_fifo):
            from tarry.settle.extending import renew

            renew(on_fifo, run.deadline.margin, run.handling.log, one_by_one)

    def _were_just_received(self) -> bool:
        """Return whether no lease may end soon, as in most batches: none of their messages needs an object."""
        invocation = self._run.invocation
        if not invocation.are_plain:
            return False
        try:
            received = {each["attributes"]["ApproximateFirstReceiveTimestamp"] for each in self._run.records.values()}
        except (KeyError, TypeError):
            return False  # an incomplete record
        latest = invocation.started_at - FRESH_SECONDS
        return all((at := epoch_seconds(text)) is not None and at >= latest for text in received)

    def release_out_of_time(self, message: Message[Any]) -> bool:
        """Release a message for lack of time; return whether others were too: not those that it has given way to."""
        isolation, message_id = self.isolation, message.delivery_id
        self._run.verdicts.release(delivery_of(message))
        self.out_of_time += 1
        is_redelivered = isolation is not None and message_id in isolation
        if isolation is not None and is_redelivered:
            isolation.remove(message_id)
        if isolation is None or not isolation.waiting_behind(message_id):
            self.out_of_time += self.release_all()
        elif is_redelivered:
            return False
        else:
            self.out_of_time += self._release_current()
        return True

    def release_after_defect(self, error: BaseException) -> None:
        exit_if_forked(self._run.invocation.began_in, error)
        text = "tarry itself failed. Messages that were not started are released."
        self._run.handling.log.problem("runtime_failed", text, error=error)
        self.release_all()

    def log_out_of_time(self) -> None:
        batch_size, left = len(self._run.records), self.out_of_time
        fits = batch_size - left
        text = (
            f"{left} of {batch_size} messages were not started, because there was no time left. They return to the "
            f"queue. A BatchSize of {fits} would have fitted; or give the function a longer Timeout."
        )
        self._run.handling.log.problem("out_of_time", text, level=WARNING)

    def release_all(self) -> int:
        """Release all messages that have not started; return how many there were."""
        return self._release_current() + self._release(self.redelivered)

    def _release_current(self) -> int:
        released = 0
        for message in self.remove_queued():
            self._run.verdicts.release(delivery_of(message))
            released += 1
        return released + self._release(self.current)

    def _release(self, items: Iterator[Item]) -> int:
        """Release messages as far as there is time; report the others only as failed. Return the number of both."""
        run, released = self._run, 0
        until = run.deadline.release_until(run.monotonic())
        for message_id, record in items:
            if run.monotonic() >= until:
                unreleased = 1 + sum(1 for _ in items)
                run.verdicts.outcomes.settlement.report_only(unreleased)
                return released + unreleased
            message = message_of(record, message_id, run.invocation, run.handling.log)
            if not run.waits(message):
                run.verdicts.release(delivery_of(message))
                released += 1
        return released


def _may_end_soon(delivery: Delivery) -> bool:
    """Return whether a lease may end soon; an event record has only the time of the first receive."""
    received_at = delivery.first_received_at
    if delivery.receive_count > 1 or received_at is None:
        return True
    return delivery.invocation.started_at - received_at > FRESH_SECONDS
