"""What becomes of the messages of a batch that are not simply done, in the order of their groups."""

from __future__ import annotations

import math
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tarry.errors import UnexplainedFailure
from tarry.execution.groups import Group, Groups, group_of
from tarry.execution.return_values import NAMED, UNSAID, Answer
from tarry.outcome import Outcome
from tarry.policy.decision import Decision, ask_steps, decide
from tarry.policy.failure import Failure
from tarry.policy.steps import RESERVE_SECONDS
from tarry.signals import BatchError, Discard, Reject, Retry
from tarry.support.causes import cause_of, clear_frames, is_a, let_frames_go
from tarry.support.forks import generation
from tarry.telemetry.logs import WARNING, Log
from tarry.verdict import ACK, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.batch import Batch
    from tarry.execution.intake import Records
    from tarry.invocation import Invocation
    from tarry.message import Message
    from tarry.policy.failure import FailureSteps
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.settlement.settlement import Settlement
    from tarry.world import Event

    class InBackground(Protocol):
        """Does ``work``, and then hands what it returned to ``then``, in the thread that decides."""

        def __call__(self, work: Callable[[], object], then: Callable[[object], None]) -> None: ...

    class LazySettlement(Protocol):
        """The settlement of an invocation, made at its first use."""

        made: Settlement | None

        def __call__(self) -> Settlement: ...


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


class Held(NamedTuple):
    """What waits for the look-up of its queue."""

    decided: Decision | Failure
    early: bool
    """Whether it may be settled while the batch still runs."""

    @property
    def message(self) -> Message[Any]:
        return self.decided.message


class Again(NamedTuple):
    """A message that is to run once more within this delivery, after so many seconds."""

    failure: Failure
    delay: float


LOOK_UP_PATIENCE_SECONDS = 1.0
"""How long the first failure of a batch waits for the look-up of its queue; it goes on meanwhile."""
LOOK_UP_SHARE = 0.05
"""Of the time left, for the same."""
LAST_SECONDS = 0.5
"""Kept of the time left where the end of a batch handler waits for a thread of its own."""
HELD_WITH_FRAMES = 10
"""How many failed handlers' frames are kept, for the failure steps to see, while a look-up is under way."""


class Verdicts:
    """What becomes of the messages of one batch. ``pending`` loses what is done; the settlement gains all else."""

    def __init__(
        self, handling: Handling, pending: Records, settlement: LazySettlement, *, waits: bool, blocks: bool
    ) -> None:
        self._handling = handling
        self._pending = pending
        self._settlement = settlement
        self._waits = waits
        """Whether it may wait for a look-up: not where that holds up handlers that run at the same time."""
        self._groups = Groups()
        self._held: deque[Held] = deque()
        self._again: deque[Again] = deque()
        """Messages that run again when all others have run."""
        self._prepared: dict[str, bool] = {}
        """The queues whose look-up was begun, and whether it has ended."""
        self._decided: set[str] = set()
        """The delivery ids of messages in ``pending`` that have run, or will not."""
        self._under_way: set[str] = set()
        """The delivery ids of FIFO messages whose look-up or send is under way in the background."""
        self._may_block = blocks
        """Whether a request of a FIFO message may be made here: not where that holds up other handlers."""
        self._is_free = threading.Lock()
        self._over: Event | None = None
        """Set when the verdict that is dealt with below a batch handler has been."""
        self._said_last: Verdict | None = None
        """The last verdict that a batch handler gave on a message: it may still handle the exception."""
        self._is_said = False
        """Whether a verdict is dealt with below the batch handler that gave it."""
        self.in_background: InBackground = _at_once
        """How a request is made: here, or in a thread where this one must not be held up."""
        self.settled: Callable[[Message[Any], Again | None], None] = _nothing
        """Called for a FIFO message that was under way: its group may go on, or it runs again."""
        self.wake: Callable[[], None] = _nothing
        """Called, in any thread, when a look-up has ended: then `advance` goes on."""

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
        """Make a message that is not due yet invisible until it is."""
        now = message._invocation.now()
        self._take(Decision(message, Outcome.wait(seconds), now, until=message._due), early=True)

    def release(self, message: Message[Any]) -> None:
        """A message that was not started, and will not be."""
        self._groups.enter(message)
        self.give_back(message)

    def give_back(self, message: Message[Any]) -> None:
        """The same for a message that has entered; one whose group is lost is only reported as failed."""
        if message._invocation.leases.stops(message):
            return
        self._note(Decision(message, Outcome.release(), message._invocation.started_at))

    def on_message(
        self,
        message: Message[Any],
        said: Verdict | None,
        raised: BaseException | None,
        tries: int = 1,
        *,
        ended_at: float | None = None,
        early: bool = True,
    ) -> Again | None:
        """Decide about a message that ran, by what was said of it and what its handler raised.

        On FIFO its failure steps are asked at once; they may want it to run again. ``ended_at``: when its handler
        ended, in epoch seconds, if not just now. ``early``: whether it may be settled while other messages run; not
        where an abandoned thread may still run it.
        """
        message._is_closed = True
        clock = message._invocation.world.clock
        began = clock.monotonic()
        log, policy = self._handling.log, self._handling.policy
        decided_at = message._verdict_at or ended_at or message._invocation.now()
        try:
            decided = decide(message, said, raised, policy, decided_at, tries)
        except BaseException as trouble:  # noqa: BLE001 an odd signal of the user's: this message's trouble alone
            text = "The verdict cannot be read, so the message has failed: check the delay and reason of the signal."
            log.problem("verdict_unreadable", text, message, error=trouble)
            decided = Failure(message, trouble, "error", failed_at=decided_at, tries=tries)
        if said is not None and raised is not None and isinstance(decided, Decision):
            text = "the handler raised after it had said what becomes of the message; what it said holds"
            log.problem("raised_after_verdict", text, message, error=raised, level=WARNING)
        if self._settlement.made is not None:
            self._settlement.made.deciding = clock.monotonic() - began
        if isinstance(decided, Failure) and tries > 1:
            return self._ask(decided, early=early)
        return self._take(decided, early=early)

    def _take(self, decided: Decision | Failure, *, early: bool) -> Again | None:
        """Go on with a message; what takes a look-up that was not made yet is held until it is, but on FIFO."""
        if isinstance(decided, Decision) and decided.outcome.kind in DONE:
            self._note(decided)
            return None
        message = decided.message
        if message._source.is_fifo and (self._may_block or self._is_known(message)):
            return self._decide_on_fifo(decided)
        if message._source.is_fifo:
            self._under_way.add(message.delivery_id)
        self._decided.add(message.delivery_id)
        self._held.append(Held(decided, early))
        error = decided.error if isinstance(decided, Failure) and not self._is_said else None
        if len(self._held) > HELD_WITH_FRAMES and error is not None:
            let_frames_go(error)
        if self._others_run:
            self.advance()
        return None

    @property
    def _others_run(self) -> bool:
        """Whether other messages are still to run, or run now."""
        return len(self._pending) > len(self._decided)

    def advance(self) -> bool:
        """Go on with what is held, as far as its queues were looked up; whether anything did."""
        has_progress = False
        while self._held and self._is_known(self._held[0].message):
            self._go_on(self._held.popleft())
            has_progress = True
        return has_progress

    @property
    def holds_groups(self) -> bool:
        """Whether a FIFO group waits for the look-up of its queue, which is under way."""
        return bool(self._under_way) and bool(self._held)

    def _is_known(self, message: Message[Any]) -> bool:
        """Whether its queue was looked up; if it was not, that is begun, and waited for, for a moment."""
        settlement, queue = self._settlement(), message._source.text
        if settlement.knows(message):
            return True
        if queue in self._prepared:
            return self._prepared[queue]
        self._prepared[queue] = False
        invocation = message._invocation
        ended = invocation.world.threads.event()

        def then() -> None:
            self._prepared[queue] = True
            ended.set()
            self.wake()

        settlement.prepare(message, then)
        if self._waits:
            ended.wait(min(LOOK_UP_PATIENCE_SECONDS, max(0.0, invocation.time_left() * LOOK_UP_SHARE)))
        return self._prepared[queue]

    def is_under_way(self, message: Message[Any]) -> bool:
        """Whether what becomes of a FIFO message is still open: its group waits for it."""
        return message.delivery_id in self._under_way

    def _decide_on_fifo(self, decided: Decision | Failure) -> Again | None:
        if isinstance(decided, Decision) and decided.outcome.kind == "defer":
            decided = self._unless_it_would_expire(decided)
        if isinstance(decided, Failure):
            return self._ask(decided, early=False)
        self._note(decided)
        return None

    def _go_on(self, held: Held) -> None:
        message = held.message
        if message._source.is_fifo:
            self._under_way.discard(message.delivery_id)
            again = self._decide_on_fifo(held.decided)
            if not self.is_under_way(message):
                self.settled(message, again)
            return
        if not self._settlement().has_time:
            self._settlement().report_only()
        elif isinstance(held.decided, Decision):
            self._note(held.decided, early=held.early)
        elif (again := self._ask(held.decided, early=held.early)) is not None:
            self._again.append(again)

    def _unless_it_would_expire(self, deferral: Decision) -> Decision | Failure:
        """A deferral on FIFO, where a wait cannot outlast the message by sending it again (SPEC C10)."""
        message, now = deferral.message, deferral.decided_at
        facts = self._settlement().facts(message)
        if facts.would_expire(message, deferral.outcome.delay or 0, now):
            return Failure(message, None, "expiring", failed_at=now)
        return deferral

    def next_again(self) -> Again | None:
        """The next message that is to run again, when all others have run."""
        while True:
            while not self._again and self._held:
                self._go_on(self._held.popleft())
            if not self._again:
                return None
            again = self._again.popleft()
            if again.failure.message._invocation.time_left() > again.delay + RESERVE_SECONDS:
                return again
            self.give_up(again)  # there was time when its step was asked, before the others ran

    def sort(self, order: Sequence[str]) -> None:
        """Put what was taken down in the order of the batch, by delivery ids: nothing hangs on who was done first."""
        place = {delivery_id: index for index, delivery_id in enumerate(order)}
        self._held = deque(sorted(self._held, key=lambda held: place[held.message.delivery_id]))
        if self._settlement.made is not None:
            self._settlement.made.sort(place.__getitem__)

    def _settle_here(self) -> None:
        """From now on make requests here: no handler runs any more that they would hold up."""
        self._may_block, self.in_background, self.settled = True, _at_once, _nothing

    def close(self) -> None:
        """Decide all that is not decided yet; nothing runs any more."""
        self._settle_here()
        while (again := self.next_again()) is not None:
            self.give_up(again)

    def give_up(self, again: Again) -> None:
        """Decide on a message that waits to run again when the batch has ended: ask the steps besides `LocalRetry`."""
        failure, handling = again.failure, self._handling
        steps = handling.steps.of(failure.queue).without_local_retry()
        decision = ask_steps(failure, handling.policy, steps, self._settlement().facts(failure.message))
        if decision.outcome.kind == "again":
            decision = Decision(failure.message, Outcome.unhandled(), failure.failed_at, failure)
        self._note(decision)

    def owed_seconds(self) -> float:
        """What settling the messages that failed so far is going to cost."""
        made = self._settlement.made
        return 0.0 if made is None else made.owed_seconds()

    def _ask(self, failure: Failure, *, early: bool) -> Again | None:
        """Ask the failure steps."""
        handling, message = self._handling, failure.message
        steps = handling.steps.of(failure.queue)
        decision = ask_steps(failure, handling.policy, steps, self._settlement().facts(message))
        if failure.error is not None and not self._is_said:
            let_frames_go(failure.error)
            message._invocation.diagnoses.let_frames_go()
        if decision.outcome.kind == "again":
            if message._batch is None and message._word is None and failure.reason != "expiring":
                self._decided.discard(message.delivery_id)
                return Again(decision.failure or failure, decision.outcome.delay or 0)
            # No batch runs again in part, and no message of which a word holds, or which a thread still runs.
            decision = Decision(message, Outcome.unhandled(), failure.failed_at, decision.failure or failure)
        self._note(decision, early=early)
        return None

    def on_verdict(self, message: Message[Any]) -> None:
        """Decide about a message of a batch as soon as its handler has given a verdict on it alone (SPEC C11).

        Left for the end where a later verdict on the batch still counts, or another thread of the handler's is here.
        """
        if generation() != message._invocation.began_in:
            return  # a forked child, which settles nothing
        word = message._word
        before, self._said_last = self._said_last, word
        if is_a(before, BaseException) and before is not word:
            clear_frames(before)  # its traceback stays: the handler may still tell of it
        is_open = is_a(word, Retry) and _leaves_delay_open(word)
        if message._source.is_fifo or is_open or is_a(word, (Reject, Discard)) or not self._is_free.acquire(False):
            return
        over = self._over = message._invocation.world.threads.event()
        try:
            self._is_said = True
            self.on_message(message, word, None)
        except Exception as error:  # noqa: BLE001 a fault of our own must not reach the handler
            self._handling.log.problem("runtime_failed", "tarry itself failed to decide early", message, error=error)
        finally:
            self._is_said = False
            self._is_free.release()
            over.set()

    def on_batch(self, batch: Batch[Any], raised: BaseException | None) -> None:
        """A batch that ran as a whole (SPEC B4, B5, H2)."""
        ended_at = batch[0]._invocation.now()
        self._wait_for_verdict(batch[0]._invocation)
        self._settle_here()
        self._groups.go_on()
        todo = [(index, message) for index, message in enumerate(batch) if not message._is_closed]
        for _, message in todo:  # the others were decided on when their own verdicts fell
            message._is_closed = True
        culprit = culprit_of(batch, raised)
        said = [effective_word(message._word, batch._word) for message in batch]
        if raised is not None and all(word is not None and word is not raised for word in said):
            text = "the batch handler raised after it had said what becomes of every message; what it said holds"
            self._handling.log.problem("raised_after_verdict", text, error=raised, level=WARNING)
        if culprit is not None and raised is not None:
            raised = raised if (cause := cause_of(raised)) is None else cause
        unsaid = Unsaid(batch._answer, self._handling.unsaid_fails)
        for index, message in todo:
            word = said[index]
            if word is None and culprit is not None and index < culprit:
                word = ACK
            is_behind_culprit = word is None and culprit is not None and index > culprit
            if is_behind_culprit or (self._groups.is_stopped(message) and not _stands_alone(said[index])):
                self.give_back(message)
            elif word is None and raised is None:
                self._on_unsaid(message, unsaid, ended_at)
            elif word is ACK or self._settlement().has_time:
                error = raised if word is None else None
                self.on_message(message, word, error, ended_at=ended_at, early=False)
            else:
                self._settlement().report_only()

    def _wait_for_verdict(self, invocation: Invocation) -> None:
        """Wait for the verdict that a thread of the batch handler's has given; no other is dealt with from now on."""
        while not self._is_free.acquire(False):
            left = invocation.time_left() - LAST_SECONDS
            if self._over is None or left <= 0 or not self._over.wait(None if left == math.inf else left):
                return

    def _on_unsaid(self, message: Message[Any], unsaid: Unsaid, ended_at: float | None) -> None:
        """A message about which a batch handler said nothing, and did not raise (SPEC A4, B8)."""
        if unsaid.is_behind_named(message):
            self.give_back(message)
        else:
            self.on_message(message, None, unsaid.error_of(message), ended_at=ended_at, early=False)

    def _note(self, decision: Decision, *, early: bool = False) -> None:
        """Hand a decision to the settlement; on FIFO what is sent away is sent before its group goes on."""
        message, outcome = decision.message, decision.outcome
        message._decided = outcome
        if outcome.kind in DONE:
            self._log_end(decision)
            self._decided.discard(message.delivery_id)
            del self._pending[message.delivery_id]
            if (acks := message._invocation.acks) is not None:
                acks.add(message)
            return
        self._decided.add(message.delivery_id)
        settlement = self._settlement()
        if not message._source.is_fifo:
            settlement.add(decision, early=early and self._others_run)
            if settlement.has_slice:
                self.in_background(settlement.settle_full_requests, _nothing)
        elif outcome.kind in ("dead_letter", "resend", "unhandled", "defer"):
            self._under_way.add(message.delivery_id)
            self.in_background(partial(settlement.send_now, decision), partial(self._note_sent, message))
        else:
            settlement.add(decision, early=False)
            self._groups.note(message, outcome)

    def _note_sent(self, message: Message[Any], sent: object) -> None:
        """Note whether a FIFO message was sent away; if not, it stops its group."""
        if sent is not True:
            self._groups.note(message, Outcome.unhandled())
        self._under_way.discard(message.delivery_id)
        self.settled(message, None)

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


def _nothing(*_: object) -> None:
    """For what nobody waits for."""


def _at_once(work: Callable[[], object], then: Callable[[object], None]) -> None:
    then(work())


def effective_word(said: Verdict | None, said_of_batch: Verdict | None) -> Verdict | None:
    """What was said of the message, else of its batch; a `retry()` without a delay takes the batch's."""
    if is_a(said, Retry) and is_a(said_of_batch, Retry) and _leaves_delay_open(said):
        return said_of_batch
    return said_of_batch if said is None else said


def _leaves_delay_open(signal: Retry) -> bool:
    try:
        return signal.delay is None
    except BaseException:  # noqa: BLE001 an odd subclass: what it wants is read again, and refused, with its message
        return False


def _stands_alone(said: Verdict | None) -> bool:
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
