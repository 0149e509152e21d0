"""What becomes of the messages of a batch that are not simply done, in the order of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tarry.causes import cause_of, everything_in, is_a, traceback_of
from tarry.decision import Decision, Facts, ask_steps, decide
from tarry.errors import UnexplainedFailure
from tarry.execution.answers import NAMED, UNSAID, Answer
from tarry.execution.groups import Group, Groups, group_of
from tarry.failure import Failure
from tarry.message import ACK, Message, Word
from tarry.outcome import Outcome
from tarry.signals import BatchError, Discard, Reject, Retry
from tarry.telemetry.logs import WARNING, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

    from tarry.batch import Batch
    from tarry.execution.intake import Records
    from tarry.failure import FailureSteps
    from tarry.policy import RetryPolicy

DONE = frozenset({"ack", "discard"})
"""Outcomes with nothing to carry out: Lambda deletes what is not reported as failed."""


class Handling(Protocol):
    """How a consumer handles messages: its frozen settings, as far as running them needs to know."""

    function: Callable[[Any], Any]
    is_async: bool
    concurrency: int
    timeout: float | None
    policy: RetryPolicy
    steps: FailureSteps
    log: Log
    isolate: bool
    unsaid_fails: bool


class Settling(Facts, Protocol):
    """What is needed of the settlement before it carries out the rest."""

    def send_away(self, decisions: Sequence[Decision]) -> set[str]:
        """Sends dead letters; the delivery ids of those that are in their queue for certain."""


class Again(NamedTuple):
    """A message that is to run once more within this delivery, after so many seconds."""

    failure: Failure
    delay: float
    failed_at: float


class Verdicts:
    """One batch's. ``pending`` loses what is done; ``decisions`` gains what is still to be carried out."""

    def __init__(self, handling: Handling, pending: Records, settling: Settling) -> None:
        self._handling = handling
        self._pending = pending
        self._settling = settling
        self._groups = Groups()
        self._failures: list[tuple[Failure, float]] = []
        self.decisions: list[Decision] = []

    def enter(self, message: Message[Any]) -> None:
        """Takes note of a message of a FIFO batch, in the order of the batch."""
        self._groups.enter(message)

    def may_run(self, message: Message[Any]) -> bool:
        """Whether a message of a FIFO batch may run; if not, it is given back behind its head."""
        self._groups.enter(message)
        if self.is_stopped(message):
            self.give_back(message)
            return False
        return True

    def is_stopped(self, message: Message[Any]) -> bool:
        """Whether one before it in its group stays in the queue, or is somebody else's now, so that it may not run."""
        return self._groups.is_stopped(message) or message._invocation.leases.stops(message)

    def wait(self, message: Message[Any], seconds: int) -> None:
        """A message that is not due yet: it is hidden until it is."""
        self._note(Decision(message, Outcome.wait(seconds)))

    def release(self, message: Message[Any]) -> None:
        """A message that was not started, and will not be."""
        self._groups.enter(message)
        self.give_back(message)

    def give_back(self, message: Message[Any]) -> None:
        """The same for a message that has entered; one whose group is lost is only reported as failed."""
        if message._invocation.leases.stops(message):
            return
        self._note(Decision(message, Outcome.release()))

    def on_message(
        self, message: Message[Any], said: Word | None, raised: BaseException | None, tries: int = 1
    ) -> Again | None:
        """A message that ran, with what was said of it and what its handler raised.

        On FIFO its failure steps are asked at once; they may want it to run again.
        """
        if raised is not None:
            let_go(raised)
        log = self._handling.log
        try:
            decision = decide(message, said, raised, self._handling.policy, tries)
        except BaseException as trouble:  # noqa: BLE001 an odd signal of the user's: this message's trouble alone
            text = "The verdict cannot be read, so the message has failed: check the delay and reason of the signal."
            log.problem("verdict_unreadable", text, message, error=trouble)
            decision = Failure(message, trouble, "error", tries=tries)
        if isinstance(decision, Decision) and message._source.is_fifo and decision.outcome.kind == "defer":
            decision = self._unless_it_would_expire(decision)
        if isinstance(decision, Failure):
            failed = decision, message._invocation.world.clock.time()
            if message._source.is_fifo or tries > 1:
                return self._ask_steps(*failed)
            self._failures.append(failed)
            return None
        if said is not None and raised is not None:
            text = "the handler raised after it had said what becomes of the message; what it said holds"
            log.problem("raised_after_verdict", text, message, error=raised, level=WARNING)
        self._note(decision)
        return None

    def _unless_it_would_expire(self, deferral: Decision) -> Decision | Failure:
        """A deferral on FIFO, where a wait cannot outlast the message by sending it again (SPEC C10)."""
        message = deferral.message
        if self._settling.would_expire(message, deferral.outcome.delay or 0):
            return Failure(message, None, "expiring")
        return deferral

    def next_again(self) -> Again | None:
        """Asks the failure steps of what has failed, up to the first message that they want to run again.

        Where no order hangs on them they are asked only when all messages have run: what that may take (a look-up of
        the queue, loading boto3, a pause) is not to cost the others their time.
        """
        while self._failures:
            if (again := self._ask_steps(*self._failures.pop(0))) is not None:
                return again
        return None

    def sort(self, order: Sequence[str]) -> None:
        """Puts what was taken down in the order of the batch, by delivery ids: nothing hangs on who was done first."""
        place = {delivery_id: index for index, delivery_id in enumerate(order)}
        self._failures.sort(key=lambda failed: place[failed[0].message.delivery_id])
        self.decisions.sort(key=lambda decision: place[decision.message.delivery_id])

    def close(self) -> list[Decision]:
        """All decisions that are to be carried out."""
        while (again := self.next_again()) is not None:
            self.give_up(again)
        return self.decisions

    def give_up(self, again: Again) -> None:
        """Decide on a message that waits to run again when the batch has ended: ask the steps besides `LocalRetry`."""
        failure, handling = again.failure, self._handling
        steps = handling.steps.of(failure.queue).without_local_retry()
        decision = ask_steps(failure, again.failed_at, handling.policy, steps, self._settling)
        if decision.outcome.kind == "again":
            decision = Decision(failure.message, Outcome.unhandled(), failure, again.failed_at)
        self._note(decision)

    def _ask_steps(self, failure: Failure, failed_at: float) -> Again | None:
        handling = self._handling
        steps = handling.steps.of(failure.queue)
        decision = ask_steps(failure, failed_at, handling.policy, steps, self._settling)
        if decision.outcome.kind == "again":
            message = failure.message
            if message._batch is None and message._word is None:
                return Again(failure, decision.outcome.delay or 0, failed_at)
            # No batch runs again in part, and no message of which a word holds, or which a thread still runs.
            decision = Decision(message, Outcome.unhandled(), failure)
        self._note(decision)
        return None

    def on_batch(self, batch: Batch[Any], raised: BaseException | None) -> None:
        """A batch that ran as a whole (SPEC B4, B5, H2)."""
        self._groups.go_on()
        culprit = culprit_of(batch, raised)
        said = [effective_word(message._word, batch._word) for message in batch]
        if raised is not None and all(word is not None and word is not raised for word in said):
            text = "the batch handler raised after it had said what becomes of every message; what it said holds"
            self._handling.log.problem("raised_after_verdict", text, error=raised, level=WARNING)
        if culprit is not None and raised is not None:
            raised = raised if (cause := cause_of(raised)) is None else cause
        unsaid = Unsaid(batch._answer, self._handling.unsaid_fails)
        for index, message in enumerate(batch):
            word = effective_word(message._word, batch._word)
            if self._groups.is_stopped(message) and not _stands_alone(word):
                self.give_back(message)
            elif word is not None:
                self.on_message(message, word, None)
            elif raised is None:
                self._on_unsaid(message, unsaid)
            elif culprit is None or index == culprit:
                self.on_message(message, None, raised)
            elif index < culprit:
                self.on_message(message, ACK, None)
            else:
                self.give_back(message)

    def _on_unsaid(self, message: Message[Any], unsaid: Unsaid) -> None:
        """Decide on a message without a verdict, after a batch handler has returned (SPEC A4, B8)."""
        if unsaid.is_behind_named(message):
            self.give_back(message)
        else:
            self.on_message(message, None, unsaid.error_of(message))

    def _note(self, decision: Decision) -> None:
        """Takes a decision down; on FIFO it is carried out before its group goes on, where the order needs it."""
        message, outcome = decision.message, decision.outcome
        if outcome.kind in DONE:
            self._log_end(decision)
            del self._pending[message.delivery_id]
            if (acks := message._invocation.acks) is not None:
                acks.add(message)
            return
        self.decisions.append(decision)
        if not message._source.is_fifo:
            return
        if outcome.kind in ("dead_letter", "resend") and message.delivery_id not in self._settling.send_away(
            [decision]
        ):
            outcome = Outcome.unhandled()
        self._groups.note(message, outcome)

    def _log_end(self, decision: Decision) -> None:
        """Tells of a message that is done with other than by a plain commit."""
        failure, outcome = decision.failure, decision.outcome
        if failure is not None or outcome.kind == "discard":
            reason = outcome.reason or (failure.reason if failure is not None else None)
            error = failure.error if failure is not None else None
            failed = failure is not None
            self._handling.log.transition(decision.message, outcome, error=error, reason=reason, failed=failed)


class Unsaid:
    """The messages of a batch without a verdict of their own, after the handler has returned."""

    def __init__(self, answer: Answer | None, fails: bool) -> None:
        self._named: frozenset[str] = frozenset() if answer is None else answer.named
        self._groups = set[Group]()
        """The FIFO groups of those named so far."""
        others = UNSAID if fails else None
        if answer is not None and answer.refusal is not None:
            others = f"Lambda would reject the answer of the batch handler: {answer.refusal}"
        self._others = None if others is None else UnexplainedFailure(others)
        self._of_named = UnexplainedFailure(NAMED)  # one error for all, so that it is diagnosed once

    def is_behind_named(self, message: Message[Any]) -> bool:
        """On FIFO, whether the answer names both the message and one before it in its group: only the first failed."""
        if message.delivery_id not in self._named or not message._source.is_fifo:
            return False
        is_behind = group_of(message) in self._groups
        self._groups.add(group_of(message))
        return is_behind

    def error_of(self, message: Message[Any]) -> UnexplainedFailure | None:
        """The error of a message; None if it is acknowledged."""
        return self._of_named if message.delivery_id in self._named else self._others


def let_go(raised: BaseException) -> None:
    """Frees what a handler holds that ran out of memory: its error keeps the frames, and they all that it took.

    Else there would be none for the next message, nor for settling this one.
    """
    for error in everything_in(raised, with_suppressed=True):
        if is_a(error, MemoryError):
            _clear_frames(traceback_of(error))


def _clear_frames(trace: TracebackType | None) -> None:
    while trace is not None:
        _clear(trace.tb_frame)
        trace = trace.tb_next


def _clear(frame: FrameType) -> None:
    try:
        frame.clear()
    except RuntimeError:
        return  # our own, which runs


def effective_word(said: Word | None, said_of_batch: Word | None) -> Word | None:
    """What was said of the message, else of its batch; a `retry()` without a delay takes the batch's."""
    if is_a(said, Retry) and is_a(said_of_batch, Retry) and _leaves_delay_open(said):
        return said_of_batch
    return said_of_batch if said is None else said


def _leaves_delay_open(signal: Retry) -> bool:
    try:
        return signal.delay is None
    except BaseException:  # noqa: BLE001 an odd subclass: what it wants is read again, and refused, with its message
        return False


def _stands_alone(said: Word | None) -> bool:
    """Whether a word holds behind a message that stays in the queue: the group goes on without this one anyway."""
    return said is ACK or is_a(said, (Discard, Reject))


def culprit_of(batch: Batch[Any], raised: BaseException | None) -> int | None:
    """The index of the message that a `BatchError` names, if it names one of this batch."""
    if not is_a(raised, BatchError):
        return None
    try:
        named, index = raised.message, raised.index
    except BaseException:  # noqa: BLE001 an odd subclass names no message
        return None
    if named is not None:
        return next((index for index, message in enumerate(batch) if message is named), None)
    return index if type(index) is int and 0 <= index < len(batch) else None
