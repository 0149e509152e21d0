"""The settlement of one invocation: which messages are settled when, within the time there is.

Most are settled when the batch has run: sends with their deletes, then delayed retries, then releases. A short wait on
a standard queue is asked for earlier, by a thread of its own, so that the message comes back in time; and where many
messages fail, they are settled while the others run.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from tarry.settlement.early import EarlyWaits
from tarry.settlement.executor import Executor
from tarry.settlement.planner import Planner
from tarry.sqs.client import Requests
from tarry.sqs.limits import MAX_ENTRIES
from tarry.sqs.lookups import Lookups
from tarry.telemetry.logs import WARNING, Log
from tarry.visibility.leases import lease_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.delivery import Delivery
    from tarry.invocation import Invocation
    from tarry.policy.decision import Decision
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.policy.step_lists import FailureSteps
    from tarry.sqs.queue_facts import QueueFacts
    from tarry.support.arn import QueueArn

SLICE = 100
"""So many messages are settled at once, and before the batch has run where so many have failed."""
FIRST_COST_SECONDS = 0.002
"""What settling a message is taken to cost until it was measured."""
ANSWER_SECONDS = 0.5
"""Kept of the time left, to answer in; of a short invocation less."""
ANSWER_SHARE = 0.05
"""Of the time that an invocation began with: more is not kept."""


class Settlement:
    """What is left to settle of one invocation."""

    def __init__(self, invocation: Invocation, policy: RetryPolicy, steps: FailureSteps, log: Log) -> None:
        self._invocation = invocation
        self._log = log
        self._lookups = Lookups(Requests(invocation), log)
        self._planner = Planner(policy, steps)
        self._executor = Executor(invocation, self._planner, self._lookups, log)
        self._todo: list[Delivery] = []
        """Messages of which a copy is sent, or that wait."""
        self._releases: list[Delivery] = []
        self._lock = threading.Lock()
        self._cost = FIRST_COST_SECONDS
        self.deciding = 0.0
        """What it has been taking to decide on a message, in seconds."""
        self._unsettled = self._too_late = 0
        self._early = EarlyWaits(invocation, self._executor.ask_early, log)

    # what is known of the queues

    def knows(self, delivery: Delivery) -> bool:
        """Whether the message's queue was looked up."""
        return self._lookups.knows(delivery.source)

    def prepare(self, delivery: Delivery, then: Callable[[], None]) -> None:
        """Begin to look its queue up in a thread of its own."""
        self._lookups.prepare(delivery.source, then)

    def facts(self, delivery: Delivery) -> QueueFacts:
        """What is known of the message's queue; it may take a request."""
        return self._lookups.source(delivery.source)

    # what is to be settled

    def add(self, decision: Decision, *, early: bool, may_look_up: bool = True) -> None:
        """Settle a message with the others, or ``early`` where its wait ends before the invocation may.

        The first look-up of its queue is made here if it was not before, and with ``may_look_up`` that of the target.
        """
        delivery = decision.delivery
        self._executor.plan(decision, may_look_up=may_look_up)
        if decision.outcome.kind == "release":
            self._releases.append(delivery)
            return
        with self._lock:
            self._todo.append(delivery)
        if early and self.needed_by(delivery) is None:
            self._settle_early(delivery)

    def needed_by(self, delivery: Delivery) -> QueueArn | None:
        """Return the queue that is to be looked up (`look_up`) before a message can be settled."""
        return None if delivery.is_settled else self._executor.plan_of(delivery).needs

    def look_up(self, queue: QueueArn) -> None:
        """Look the size limit of a queue up; it takes a request."""
        self._executor.look_up(queue)

    def go_on(self, delivery: Delivery, *, early: bool) -> None:
        """Complete the plan of a message when the queue it needed was looked up."""
        self._executor.complete(delivery)
        if early:
            self._settle_early(delivery)

    def _settle_early(self, delivery: Delivery) -> None:
        if self._is_short(delivery) or self._loses_its_lease(delivery):
            self._early.add(delivery)

    @property
    def has_slice(self) -> bool:
        """Whether so many messages have failed that they are to be settled while the others run."""
        return len(self._todo) >= SLICE

    def send_now(self, decision: Decision) -> bool:
        """Carry out a decision that sends a copy of a message; return whether the message is settled for good."""
        delivery = decision.delivery
        self._executor.plan(decision)
        self._executor.send([delivery])
        if not delivery.is_settled:
            with self._lock:
                self._todo.append(delivery)
        return delivery.is_done

    def sort(self, place: Callable[[str], int]) -> None:
        """Put what is to be settled in the order of the batch."""
        for deliveries in (self._todo, self._releases):
            deliveries.sort(key=lambda delivery: place(delivery.delivery_id))

    def finish(self) -> None:
        """Carry out what is left to do, as far as there is time."""
        self._early.stop()
        todo, self._todo = [delivery for delivery in self._todo if not delivery.is_settled], []
        free = self._early.take(todo)
        self._settle(free)
        self._in_slices(self._releases, self._executor.wait_in_place)
        if len(free) < len(todo):
            self._early.end()
            settled = {delivery.delivery_id for delivery in free}
            others = [delivery for delivery in todo if delivery.delivery_id not in settled]
            self._settle(self._early.take(others))
        self._unsettled += sum(not delivery.is_settled for delivery in (*todo, *self._releases))
        if self._unsettled:
            self._log.problem("out_of_time", not_settled(self._unsettled), level=WARNING)

    def _settle(self, deliveries: Sequence[Delivery]) -> None:
        self._in_slices(
            [delivery for delivery in deliveries if self._executor.sends_copy(delivery)], self._executor.send
        )
        # One whose copy there was no time to send stays as it is.
        self._in_slices(
            [delivery for delivery in deliveries if self._executor.stays(delivery)], self._executor.wait_in_place
        )

    def settle_full_requests(self) -> None:
        """Settle those that fill requests, and leave the others for the next: no request more is made for it."""
        with self._lock:
            ready = self._take_full_requests()
        if not ready:
            return
        self._executor.give_up(ready)
        self._timed([delivery for delivery in ready if self._executor.sends_copy(delivery)], self._executor.send)
        self._timed([delivery for delivery in ready if not delivery.is_settled], self._executor.wait_in_place)

    def _take_full_requests(self) -> list[Delivery]:
        routes: dict[tuple[QueueArn, QueueArn | None], list[Delivery]] = {}
        for delivery in self._todo:
            if not delivery.is_settled and self.needed_by(delivery) is None:
                copy = self._executor.plan_of(delivery).copy
                routes.setdefault((delivery.source, None if copy is None else copy.target), []).append(delivery)
        full = [each for of_route in routes.values() for each in of_route[: len(of_route) // MAX_ENTRIES * MAX_ENTRIES]]
        ready = self._early.take(full)
        taken = {delivery.delivery_id for delivery in ready}
        self._todo = [each for each in self._todo if not each.is_settled and each.delivery_id not in taken]
        return ready

    def delete(self, deliveries: Sequence[Delivery]) -> None:
        """Delete acknowledged messages: there will be no answer after which Lambda does."""
        self._executor.delete(deliveries)

    def done(self) -> list[str]:
        """Return the delivery ids of messages that are settled for good."""
        deliveries = tuple(self._invocation.deliveries.values())  # a request that is under way may change one of them
        return [delivery.delivery_id for delivery in deliveries if delivery.is_done]

    def stop(self) -> None:
        """Make no request of its own any more."""
        self._early.stop()

    # early

    def _is_short(self, delivery: Delivery) -> bool:
        """Whether its wait may be over before the invocation is, so that it is asked for now (SPEC C11)."""
        if delivery.is_settled or delivery.source.is_fifo:
            return False
        plan, now = self._executor.plan_of(delivery), self._invocation.now()
        decision, delay = plan.decision, plan.decision.outcome.delay
        if self._executor.sends_copy(delivery) and delay is None:
            return False
        until = decision.until or decision.decided_at + (delay or 0)
        if not self._executor.sends_copy(delivery):
            until = self._planner.waits_until(plan, now)
        return until - now < self._invocation.time_left()

    def _loses_its_lease(self, delivery: Delivery) -> bool:
        """Whether its lease may end before the invocation does, so that it could not be settled then (SPEC E6)."""
        if delivery.is_settled or delivery.source.is_fifo:
            return False
        end = lease_end(delivery, self.facts(delivery).visibility_timeout)
        return end is not None and end - self._invocation.now() < self._invocation.time_left()

    # time

    def owed_seconds(self) -> float:
        """What the settlement of those that failed so far is going to cost."""
        return len(self._todo) * self._cost

    @property
    def has_time(self) -> bool:
        """Whether there is time to settle another message; of those for which there is none, a few are told of."""
        if not self._too_late and self._affordable() > 0:
            return True
        self._too_late += 1
        return self._too_late <= MAX_ENTRIES

    def report_only(self, messages: int = 1) -> None:
        """Note messages that there is no time to settle."""
        self._unsettled += messages

    def _affordable(self) -> int:
        """How many messages there is time to decide on and to settle."""
        invocation = self._invocation
        left = invocation.time_left() - min(ANSWER_SECONDS, invocation.began_with * ANSWER_SHARE)
        return SLICE if left == math.inf else int(left / (self._cost + self.deciding)) if left > 0 else 0

    def _in_slices(self, deliveries: Sequence[Delivery], carry_out: Callable[[Sequence[Delivery]], None]) -> None:
        start = 0
        while start < len(deliveries):
            size = min(SLICE, self._affordable())
            if size <= 0 and start:
                return
            self._timed(deliveries[start : start + max(MAX_ENTRIES, size)], carry_out)
            start += max(MAX_ENTRIES, size)

    def _timed(self, deliveries: Sequence[Delivery], carry_out: Callable[[Sequence[Delivery]], None]) -> None:
        clock = self._invocation.world.clock
        began = clock.monotonic()
        carry_out(deliveries)
        if len(deliveries) >= MAX_ENTRIES:
            self._cost = max(FIRST_COST_SECONDS / 10, (clock.monotonic() - began) / len(deliveries))


def not_settled(count: int) -> str:
    """Return the line on messages that failed, and that there was no time to settle."""
    return (
        f"{count} messages were not settled, because there was no time left. They are only reported as failed, and "
        "come back when the queue's visibility timeout ends. Set a smaller BatchSize, or give the function a longer "
        "Timeout."
    )
