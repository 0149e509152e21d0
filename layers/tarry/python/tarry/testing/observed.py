"""An observed consumer: the events and answers of its function, and the verdicts of its handler.

Checkers rely on these records rather than on the log.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.batch import Batch, batch_verdict_of
from tarry.consumer import Consumer
from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.execution.batch_verdicts import WithoutVerdict, effective_verdict, failed_index
from tarry.execution.handlers import is_awaitable
from tarry.execution.return_values import apply_result
from tarry.message import Message, delivery_of
from tarry.policy.circuits import deferral
from tarry.policy.steps import DeadLetter, DropMessage, LocalRetry, RetryInPlace, SendAgain
from tarry.signals import Defer, Discard, Reject, Retry, delay_of, find_signal
from tarry.simulator.process import Killed
from tarry.support.causes import cause_of, is_a, text_of, type_name
from tarry.testing.verdict_listener import listen_to_verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.delivery import Delivery
    from tarry.simulator.history import History
    from tarry.verdict import Verdict

MAX_TEXT_CHARACTERS = 1_000

KINDS = {Retry: "retry", Reject: "reject", Discard: "discard", Defer: "defer"}
STEPS = (RetryInPlace, LocalRetry, SendAgain, DeadLetter, DropMessage)
NO_DETAILS: dict[str, Any] = {}
"""Shared by the events of runs without them: most runs succeed, and the history keeps them all."""
STAYS = frozenset({"retry", "defer", "fail", "release", "left"})
"""Verdicts after which a message may stay in its queue, and on FIFO the messages behind it too."""


def recorded(handler: Callable[[Any, Any], Any], history: History) -> Callable[[Any, Any], Any]:
    """Return a Lambda handler that calls ``handler`` and records its events and answers."""

    def recording(event: Any, context: Any) -> Any:
        request_id = context.aws_request_id
        history.record("handler_called", request_id=request_id, receives=_receives(event))
        answer = handler(event, context)
        history.record("handler_returned", request_id=request_id, answer=answer)
        return answer

    return recording


def _receives(event: Any) -> list[tuple[str, int]]:
    records = event.get("Records", []) if isinstance(event, dict) else []
    found = [each for each in records if isinstance(each, dict) and "messageId" in each]
    return [(sys.intern(each["messageId"]), int(each["attributes"]["ApproximateReceiveCount"])) for each in found]


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


class _Terms(NamedTuple):
    """The settings of a consumer for the messages of a queue."""

    limit: int | None
    has_own_steps: bool
    """Whether one of the failure steps is not tarry's: its outcome cannot be predicted."""
    dead_letters: bool
    """Whether a `DeadLetter` step takes every failure that no other step takes; False if a step is not tarry's."""
    longest: float
    is_fifo: bool


class _Watched:
    """An observed handler."""

    def __init__(self, handler: Consumer[Any], history: History) -> None:
        self.consumer = handler
        self.history = history
        self._terms: dict[str, _Terms] = {}

    def terms(self, delivery: Delivery) -> _Terms:
        """Return the settings for a message, by its queue."""
        source = delivery.source
        known = self._terms.get(source.text)
        if known is None:
            known = self._terms[source.text] = self._terms_of(delivery, is_fifo=source.is_fifo)
        return known

    def _terms_of(self, delivery: Delivery, *, is_fifo: bool) -> _Terms:
        steps = self.consumer.steps.of(delivery.queue).steps
        own = not all(isinstance(step, STEPS) for step in steps)
        dead_letters = any(isinstance(step, DeadLetter) for step in steps) and not own
        longest = self.consumer.policy.longest_delay(fifo=is_fifo)
        return _Terms(delivery.max_attempts, own, dead_letters, longest, is_fifo)


class _Watch:
    """One observed call of a handler."""

    def __init__(self, handler: _Watched, subject: Any) -> None:
        self._handler = handler
        self._history = history = handler.history
        self._number = len(history.events)
        self._subject = subject
        self._messages: list[Message[Any]] = [subject] if isinstance(subject, Message) else list(subject)
        self._request_id = str(getattr(subject.context, "aws_request_id", None))
        deliveries = [delivery_of(message) for message in self._messages]
        listen_to_verdicts(deliveries, self)
        ids: dict[str, str] = {}
        receives: dict[str, int] = {}
        attempts: dict[str, int] = {}
        exact: list[str] = []
        limits: dict[str, int | None] = {}
        own_steps: dict[str, bool] = {}
        dead_letters: dict[str, bool] = {}
        for delivery in deliveries:
            delivery_id, terms = sys.intern(delivery.delivery_id), handler.terms(delivery)
            ids[delivery_id] = sys.intern(delivery.id)
            receives[delivery_id] = delivery.receive_count
            attempts[delivery_id] = delivery.attempt
            if delivery.counts_runs or delivery.stored is not None:  # the store may have failed since it was read
                exact.append(delivery_id)
            limits[delivery_id] = terms.limit
            own_steps[delivery_id] = terms.has_own_steps
            dead_letters[delivery_id] = terms.dead_letters
        history.record(
            "run_started",
            run=self._number,
            function=handler.consumer.name,
            request_id=self._request_id,
            delivery_ids=ids,
            receives=receives,
            attempts=receives if attempts == receives else attempts,
            exact=tuple(exact),
            limits=limits,
            own_steps=own_steps,
            dead_letters=dead_letters,
            longest=handler.terms(deliveries[0]).longest,
            is_batch=isinstance(subject, Batch),
        )

    def now(self) -> float:
        return self._history.now()

    def on_verdict(self, delivery: Delivery, verdict: str, fell_at: float) -> None:
        """Record a verdict on a message; its delay counts from then, if it is the first one."""
        if not isinstance(sys.exception(), Killed):
            self._history.record(
                "verdict",
                run=self._number,
                request_id=self._request_id,
                delivery_id=delivery.delivery_id,
                verdict=verdict,
                fell_at=fell_at,
            )

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
            apply_result(result, self._subject)
        except BaseException as error:  # noqa: BLE001 counts as raised by the handler
            self.end(error)
        else:
            self.end(None)

    def end(self, raised: BaseException | None) -> None:
        """Record the end of the call, unless its process was killed."""
        if raised is not None and is_a(raised, (Killed, GeneratorExit)):
            return
        fails_without_verdict = self._handler.consumer.fails_without_verdict
        verdicts: dict[str, str] = {}
        errors: dict[str, str] = {}
        waits: dict[str, tuple[float, float]] = {}
        dues: dict[str, float] = {}
        of_batch: list[str] = []
        for verdict in _verdicts(self._subject, raised, fails_without_verdict):
            delivery_id = sys.intern(verdict.delivery_id)
            verdicts[delivery_id] = verdict.kind
            if verdict.error is not None:
                errors[delivery_id] = _name(verdict.error)
            if (wait := self._wait(verdict)) is not None:
                waits[delivery_id] = wait
            if verdict.due is not None:
                dues[delivery_id] = verdict.due
            if verdict.is_of_batch:
                of_batch.append(delivery_id)
        self._history.record(
            "run_ended",
            run=self._number,
            request_id=self._request_id,
            how="returned" if raised is None else f"raised {_name(raised)}: {text_of(raised, MAX_TEXT_CHARACTERS)}",
            verdicts=verdicts,
            errors=errors or NO_DETAILS,
            waits=waits or NO_DETAILS,
            dues=dues or NO_DETAILS,
            of_batch=of_batch,
        )

    def _wait(self, verdict: _Verdict) -> tuple[float, float] | None:
        """The shortest and longest delay after which the message is to come back; None if that is open."""
        if verdict.kind == "ack":
            return None
        policy, message = self._handler.consumer.policy, verdict.message
        terms = self._handler.terms(delivery_of(message))
        if verdict.kind != "defer" and terms.has_own_steps:
            return None
        if verdict.kind in ("retry", "defer") and verdict.delay is not None:
            return verdict.delay, verdict.delay
        if (
            verdict.kind not in ("retry", "fail")
            or policy.retry_when is not None
            or self._is_behind_first(message, terms)
        ):
            return None
        return policy.delay_bounds(message.attempt, fifo=terms.is_fifo)

    def _is_behind_first(self, message: Message[Any], terms: _Terms) -> bool:
        return isinstance(self._subject, Batch) and terms.is_fifo and message is not self._messages[0]


class _Verdict(NamedTuple):
    """A handler's verdict on a message: ``error`` is that of a plain failure, ``delay`` the requested one."""

    message: Message[Any]
    kind: str
    delay: float | None = None
    error: BaseException | None = None
    due: float | None = None
    """The moment that was requested instead of a delay, in epoch seconds."""
    is_of_batch: bool = False
    """Whether it was given on the batch as a whole."""

    @property
    def delivery_id(self) -> str:
        return self.message.delivery_id


def _verdicts(
    subject: Message[Any] | Batch[Any], raised: BaseException | None, fails_without_verdict: bool
) -> Iterator[_Verdict]:
    """Return the verdicts on all messages of a call (SPEC B).

    On FIFO a message without a verdict is ``left`` if a message before it in its group did not succeed: its outcome
    depends on that message.
    """
    if isinstance(subject, Message):
        yield _verdict(subject, delivery_of(subject).verdict, raised)
        return
    whole = batch_verdict_of(subject)
    culprit, without_verdict = failed_index(subject, raised), WithoutVerdict(whole.answer, fails_without_verdict)
    stopped: set[str | None] = set()
    for index, message in enumerate(subject):
        delivery = delivery_of(message)
        given = effective_verdict(delivery.verdict, whole.verdict)
        if given is None and culprit is not None and index != culprit:
            verdict = _Verdict(message, "ack" if index < culprit else "release")
        elif given is None and raised is None:
            is_behind, of_handler = without_verdict.is_behind_named(delivery), without_verdict.error_of(delivery)
            verdict = _Verdict(message, "release") if is_behind else _verdict(message, None, of_handler)
        else:
            error = raised
            if culprit is not None and raised is not None and (cause := cause_of(raised)) is not None:
                error = cause
            verdict = _verdict(message, given, error)
            if given is not None and given is whole.verdict:
                verdict = verdict._replace(is_of_batch=True)
        if delivery.source.is_fifo:
            if message.group_id in stopped and (given is None or verdict.kind in STAYS):
                verdict = _Verdict(message, "left")
            if verdict.kind in STAYS or verdict.kind == "reject":
                stopped.add(message.group_id)
        yield verdict


def _verdict(message: Message[Any], given: Verdict | None, raised: BaseException | None) -> _Verdict:
    effective = raised if given is None else given
    if effective is None or not is_a(effective, BaseException):
        return _Verdict(message, "ack")
    signal = find_signal(effective)
    kind = next((name for signal_kind, name in KINDS.items() if issubclass(type(signal), signal_kind)), None)
    if signal is None or kind is None:
        if deferral(effective, delivery_of(message), 0) is not None:  # an open circuit; it decides how long it waits
            return _Verdict(message, "defer")
        return _Verdict(message, "fail", error=effective)
    try:
        delay = delay_of(signal) if is_a(signal, Retry) or is_a(signal, Defer) else None
    except BaseException as trouble:  # noqa: BLE001 an odd subclass: its message has failed
        return _Verdict(message, "fail", error=trouble)
    if given is None and delay is not None and delay > _longest_delay(message):
        return _Verdict(message, "fail")  # a delay that is too long is an ordinary failure
    return _Verdict(message, kind, delay, due=_moment_of(signal))


def _moment_of(signal: BaseException) -> float | None:
    """The ``datetime`` with which a signal was made, in epoch seconds; None if it was made with a duration."""
    moment = signal.args[0] if signal.args else None
    return moment.timestamp() if isinstance(moment, datetime) and moment.tzinfo is not None else None


def _name(error: BaseException) -> str:
    return type_name(error).rpartition(".")[2]


def _longest_delay(message: Message[Any]) -> float:
    """The longest delay; on FIFO it is shorter, because a message can only wait in place."""
    delivery = delivery_of(message)
    return delivery.longest_wait() if delivery.source.is_fifo else MAX_VISIBILITY_SECONDS
