"""A consumer that is watched: what its function was handed and answered, what its handler really did.

Checkers judge by this, and trust nobody's log.
"""

from __future__ import annotations

import functools
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.batch import Batch
from tarry.consumer import Consumer
from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.execution.driver import HandlerNeverRan, is_awaitable
from tarry.execution.verdicts import culprit_of, effective_word
from tarry.message import Ack, Message, Word
from tarry.signals import Defer, Discard, Reject, Retry, find_signal
from tarry.simulator.process import Killed
from tarry.steps import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.simulator.history import History

KINDS = {Retry: "retry", Reject: "reject", Discard: "discard", Defer: "defer"}
STAYS = frozenset({"retry", "defer", "fail", "release", "left"})
"""Verdicts after which a message may stay in its queue, and on FIFO those behind it with it."""


def overheard(handler: Callable[[Any, Any], Any], history: History) -> Callable[[Any, Any], Any]:
    """The same Lambda handler; what it is handed and what it answers is recorded."""

    def heard(event: Any, context: Any) -> Any:
        request_id = context.aws_request_id
        history.record("handed", request_id=request_id, receives=_receives(event))
        answer = handler(event, context)
        history.record("responded", request_id=request_id, answer=answer)
        return answer

    return heard


def _receives(event: Any) -> list[tuple[str, int]]:
    records = event.get("Records", []) if isinstance(event, dict) else []
    return [(each["messageId"], int(each["attributes"]["ApproximateReceiveCount"])) for each in records]


def observed(handler: Consumer[Any], history: History) -> Consumer[Any]:
    """The same consumer; what its handler does is recorded, and nothing else of it changed."""
    function = handler.function

    def watch(subject: Any) -> _Watch:
        return _Watch(history, handler, subject)

    if handler.is_async:

        @functools.wraps(function)
        async def watched_async(subject: Any) -> Any:
            return await watch(subject).over(function(subject))

        watched: Callable[[Any], Any] = watched_async
    else:

        @functools.wraps(function)
        def watched(subject: Any) -> Any:
            watching = watch(subject)
            try:
                result = function(subject)
            except BaseException as error:
                watching.end(error)
                raise
            if is_awaitable(result):
                return watching.over(result)
            never_ran = isinstance(result, (GeneratorType, AsyncGeneratorType))
            watching.end(HandlerNeverRan() if never_ran else None)
            return result

    return Consumer(watched, handler._takes_batch, {**handler._settings, "name": handler.name})


class _Watch:
    """One call of a handler."""

    def __init__(self, history: History, handler: Consumer[Any], subject: Any) -> None:
        self._history = history
        self._number = len(history.events)
        self._handler = handler
        self._subject = subject
        self._messages: list[Message[Any]] = [subject] if isinstance(subject, Message) else list(subject)
        self._request_id = str(getattr(subject.context, "aws_request_id", None))
        history.record(
            "ran",
            run=self._number,
            function=handler.name,
            request_id=self._request_id,
            delivery_ids=self._of_each(lambda message: message.id),
            receives=self._of_each(lambda message: message.receive_count),
            attempts=self._of_each(lambda message: message.attempt),
            limits=self._of_each(lambda message: message.max_attempts),
            dead_letters=self._of_each(self._is_dead_lettered),
            longest=handler.policy.longest_delay(fifo=self._messages[0]._source.is_fifo),
        )

    def _of_each(self, what: Callable[[Message[Any]], Any]) -> dict[str, Any]:
        return {message.delivery_id: what(message) for message in self._messages}

    def _is_dead_lettered(self, message: Message[Any]) -> bool:
        """Whether a failure that nothing else takes is dead-lettered."""
        return any(isinstance(step, DeadLetter) for step in self._handler.steps.of(message.queue).steps)

    async def over(self, awaitable: Any) -> Any:
        """Awaits the rest of the call."""
        try:
            result = await awaitable
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)
        return result

    def end(self, raised: BaseException | None) -> None:
        """The call has ended; not if its process has."""
        if isinstance(raised, (Killed, GeneratorExit)):
            return
        said = {each.delivery_id: each for each in _verdicts(self._subject, raised)}
        waits = {each: self._wait(verdict) for each, verdict in said.items()}
        self._history.record(
            "ended",
            run=self._number,
            request_id=self._request_id,
            how="returned" if raised is None else f"raised {type(raised).__name__}: {raised}",
            verdicts={each: verdict.kind for each, verdict in said.items()},
            errors={each: type(verdict.error).__name__ for each, verdict in said.items() if verdict.error is not None},
            waits={each: wait for each, wait in waits.items() if wait is not None},
        )

    def _wait(self, verdict: _Verdict) -> tuple[float, float] | None:
        """The shortest and longest time after which it is to come back, if it comes back at all."""
        policy, message = self._handler.policy, verdict.message
        if verdict.kind in ("retry", "defer") and verdict.delay is not None:
            return verdict.delay, verdict.delay
        if verdict.kind not in ("retry", "fail") or policy.retry_when is not None or self._stands_behind(message):
            return None
        return policy.backoff_of(fifo=message._source.is_fifo).bounds(message.attempt)

    def _stands_behind(self, message: Message[Any]) -> bool:
        return isinstance(self._subject, Batch) and message._source.is_fifo and message is not self._messages[0]


class _Verdict(NamedTuple):
    """What a handler made of a message: ``error`` is that of a plain failure, ``delay`` the one it named."""

    message: Message[Any]
    kind: str
    delay: float | None = None
    error: BaseException | None = None

    @property
    def delivery_id(self) -> str:
        return self.message.delivery_id


def _verdicts(subject: Message[Any] | Batch[Any], raised: BaseException | None) -> Iterator[_Verdict]:
    """By the rules of a handler's words (SPEC B).

    On FIFO what is ``left`` was left unsaid behind one that did not succeed: it depends on what becomes of that one.
    """
    if isinstance(subject, Message):
        yield _verdict(subject, subject._word, raised)
        return
    culprit = culprit_of(subject, raised)
    stopped: set[str | None] = set()
    for index, message in enumerate(subject):
        said = effective_word(message._word, subject._word)
        if said is None and culprit is not None and index != culprit:
            verdict = _Verdict(message, "ack" if index < culprit else "release")
        else:
            error = raised.__cause__ or raised if culprit is not None and raised is not None else raised
            verdict = _verdict(message, said, error)
        if message._source.is_fifo:
            if message.group_id in stopped and (said is None or verdict.kind in STAYS):
                verdict = _Verdict(message, "left")
            if verdict.kind in STAYS or verdict.kind == "reject":
                stopped.add(message.group_id)
        yield verdict


def _verdict(message: Message[Any], said: Word | None, raised: BaseException | None) -> _Verdict:
    word = raised if said is None else said
    if word is None or isinstance(word, Ack):
        return _Verdict(message, "ack")
    signal = find_signal(word)
    kind = next((name for signal_kind, name in KINDS.items() if isinstance(signal, signal_kind)), None)
    if signal is None or kind is None:
        return _Verdict(message, "fail", error=word)
    delay = getattr(signal, "delay", None)
    if said is None and delay is not None and delay > _longest_delay(message):
        return _Verdict(message, "fail")  # it asks for what cannot be kept: an ordinary failure
    return _Verdict(message, kind, delay)


def _longest_delay(message: Message[Any]) -> float:
    """On FIFO a message can only wait in place."""
    return message._longest_wait() if message._source.is_fifo else MAX_VISIBILITY_SECONDS
