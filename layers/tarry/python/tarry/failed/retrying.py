"""Retry dead letters: all, a selection, or some first; through their queues, or their handlers in this process."""

from __future__ import annotations

import logging
import math
import threading
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.decide.steps import FailureSteps, RetryInPlace
from tarry.failed.dead_letters import as_record
from tarry.failed.inspection import ROUNDS
from tarry.failed.pacing import CanaryReturned, Limits, Pace, TooManyReturned, check_can_watch, seconds_to_return, watch
from tarry.failed.queue_names import counts_of
from tarry.failed.queues import ALL, part_of
from tarry.failed.removing import (
    GONE,
    Result,
    check_may_delete,
    delete_patiently,
    failed,
    skipped,
    twice_in,
    unconfirmed,
)
from tarry.failed.requests import LOG, NowhereToGo
from tarry.failed.selection import Selection, by_ids, not_found, offered
from tarry.failed.sending import (
    UNDECODABLE,
    envelope_text,
    outgoing_delivery,
    prepared,
    retry_dead_letters,
    send_patiently,
    why_not_deleted,
)
from tarry.message.delivery import Failure, QueueFacts
from tarry.message.invocation import Invocation, message_of
from tarry.message.outcomes import Outcome
from tarry.settle.copies import Copy, CopyWriter
from tarry.settle.planner import Situation, SizeLimit
from tarry.sqs.client import MAX_PARALLEL, client_of
from tarry.sqs.refusals import MAX_ENTRIES, MAX_REQUEST_BYTES, may_be_applied
from tarry.world import World, use

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.pacing import Canary
    from tarry.failed.queues import Routes
    from tarry.message.delivery import NextStep
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn

    Handler = Callable[[Any, Any], Any]
    HandlerOf = Callable[[str], Handler]
    """Return the Lambda handler that consumes a queue, by the queue's name; raises `NowhereToGo` if there is none."""

CHECK_SECONDS = 10
"""The time between two requests for the length of the queue, which SQS itself updates only now and then."""


class ReturnWatch:
    """The check of ``max_return`` during a retry."""

    def __init__(self, inspection: Inspection, limits: Limits) -> None:
        self._inspection = inspection
        self._limits = limits
        self._clock = world.current().clock
        self._checked_at = self._clock.monotonic()
        self._expected = 0 if limits.max_return is None else self._length()
        """The length of the queue without what was retried, and with what is known to have arrived."""

    def check(self, retried: int) -> None:
        """Check whether too many have come back, from time to time. Raises `TooManyReturned`."""
        limits, inspection = self._limits, self._inspection
        if limits.max_return is None:
            return
        if self._clock.monotonic() - self._checked_at >= CHECK_SECONDS and limits.allows(
            inspection.handled.returned, retried
        ):
            self._checked_at = self._clock.monotonic()
            arrived = self._length() - (self._expected - retried)
            if not limits.allows(inspection.handled.returned + arrived, retried):
                self._count()
                self._expected += arrived
        if not limits.allows(inspection.handled.returned, retried):
            raise TooManyReturned(inspection.handled.returned, retried, inspection.queue.name)

    def _length(self) -> int:
        lookups, queue = self._inspection.lookups, self._inspection.queue
        answer = lookups.requests.call("get_queue_attributes", QueueUrl=lookups.url(queue.arn), AttributeNames=ALL)
        return sum(counts_of(part_of(answer, "Attributes", "GetQueueAttributes")))

    def _count(self) -> None:
        """Receive all that is left, count those that came back, and release all."""
        inspection = self._inspection

        def those_back(dead_letters: list[DeadLetterMessage]) -> list[None]:
            for each in dead_letters:
                if inspection.handled.is_returned(each):
                    inspection.handled.count_repeated(each)
            return []

        for _ in inspection.in_threads(those_back, MAX_PARALLEL):
            pass
        inspection.begin_again()


def retry(
    inspection: Inspection,
    selection: Selection,
    routes: Routes,
    *,
    concurrency: int = 1,
    limits: Limits | None = None,
    canary: Canary | None = None,
) -> Iterator[Result]:
    """Send the selected dead letters back to their queues, ten at a time; yield the result of each.

    Dead letters selected by id are sent in the order of the ids. The permission to delete is checked before the first
    send, and for ids also the queue of each.

    Args:
        inspection: The inspection of the queue.
        selection: The dead letters to send.
        routes: Where to send them.
        concurrency: The number of threads; each receives ten dead letters, sends them and deletes them.
        limits: The rate, and the share of messages that may come back.
        canary: Send some first, and the others only if these do not come back. Not for ids, nor on FIFO.

    Raises:
        CanaryReturned: canaries came back; no others were sent.
        TooManyReturned: more messages came back than ``limits`` allows; no others were sent.
        ConfigurationError: a canary that came back could not be seen.
        NowhereToGo: the queue of a dead letter that was selected by id is unknown.
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)
    limits = limits or Limits()
    if selection.ids:
        yield from _retry_ids(inspection, selection.ids, routes, concurrency, limits)
        return
    if canary is not None:
        check_can_watch(inspection)
        if not (yield from _retry_canaries(inspection, selection, routes, canary)):
            return
    retried, returns = 0, ReturnWatch(inspection, limits)
    tens = TensToSend(inspection, selection, routes, limits)
    rounds = ROUNDS if limits.rate is None else 1  # what comes back is counted between rounds, which a rate makes long
    for results in chain(
        inspection.in_threads(tens.send, concurrency, limits.size, rounds=rounds), iter(tens.send_rest, None)
    ):
        yield from results
        if results and all(result.hindrance == "denied" for result in results):
            return  # the others would be denied as well
        retried += sum(result.outcome == "retried" for result in results)
        returns.check(retried)


class TensToSend:
    """The dead letters that a retry has received and not yet sent: of a small group there are few in each receive."""

    def __init__(self, inspection: Inspection, selection: Selection, routes: Routes, limits: Limits) -> None:
        self._inspection = inspection
        self._selection = selection
        self._routes = routes
        self._pace = Pace(limits.rate, lambda: inspection.is_stopped)
        # On FIFO, SQS delivers no more of a group before these are sent.
        self._enough = 1 if inspection.queue.arn.is_fifo or limits.rate is not None else MAX_ENTRIES
        self._waiting: list[DeadLetterMessage] = []
        self._lock = threading.Lock()

    def send(self, dead_letters: list[DeadLetterMessage]) -> list[Result]:
        """Send the selected dead letters once there are ten."""
        chosen = offered(self._inspection, dead_letters, self._selection)
        with self._lock:
            self._waiting += chosen
            if len(self._waiting) < self._enough:
                return []
            batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
        return self._send(batch)

    def send_rest(self) -> list[Result] | None:
        """Send up to ten of those that wait; None if there are none."""
        batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
        return self._send(batch) if batch and not self._inspection.is_stopped else None

    def _send(self, batch: list[DeadLetterMessage]) -> list[Result]:
        if not self._pace.wait(len(batch)):
            return []
        return retry_dead_letters(self._inspection, batch, self._routes, by_id=False)


def _retry_ids(
    inspection: Inspection, ids: Sequence[str], routes: Routes, concurrency: int, limits: Limits
) -> Iterator[Result]:
    found = by_ids(inspection, ids)
    for dead_letter in found.values():
        if not dead_letter.is_undecodable:
            routes.target(dead_letter)
    named, pace = iter(ids), Pace(limits.rate, lambda: inspection.is_stopped)
    size = MAX_ENTRIES * concurrency if limits.rate is None else limits.size
    while not inspection.is_stopped and (some := list(islice(named, size))) and pace.wait(len(some)):
        dead_letters = list(dict.fromkeys(found[name] for name in some if name in found))
        results = dict(zip(dead_letters, retry_dead_letters(inspection, dead_letters, routes), strict=True))
        for name in some:
            yield results[found[name]] if name in found else Result(name, "failed", not_found(inspection))


def _retry_canaries(
    inspection: Inspection, selection: Selection, routes: Routes, canary: Canary
) -> Generator[Result, None, bool]:
    """Send the canaries and watch them; return whether to send the others. Raises `CanaryReturned`."""
    canaries: list[DeadLetterMessage] = []
    for dead_letters in inspection.polls():
        for each in dead_letters:
            if len(canaries) < canary.number and not each.is_undecodable:
                canaries += offered(inspection, [each], selection)
        if len(canaries) >= canary.number:
            break
    if not canaries or inspection.is_stopped:
        return not inspection.is_stopped
    seconds = canary.within or seconds_to_return(inspection, canaries, routes)
    results = retry_dead_letters(inspection, canaries, routes, by_id=False)
    yield from results
    sent = {result.id for result in results if result.outcome == "retried"}
    if sent and (returned := watch(inspection, sent, seconds, canary)):
        raise CanaryReturned(returned, len(sent), inspection.queue.name)
    inspection.begin_again()
    return bool(sent) and not inspection.is_stopped


def preview(inspection: Inspection, selection: Selection, routes: Routes) -> Iterator[Result]:
    """Yield the results that `retry` would have, without sending and deleting; the note of each names its queue.

    Raises:
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)

    def result(dead_letter: DeadLetterMessage, *, by_id: bool = False) -> Result:
        answer = prepared(inspection, dead_letter, routes, by_id=by_id)
        if isinstance(answer, Result):
            return answer
        return Result(dead_letter.id, "retried", note=f"to {answer.target.name}", dead_letter=dead_letter)

    if not selection.ids:
        for results in inspection.in_threads(
            lambda some: [result(each) for each in offered(inspection, some, selection)], MAX_PARALLEL
        ):
            yield from results
        return
    found = by_ids(inspection, selection.ids)
    for name in selection.ids:
        if name not in found:
            yield Result(name, "failed", not_found(inspection))
        elif inspection.handled.claim(found[name]):
            yield result(found[name], by_id=True)


# in this process


def run(inspection: Inspection, selection: Selection, routes: Routes, handler_of: HandlerOf) -> Iterator[Result]:
    """Run the selected dead letters through their handlers, one at a time; yield the result of each.

    A handler gets the event that its function would get, and None as the context. Failure steps do not run. A failed
    message is replaced by a new dead letter with the new error and one more attempt; the old one is deleted once SQS
    has confirmed the new one. A deferred message goes back to its standard queue; on FIFO the dead letter stays
    unchanged.

    Raises:
        NowhereToGo: a dead letter selected by id has no origin that can be trusted, or no handler.
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)
    if not selection.ids:
        for each in inspection.dead_letters():
            for dead_letter in offered(inspection, [each], selection):
                yield run_dead_letter(inspection, dead_letter, routes, handler_of, by_id=False)
        return
    found = by_ids(inspection, selection.ids)
    for dead_letter in found.values():
        if not dead_letter.is_undecodable:
            handler_of(routes.target(dead_letter).name)
    results: dict[str, Result] = {}
    for name in selection.ids:
        if inspection.is_stopped:
            return
        if name not in found:
            yield Result(name, "failed", not_found(inspection))
            continue
        dead_letter = found[name]
        if dead_letter.delivery_id not in results:
            results[dead_letter.delivery_id] = run_dead_letter(inspection, dead_letter, routes, handler_of)
        yield results[dead_letter.delivery_id]


def run_dead_letter(
    inspection: Inspection, dead_letter: DeadLetterMessage, routes: Routes, handler_of: HandlerOf, *, by_id: bool = True
) -> Result:
    """Run one dead letter. ``by_id``: it was selected by id, so not being able to run it is a failure."""
    if by_id and dead_letter.id in inspection.handled:
        return skipped(dead_letter, "another dead letter with this id was already run")
    if dead_letter.is_undecodable:
        return failed(dead_letter, UNDECODABLE, "undecodable") if by_id else skipped(dead_letter, UNDECODABLE)
    try:
        origin = routes.target(dead_letter)
        handler = handler_of(origin.name)
    except NowhereToGo as error:
        return failed(dead_letter, str(error), "nowhere")
    if inspection.delivery(dead_letter) is None:
        return failed(dead_letter, GONE)
    inspection.before_change()
    inspection.handled.claim(dead_letter)  # whatever its handler does: none is offered twice in a run (SPEC M3)
    run = _run(dead_letter, origin, handler)
    if run.failure is not None:
        return _record_failure(inspection, dead_letter, run, run.failure)
    if run.is_deferred:
        return skipped(dead_letter, "its handler deferred it; the dead letter is unchanged")
    return _deleted(inspection, dead_letter)


def _deleted(inspection: Inspection, dead_letter: DeadLetterMessage) -> Result:
    why = delete_patiently(inspection, [dead_letter]).get(dead_letter.delivery_id)
    if why is None:
        return Result(dead_letter.id, "retried", dead_letter=dead_letter)
    if inspection.may_be_deleted(dead_letter):
        error = f"its handler succeeded, but it may still be there ({why}): if it is, remove it"
        return unconfirmed(dead_letter, error)
    return failed(dead_letter, f"its handler succeeded, but it could not be deleted ({why}): remove it")


class InProcessRun:
    """One run of a handler: its failure, if any, and the settings of its consumer that write failure records."""

    releases = True  # as a failure step: what becomes of the dead letter is decided after the run
    failure: Failure | None = None
    is_deferred = False
    """Whether the consumer reported the message as failed without a failure."""
    is_tarry = False
    steps = FailureSteps()
    log: Log = LOG

    def watch(self, consumer: Any) -> Any:
        """Return the consumer to run instead, wherever it is called: it records a failure and does nothing else."""
        if not self.is_tarry:
            self.is_tarry, self.steps, self.log = True, consumer.steps, consumer.log
        # One attempt, without a table or an early delete: the message of the event is not in the queue that it names.
        return consumer.replace(
            on_failure=[self, RetryInPlace()], max_attempts=1, keepalive=None, ack="on_return", attempts=None
        )

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Record the failure, as a failure step, and release the message."""
        self.failure = failure
        return Outcome.release()


def _run(dead_letter: DeadLetterMessage, origin: QueueArn, handler: Handler) -> InProcessRun:
    here, run = world.current(), InProcessRun()
    record = as_record(dead_letter, origin.text, here.clock.time(), envelope_text(dead_letter, MAX_REQUEST_BYTES))
    inside = World(here.clock, here.random, lambda: client_of(here), here.threads, run.watch)
    raised: BaseException | None = None
    answer: Any = None
    with use(inside), _quiet(dead_letter.delivery_id):
        try:
            answer = handler({"Records": [record]}, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 the dead letter stays, whatever the error
            raised = error
    if run.failure is None:
        run.is_deferred = raised is not None or bool(isinstance(answer, dict) and answer.get("batchItemFailures"))
        if raised is not None or (run.is_deferred and not run.is_tarry):
            invocation = Invocation(inside, None, lambda _: None, LOG)
            run.failure = Failure(message_of(record, dead_letter.delivery_id, invocation, LOG), raised, "exhausted")
    return run


def _record_failure(
    inspection: Inspection, dead_letter: DeadLetterMessage, run: InProcessRun, failure: Failure
) -> Result:
    """Send a new dead letter with the new failure, then delete the old one."""
    error = "its handler asked for a retry" if failure.diagnosis is None else failure.diagnosis.line()
    if isinstance(failure.error, KeyboardInterrupt):
        return failed(dead_letter, "interrupted; the dead letter is unchanged")
    delivery = inspection.delivery(dead_letter)
    if delivery is None:
        return failed(dead_letter, f"{error}; this failure is not recorded: {GONE}")
    try:
        copy = _new_dead_letter(inspection, dead_letter, failure, run)
    except Exception as problem:  # noqa: BLE001 a hook of the user's, or a body that does not fit: it stays unchanged
        return failed(dead_letter, f"{error}; this failure could not be recorded: {problem}")
    outgoing = outgoing_delivery(dead_letter, delivery)
    copy = Copy(outgoing, outgoing.body, copy.target, copy.variants, copy.delay, record=copy.record)
    [sent] = send_patiently(inspection, [copy])
    if sent.error is not None and may_be_applied(sent.error):
        return unconfirmed(dead_letter, f"{error}; a copy with this failure may be there as well ({sent.error})")
    if sent.error is not None:
        return failed(dead_letter, f"{error}; this failure could not be recorded: {sent.error}")
    if why := why_not_deleted(inspection, dead_letter, sent):
        return failed(dead_letter, f"{error}; recorded in a copy, but the old dead letter could not be deleted: {why}")
    inspection.forget([dead_letter])
    return failed(dead_letter, f"{error}; {twice_in(inspection.queue.name)}" if sent.may_be_twice else error)


def _new_dead_letter(
    inspection: Inspection, dead_letter: DeadLetterMessage, failure: Failure, run: InProcessRun
) -> Copy:
    here, queue, invocation = world.current(), inspection.queue.arn, failure.delivery.invocation
    now, limits = here.clock.time(), {queue: SizeLimit(*inspection.lookups.maximum_message_size(queue))}
    situation = Situation(now, lambda: math.inf, QueueFacts(), limits, here.random, invocation.diagnoses.of)
    writer = CopyWriter(run.steps, situation)
    copy = writer.dead_letter(failure, Outcome.dead_letter(failure.reason, queue.text), now, origin=dead_letter.origin)
    run.log.notices(failure.delivery, writer.notices)
    return copy


@contextmanager
def _quiet(delivery_id: str) -> Iterator[None]:
    """Suppress the log line about the released message: no message is released here."""

    def is_wanted(line: logging.LogRecord) -> bool:
        return (getattr(line, "event", None), getattr(line, "delivery_id", None)) != ("released", delivery_id)

    logger = logging.getLogger("tarry")
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)
