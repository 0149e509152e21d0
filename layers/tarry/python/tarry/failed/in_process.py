"""Run dead letters through their handlers in this process: a success is deleted, a failure is recorded in its place."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.consumer import Consumer
from tarry.execution.intake import message_of
from tarry.failed.dead_letters import as_record
from tarry.failed.errors import NowhereToGo
from tarry.failed.removing import GONE, check_may_delete, delete_patiently
from tarry.failed.requests import LOG
from tarry.failed.result import Result, failed, skipped
from tarry.failed.retrying import UNDECODABLE, carrier, envelope_text, send_patiently
from tarry.failed.selection import Selection, by_ids, not_found, offered
from tarry.outcome import Outcome
from tarry.policy.failure import Failure
from tarry.policy.step_lists import FailureSteps
from tarry.policy.steps import RetryInPlace
from tarry.settlement.copies import Copy
from tarry.settlement.copy_writer import CopyWriter
from tarry.settlement.facts import Situation, SizeLimit
from tarry.sqs.client import client_of
from tarry.sqs.limits import MAX_REQUEST_BYTES
from tarry.sqs.queue_facts import QueueFacts
from tarry.telemetry.diagnosis import one_line
from tarry.world import World, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import Routes
    from tarry.message import Message
    from tarry.policy.failure import NextStep
    from tarry.support.arn import QueueArn
    from tarry.telemetry.logs import Log

    Handler = Callable[[Any, Any], Any]
    HandlerOf = Callable[[str], Handler]
    """The Lambda handler for what comes from a queue, by its name; raises `NowhereToGo` if there is none."""


def run(inspection: Inspection, selection: Selection, routes: Routes, handler_of: HandlerOf) -> Iterator[Result]:
    """Runs the letters that are meant through their handlers, one by one; what came of each.

    A handler gets the event that its function would get, and no context. What failed, whatever is to
    follow by its failure steps, gets a new letter with the new error and one attempt more; once that is confirmed, the
    one it was is deleted. What is deferred is left as it was, but on a standard queue: the consumer sends it there.

    Raises what `tarry.failed.retry` raises.
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
    """Runs one. ``by_id``: it was named, so that it is a failure if it cannot be run."""
    if dead_letter.id in inspection.done:
        return skipped(dead_letter, "this id was run already: it is a duplicate")
    if dead_letter.is_undecodable:
        return failed(dead_letter, UNDECODABLE, "undecodable") if by_id else skipped(dead_letter, UNDECODABLE)
    try:
        origin = routes.target(dead_letter)
        handler = handler_of(origin.name)
    except NowhereToGo as error:
        return failed(dead_letter, str(error), "nowhere")
    if inspection.delivery(dead_letter) is None:
        return failed(dead_letter, GONE)
    inspection.done.add(dead_letter.id)
    ran = _run(dead_letter, origin, handler)
    if ran.failure is not None:
        return _left_dead(inspection, dead_letter, ran)
    if ran.stays:
        return skipped(dead_letter, "its handler put it off: it is left as it was")
    if why := delete_patiently(inspection, [dead_letter]).get(dead_letter.delivery_id):
        return failed(dead_letter, f"its handler is done with it, and it could not be deleted ({why}): remove it")
    return Result(dead_letter.id, "retried", dead_letter=dead_letter)


class Ran:
    """What came of a run: the failure, if it was one, and how its consumer writes records."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.stays = False
        """Whether the handler reported it as failed, though it did not fail."""
        self.is_tarry = False
        self.was_interrupted = False
        self.steps = FailureSteps()
        self.log: Log = LOG

    def watch(self, consumer: Consumer[Any]) -> Consumer[Any]:
        """The consumer that runs in its place, wherever it was called: what fails is noted, and nothing else done."""
        if not self.is_tarry:
            self.is_tarry, self.steps, self.log = True, consumer.steps, consumer.log
        return consumer.replace(on_failure=[self, RetryInPlace()], max_attempts=1, keepalive=None, ack="on_return")

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """A failure step: takes note."""
        self.failure = failure
        return Outcome.release()


def _run(dead_letter: DeadLetterMessage, origin: QueueArn, handler: Handler) -> Ran:
    here, ran = world.current(), Ran()
    now = here.clock.time()
    text = envelope_text(dead_letter, MAX_REQUEST_BYTES)
    record = as_record(dead_letter, origin.text, now, text)
    inside = World(here.clock, here.random, lambda: client_of(here), here.threads, ran.watch)
    raised: BaseException | None = None
    answer: Any = None
    called = ran.watch(handler) if isinstance(handler, Consumer) else handler
    with use(inside), _quiet(dead_letter.delivery_id):
        try:
            answer = called({"Records": [record]}, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 whatever it is, the letter stays
            raised = error
    ran.was_interrupted = ran.failure is not None and isinstance(ran.failure.error, KeyboardInterrupt)
    if ran.failure is None:
        reported = raised is not None or _reports(answer)
        if reported and (raised is not None or not ran.is_tarry):
            ran.failure = Failure(_message(dead_letter, record, inside), raised, "exhausted")
        ran.stays = reported
    return ran


def _message(dead_letter: DeadLetterMessage, record: dict[str, Any], inside: World) -> Message[Any]:
    from tarry.invocation import Invocation

    return message_of(record, dead_letter.delivery_id, Invocation(inside, None, lambda _: None, LOG), LOG)


def _reports(answer: Any) -> bool:
    """Whether the answer says that it failed, as far as Lambda would understand it."""
    listed = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    return bool(listed)


def _left_dead(inspection: Inspection, dead_letter: DeadLetterMessage, ran: Ran) -> Result:
    """Writes the letter anew, with what it died of this time; then the one it was is deleted."""
    failure = ran.failure
    assert failure is not None
    error = "its handler wants it to be retried" if failure.error is None else one_line(failure.error)
    if ran.was_interrupted:
        return failed(dead_letter, "interrupted: it is left as it was")
    held = inspection.delivery(dead_letter)
    if held is None:
        return failed(dead_letter, f"{error}; {GONE}, so this is not in its record")
    try:
        copy = _new_letter(inspection, dead_letter, failure, ran)
    except Exception as trouble:  # noqa: BLE001 a hook of the user's, a body that does not fit: it is where it was
        return failed(dead_letter, f"{error}; that could not be written into its record: {trouble}")
    copy = Copy(carrier(dead_letter, held), copy.target, copy.variants, copy.delay, record=copy.record)
    [sent] = send_patiently(inspection, [copy])
    if sent.error is not None:
        return failed(dead_letter, f"{error}; that could not be written into its record: {sent.error}")
    if sent.not_deleted is not None and (
        why := delete_patiently(inspection, [dead_letter]).get(dead_letter.delivery_id)
    ):
        return failed(dead_letter, f"{error}; the dead letter without that record could not be deleted: {why}")
    inspection.forget([dead_letter])
    return failed(dead_letter, error)


def _new_letter(inspection: Inspection, dead_letter: DeadLetterMessage, failure: Failure, ran: Ran) -> Copy:
    here, queue, invocation = world.current(), inspection.queue.arn, failure.delivery.invocation
    now, limits = here.clock.time(), {queue: SizeLimit(*inspection.lookups.maximum_message_size(queue))}
    situation = Situation(now, lambda: math.inf, QueueFacts(), limits, here.random, invocation.diagnoses.of)
    writer = CopyWriter(ran.steps, situation)
    copy = writer.dead_letter(failure, Outcome.dead_letter(failure.reason, queue.text), now, origin=dead_letter.origin)
    ran.log.notices(failure.delivery, writer.notices)
    return copy


@contextmanager
def _quiet(delivery_id: str) -> Iterator[None]:
    """Without the line that it was given back: it was not."""

    def is_wanted(line: logging.LogRecord) -> bool:
        return (getattr(line, "event", None), getattr(line, "delivery_id", None)) != ("released", delivery_id)

    logger = logging.getLogger("tarry")
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)
