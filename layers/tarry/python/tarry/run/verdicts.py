"""The decisions on the messages of a batch that did not simply succeed."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tarry.decide.decision import Decision, ask_steps, decide
from tarry.decide.steps import RESERVE_SECONDS
from tarry.errors import ProcessCrashed
from tarry.message.delivery import Failure, StepContext
from tarry.message.outcomes import DONE, RUNS_ELSEWHERE, Outcome
from tarry.run.outcomes import Awaiting, AwaitingFacts, Outcomes, Rerun
from tarry.settle.requests import is_stopped_by_lost_lease
from tarry.support.guards import drop_tracebacks, is_a
from tarry.support.values import WARNING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.decide.steps import StepList
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.message.outcomes import Verdict
    from tarry.run.run import Run

RUNS_AGAIN = frozenset({"retry", "again", "defer"})  # for these outcomes of a crash, the message runs again at once
MAX_WITH_TRACEBACKS = 10  # the most failures whose tracebacks are kept for the failure steps during a look-up


class Verdicts:
    """The decisions on the messages of one batch, from their verdicts and the handler's exceptions."""

    keeps_frames = False  # keep tracebacks while the batch handler that gave them as verdicts still runs

    def __init__(self, run: Run) -> None:
        self._handling = run.handling
        self._deadline = run.deadline
        self.awaiting = AwaitingFacts(may_wait=run.may_wait)
        self.outcomes = Outcomes(run.handling, run.invocation, run.pending, self.awaiting, run.may_block)
        if run.claims is not None and not run.is_fifo:
            self.outcomes.end_all = run.claims.end_all
        self._reruns: deque[Rerun] = deque()  # the messages that run again when all others have run

    def sort(self, order: Sequence[str]) -> None:
        """Put the messages in the order of the batch, by delivery ids, whichever handler ended first."""
        place = {delivery_id: index for index, delivery_id in enumerate(order)}
        awaiting = self.awaiting
        awaiting.messages = deque(sorted(awaiting.messages, key=lambda each: place[each.decided.delivery.delivery_id]))
        if (settlement := self.outcomes.made_settlement) is not None:
            settlement.sort(place.__getitem__)

    def finish(self) -> None:
        """Decide on all remaining messages, and settle all messages; no handler runs any more."""
        self.outcomes.settle_here()
        self.outcomes.end_claims()
        while (rerun := self.next_rerun()) is not None:
            self.cancel(rerun)
        if (settlement := self.outcomes.made_settlement) is not None:
            settlement.finish()

    # messages that do not run

    def may_run(self, delivery: Delivery) -> bool:
        """Return whether a message of a FIFO batch may run; one that may not is released."""
        if self.outcomes.stops(delivery) or is_stopped_by_lost_lease(delivery):
            self.release(delivery)
            return False
        return True

    def wait(self, delivery: Delivery, seconds: int) -> None:
        now = delivery.invocation.now()
        self._take(Decision(delivery, Outcome.wait(seconds), now, until=delivery.due), early=True)

    def release(self, delivery: Delivery) -> None:
        """Return a message unrun to its queue; one whose FIFO group has lost a lease is only reported as failed."""
        if is_stopped_by_lost_lease(delivery):
            self.outcomes.end_claim(delivery)
            return
        self.outcomes.note(Decision(delivery, Outcome.release(), delivery.invocation.started_at))

    # messages that ran

    def on_message(
        self,
        delivery: Delivery,
        verdict: Verdict | None,
        raised: BaseException | None,
        tries: int = 1,
        *,
        ended_at: float | None = None,
        early: bool = True,
    ) -> Rerun | None:
        """Decide on a message that ran; on FIFO, ask the failure steps at once; return a `Rerun` if it runs again."""
        # ``ended_at``: when its handler ended, if not just now. ``early``: whether it may be settled while others run,
        # which it must not if an abandoned thread may still run it.
        delivery.is_closed = True
        if delivery.claim is not None and not delivery.claim.is_held:  # its handler has not run
            if (seconds := delivery.claim.seconds_elsewhere) is None:
                self.release(delivery)
                return None
            delivery.claim = None
            waits = Decision(delivery, Outcome("wait", seconds, RUNS_ELSEWHERE), delivery.invocation.now())
            return self._take(waits, early=early)
        clock = delivery.invocation.world.clock
        began = clock.monotonic()
        log, policy, diagnose = self._handling.log, self._handling.policy, delivery.invocation.diagnoses.of
        decided_at = delivery.verdict_at or ended_at or delivery.invocation.now()
        try:
            decided = decide(delivery, verdict, raised, policy, decided_at, diagnose=diagnose, tries=tries)
        except BaseException as error:  # noqa: BLE001 a broken signal of the user's: only this message fails
            text = "The verdict cannot be read, so the message has failed: check the delay and reason of the signal."
            log.problem("verdict_unreadable", text, delivery, error=error)
            decided = Failure(
                delivery.message, error, "error", failed_at=decided_at, tries=tries, diagnosis=diagnose(error)
            )
        if verdict is not None and raised is not None and isinstance(decided, Decision):
            text = "The handler raised after it gave a verdict on the message. The verdict holds."
            log.problem("raised_after_verdict", text, delivery, error=raised, level=WARNING)
        if (settlement := self.outcomes.made_settlement) is not None:
            settlement.decision_seconds = clock.monotonic() - began
        if not self.keeps_frames:
            _free_frames(decided, verdict, raised)
        if isinstance(decided, Failure) and tries > 1:
            return self._ask(decided, early=early)
        return self._take(decided, early=early)

    def on_crash(self, delivery: Delivery, crashed: tuple[int, ...]) -> Failure | None:
        """Have the failure steps decide on a message whose runs ``crashed``; return its failure if it runs now."""
        error = ProcessCrashed("the process died, or the function timed out, while the message ran")
        delivery.crashed, delivery.is_of_crash = crashed, True
        failure = Failure(delivery.message, error, "error", diagnosis=delivery.invocation.diagnoses.of(error))
        decision = self._ask_steps(failure, self._handling.steps.of(failure.queue))
        if decision.outcome.kind not in RUNS_AGAIN:
            self.outcomes.note(decision)
            return None
        delivery.is_of_crash = False
        text = f"Attempt {failure.attempt} failed at delivery {crashed[-1]}: {error}. The message runs again."
        self._handling.log.problem("run_crashed", text, delivery, level=WARNING)
        return failure

    def _take(self, decided: Decision | Failure, *, early: bool) -> Rerun | None:
        """Note the outcome of a message, or keep it until the attributes of its queue are known."""
        outcomes, delivery = self.outcomes, decided.delivery
        if isinstance(decided, Decision) and decided.outcome.kind in DONE:
            outcomes.note(decided)
            return None
        if delivery.source.is_fifo and (outcomes.may_block or self.awaiting.is_known(delivery, outcomes.settlement)):
            return self._decide_on_fifo(decided)
        outcomes.note_open(delivery)
        self.awaiting.messages.append(Awaiting(decided, early))
        error = decided.error if isinstance(decided, Failure) and not self.keeps_frames else None
        if len(self.awaiting.messages) > MAX_WITH_TRACEBACKS and error is not None:
            drop_tracebacks(error)
        if outcomes.others_run:
            self.advance()
        return None

    def advance(self) -> bool:
        """Continue with the messages whose queues are known by now; return whether there were any."""
        has_progress, awaiting = False, self.awaiting
        while awaiting.messages and awaiting.is_known(awaiting.messages[0].decided.delivery, self.outcomes.settlement):
            self._go_on(awaiting.messages.popleft())
            has_progress = True
        return has_progress

    def _go_on(self, waiting: Awaiting) -> None:
        outcomes, delivery, decided = self.outcomes, waiting.decided.delivery, waiting.decided
        if delivery.source.is_fifo:
            outcomes.free_group(delivery)
            rerun = self._decide_on_fifo(decided)
            if not outcomes.is_under_way(delivery.delivery_id):
                outcomes.settled(delivery, rerun)
        elif not outcomes.settlement.has_time:
            outcomes.end_claim(delivery)
            outcomes.settlement.report_only()
        elif isinstance(decided, Decision):
            outcomes.note(decided, early=waiting.early)
        elif (rerun := self._ask(decided, early=waiting.early)) is not None:
            self._reruns.append(rerun)

    def _decide_on_fifo(self, decided: Decision | Failure) -> Rerun | None:
        if isinstance(decided, Decision) and decided.outcome.kind == "defer":
            delivery, now = decided.delivery, decided.decided_at
            facts = self.outcomes.settlement.lookups.source(delivery.source)
            if facts.would_expire(delivery, decided.outcome.delay or 0, now):  # no copy can wait there (SPEC C10)
                decided = Failure(delivery.message, None, "expiring", failed_at=now)
        if isinstance(decided, Failure):
            return self._ask(decided, early=False)
        self.outcomes.note(decided)
        return None

    # the failure steps

    def _ask(self, failure: Failure, *, early: bool) -> Rerun | None:
        delivery = failure.delivery
        decision = self._ask_steps(failure, self._handling.steps.of(failure.queue))
        if failure.error is not None and not self.keeps_frames:
            drop_tracebacks(failure.error)
            delivery.invocation.diagnoses.drop_traceback()
        if decision.outcome.kind == "again":
            invocation, delay = delivery.invocation, decision.outcome.delay or 0
            may_run = invocation.batch is None and delivery.verdict is None and failure.reason != "expiring"
            if may_run and self._time_left(invocation) > delay + RESERVE_SECONDS:
                self.outcomes.reopen(decision)
                return Rerun(decision.failure or failure, delay)
            text = (
                "A failure step returned Outcome.again(), but a message of a batch handler, one with a verdict, one "
                "that would expire, or one for which no time is left cannot run again in this delivery. It stays in "
                "its queue. Return Outcome.retry()."
            )
            self._handling.log.problem("step_failed", text, delivery)
            decision = Decision(delivery, Outcome.unhandled(), failure.failed_at, decision.failure or failure)
        self.outcomes.note(decision, early=early)
        return None

    def _ask_steps(self, failure: Failure, steps: StepList) -> Decision:
        delivery, invocation = failure.delivery, failure.delivery.invocation
        facts = self.outcomes.settlement.lookups.source(delivery.source)
        context = StepContext(invocation.world.random, partial(self._time_left, invocation))
        decision = ask_steps(failure, self._handling.policy, steps, facts, context, invocation.diagnoses.of)
        self._handling.log.notices(delivery, decision.notices)
        return decision

    # retries within the invocation

    def next_rerun(self) -> Rerun | None:
        """Return the next message to run again, when all others have run."""
        self.outcomes.collect_claims()
        if self.awaiting.messages and self.outcomes.may_block:
            self.outcomes.settlement.lookups.requests.load()
        while True:
            while not self._reruns and self.awaiting.messages:
                self._go_on(self.awaiting.messages.popleft())
            self.outcomes.end_claims()
            if not self._reruns:
                return None
            rerun = self._reruns.popleft()
            if self._time_left(rerun.failure.delivery.invocation) > rerun.delay + RESERVE_SECONDS:
                return rerun
            self.cancel(rerun)  # the time was used up by other messages since its step was asked

    def _time_left(self, invocation: Invocation) -> float:
        """Return the seconds left to run a message again, with `RESERVE_SECONDS`: more may be kept for settlement."""
        kept = self._deadline.margin + self._deadline.ending
        return invocation.time_left() - max(0.0, kept - RESERVE_SECONDS)

    def cancel(self, rerun: Rerun) -> None:
        """Decide on a message that cannot run again after all: ask the failure steps other than `LocalRetry`."""
        failure = rerun.failure
        steps = self._handling.steps.of(failure.queue).without_local_retry()
        decision = self._ask_steps(failure, steps)
        if decision.outcome.kind == "again":
            decision = Decision(failure.delivery, Outcome.unhandled(), failure.failed_at, failure)
        self.outcomes.note(decision)


def _free_frames(decided: Decision | Failure, *errors: object) -> None:
    """Free the frames of the errors that led to a decision, but those of a failure, which its steps may still show."""
    of_failure = None if isinstance(decided, Decision) else decided.error
    for error in errors:
        if error is None or error is of_failure or not is_a(error, BaseException):
            continue
        if of_failure is None:
            drop_tracebacks(error)
        else:  # it may lead to the cause, whose traceback stays
            BaseException.with_traceback(error, None)
