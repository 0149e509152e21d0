"""Metrics and ``on_outcome``: what became of the messages of a batch, reported when all of them are settled.

A report changes no outcome, and does not delay the response beyond the function's deadline.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.message.message import Message
from tarry.message.outcomes import Outcome
from tarry.observe.logs import REFUSED
from tarry.support.guards import name_of
from tarry.support.hooks import HookTimeout, call
from tarry.support.values import WARNING, epoch_seconds, queue_arn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.message.delivery import Failure
    from tarry.message.invocation import Invocation, Records
    from tarry.observe.logs import Log
    from tarry.observe.metrics import Ending
    from tarry.record.attribute import FailureRecord

    OnOutcome = Callable[[Message[Any], Outcome], None]


class FinalOutcome(NamedTuple):
    """The outcome of a message as it was carried out."""

    outcome: Outcome  # with the reason of its failure, unless it has its own
    delay: int | None  # the seconds until it is visible again; None if SQS did not confirm them, or they do not apply
    waits_in_place: bool  # whether it is invisible for these seconds, so that no copy of it was sent
    is_refused: bool  # whether SQS refused a request for it, or did not confirm one
    failure: FailureRecord | None = None  # of this delivery, for ``on_outcome``


DONE = FinalOutcome(Outcome.ack(), None, waits_in_place=False, is_refused=False)
NOT_SETTLED = FinalOutcome(Outcome.unhandled(), None, waits_in_place=False, is_refused=True)  # no time, or tarry failed
COPIED = frozenset({"sent_to", "dead_letter_queue"})  # fields of the line of a message of which a copy was sent
NEVER_RUN = frozenset({"wait", "release"})  # the kinds of outcome of messages that did not run


class Observer:
    """The observations of one invocation, made only with metrics or ``on_outcome``, which needs the failures."""

    def __init__(self, invocation: Invocation, pending: Records, log: Log, *, keeps_failures: bool) -> None:
        self._invocation = invocation
        self._pending = pending
        self._log = log
        self._monotonic = invocation.world.clock.monotonic
        self._keeps_failures = keeps_failures
        self.transitions: dict[str, FinalOutcome] = {}  # the messages that did not simply succeed, by delivery id
        self.requests: list[str] = []  # the operations of the requests to SQS
        self._runs: list[list[Any]] = []  # the delivery id (None for a batch), the start, the end (None while it runs)

    def transition(
        self,
        delivery_id: str,
        outcome: Outcome,
        delay: int | None,
        reason: str | None,
        failure: Failure | None,
        fields: dict[str, Any],
    ) -> None:
        """Note what became of a message; ``fields``: further fields of its log line."""
        is_refused = not REFUSED.isdisjoint(fields)
        waits_in_place = bool(delay) and COPIED.isdisjoint(fields)
        record = record_of(failure) if failure is not None and self._keeps_failures else None
        if reason is not None:  # that of the outcome, if it has its own
            outcome = outcome._changed(reason=reason)
        self.transitions[delivery_id] = FinalOutcome(outcome, delay, waits_in_place, is_refused, record)

    def timed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        runs, monotonic, ended = self._runs, self._monotonic, self._handler_ended

        def timed(subject: Any) -> Any:
            run = [getattr(subject, "delivery_id", None), monotonic(), None]
            runs.append(run)
            is_awaited = False
            try:
                result = function(subject)
                is_awaited = result is not None and hasattr(type(result), "__await__")
            finally:
                if not is_awaited:
                    ended(run)
            return awaited(result, run) if is_awaited else result

        async def awaited(result: Any, run: list[Any]) -> Any:
            try:
                return await result
            finally:
                ended(run)

        return timed

    def _handler_ended(self, run: list[Any]) -> None:
        run[2] = self._monotonic()

    def runs(self) -> list[tuple[str | None, float]]:
        """Return the runs of the handler so far: the delivery id (None for a batch), and the seconds."""
        now = self._monotonic()  # for handlers that were abandoned
        return [(run_id, (now if ended is None else ended) - began) for run_id, began, ended in self._runs.copy()]

    def _transition(self, delivery_id: str) -> FinalOutcome:
        found = self.transitions.get(delivery_id)
        return found or (NOT_SETTLED if delivery_id in self._pending else DONE)

    def write_metrics(self, namespace: str, consumer: str) -> None:
        """Write the metrics; a failure is logged once per cold start."""
        from tarry.observe import metrics

        if (refusal := metrics.refusal_of(namespace)) is not None:
            text = f"No metrics are written: {metrics.NAMESPACE} is {namespace!r:.300}, but {refusal}."
            self._log.once(self._invocation.world, "metrics_off", text)
            return
        try:
            for queue, values in self._values().items():
                metrics.write(namespace, consumer, queue, values, self._invocation.now())
        except ImportError:
            text = (
                f"No metrics are written: {metrics.NAMESPACE} is set, but Powertools is not installed. Add its layer "
                "to the function, or remove the variable."
            )
            self._log.once(self._invocation.world, "metrics_off", text)
        except BaseException as error:  # noqa: BLE001 a closed output; metrics never fail a message
            text = f"No metrics were written: Powertools raised {name_of(type(error))}."
            self._log.once(self._invocation.world, "metrics_off", text)

    def _values(self) -> dict[str, Any]:
        """Return the values of the metrics by queue."""
        from tarry.observe.metrics import values_of

        records, runs = self._invocation.records, self.runs()
        requests, values = len(self.requests), {}
        for queue, of_queue in _by_queue(records).items():
            of_runs = [seconds for run_id, seconds in runs if run_id is None or run_id in of_queue]
            values[queue] = values_of(*self._ends(of_queue), of_runs, requests)
            requests = 0  # an event has one queue, unless it was made by hand
        return values

    def _ends(self, records: Mapping[str, dict[str, Any]]) -> tuple[list[float | None], list[Ending]]:
        """Return the ages of the messages that simply succeeded in their first delivery, and the ends of the others."""
        others = {*self.transitions, *self._pending, *self._invocation.deliveries}
        now = self._invocation.now()
        sent: list[object] = []
        endings: list[Ending] = []
        for delivery_id, record in records.items():
            known = record.get("attributes")
            if delivery_id in others or type(known) is not dict or known.get("ApproximateReceiveCount") != "1":
                endings.append(self._ending(delivery_id, record, now))
            else:
                sent.append(known.get("SentTimestamp"))
        return [_age(at, now) for at in map(epoch_seconds, sent)], endings

    def _ending(self, delivery_id: str, record: dict[str, Any], now: float) -> Ending:
        transition, made = self._transition(delivery_id), self._invocation.deliveries.get(delivery_id)
        attributes = record.get("attributes")
        known: dict[str, Any] = attributes if isinstance(attributes, dict) else {}
        if made is None and delivery_id in self._pending:  # there was no time to start it
            return transition, None, _age(epoch_seconds(known.get("SentTimestamp")), now)
        made = self._invocation.delivery(delivery_id, record)
        sent = None if made.sent_at is None else made.sent_at.timestamp()
        return transition, None if transition.outcome.kind in NEVER_RUN else made.attempt, _age(sent, now)

    def call(self, on_outcome: OnOutcome) -> None:
        """Call the hook for each message, in the order of the batch, while there is time."""
        invocation, called = self._invocation, 0
        try:
            for delivery_id in invocation.records:
                called += 1
                self._call(on_outcome, delivery_id, self._transition(delivery_id))
        except HookTimeout as error:
            called -= not error.was_called
            text = (
                f"on_outcome was called for {called} of {len(invocation.records)} messages, because there was no time "
                "left. The outcomes hold. Make it faster, or give the function a longer Timeout."
            )
            self._log.problem("on_outcome_stopped", text, error=error, level=WARNING)

    def _call(self, on_outcome: OnOutcome, delivery_id: str, transition: FinalOutcome) -> None:
        invocation, outcome = self._invocation, transition.outcome
        is_kept = delivery_id in invocation.deliveries
        delivery = invocation.delivery(delivery_id)
        message = vars(delivery).get("message") or Message(delivery.record, delivery_id, invocation)
        delivery.outcome, delivery.is_closed, delivery.failed_now = outcome, True, transition.failure
        hook: Callable[..., object] = on_outcome
        if invocation.logger_keys:
            from tarry.observe.logger_keys import with_keys

            hook = with_keys(on_outcome)
        try:
            call("on_outcome", copy_context().run, hook, message, outcome)
        except HookTimeout:
            raise
        except BaseException as error:  # noqa: BLE001 a hook changes nothing, whatever it raises
            if invocation.world.first_time(f"on_outcome_failed {id(on_outcome)}"):
                text = "on_outcome raised an exception. The outcome holds. Further exceptions of it are not logged."
                self._log.problem("on_outcome_failed", text, delivery, error=error, level=WARNING)
        if not is_kept:
            del invocation.deliveries[delivery_id]
            vars(delivery).pop("message", None)  # they refer to each other


def record_of(failure: Failure) -> FailureRecord | None:
    """Return a failure as a dead letter's record, which holds no frames of the handler; None for a deferral."""
    from tarry.message.failure_record import failure_part
    from tarry.record.attribute import FailureRecord

    if failure.was_deferral:
        return None
    try:
        part = failure_part(failure, failure.reason, failure.failed_at, failure.attempt, include_traceback=True)
        return FailureRecord(part["failure"], tuple(part["history"]))
    except Exception:  # noqa: BLE001 a test's context may name the function with anything
        return None


def _age(sent: float | None, now: float) -> float | None:
    return None if sent is None else now - sent if now > sent else 0.0


def _by_queue(records: Mapping[str, dict[str, Any]]) -> dict[str, Mapping[str, dict[str, Any]]]:
    sources = {str(record.get("eventSourceARN")) for record in records.values()}
    if len(sources) == 1:
        return {queue_arn(sources.pop()).name: records}
    queues: dict[str, dict[str, dict[str, Any]]] = {}
    for delivery_id, record in records.items():
        queues.setdefault(queue_arn(record.get("eventSourceARN")).name, {})[delivery_id] = record
    return dict(queues)


def report(invocation: Invocation, consumer: str, metrics: str | None, on_outcome: OnOutcome | None) -> None:
    """Write metrics, to the namespace ``metrics``, and call ``on_outcome`` when all messages are settled."""
    observer: Observer | None = invocation.observer
    invocation.observer = None  # they refer to each other
    if observer is not None:
        if metrics:
            observer.write_metrics(metrics, consumer)
        if on_outcome is not None:
            observer.call(on_outcome)
    if invocation.logger_keys:
        from tarry.observe.logger_keys import clear

        clear(invocation.records)
