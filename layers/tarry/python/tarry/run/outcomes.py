"""The outcomes of a batch's messages, handed to the settlement unless a message is already done.

A message waits here for the attributes of its queue if they are needed to decide. The settlement is made and loaded
when the first message needs it, so not in a batch without failures.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.message.outcomes import DONE, STOPS_ITS_GROUP, Outcome
from tarry.sqs.client import FAILURE_KEPT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.decide.decision import Decision
    from tarry.message.delivery import Delivery, EndsWithOutcome, Failure
    from tarry.message.invocation import Group, Invocation, Records
    from tarry.run.handlers import Handling
    from tarry.settle.settlement import Settlement
    from tarry.support.values import QueueArn
    from tarry.world import Event

    Then = Callable[[object], None]  # called with the result of a request, in the thread that decides


PATIENCE_SECONDS = 1.0  # how long the first failure of a batch waits for the look-up of its queue, which continues
PATIENCE_SHARE = 0.05  # the share of the time left that the first failure waits at most


class Awaiting(NamedTuple):
    """A message that waits for the attributes of its queue."""

    decided: Decision | Failure
    early: bool  # whether it may be settled while the batch still runs


class Rerun(NamedTuple):
    """A message to run again within this delivery, after ``delay`` seconds."""

    failure: Failure
    delay: float


class AwaitingFacts:
    """The messages of one batch that wait for a look-up, in the order in which they came."""

    def __init__(self, *, may_wait: bool) -> None:
        self._may_wait = may_wait  # whether `is_known` may wait for a look-up: not if that delays other handlers
        self.messages: deque[Awaiting] = deque()
        self._ended_at: dict[str, float] = {}  # when the look-ups ended, by queue; infinity if one has not
        self._not_awaited: dict[str, Event] = {}
        """Of each queue whose look-up was started and that no message has waited for: set when it has ended."""
        self.wake: Callable[[], None] = nothing  # called, in any thread, when a look-up has ended

    def is_known(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Return whether the queue of a message was looked up; if not, start the look-up, and wait for it briefly."""
        if settlement.lookups.knows(delivery.source):
            return True
        queue, invocation = delivery.source.text, delivery.invocation
        ended_at = self._ended_at.get(queue)
        # Again if its failure has left the cache: else the message would be decided with a request in this thread.
        if ended_at is None or invocation.elapsed() >= ended_at + FAILURE_KEPT_SECONDS / 2:
            self._ended_at[queue] = math.inf
            ended = self._not_awaited[queue] = invocation.world.threads.event()
            settlement.lookups.prepare(delivery.source, partial(self._note_end, delivery, ended))
        # Only the first message waits: a slow look-up must not delay each of them.
        if self._may_wait and (begun := self._not_awaited.pop(queue, None)) is not None:
            begun.wait(min(PATIENCE_SECONDS, max(0.0, invocation.time_left() * PATIENCE_SHARE)))
        return self._ended_at[queue] != math.inf

    def fetch(self, deliveries: Iterable[Delivery], settlement: Settlement) -> list[Event]:
        """Start to fetch what settling messages may need; return an event for each queue, set when that has ended."""
        fetching: list[Event] = []
        for queue, delivery in {delivery.source.text: delivery for delivery in deliveries}.items():
            ended = delivery.invocation.world.threads.event()
            if settlement.fetch(delivery, partial(self._note_end, delivery, ended)):
                self._ended_at.setdefault(queue, math.inf)
                self._not_awaited.setdefault(queue, ended)
                fetching.append(ended)
        return fetching

    def _note_end(self, delivery: Delivery, ended: Event) -> None:
        self._ended_at[delivery.source.text] = delivery.invocation.elapsed()
        ended.set()
        self.wake()


def nothing(*_: object) -> None:
    """Do nothing: the default of a callback."""


RETURNS = frozenset({"retry", "defer", "resend"})  # outcomes after whose delay the message, or its copy, runs again


class Outcomes:
    """The outcomes of one batch. A message that is done leaves ``pending``; the others are settled."""

    made_settlement: Settlement | None = None

    def __init__(
        self,
        handling: Handling,
        invocation: Invocation,
        pending: Records,
        awaiting: AwaitingFacts,
        may_block: bool,
    ) -> None:
        self._handling = handling
        self._invocation = invocation
        self._pending = pending
        self._awaiting = awaiting
        self.stopped_groups: set[Group] = set()  # FIFO groups of which an earlier message stays in the queue
        self.may_block = may_block  # make the requests of FIFO messages in this thread, if that delays no handler
        self._ended: dict[str, bool] = {}
        """The pending messages that have run or will not run, by delivery id: whether the FIFO group of each waits for
        its look-up or its send."""
        self._of_targets: dict[QueueArn, list[tuple[Delivery, bool]]] = {}
        """The messages that need the size limit of a target queue, and whether each may be settled early."""
        self.in_background: Callable[[Callable[[], object], Then], None] = _at_once
        """Makes a request: in this thread, or in another one if handlers must continue."""
        self.settled: Callable[[Delivery, Rerun | None], None] = nothing
        """Called after the request of a FIFO message: its group may continue, or the message runs again."""
        self.ending: Callable[[EndsWithOutcome, Outcome, Then], None] = _end_at_once
        """Ends the claim on a message, before its outcome is carried out."""
        self.claim_ended: Callable[[Delivery], None] = nothing
        """Called when the claim on a FIFO message was ended in the background: its group may continue."""
        self.end_all: Callable[[Sequence[tuple[Any, Outcome]]], None] | None = None
        """Ends several claims at once; None on FIFO, where each outcome may stop a group, and without claims."""
        self.end_claims: Callable[[], None] = nothing  # ends the claims that `ending` has collected

    # messages that have run

    def stops(self, delivery: Delivery) -> bool:
        """Return whether an earlier message of its group stays in the queue, so that a message must not run."""
        return bool(self.stopped_groups) and delivery.group in self.stopped_groups  # making the group takes longest

    @property
    def others_run(self) -> bool:
        """Whether other messages run or have not started."""
        return len(self._pending) > len(self._ended)

    @property
    def _others_follow(self) -> bool:
        """Whether the end may be far: other messages run, or are to be decided, which a slow hook may delay."""
        return self.others_run or bool(self._awaiting.messages)

    def note_open(self, delivery: Delivery) -> None:
        """Note that a message has run, or will not run, and has no outcome yet; on FIFO its group waits."""
        self._ended[delivery.delivery_id] = delivery.source.is_fifo

    def free_group(self, delivery: Delivery) -> None:
        self._ended[delivery.delivery_id] = False

    def reopen(self, decision: Decision) -> None:
        if (spans := self._invocation.spans) is not None:
            spans.decided(decision.delivery.delivery_id, decision.outcome, decision.failure)
        self._ended.pop(decision.delivery.delivery_id, None)

    def is_under_way(self, delivery_id: str) -> bool:
        """Return whether the group of a FIFO message waits for its look-up or its send."""
        return self._ended.get(delivery_id, False)

    # outcomes

    def note(self, decision: Decision, *, early: bool = False) -> None:
        """Hand a decision to the settlement; on FIFO, a copy is sent before the group goes on."""
        delivery, claim = decision.delivery, decision.delivery.claim
        delivery.outcome = decision.outcome
        if (spans := self._invocation.spans) is not None:
            spans.decided(decision.delivery.delivery_id, decision.outcome, decision.failure)
        if claim is None:
            return self._hand_over(decision, early=early)
        # Its claim ends first: it must not be done without a record that says so, nor come back while it seems to run.
        delivery.claim = None
        if decision.outcome.kind in RETURNS:
            claim.back_at = decision.decided_at + (decision.outcome.delay or 0)
        self._ended[delivery.delivery_id] = delivery.source.is_fifo
        self.ending(claim, decision.outcome, lambda _: self._note_claim_ended(decision, early=early))

    def end_claim(self, delivery: Delivery) -> None:
        """End the claim on a message that has not run, and is only reported as failed."""
        if (claim := delivery.claim) is not None:
            delivery.claim = None
            self.ending(claim, Outcome.release(), nothing)

    def _note_claim_ended(self, decision: Decision, *, early: bool) -> None:
        delivery = decision.delivery
        self._hand_over(decision, early=early)
        if delivery.source.is_fifo and not self.is_under_way(delivery.delivery_id):
            self.claim_ended(delivery)

    def _hand_over(self, decision: Decision, *, early: bool) -> None:
        delivery, outcome = decision.delivery, decision.outcome
        if outcome.kind in DONE:
            self._log_end(decision)
            self._ended.pop(delivery.delivery_id, None)
            del self._pending[delivery.delivery_id]
            if (acks := delivery.invocation.acks) is not None:
                acks.add(delivery)
            return
        self._ended[delivery.delivery_id] = False
        settlement = self.settlement
        if not delivery.source.is_fifo:
            settlement.add(decision, early=early and self._others_follow, may_look_up=self.may_block)
            if not self.may_block and (target := settlement.needed_by(delivery)) is not None:
                self._look_up(target, delivery, early=early)
            if settlement.has_slice:
                self.in_background(settlement.settle_full_requests, nothing)
        elif outcome.kind in ("dead_letter", "resend", "unhandled", "defer"):
            self._ended[delivery.delivery_id] = True
            self.in_background(partial(settlement.send_now, decision), partial(self._note_sent, delivery))
        else:
            settlement.add(decision, early=False)
            if outcome.kind in STOPS_ITS_GROUP:
                self.stopped_groups.add(delivery.group)

    def _look_up(self, target: QueueArn, delivery: Delivery, *, early: bool) -> None:
        """Look a target up in the background, once for all messages that need it; then complete their plans."""
        waiting = self._of_targets.setdefault(target, [])
        waiting.append((delivery, early))
        if len(waiting) == 1:
            self.in_background(
                partial(self.settlement.executor.look_up, target), lambda _: self._note_looked_up(target)
            )

    def _note_looked_up(self, target: QueueArn) -> None:
        for delivery, early in self._of_targets.pop(target):
            self.settlement.go_on(delivery, early=early and self._others_follow)

    def _note_sent(self, delivery: Delivery, sent: object) -> None:
        """Note whether the copy of a FIFO message was sent; if not, the message stops its group."""
        if sent is not True:
            self.stopped_groups.add(delivery.group)
        self.free_group(delivery)
        self.settled(delivery, None)

    def _log_end(self, decision: Decision) -> None:
        """Log that a message is done, unless it was simply acknowledged."""
        failure, outcome = decision.failure, decision.outcome
        if failure is not None or outcome.kind == "discard":
            reason = outcome.reason or (failure.reason if failure is not None else None)
            error = failure.error if failure is not None else None
            self._handling.log.transition(
                decision.delivery, outcome, error=error, reason=reason, failed=failure is not None, failure=failure
            )

    # the settlement

    @property
    def settlement(self) -> Settlement:
        if self.made_settlement is None:
            from tarry.settle.settlement import Settlement

            handling = self._handling
            self.made_settlement = Settlement(self._invocation, handling.policy, handling.steps, handling.log)
        return self.made_settlement

    def owed_seconds(self) -> float:
        made = self.made_settlement
        return 0.0 if made is None else made.owed_seconds()

    def settle_here(self) -> None:
        """Make all further requests in this thread: no handler runs any more that they would delay."""
        self.may_block, self.in_background, self.settled = True, _at_once, nothing
        if self.end_claims is nothing:
            self.ending = _end_at_once

    def collect_claims(self) -> None:
        """Have claims ended together from now on, when `end_claims` is called."""
        if (end_all := self.end_all) is None or self.end_claims is not nothing:
            return
        collected: list[tuple[EndsWithOutcome, Outcome, Then]] = []

        def end_claims() -> None:
            if not collected:
                return
            ending = collected.copy()
            collected.clear()
            end_all([(claim, outcome) for claim, outcome, _ in ending])
            for _, _, then in ending:
                then(None)

        self.ending = lambda claim, outcome, then: collected.append((claim, outcome, then))
        self.end_claims = end_claims

    def stop(self) -> None:
        """Make no more requests; messages that are settled for good leave ``pending``."""
        if self.made_settlement is not None:
            self.made_settlement.stop()
            for delivery in tuple(self._invocation.deliveries.values()):  # a request in progress may add one
                if delivery.is_done:
                    self._pending.pop(delivery.delivery_id, None)


def _at_once(work: Callable[[], object], then: Then) -> None:
    then(work())


def _end_at_once(claim: EndsWithOutcome, outcome: Outcome, then: Then) -> None:
    claim.end(outcome)
    then(None)
