"""Run dead letters through their handlers in this process: delete them on success, update them on failure."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.decide.steps import FailureSteps, RetryInPlace
from tarry.failed.dead_letters import as_record
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
from tarry.failed.sending import UNDECODABLE, envelope_text, outgoing_delivery, send_patiently, why_not_deleted
from tarry.message.failure import Failure
from tarry.message.invocation import Invocation, message_of
from tarry.message.outcomes import Outcome
from tarry.message.queue_facts import QueueFacts
from tarry.settle.copies import Copy, CopyWriter
from tarry.settle.planner import Situation, SizeLimit
from tarry.sqs.client import client_of
from tarry.sqs.limits import MAX_REQUEST_BYTES
from tarry.sqs.refusals import may_be_applied
from tarry.world import World, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import Routes
    from tarry.message.failure import NextStep
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn

    Handler = Callable[[Any, Any], Any]
    HandlerOf = Callable[[str], Handler]
    """Return the Lambda handler that consumes a queue, by the queue's name; raises `NowhereToGo` if there is none."""


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
    inspection.handled.claim(dead_letter)
    run = _run(dead_letter, origin, handler)
    if run.failure is not None:
        return _record_failure(inspection, dead_letter, run, run.failure)
    if run.is_deferred:
        return skipped(dead_letter, "its handler deferred it; the dead letter is unchanged")
    return _deleted(inspection, dead_letter)


def _deleted(inspection: Inspection, dead_letter: DeadLetterMessage) -> Result:
    """Delete a dead letter whose handler has succeeded."""
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
