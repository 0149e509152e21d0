"""The settlement of one invocation: which messages are settled when, within the time left.

Most messages are settled after the batch has run: first sends with their deletes, then delays, then releases. A thread
sets a short delay on a standard queue earlier, so that the message comes back in time. If many messages fail, they are
settled while the others run.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from tarry.settle.executor import Executor
from tarry.settle.planner import Planner
from tarry.settle.requests import lease_end, patience
from tarry.sqs.client import Lookups, Requests
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.support.values import WARNING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.decide.decision import Decision
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import FailureSteps
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn
    from tarry.world import Event

EARLY_SECONDS = 1.0  # the time for which a short delay waits for others to share its request
LAST_SECONDS = 0.1  # kept of the time left when the end waits for a request as long as possible


class EarlyWaits:
    """The short delays of one batch. A thread calls ``request`` with them, a second after the first was added."""

    def __init__(self, invocation: Invocation, request: Callable[[Sequence[Delivery]], None], log: Log) -> None:
        self._invocation = invocation
        self._request = request
        self._log = log
        self._lock = threading.Lock()
        self._waiting: list[Delivery] = []
        self._under_way: list[Delivery] = []
        self._is_over = False
        self._has_thread = False
        self._some: Event
        """Set while messages wait. The events are made with the thread."""
        self._over: Event  # set when the batch has run
        self._idle: Event  # set while no request is in progress

    def add(self, delivery: Delivery) -> None:
        with self._lock:
            self._waiting.append(delivery)
            if starts := not self._has_thread:
                make = self._invocation.world.threads.event
                self._some, self._over, self._idle = make(), make(), make()
                self._has_thread = True
        self._some.set()
        if starts:
            try:
                self._invocation.world.threads.start_unless(self._over, EARLY_SECONDS, self._work)
            except RuntimeError:  # the process may have no more threads: the delays are set after the batch
                self._is_over = True

    def take(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return the deliveries without a request in progress, and request nothing more for them."""
        with self._lock:
            under_way = {delivery.delivery_id for delivery in self._under_way}
            free = [delivery for delivery in deliveries if delivery.delivery_id not in under_way]
            taken = {delivery.delivery_id for delivery in free}
            self._waiting = [delivery for delivery in self._waiting if delivery.delivery_id not in taken]
        return free

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
        if not self._has_thread:
            return
        self._over.set()
        self._some.set()
        if self._under_way:
            self._idle.wait(patience(self._invocation))

    def end(self) -> None:
        """Wait for the request in progress as long as possible: repeating it could send a second copy."""
        if self._under_way:
            self._idle.wait(min(max(0.0, self._invocation.time_left() - LAST_SECONDS), threading.TIMEOUT_MAX))

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._is_over:
                    return
                self._under_way, self._waiting = self._waiting, []
                self._some.clear()
                self._idle.clear()
            try:
                self._request(self._under_way)
            except Exception as error:  # noqa: BLE001 a defect of tarry: the delays are set after the batch
                text = "tarry itself failed to set short delays early. They are set after the batch."
                self._log.problem("runtime_failed", text, error=error)
            finally:
                self._under_way = []
                self._idle.set()
            self._some.wait()
            if self._over.wait(EARLY_SECONDS):
                return


SLICE = 100  # the number of messages settled at once; if as many have failed, they are settled before the batch has run
FIRST_COST_SECONDS = 0.002  # the assumed time to settle a message until it is measured
ANSWER_SECONDS = 0.5  # the time kept for the response; less in a short invocation
ANSWER_SHARE = 0.05  # the largest share of the invocation's time kept for the response


class Settlement:
    """The messages of one invocation that are not settled yet."""

    def __init__(self, invocation: Invocation, policy: RetryPolicy, steps: FailureSteps, log: Log) -> None:
        self._invocation = invocation
        self._log = log
        self.lookups = Lookups(Requests(invocation), log)
        self._planner = Planner(policy, steps)
        self.executor = Executor(invocation, self._planner, self.lookups, log)
        self._todo: list[Delivery] = []  # the messages to send a copy of, or to keep invisible for a delay
        self._releases: list[Delivery] = []
        self._lock = threading.Lock()
        self._cost = FIRST_COST_SECONDS
        self.decision_seconds = 0.0  # the measured time to decide on a message
        self._unsettled = self._unaffordable = 0
        self._early = EarlyWaits(invocation, self.executor.request_early, log)

    # facts of the queues

    def fetch(self, delivery: Delivery, then: Callable[[], None]) -> bool:
        """Start to fetch the client, and facts of the queue and the target; return False if all are there."""
        source, lookups = delivery.source, self.lookups
        if (facts := lookups.known(source)) is not None:
            target = self._planner.target_of(delivery, facts)
            if target is None or lookups.knows_size(target):
                return False
        lookups.prepare(source, then, lambda facts: self._planner.target_of(delivery, facts))
        return True

    # messages to settle

    def add(self, decision: Decision, *, early: bool, may_look_up: bool = True) -> None:
        """Settle a message after the batch; if it may be ``early``, before the end of a short delay or of its lease."""
        delivery = decision.delivery
        self.executor.plan(decision, may_look_up=may_look_up)
        if decision.outcome.kind == "release":
            self._releases.append(delivery)
            return
        with self._lock:
            self._todo.append(delivery)
        if early and self.needed_by(delivery) is None:
            self._settle_early(delivery)

    def needed_by(self, delivery: Delivery) -> QueueArn | None:
        """Return the queue to look up (`Executor.look_up`) before a message can be settled; None if there is none."""
        return None if delivery.is_settled else self.executor.plan_of(delivery).needs

    def go_on(self, delivery: Delivery, *, early: bool) -> None:
        self.executor.complete(delivery)
        if early:
            self._settle_early(delivery)

    def _settle_early(self, delivery: Delivery) -> None:
        """Settle a message now if its delay (SPEC C11) or its lease (E6) may end before the invocation."""
        if delivery.is_settled or delivery.source.is_fifo:
            return
        now = self._invocation.now()
        latest = now + self._invocation.time_left()
        if self._waits_until(delivery, now) >= latest:
            end = lease_end(delivery, self.lookups.source(delivery.source).visibility_timeout)
            if end is None or end >= latest:
                return
        self._early.add(delivery)

    def _waits_until(self, delivery: Delivery, now: float) -> float:
        """Return until when a message waits, or its copy; infinite for a copy without a delay."""
        plan = self.executor.plan_of(delivery)
        decision, delay = plan.decision, plan.decision.outcome.delay
        if not plan.sends_copy:
            return self._planner.waits_until(plan, now)
        return math.inf if delay is None else decision.until or decision.decided_at + delay

    @property
    def has_slice(self) -> bool:
        """Whether enough messages have failed to settle them while the others run."""
        return len(self._todo) >= SLICE

    def send_now(self, decision: Decision) -> bool:
        """Carry out a decision that sends a copy of a message; return whether the message is settled for good."""
        delivery = decision.delivery
        self.executor.plan(decision)
        self.executor.send([delivery])
        if not delivery.is_settled:
            with self._lock:
                self._todo.append(delivery)
        return delivery.is_done

    def sort(self, place: Callable[[str], int]) -> None:
        """Put the messages to settle in the order of the batch; ``place`` returns the position of a delivery id."""
        for deliveries in (self._todo, self._releases):
            deliveries.sort(key=lambda delivery: place(delivery.delivery_id))

    def finish(self) -> None:
        self._early.stop()
        todo, self._todo = [delivery for delivery in self._todo if not delivery.is_settled], []
        free = self._early.take(todo)
        self.executor.trace([*free, *self._releases][:SLICE])  # together, in few requests
        self._settle(free)
        self._in_slices(self._releases, self.executor.wait_in_place)
        if len(free) < len(todo):
            self._early.end()
            settled = {delivery.delivery_id for delivery in free}
            others = [delivery for delivery in todo if delivery.delivery_id not in settled]
            self._settle(self._early.take(others))
        self._unsettled += sum(not delivery.is_settled for delivery in (*todo, *self._releases))
        if count := self._unsettled:
            text = (
                f"{count} messages were not settled, because there was no time left. They are only reported "
                "as failed, and come back when the queue's visibility timeout ends. Set a smaller BatchSize, or give "
                "the function a longer Timeout."
            )
            self._log.problem("out_of_time", text, level=WARNING)

    def _settle(self, deliveries: Sequence[Delivery]) -> None:
        executor = self.executor
        self._in_slices([delivery for delivery in deliveries if executor.sends_copy(delivery)], executor.send)
        # A message whose copy there was no time to send is not delayed either.
        self._in_slices([delivery for delivery in deliveries if executor.stays(delivery)], executor.wait_in_place)

    def settle_full_requests(self) -> None:
        """Settle the messages that fill whole requests, so that settling early costs no additional request."""
        with self._lock:
            ready = self._take_full_requests()
        if not ready:
            return
        self.executor.give_up(ready)
        self._timed([delivery for delivery in ready if self.executor.sends_copy(delivery)], self.executor.send)
        self._timed([delivery for delivery in ready if not delivery.is_settled], self.executor.wait_in_place)

    def _take_full_requests(self) -> list[Delivery]:
        routes: dict[tuple[QueueArn, QueueArn | None], list[Delivery]] = {}
        for delivery in self._todo:
            if delivery.is_settled:
                continue
            plan = self.executor.plan_of(delivery)
            if plan.needs is None:
                copy = plan.copy
                routes.setdefault((delivery.source, None if copy is None else copy.target), []).append(delivery)
        full = [each for of_route in routes.values() for each in of_route[: len(of_route) // MAX_ENTRIES * MAX_ENTRIES]]
        ready = self._early.take(full)
        taken = {delivery.delivery_id for delivery in ready}
        self._todo = [each for each in self._todo if not each.is_settled and each.delivery_id not in taken]
        return ready

    def stop(self) -> None:
        self._early.stop()

    # time

    def owed_seconds(self) -> float:
        """Return the estimated time to settle the messages that have failed so far."""
        return len(self._todo) * self._cost

    @property
    def has_time(self) -> bool:
        """Whether there is time to settle another message; True also for the first ten without, to log them."""
        if not self._unaffordable and self._affordable() > 0:
            return True
        self._unaffordable += 1
        return self._unaffordable <= MAX_ENTRIES

    def report_only(self, messages: int = 1) -> None:
        """Count messages that there is no time to settle."""
        self._unsettled += messages

    def _affordable(self) -> int:
        """Return the number of messages that there is time to decide on and settle, 0 or less if there is none."""
        invocation = self._invocation
        left = invocation.time_left() - min(ANSWER_SECONDS, invocation.began_with * ANSWER_SHARE)
        return SLICE if left == math.inf else int(left / (self._cost + self.decision_seconds))

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
