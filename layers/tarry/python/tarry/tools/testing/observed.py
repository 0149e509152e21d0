"""An observed consumer: the events and answers of its function, and the verdicts of its handler.

Checkers rely on these records rather than on the log.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial, wraps
from sys import intern
from typing import Any

from tarry.consumer import Consumer
from tarry.decide.decision import deferral
from tarry.decide.steps import BuiltInStep, LocalRetry
from tarry.message.batch import Batch, batch_verdict_of
from tarry.message.delivery import Delivery
from tarry.message.message import Message, delivery_of
from tarry.message.outcomes import ACK, Defer, Discard, Reject, Retry, Verdict, delay_of, find_signal
from tarry.run.batch_verdicts import WithoutVerdict, effective_verdict, failed_index
from tarry.run.handlers import apply_result, is_awaitable
from tarry.support.guards import cause_of, is_a, type_name
from tarry.tools.simulator.actors import Killed
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import messages_in
from tarry.tools.testing.deliveries import OneEntry, RunMessage, RunTerms, RunVerdict
from tarry.world import current


class ReportingDelivery(Delivery):
    """A delivery that reports its verdicts; its handler sees no difference."""

    _watch: "_Watch"

    def ack_eagerly(self) -> None:  # by `ack` and `ack_all`; reported first, as the process may die in the delete
        if self.verdict is ACK or self.can_be_deleted_now:
            self._watch.on_verdict(self, "ack", self._watch.history.now())
        super().ack_eagerly()

    def take_verdict(self, verdict: Verdict) -> None:
        began = self._watch.history.now()
        super().take_verdict(verdict)
        if verdict is not ACK:
            name = next((name for signal, name in KINDS.items() if is_a(verdict, signal)), "fail")
            self._watch.on_verdict(self, name, began)


KINDS: dict[Any, str] = {Retry: "retry", Reject: "reject", Discard: "discard", Defer: "defer"}
ACKED = RunVerdict("ack")
"""Shared by all runs that succeed: the history keeps them all."""
STAYS = frozenset({"retry", "defer", "fail", "release", "left"})
"""Verdicts after which a message may stay in its queue, and on FIFO the messages behind it too."""


def recorded(handler: Callable[[Any, Any], Any], history: History) -> Callable[[Any, Any], Any]:
    """Return a Lambda handler that calls ``handler`` and records its events and answers."""

    def recording(event: Any, context: Any) -> Any:
        request_id, here, received = context.aws_request_id, current(), messages_in(event)
        receives = [
            (intern(each["messageId"]), int(each["attributes"]["ApproximateReceiveCount"])) for each in received
        ]
        history.record("handler_called", request_id=request_id, receives=receives)
        in_hooks = here.in_hooks
        answer = handler(event, context)
        history.record("handler_returned", request_id=request_id, answer=answer, in_hooks=here.in_hooks - in_hooks)
        return answer

    return recording


def observed(handler: Consumer[Any], history: History) -> Consumer[Any]:
    """Return a consumer with the same settings that records the runs of its handler."""
    function = handler.function
    watch = partial(_Watch, _Watched(handler, history))

    if handler.is_async:

        @wraps(function)
        async def watched_async(subject: Any) -> Any:
            return await watch(subject).await_result(function(subject))

        watched: Callable[[Any], Any] = watched_async
    else:

        @wraps(function)
        def watched(subject: Any) -> Any:
            watching = watch(subject)
            try:
                result = function(subject)
            except BaseException as error:
                watching.end(error)
                raise
            if is_awaitable(result):
                return watching.await_result(result)
            watching.returned(result)
            return result

    return Consumer(watched, handler._takes_batch, {**handler._settings, "name": handler.name})


class _Watched:
    """An observed handler."""

    def __init__(self, handler: Consumer[Any], history: History) -> None:
        self.consumer = handler
        self.history = history
        self._terms: dict[str, RunTerms] = {}

    def message(self, delivery: Delivery) -> RunMessage:
        """Return a message of a run that starts."""
        # An attempt store may have failed since it was read.
        is_exact = delivery.stored is not None or delivery.counts_runs
        return RunMessage(intern(delivery.id), delivery.receive_count, delivery.attempt, is_exact, self.terms(delivery))

    def terms(self, delivery: Delivery) -> RunTerms:
        """Return the settings for a message, by its queue."""
        source = delivery.source
        known = self._terms.get(source.text)
        if known is None:
            steps = self.consumer.steps.of(delivery.queue)
            has_own_steps = not all(isinstance(step, BuiltInStep) for step in steps.steps)
            longest = self.consumer.policy.longest_delay(fifo=source.is_fifo)
            local_retries = sum(step.times for step in steps.steps if isinstance(step, LocalRetry))
            known = self._terms[source.text] = RunTerms(
                delivery.max_attempts, steps.retries_in_place, has_own_steps, longest, source.is_fifo, local_retries
            )
        return known


class _Watch:
    """One observed call of a handler."""

    def __init__(self, handler: _Watched, subject: Any) -> None:
        self._handler = handler
        self.history = history = handler.history
        self._number = history.recorded
        self._subject = subject
        self._is_batch = not isinstance(subject, Message)
        self._deliveries = [delivery_of(each) for each in subject] if self._is_batch else [delivery_of(subject)]
        self._request_id = str(getattr(subject.context, "aws_request_id", None))
        for delivery in self._deliveries:
            delivery.__class__ = ReportingDelivery
            delivery.__dict__["_watch"] = self
        messages: Mapping[str, RunMessage]
        if self._is_batch:
            messages = {intern(each.delivery_id): handler.message(each) for each in self._deliveries}
        else:
            messages = OneEntry(intern(self._deliveries[0].delivery_id), handler.message(self._deliveries[0]))
        fields = {"run": self._number, "request_id": self._request_id, "is_batch": self._is_batch, "messages": messages}
        history.add("run_started", fields)

    def on_verdict(self, delivery: Delivery, verdict: str, fell_at: float) -> None:
        """Record a verdict on a message; its delay counts from then, if it is the first one."""
        if not isinstance(sys.exception(), Killed):
            fields = {"run": self._number, "request_id": self._request_id, "delivery_id": delivery.delivery_id}
            self.history.add("verdict", {**fields, "verdict": verdict, "fell_at": fell_at})

    async def await_result(self, awaitable: Any) -> Any:
        """Await the result of the call and record its end."""
        try:
            result = await awaitable
        except BaseException as error:
            self.end(error)
            raise
        self.returned(result)
        return result

    def returned(self, result: Any) -> None:
        """Record the end of the call with a result, which may be a verdict."""
        try:
            if result is not None:
                apply_result(result, self._subject)
        except BaseException as error:  # noqa: BLE001 counts as raised by the handler
            self.end(error)
        else:
            self.end(None)

    def end(self, raised: BaseException | None) -> None:
        """Record the end of the call, unless its process was killed."""
        if raised is not None and is_a(raised, (Killed, GeneratorExit)):
            return
        fields = {
            "run": self._number,
            "request_id": self._request_id,
            "verdicts": self._verdicts(raised),
            "was_abandoned": not self._is_batch and self._deliveries[0].is_closed,
        }
        self.history.add("run_ended", fields)
        self._deliveries, self._subject = [], None  # they refer to this object

    def _verdicts(self, raised: BaseException | None) -> Mapping[str, RunVerdict]:
        """Return the verdicts on the messages of the call, by delivery id."""
        if self._is_batch:
            given = _verdicts(self._subject, raised, self._handler.consumer.fails_without_verdict)
        else:
            [delivery] = self._deliveries
            if raised is None and delivery.verdict is None:  # nearly all messages
                return OneEntry(intern(delivery.delivery_id), ACKED)
            given = iter([(delivery, _verdict(delivery, delivery.verdict, raised))])
        return {intern(each.delivery_id): self._with_wait(each, verdict) for each, verdict in given}

    def _with_wait(self, delivery: Delivery, verdict: RunVerdict) -> RunVerdict:
        """Return a verdict with the wait that the policy gives the message, if the handler asked for none."""
        if verdict.wait is not None or verdict.kind not in ("retry", "fail"):
            return verdict
        policy, terms = self._handler.consumer.policy, self._handler.terms(delivery)
        if (
            (verdict.kind == "fail" and terms.has_own_steps)
            or policy.retry_when is not None
            or (terms.is_fifo and delivery is not self._deliveries[0])
        ):
            return verdict
        return verdict._replace(wait=policy.delay_bounds(delivery.attempt, fifo=terms.is_fifo))


def _verdicts(
    batch: Batch[Any], raised: BaseException | None, fails_without_verdict: bool
) -> Iterator[tuple[Delivery, RunVerdict]]:
    """Return the verdicts on all messages of a batch handler's call (SPEC B).

    On FIFO a message without a verdict is ``left`` if a message before it in its group did not succeed: its outcome
    depends on that message.
    """
    whole = batch_verdict_of(batch)
    culprit, without_verdict = failed_index(batch, raised), WithoutVerdict(whole.answer, fails_without_verdict)
    stopped: set[str | None] = set()
    for index, message in enumerate(batch):
        delivery = delivery_of(message)
        given = effective_verdict(delivery.verdict, whole.verdict)
        if given is None and culprit is not None and index != culprit:
            verdict = ACKED if index < culprit else RunVerdict("release")
        elif given is None and raised is None:
            is_behind, of_handler = without_verdict.is_behind_named(delivery), without_verdict.error_of(delivery)
            verdict = RunVerdict("release") if is_behind else _verdict(delivery, None, of_handler)
        else:
            error = raised
            if culprit is not None and raised is not None and (cause := cause_of(raised)) is not None:
                error = cause
            verdict = _verdict(delivery, given, error)
            if given is not None and given is whole.verdict:
                verdict = verdict._replace(is_of_batch=True)
        if delivery.source.is_fifo:
            if message.group_id in stopped and (given is None or verdict.kind in STAYS):
                verdict = RunVerdict("left")
            if verdict.kind in STAYS or verdict.kind == "reject":
                stopped.add(message.group_id)
        yield delivery, verdict


def _verdict(delivery: Delivery, given: Verdict | None, raised: BaseException | None) -> RunVerdict:
    """Return a verdict; it has the wait that was asked for."""
    effective = raised if given is None else given
    if effective is None or not is_a(effective, BaseException):
        return ACKED
    signal = find_signal(effective)
    kind = next((name for signal_kind, name in KINDS.items() if issubclass(type(signal), signal_kind)), None)
    if signal is None or kind is None:
        if deferral(effective, delivery, 0) is not None:  # an open circuit; it decides how long it waits
            return RunVerdict("defer")
        return RunVerdict("fail", _name(effective))
    try:
        delay = delay_of(signal) if is_a(signal, Retry) or is_a(signal, Defer) else None
    except BaseException as trouble:  # noqa: BLE001 an odd subclass: its message has failed
        return RunVerdict("fail", _name(trouble))
    if given is None and delay is not None and delay > delivery.longest_delay():
        return RunVerdict("fail")  # a delay that is too long is an ordinary failure
    moment = signal.args[0] if signal.args else None
    # A signal without a moment was made with a duration.
    due = moment.timestamp() if isinstance(moment, datetime) and moment.tzinfo is not None else None
    return RunVerdict(kind, None, None if delay is None else (delay, delay), due)


def _name(error: BaseException) -> str:
    return type_name(error).rpartition(".")[2]
