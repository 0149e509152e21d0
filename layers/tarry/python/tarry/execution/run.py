"""One batch through the handler, message by message or all at once, sequentially."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from tarry.decision import Decision, LastDelivery, decide
from tarry.execution import driver
from tarry.execution.groups import Groups
from tarry.execution.intake import Records, message_of
from tarry.failure import FailureSteps
from tarry.invocation import Invocation
from tarry.message import ACK, Batch, Message, Word, said_outcome
from tarry.outcome import Outcome
from tarry.policy import RetryPolicy
from tarry.signals import BatchError, Retry
from tarry.telemetry.logs import WARNING, Log

DONE = frozenset({"ack", "discard"})
"""Outcomes with nothing to carry out: Lambda deletes what is not reported as failed."""


class Handling(Protocol):
    """How a consumer handles messages: its frozen settings, as far as running them needs to know."""

    function: Callable[[Any], Any]
    is_async: bool
    policy: RetryPolicy
    steps: FailureSteps
    log: Log


class Settling(Protocol):
    """What a run needs of the settlement while it is going on."""

    is_last_delivery: LastDelivery

    def send_away(self, decisions: Sequence[Decision]) -> set[str]:
        """Sends dead letters; the delivery ids of those that are in their queue for certain."""


class Run:
    """One batch. ``pending`` loses what is done; ``decisions`` gains what is still to be carried out."""

    def __init__(self, handling: Handling, invocation: Invocation, pending: Records, settling: Settling) -> None:
        self._handling = handling
        self._invocation = invocation
        self._pending = pending
        self._settling = settling
        self._todo = iter(list(pending.values()))
        self._groups = Groups() if any(_is_fifo(record) for record in pending.values()) else None
        self._running: Message[Any] | Batch[Any] | None = None
        self._ending = False
        self.decisions: list[Decision] = []

    def each(self) -> None:
        """Runs a handler of one message over the batch, in its order."""
        self._drive(self._each)

    def batch(self) -> None:
        """Runs a handler of the whole batch."""
        self._drive(self._batch)

    def _drive(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            if self._handling.is_async:
                driver.run_async(steps(), self._stop)
            else:
                driver.run_sync(steps())
        except BaseException as error:  # noqa: BLE001 a SystemExit in a task of the handler's ends the event loop
            self._end(error)

    def _stop(self) -> None:
        self._ending = True

    async def _each(self) -> None:
        function, pending, groups = self._handling.function, self._pending, self._groups
        for record in self._todo:
            message = message_of(record, self._invocation, self._handling.log)
            if groups is not None and not self._may_run(groups, message):
                continue
            self._running = message
            raised: BaseException | None = None
            try:
                result = function(message)
                if result is not None:
                    await self._complete(result)
            except Exception as error:  # noqa: BLE001 whatever it is, it is this message's failure
                raised = error
            except BaseException as error:  # noqa: BLE001 it ends the batch, and never the function
                if self._ending or not driver.is_cancelled_error(error):
                    return self._end(error)
                raised = error
            if self._ending:
                return None
            if raised is None and (message._word is None or message._word is ACK):
                del pending[record["messageId"]]
            else:
                self._running = None
                self._decide(message, message._word, raised)

    async def _batch(self) -> None:
        batch: Batch[Any] = Batch(self._invocation.context)
        for record in self._todo:
            message = message_of(record, self._invocation, self._handling.log, batch)
            if self._groups is not None:
                self._groups.enter(message)
            batch._messages.append(message)
        self._running = batch
        raised: BaseException | None = None
        try:
            result = self._handling.function(batch)
            if result is not None:
                await self._complete(result)
        except BaseException as error:  # noqa: BLE001 all were running: what nothing was said about has failed
            raised = error
        if self._ending:
            return
        self._running = None
        self._decide_batch(batch, raised)

    async def _complete(self, result: Any) -> None:
        """A result means nothing, but what has not run yet must run."""
        if self._handling.is_async and driver.is_awaitable(result):
            await result
        elif driver.is_awaitable(result):
            driver.run_awaitable(result)
        else:
            driver.refuse_generator(result)

    def _decide_batch(self, batch: Batch[Any], raised: BaseException | None) -> None:
        culprit = _culprit(batch, raised)
        if culprit is not None and raised is not None:
            raised = raised.__cause__ or raised
        for index, message in enumerate(batch):
            word = effective_word(message._word, batch._word)
            if self._groups is not None and self._groups.is_stopped(message) and not _stands_alone(word):
                self._note(Decision(message, Outcome.release()))
            elif word is not None:
                self._decide(message, word, None)
            elif culprit is None or index == culprit:
                self._decide(message, None, raised)
            elif index < culprit:
                self._decide(message, ACK, None)
            else:
                self._note(Decision(message, Outcome.release()))

    def _may_run(self, groups: Groups, message: Message[Any]) -> bool:
        groups.enter(message)
        if not groups.is_stopped(message):
            return True
        self._note(Decision(message, Outcome.release()))
        return False

    def _decide(self, message: Message[Any], said: Word | None, raised: BaseException | None) -> None:
        handling = self._handling
        decision = decide(message, said, raised, handling.policy, handling.steps, self._settling.is_last_delivery)
        if said is not None and raised is not None and decision.failure is None:
            text = "the handler raised after it had said what becomes of the message; what it said holds"
            handling.log.problem("raised_after_verdict", text, message, error=raised, level=WARNING)
        self._note(decision)

    def _note(self, decision: Decision) -> None:
        """Takes a decision down; on FIFO it is carried out before its group goes on, where the order needs it."""
        message, outcome = decision.message, decision.outcome
        if outcome.kind == "discard":
            self._handling.log.transition(message, outcome, reason=outcome.reason)
        if outcome.kind in DONE:
            del self._pending[message.delivery_id]
            return
        self.decisions.append(decision)
        if self._groups is None or not message._source.is_fifo:
            return
        if outcome.kind == "dead_letter" and message.delivery_id not in self._settling.send_away([decision]):
            outcome = Outcome.unhandled()
        self._groups.note(message, outcome)

    def _end(self, error: BaseException) -> None:
        """A `SystemExit` and its like: what was running has failed, what was not started is given back."""
        running, self._running = self._running, None
        if isinstance(running, Batch):
            self._decide_batch(running, error)
        elif running is not None and running.delivery_id in self._pending:
            self._decide(running, running._word, error)
        for record in self._todo:
            message = message_of(record, self._invocation, self._handling.log)
            if self._groups is not None:
                self._groups.enter(message)
            self._note(Decision(message, Outcome.release()))


def effective_word(said: Word | None, said_of_batch: Word | None) -> Word | None:
    """What was said of the message, else of its batch; a `retry()` without a delay takes the batch's."""
    if isinstance(said, Retry) and said.delay is None and isinstance(said_of_batch, Retry):
        return said_of_batch
    return said_of_batch if said is None else said


def _stands_alone(said: Word | None) -> bool:
    """Whether a word holds behind a message that stays in the queue: the group goes on without this one anyway."""
    outcome = None if said is None else said_outcome(said)
    return outcome is not None and outcome.kind in ("ack", "discard", "dead_letter")


def _culprit(batch: Batch[Any], raised: BaseException | None) -> int | None:
    """The index of the message that a `BatchError` names, if it names one of this batch."""
    if not isinstance(raised, BatchError):
        return None
    if raised.message is not None:
        return next((index for index, message in enumerate(batch) if message is raised.message), None)
    index = raised.index
    is_one = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(batch)
    return index if is_one else None


def _is_fifo(record: dict[str, Any]) -> bool:
    return str(record.get("eventSourceARN", "")).endswith(".fifo")
