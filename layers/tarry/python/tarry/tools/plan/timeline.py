"""The timeline of a policy: each attempt of a message that fails every time, as a pure function.

The times are those of the delays alone, without the time of the handler and of the queue. A delay is at least as long
as the policy says: SQS counts whole seconds, so one with a fraction ends up to a second later.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tarry.decide.steps import RESERVE_SECONDS
from tarry.failed.queue_names import queue_name
from tarry.failed.text import duration
from tarry.message.delivery import MARGIN_SECONDS, MARGIN_SHARE
from tarry.support.values import MAX_DELAY_SECONDS, MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.tools.plan.policy import DelayBounds, PlannedPolicy, PlannedStep
from tarry.tools.template import TemplateQueue

MOST_ATTEMPTS = 2_000
"""Where the timeline is cut of a message that fails without end."""
RECURSION_HOPS = 16
"""Lambda stops a function after about so many re-sends of a message to its own queue (PLATFORM 15b)."""
NOW = DelayBounds(0.0, 0.0)

Follows = Literal["retry", "copy", "unhandled", "dead_letter", "drop", "sent_on", "stays", "moved", "expires"]
"""A message waits in place, as a copy, or unhandled for its next attempt; or it ends, or stays in its queue. Without
tarry, SQS moves or deletes it."""
WAITS: frozenset[Follows] = frozenset({"retry", "copy", "unhandled"})
BY_SQS: frozenset[Follows] = frozenset({"moved", "expires"})
"""The ends that come after a wait: SQS moves a message only when it would deliver it again."""
DEAD_LETTER = PlannedStep("dead_letter", "DeadLetter()")
CHOSEN = "the queue that its function chooses"


@dataclass(frozen=True)
class PlannedAttempt:
    """An attempt that fails, and what follows."""

    number: int
    receive_count: int
    begins: DelayBounds
    """When it begins, counted from the first attempt."""
    follows: Follows
    runs: int = 1
    """The runs of the handler within the attempt: more than 1 with `LocalRetry`."""
    local_wait: DelayBounds = NOW
    """The time between these runs."""
    step: str = ""
    """The failure step that decides; empty if there is none."""
    wait: DelayBounds = NOW
    """The wait until the next attempt."""
    target: str = ""
    """The queue to which the message is sent."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyTimeline:
    """The attempts of a message that fails every time."""

    policy: PlannedPolicy
    queue: TemplateQueue
    attempts: tuple[PlannedAttempt, ...]
    warnings: tuple[str, ...]

    @property
    def last(self) -> PlannedAttempt:
        return self.attempts[-1]

    @property
    def ends(self) -> DelayBounds:
        """When the last attempt begins, or SQS moves or deletes the message after it."""
        return self.last.begins.plus(self.last.wait) if self.last.follows in BY_SQS else self.last.begins


def timeline_of(
    policy: PlannedPolicy, queue: TemplateQueue, *, timeout: float | None = None, may_loop: bool = False
) -> PolicyTimeline:
    """Return the timeline of a message that fails every time.

    ``timeout`` is the function's in seconds, if it is known; ``may_loop`` whether its ``RecursiveLoop`` is ``Allow``.
    """
    walk = _Walk(policy, queue, timeout)
    attempts = tuple(walk.attempts())
    return PolicyTimeline(policy, queue, attempts, tuple(dict.fromkeys(walk.warnings(attempts, may_loop=may_loop))))


def without_tarry(name: str, queue: TemplateQueue) -> PolicyTimeline:
    """Return the timeline of a function without tarry: only the queue decides about its failed messages."""
    visibility, limit = queue.visibility_timeout_seconds, queue.receive_limit
    policy = PlannedPolicy(
        name,
        max_attempts=limit or 1,
        retries_in_place=limit is not None,
        backoff=f"Fixed({visibility})",
        unhandled_wait=visibility,
        is_consumer=False,
    )
    attempts: list[PlannedAttempt] = []
    while not attempts or attempts[-1].follows == "retry":
        number, age, wait = len(attempts) + 1, len(attempts) * visibility, visibility
        follows: Follows = "retry"
        if limit is None:
            follows = "stays"
        elif age + visibility >= queue.retention_seconds:
            follows, wait = "expires", queue.retention_seconds - age
        elif number >= limit:
            follows = "moved"
        again = f"it is tried again every {duration(wait)}, until its retention ends"
        attempts.append(
            PlannedAttempt(
                number,
                receive_count=number,
                begins=DelayBounds(age, age),
                follows=follows,
                wait=DelayBounds(wait, wait),
                target=queue.dead_letters or "" if follows == "moved" else "",
                notes=(again,) if limit is None else (),
            )
        )
    return PolicyTimeline(policy, queue, tuple(attempts), ())


@dataclass
class _Walk:
    policy: PlannedPolicy
    queue: TemplateQueue
    timeout: float | None
    sent: Counter[str] = field(default_factory=Counter)
    """The re-sends of each `SendAgain`, by its id."""
    hops: int = 0
    number: int = 1
    receives: int = 1
    begins: DelayBounds = NOW
    age: DelayBounds = NOW
    """The time since this copy of the message was sent."""
    limits: set[Literal["retention", "timeout"]] = field(default_factory=set)
    """The limits that have changed a delay so far."""
    # of the current attempt
    runs: int = 1
    local_wait: DelayBounds = NOW
    notes: list[str] = field(default_factory=list)

    def attempts(self) -> Iterator[PlannedAttempt]:
        while True:
            self.runs, self.local_wait, self.notes = 1, NOW, []
            attempt = self._attempt()
            yield attempt
            if attempt.follows not in WAITS or self.number >= MOST_ATTEMPTS:
                return
            gap = attempt.local_wait.plus(attempt.wait)
            self.number += 1
            self.begins = self.begins.plus(gap)
            if attempt.follows == "copy":
                self.receives = 2 if attempt.wait.latest > MAX_DELAY_SECONDS else 1  # it waits out the rest in place
                self.age = attempt.wait
                self.hops += 1
            else:
                self.receives += 1
                self.age = self.age.plus(gap)

    @property
    def _is_last_delivery(self) -> bool:
        limit = self.queue.receive_limit
        return limit is not None and self.receives >= limit

    @property
    def _is_exhausted(self) -> bool:
        is_spent = self.policy.retries_in_place and self.number >= self.policy.max_attempts
        return is_spent or self._is_last_delivery

    def _attempt(self) -> PlannedAttempt:
        reason = "exhausted" if self._is_exhausted else "error"
        for step in self.policy.steps:
            match step.leads_to:
                case "":
                    self.notes.append(f"{step.name} decides first; the plan assumes that it passes the message on")
                case _ if reason not in step.handles:
                    pass
                case "again":
                    self._run_locally(step)
                case "retry":
                    return self._in_place(step, self.policy.delays[min(self.number, len(self.policy.delays)) - 1])
                case "resend" if self.sent[step.id] < step.times and not self._is_refused(step):
                    return self._sent_again(step)
                case "dead_letter" | "discard":
                    return self._end(step)
        return self._unhandled("No failure step takes it")

    def _run_locally(self, step: PlannedStep) -> None:
        for delay in step.delays or ():
            waited = self.local_wait.plus(delay)
            if self.timeout is not None and waited.latest + RESERVE_SECONDS >= self.timeout:
                self.limits.add("timeout")
                self.notes.append(f"no time for run {self.runs + 1}: the function's timeout is {self.timeout:g} s")
                return
            self.runs, self.local_wait = self.runs + 1, waited

    def _in_place(self, step: PlannedStep, wait: DelayBounds) -> PlannedAttempt:
        queue = self.queue
        longest = MAX_VISIBILITY_SECONDS - 2 - (UNKNOWN_RECEIVE_SECONDS if self.receives > 1 else 0)
        margin = min(MARGIN_SECONDS, queue.retention_seconds * MARGIN_SHARE)
        if self.age.plus(self.local_wait).latest + min(wait.latest, longest) + margin > queue.retention_seconds:
            self.limits.add("retention")
            self.notes.append(
                f"its retention of {duration(queue.retention_seconds)} would end before, or soon after, its retry"
            )
            if queue.is_fifo:
                return self._end(next((each for each in self.policy.steps if "expiring" in each.handles), DEAD_LETTER))
            return self._made("copy", step.name, wait=wait)
        if wait.latest > longest:
            self.notes.append(f"cut from {duration(wait.latest)} to what SQS allows")
        return self._made("retry", step.name, wait=wait.at_most(longest))

    def _is_refused(self, step: PlannedStep) -> bool:
        """Return whether FIFO makes a `SendAgain` pass the message on."""
        if not self.queue.is_fifo or step.chooses_queue:
            return False
        if any(each.latest for each in step.delays or ()) and not step.queue:
            self.notes.append(f"SendAgain({step.id!r}) passes it on: it has a delay, and the queue is FIFO")
            return True
        if not step.breaks_order and self._is_own(step.queue):
            self.notes.append(f"SendAgain({step.id!r}) passes it on: a copy would lose its place in its group")
            return True
        return False

    def _sent_again(self, step: PlannedStep) -> PlannedAttempt:
        self.sent[step.id] += 1
        count = self.sent[step.id]
        name = f"copy {step.id} {count}/{step.times}"
        if step.chooses_queue or not self._is_own(step.queue):
            return self._made("sent_on", name, target=CHOSEN if step.chooses_queue else queue_name(step.queue or ""))
        own = DelayBounds(self.queue.delay_seconds, self.queue.delay_seconds)
        wait = own if step.delays is None else step.delays[min(count, len(step.delays)) - 1]
        return self._made("copy", name, wait=wait)

    def _is_own(self, queue: str | None) -> bool:
        return not queue or queue_name(queue) == self.queue.name

    def _end(self, step: PlannedStep) -> PlannedAttempt:
        if step.leads_to == "discard":
            return self._made("drop", step.name)
        target = queue_name(step.queue) if step.queue else self.queue.dead_letters or ""
        if step.chooses_queue:
            target = CHOSEN
        if not target and self.queue.is_known:
            return self._unhandled("There is no dead-letter queue")
        return self._made("dead_letter", step.name, target=target)

    def _unhandled(self, why: str) -> PlannedAttempt:
        """Return an attempt after which the message stays in its queue, until its last delivery."""
        if self._is_last_delivery:
            self.notes.append(f"{why}, and SQS would move it at its next receive")
            return self._made("dead_letter", "", target=self.queue.dead_letters or "")
        wait = DelayBounds(self.policy.unhandled_wait, self.policy.unhandled_wait)
        has_end = self.queue.receive_limit is not None
        self.notes.append(f"{why}: it stays in its queue")
        return self._made("unhandled" if has_end else "stays", "", wait=wait)

    def _made(self, follows: Follows, step: str, *, wait: DelayBounds = NOW, target: str = "") -> PlannedAttempt:
        return PlannedAttempt(
            self.number,
            self.receives,
            self.begins,
            follows,
            self.runs,
            self.local_wait,
            step,
            wait,
            target,
            tuple(self.notes),
        )

    # warnings

    def warnings(self, attempts: tuple[PlannedAttempt, ...], *, may_loop: bool) -> Iterator[str]:
        queue, policy, retention = self.queue, self.policy, self.queue.retention_seconds
        last, ended = attempts[-1], attempts[-1].begins.latest
        limit = queue.receive_limit
        if limit is not None and policy.retries_in_place and limit < policy.max_attempts:
            yield (
                f"maxReceiveCount is {limit}, below max_attempts ({policy.max_attempts}): the retries end at delivery "
                f"{limit}. Set it above {policy.max_attempts} to leave deliveries for crashes and throttles."
            )
        if "retention" in self.limits:
            begin = (
                f"The attempts take up to {duration(ended)}, and the retention of the queue is {duration(retention)}."
                if ended > retention
                else f"The retention of the queue, {duration(retention)}, ends before the next retry: the "
                f"attempts stop after at most {duration(ended)}."
            )
            yield f"{begin} Raise MessageRetentionPeriod (at most 14 d), or lower max_attempts."
        if "timeout" in self.limits:
            yield "LocalRetry waits longer than the function's timeout allows. Shorten its delay or raise the timeout."
        if queue.is_known and not queue.dead_letters and last.follows == "stays":
            yield (
                f"There is no dead-letter queue: the message stays in {queue.name}, and is tried again every "
                f"{duration(policy.unhandled_wait)}. Add a RedrivePolicy to the queue."
            )
        if self.hops >= RECURSION_HOPS and not may_loop:
            yield (
                f"The message is sent to its own queue {self.hops} times, and Lambda stops a function after about "
                f"{RECURSION_HOPS}. Set RecursiveLoop to Allow, or retry in place."
            )
