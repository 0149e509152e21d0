"""The decisions on the messages of a batch that did not simply succeed, and their settlement."""

from __future__ import annotations

import math
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tarry.batch import said_of
from tarry.execution.batch_verdicts import Unsaid, culprit_of, effective_verdict, leaves_delay_open, stands_alone
from tarry.execution.groups import Groups
from tarry.message import delivery_of
from tarry.outcome import Outcome
from tarry.policy.decision import Decision, ask_steps, decide
from tarry.policy.failure import Failure
from tarry.policy.steps import RESERVE_SECONDS, StepContext
from tarry.signals import Discard, Reject, Retry
from tarry.support.causes import cause_of, clear_frames, is_a, let_frames_go
from tarry.support.forks import generation, leave_if_forked
from tarry.telemetry.logs import WARNING, Log
from tarry.verdict import ACK, Verdict
from tarry.visibility.leases import is_stopped_by_lost_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.batch import Batch
    from tarry.delivery import Delivery
    from tarry.execution.intake import Records
    from tarry.invocation import Invocation
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.policy.step_lists import FailureSteps, StepList
    from tarry.settlement.settlement import Settlement
    from tarry.support.arn import QueueArn
    from tarry.world import Event

    class InBackground(Protocol):
        """Does ``work``, and then hands what it returned to ``then``, in the thread that decides."""

        def __call__(self, work: Callable[[], object], then: Callable[[object], None]) -> None: ...


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
    def delivery(self) -> Delivery:
        return self.decided.delivery


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
    """The decisions on the messages of one batch. A message that is done leaves ``pending``; the others are settled."""

    made_settlement: Settlement | None = None
    """`settlement`, if it was needed."""

    def __init__(
        self, handling: Handling, invocation: Invocation, pending: Records, *, waits: bool, blocks: bool
    ) -> None:
        self._handling = handling
        self._invocation = invocation
        self._pending = pending
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
        self._waiting_for: dict[QueueArn, list[tuple[Delivery, bool]]] = {}
        """Messages whose target is being looked up, and whether they may be settled early."""
        self._is_free = threading.Lock()
        self._over: Event | None = None
        """Set when the verdict that is dealt with below a batch handler has been."""
        self._said_last: Verdict | None = None
        """The last verdict that a batch handler gave on a message: it may still handle the exception."""
        self._is_said = False
        """Whether a verdict is dealt with below the batch handler that gave it."""
        self.in_background: InBackground = _at_once
        """How a request is made: here, or in a thread where this one must not be held up."""
        self.settled: Callable[[Delivery, Again | None], None] = _nothing
        """Called for a FIFO message that was under way: its group may go on, or it runs again."""
        self.wake: Callable[[], None] = _nothing
        """Called, in any thread, when a look-up has ended: then `advance` goes on."""

    @property
    def settlement(self) -> Settlement:
        """The settlement of the invocation; a batch in which everything succeeds loads nothing of it."""
        if self.made_settlement is None:
            from tarry.settlement.settlement import Settlement

            handling = self._handling
            self.made_settlement = Settlement(self._invocation, handling.policy, handling.steps, handling.log)
        return self.made_settlement

    def finish(self) -> None:
        """Decide on all messages that are not decided yet, and settle them."""
        self.close()
        leave_if_forked(self._invocation.began_in, None)  # a failure step may fork too
        if self.made_settlement is not None:
            self.made_settlement.finish()

    def stop(self) -> None:
        """Make no requests any more; messages that are settled elsewhere leave ``pending``."""
        if self.made_settlement is not None:
            self.made_settlement.stop()
            for delivery_id in self.made_settlement.gone():
                self._pending.pop(delivery_id, None)

    def enter(self, delivery: Delivery) -> None:
        """Takes note of a message of a FIFO batch, in the order of the batch."""
        self._groups.enter(delivery)

    def may_run(self, delivery: Delivery) -> bool:
        """Return whether a message of a FIFO batch may run; one that may not is released."""
        self._groups.enter(delivery)
        if self.is_stopped(delivery):
            self.release(delivery)
            return False
        return True

    def is_stopped(self, delivery: Delivery) -> bool:
        """Return whether an earlier message of its group stays in the queue, or its lease is lost."""
        return self._groups.is_stopped(delivery) or is_stopped_by_lost_lease(delivery)

    def wait(self, delivery: Delivery, seconds: int) -> None:
        """Make a message that is not due yet invisible until it is."""
        now = delivery.invocation.now()
        self._take(Decision(delivery, Outcome.wait(seconds), now, until=delivery.due), early=True)

    def release_unentered(self, delivery: Delivery) -> None:
        """Release a message of which its FIFO group has not taken note yet (`enter`)."""
        self._groups.enter(delivery)
        self.release(delivery)

    def release(self, delivery: Delivery) -> None:
        """Return a message unrun to its queue; one whose FIFO group has lost a lease is only reported as failed."""
        if is_stopped_by_lost_lease(delivery):
            return
        self._note(Decision(delivery, Outcome.release(), delivery.invocation.started_at))

    def on_message(
        self,
        delivery: Delivery,
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
        delivery.is_closed = True
        clock = delivery.invocation.world.clock
        began = clock.monotonic()
        log, policy, diagnose = self._handling.log, self._handling.policy, delivery.invocation.diagnoses.of
        decided_at = delivery.verdict_at or ended_at or delivery.invocation.now()
        try:
            decided = decide(delivery, said, raised, policy, decided_at, diagnose=diagnose, tries=tries)
        except BaseException as trouble:  # noqa: BLE001 an odd signal of the user's: this message's trouble alone
            text = "The verdict cannot be read, so the message has failed: check the delay and reason of the signal."
            log.problem("verdict_unreadable", text, delivery, error=trouble)
            told = diagnose(trouble)
            decided = Failure(delivery.message, trouble, "error", failed_at=decided_at, tries=tries, diagnosis=told)
        if said is not None and raised is not None and isinstance(decided, Decision):
            text = "the handler raised after it had said what becomes of the message; what it said holds"
            log.problem("raised_after_verdict", text, delivery, error=raised, level=WARNING)
        if self.made_settlement is not None:
            self.made_settlement.deciding = clock.monotonic() - began
        if isinstance(decided, Failure) and tries > 1:
            return self._ask(decided, early=early)
        return self._take(decided, early=early)

    def _take(self, decided: Decision | Failure, *, early: bool) -> Again | None:
        """Go on with a message; what takes a look-up that was not made yet is held until it is, but on FIFO."""
        if isinstance(decided, Decision) and decided.outcome.kind in DONE:
            self._note(decided)
            return None
        delivery = decided.delivery
        if delivery.source.is_fifo and (self._may_block or self._is_known(delivery)):
            return self._decide_on_fifo(decided)
        if delivery.source.is_fifo:
            self._under_way.add(delivery.delivery_id)
        self._decided.add(delivery.delivery_id)
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
        while self._held and self._is_known(self._held[0].delivery):
            self._go_on(self._held.popleft())
            has_progress = True
        return has_progress

    @property
    def holds_groups(self) -> bool:
        """Whether a FIFO group waits for the look-up of its queue, which is under way."""
        return bool(self._under_way) and bool(self._held)

    def _is_known(self, delivery: Delivery) -> bool:
        """Whether its queue was looked up; if it was not, that is begun, and waited for, for a moment."""
        settlement, queue = self.settlement, delivery.source.text
        if settlement.knows(delivery):
            return True
        if queue in self._prepared:
            return self._prepared[queue]
        self._prepared[queue] = False
        invocation = delivery.invocation
        ended = invocation.world.threads.event()

        def then() -> None:
            self._prepared[queue] = True
            ended.set()
            self.wake()

        settlement.prepare(delivery, then)
        if self._waits:
            ended.wait(min(LOOK_UP_PATIENCE_SECONDS, max(0.0, invocation.time_left() * LOOK_UP_SHARE)))
        return self._prepared[queue]

    def is_under_way(self, delivery_id: str) -> bool:
        """Whether what becomes of a FIFO message is still open: its group waits for it."""
        return delivery_id in self._under_way

    def _decide_on_fifo(self, decided: Decision | Failure) -> Again | None:
        if isinstance(decided, Decision) and decided.outcome.kind == "defer":
            decided = self._unless_it_would_expire(decided)
        if isinstance(decided, Failure):
            return self._ask(decided, early=False)
        self._note(decided)
        return None

    def _go_on(self, held: Held) -> None:
        delivery = held.delivery
        if delivery.source.is_fifo:
            self._under_way.discard(delivery.delivery_id)
            again = self._decide_on_fifo(held.decided)
            if not self.is_under_way(delivery.delivery_id):
                self.settled(delivery, again)
            return
        if not self.settlement.has_time:
            self.settlement.report_only()
        elif isinstance(held.decided, Decision):
            self._note(held.decided, early=held.early)
        elif (again := self._ask(held.decided, early=held.early)) is not None:
            self._again.append(again)

    def _unless_it_would_expire(self, deferral: Decision) -> Decision | Failure:
        """A deferral on FIFO, where a wait cannot outlast the message by sending it again (SPEC C10)."""
        delivery, now = deferral.delivery, deferral.decided_at
        facts = self.settlement.facts(delivery)
        if facts.would_expire(delivery, deferral.outcome.delay or 0, now):
            return Failure(delivery.message, None, "expiring", failed_at=now)
        return deferral

    def next_again(self) -> Again | None:
        """The next message that is to run again, when all others have run."""
        while True:
            while not self._again and self._held:
                self._go_on(self._held.popleft())
            if not self._again:
                return None
            again = self._again.popleft()
            if again.failure.delivery.invocation.time_left() > again.delay + RESERVE_SECONDS:
                return again
            self.give_up(again)  # there was time when its step was asked, before the others ran

    def sort(self, order: Sequence[str]) -> None:
        """Put what was taken down in the order of the batch, by delivery ids: nothing hangs on who was done first."""
        place = {delivery_id: index for index, delivery_id in enumerate(order)}
        self._held = deque(sorted(self._held, key=lambda held: place[held.delivery.delivery_id]))
        if self.made_settlement is not None:
            self.made_settlement.sort(place.__getitem__)

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
        failure = again.failure
        steps = self._handling.steps.of(failure.queue).without_local_retry()
        decision = self._asked(failure, steps)
        if decision.outcome.kind == "again":
            decision = Decision(failure.delivery, Outcome.unhandled(), failure.failed_at, failure)
        self._note(decision)

    def owed_seconds(self) -> float:
        """What settling the messages that failed so far is going to cost."""
        made = self.made_settlement
        return 0.0 if made is None else made.owed_seconds()

    def _ask(self, failure: Failure, *, early: bool) -> Again | None:
        """Ask the failure steps."""
        delivery = failure.delivery
        decision = self._asked(failure, self._handling.steps.of(failure.queue))
        if failure.error is not None and not self._is_said:
            let_frames_go(failure.error)
            delivery.invocation.diagnoses.let_frames_go()
        if decision.outcome.kind == "again":
            if delivery.invocation.batch is None and delivery.verdict is None and failure.reason != "expiring":
                self._decided.discard(delivery.delivery_id)
                return Again(decision.failure or failure, decision.outcome.delay or 0)
            # A batch cannot run again in part; a message with a verdict, or that a thread still runs, must not.
            decision = Decision(delivery, Outcome.unhandled(), failure.failed_at, decision.failure or failure)
        self._note(decision, early=early)
        return None

    def _asked(self, failure: Failure, steps: StepList) -> Decision:
        delivery, invocation = failure.delivery, failure.delivery.invocation
        facts = self.settlement.facts(delivery)
        context = StepContext(invocation.world.random, invocation.time_left)
        decision = ask_steps(failure, self._handling.policy, steps, facts, context, invocation.diagnoses.of)
        self._handling.log.notices(delivery, decision.notices)
        return decision

    def on_verdict(self, delivery: Delivery) -> None:
        """Decide about a message of a batch as soon as its handler has given a verdict on it alone (SPEC C11).

        Left for the end where a later verdict on the batch still counts, or another thread of the handler's is here.
        """
        if generation() != delivery.invocation.began_in:
            return  # a forked child, which settles nothing
        verdict = delivery.verdict
        before, self._said_last = self._said_last, verdict
        if is_a(before, BaseException) and before is not verdict:
            clear_frames(before)  # its traceback stays: the handler may still tell of it
        is_open = is_a(verdict, Retry) and leaves_delay_open(verdict)
        if delivery.source.is_fifo or is_open or is_a(verdict, (Reject, Discard)) or not self._is_free.acquire(False):
            return
        over = self._over = delivery.invocation.world.threads.event()
        try:
            self._is_said = True
            self.on_message(delivery, verdict, None)
        except Exception as error:  # noqa: BLE001 a fault of our own must not reach the handler
            self._handling.log.problem("runtime_failed", "tarry itself failed to decide early", delivery, error=error)
        finally:
            self._is_said = False
            self._is_free.release()
            over.set()

    def on_batch(self, batch: Batch[Any], raised: BaseException | None) -> None:
        """A batch that ran as a whole (SPEC B4, B5, H2)."""
        deliveries, whole = [delivery_of(message) for message in batch], said_of(batch)
        invocation = deliveries[0].invocation
        ended_at = invocation.now()
        self._wait_for_verdict(invocation)
        self._settle_here()
        self._groups.go_on()
        todo = [(index, delivery) for index, delivery in enumerate(deliveries) if not delivery.is_closed]
        for _, delivery in todo:  # the others were decided on when their own verdicts fell
            delivery.is_closed = True
        culprit = culprit_of(batch, raised)
        said = [effective_verdict(delivery.verdict, whole.verdict) for delivery in deliveries]
        if raised is not None and all(verdict is not None and verdict is not raised for verdict in said):
            text = "the batch handler raised after it had said what becomes of every message; what it said holds"
            self._handling.log.problem("raised_after_verdict", text, error=raised, level=WARNING)
        if culprit is not None and raised is not None:
            raised = raised if (cause := cause_of(raised)) is None else cause
        unsaid = Unsaid(whole.answer, self._handling.unsaid_fails)
        for index, delivery in todo:
            verdict = said[index]
            if verdict is None and culprit is not None and index < culprit:
                verdict = ACK
            is_behind_culprit = verdict is None and culprit is not None and index > culprit
            if is_behind_culprit or (self._groups.is_stopped(delivery) and not stands_alone(said[index])):
                self.release(delivery)
            elif verdict is None and raised is None:
                self._on_unsaid(delivery, unsaid, ended_at)
            elif verdict is ACK or self.settlement.has_time:
                error = raised if verdict is None else None
                self.on_message(delivery, verdict, error, ended_at=ended_at, early=False)
            else:
                self.settlement.report_only()

    def _wait_for_verdict(self, invocation: Invocation) -> None:
        """Wait for the verdict that a thread of the batch handler's has given; no other is dealt with from now on."""
        while not self._is_free.acquire(False):
            left = invocation.time_left() - LAST_SECONDS
            if self._over is None or left <= 0 or not self._over.wait(None if left == math.inf else left):
                return

    def _on_unsaid(self, delivery: Delivery, unsaid: Unsaid, ended_at: float | None) -> None:
        """A message about which a batch handler said nothing, and did not raise (SPEC A4, B8)."""
        if unsaid.is_behind_named(delivery):
            self.release(delivery)
        else:
            self.on_message(delivery, None, unsaid.error_of(delivery), ended_at=ended_at, early=False)

    def _note(self, decision: Decision, *, early: bool = False) -> None:
        """Hand a decision to the settlement; on FIFO what is sent away is sent before its group goes on."""
        delivery, outcome = decision.delivery, decision.outcome
        delivery.outcome = outcome
        if outcome.kind in DONE:
            self._log_end(decision)
            self._decided.discard(delivery.delivery_id)
            del self._pending[delivery.delivery_id]
            if (acks := delivery.invocation.acks) is not None:
                acks.add(delivery)
            return
        self._decided.add(delivery.delivery_id)
        settlement = self.settlement
        if not delivery.source.is_fifo:
            settlement.add(decision, early=early and self._others_run, may_look_up=self._may_block)
            if not self._may_block and (queue := settlement.needed_by(delivery)) is not None:
                self._look_up(queue, delivery, early=early)
            if settlement.has_slice:
                self.in_background(settlement.settle_full_requests, _nothing)
        elif outcome.kind in ("dead_letter", "resend", "unhandled", "defer"):
            self._under_way.add(delivery.delivery_id)
            self.in_background(partial(settlement.send_now, decision), partial(self._note_sent, delivery))
        else:
            settlement.add(decision, early=False)
            self._groups.note(delivery, outcome)

    def _look_up(self, queue: QueueArn, delivery: Delivery, *, early: bool) -> None:
        """Look a target up in the background, once for all messages that need it; then their plans are completed."""
        waiting = self._waiting_for.setdefault(queue, [])
        waiting.append((delivery, early))
        if len(waiting) == 1:
            self.in_background(partial(self.settlement.look_up, queue), lambda _: self._note_looked_up(queue))

    def _note_looked_up(self, queue: QueueArn) -> None:
        for delivery, early in self._waiting_for.pop(queue):
            self.settlement.go_on(delivery, early=early and self._others_run)

    def _note_sent(self, delivery: Delivery, sent: object) -> None:
        """Note whether a FIFO message was sent away; if not, it stops its group."""
        if sent is not True:
            self._groups.note(delivery, Outcome.unhandled())
        self._under_way.discard(delivery.delivery_id)
        self.settled(delivery, None)

    def _log_end(self, decision: Decision) -> None:
        """Tells of a message that is done with other than by a plain commit."""
        failure, outcome = decision.failure, decision.outcome
        if failure is not None or outcome.kind == "discard":
            reason = outcome.reason or (failure.reason if failure is not None else None)
            error = failure.error if failure is not None else None
            failed = failure is not None
            self._handling.log.transition(decision.delivery, outcome, error=error, reason=reason, failed=failed)


def _nothing(*_: object) -> None:
    """For what nobody waits for."""


def _at_once(work: Callable[[], object], then: Callable[[object], None]) -> None:
    then(work())
