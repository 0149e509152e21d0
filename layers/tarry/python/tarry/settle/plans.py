"""Settlement plans: the ways to settle a message, best first, each a fallback for the one before (SPEC C8, C10, E4).

This module has values and pure functions, also of what planning is told. `tarry.settle.planner` makes plans,
`tarry.settle.executor` carries them out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tarry.message.failure_record import hops_of
from tarry.message.outcomes import RUNS_ELSEWHERE
from tarry.sqs.refusals import is_late
from tarry.support.delays import MAX_VISIBILITY_SECONDS
from tarry.support.values import QueueArn, Value, named_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.decide.decision import Decision, Diagnose
    from tarry.message.delivery import Delivery
    from tarry.message.notices import Notice
    from tarry.message.queue_facts import QueueFacts
    from tarry.settle.copies import Copy


class SizeLimit(NamedTuple):
    """The MaximumMessageSize of a queue."""

    bytes: int
    is_known: bool
    """Whether the limit was read from SQS; else it is the maximum of SQS."""


class FactsNeeded(Exception):
    """Planning needs the size limit of a queue that was not looked up yet."""

    def __init__(self, queue: QueueArn) -> None:
        super().__init__(queue.text)
        self.queue = queue


class Situation(NamedTuple):
    """The moment at which a message's settlement is planned."""

    now: float
    """The time in epoch seconds."""
    time_left: Callable[[], float]
    """Returns the seconds until Lambda kills the process."""
    source: QueueFacts
    """The facts of the source queue."""
    limits: Mapping[QueueArn, SizeLimit]
    """The size limits of the queues that were looked up."""
    rng: Random
    diagnose: Diagnose

    def limit_of(self, queue: QueueArn) -> SizeLimit:
        """Return the size limit of a queue. Raises `FactsNeeded` if it was not looked up."""
        if (limit := self.limits.get(queue)) is None:
            raise FactsNeeded(queue)
        return limit


DEAD_LETTER_QUEUE_VARIABLE = "TARRY_DEAD_LETTER_QUEUE_URL"


class NoDeadLetterQueue(Exception):
    """There is no usable dead-letter queue: the message stays in its queue and waits."""

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late
        """Whether only the time to look it up was lacking."""


def dead_letter_queue(delivery: Delivery, named: str | None, facts: QueueFacts) -> QueueArn:
    """Return the dead-letter queue that the failure step names, else the environment, else the redrive policy.

    ``facts``: the facts of the source queue.

    Raises:
        NoDeadLetterQueue: There is none, or it is the message's own queue or the one that it was redriven from.
    """
    source = delivery.source
    named = named or dead_letter_override()
    if named:
        target = named_queue(named, source)
        if not target.name:
            raise NoDeadLetterQueue(f"{named!r} is not an SQS queue: give the dead-letter queue as name, URL or ARN")
    else:
        if facts.error is not None:
            name = source.name or "a queue without a name"
            if is_late(facts.error):
                text = f"there was no time to read the redrive policy of {name} ({facts.error}): give the function a "
                raise NoDeadLetterQueue(f"{text}longer Timeout or more memory", is_late=True)
            raise NoDeadLetterQueue(
                f"the redrive policy of {name} cannot be read ({facts.error}): grant sqs:GetQueueAttributes, or set "
                "TARRY_DEAD_LETTER_QUEUE_URL"
            )
        target = facts.dead_letter or QueueArn("")
    if not target.name:
        raise NoDeadLetterQueue(
            f"{source.name or 'its queue'} has no dead-letter queue: add a RedrivePolicy to it in the template"
        )
    envelope = delivery.envelope
    came_from = envelope.origin if envelope is not None and envelope.is_dead_letter else None
    if target.text in (source.text, came_from):
        whose = "the queue it is in" if target == source else "the queue it was dead-lettered from before"
        raise NoDeadLetterQueue(f"its dead-letter queue {target.name} is {whose}: name another one")
    return target


def dead_letter_override() -> str | None:
    """Return the dead-letter queue from the function's environment, which overrides all redrive policies."""
    return os.environ.get(DEAD_LETTER_QUEUE_VARIABLE) or None


MANY_HOPS = 12
"""The number of hops from which tarry warns or waits in place: Lambda stops a loop at about 16 (PLATFORM 15b)."""
RECURSIVE_LOOP_VARIABLE = "TARRY_RECURSIVE_LOOP"

SENDS_COPY = frozenset({"dead_letter", "resend"})
"""Outcomes that send a copy and delete the original."""
WAITS = frozenset({"retry", "defer", "wait"})
"""Outcomes with their own delay."""

Name = Literal["as_decided", "copy_waits", "last_resort", "expiring", "in_place"]


class Way(NamedTuple):
    """One way to settle a message.

    ``as_decided``: send a copy where the outcome says. ``copy_waits``: send a copy to the same queue, where it waits.
    ``last_resort``: dead-letter the message with its record, because SQS would move it without one. ``expiring``:
    dead-letter it, because it would expire while it waits. ``in_place``: leave it in its queue for its delay.
    """

    name: Name
    only_if_refused: bool = False
    """Whether to use the way only if SQS has refused the one before, and would refuse it the next time."""


IN_PLACE = Way("in_place")
DEAD_LETTERS_INSTEAD = frozenset[Name]({"last_resort", "expiring"})
"""Ways that dead-letter a message whose outcome is another one."""


class SettlementPlan(Value):
    """The settlement of one message: the next way, its copy, and the ways that follow if SQS refuses it."""

    decided: Decision
    decision: Decision
    """The decision that the next way carries out: ``decided``, or a dead letter instead."""
    ways: tuple[Way, ...]
    """The next way first; the last one is always ``in_place``."""
    copy: Copy | None
    """The copy to send; None if the message waits in its queue or is released."""
    needs: QueueArn | None
    """The queue to look up before planning can go on; else None."""
    is_done: bool
    """Whether no request is needed: asked once more, the failure steps acknowledged or discarded the message."""
    tried: frozenset[QueueArn]
    """The queues to which a copy could not be sent."""
    not_sent: tuple[str, ...]
    """Why the earlier ways failed, as texts."""
    is_refused: bool
    """Whether the way before certainly had no effect, and would have none the next time."""
    late_delay: float | None
    """The backoff's delay, in seconds, if a way failed for lack of time and none for another reason; else None."""
    may_be_sent: bool
    """Whether a copy may have been sent to a FIFO queue, without a confirmation."""
    is_stuck: bool
    """Whether a dead letter instead of the outcome could not be sent."""
    notices: tuple[Notice, ...]
    """Log lines about this planning."""

    def __init__(self, decision: Decision, ways: tuple[Way, ...], notices: tuple[Notice, ...] = ()) -> None:
        self._freeze(
            decided=decision,
            decision=decision,
            ways=ways,
            copy=None,
            needs=None,
            is_done=False,
            tried=frozenset(),
            not_sent=(),
            is_refused=True,
            late_delay=None,
            may_be_sent=False,
            is_stuck=False,
            notices=notices,
        )

    def changed(self, **fields: Any) -> SettlementPlan:
        """Return the same plan with some fields changed."""
        return self._changed(**fields)

    def failed(self, why: str, late_delay: float | None = None, **fields: Any) -> SettlementPlan:
        """Return the plan without its next way, which has failed; ``late_delay``: if it was for lack of time."""
        not_sent = self.not_sent if why in self.not_sent else (*self.not_sent, why)
        if self.not_sent and self.late_delay is None:
            late_delay = None
        is_stuck = self.is_stuck or self.ways[0].name in DEAD_LETTERS_INSTEAD
        return self._changed(not_sent=not_sent, ways=self.ways[1:], late_delay=late_delay, is_stuck=is_stuck, **fields)

    @property
    def delivery(self) -> Delivery:
        return self.decided.delivery

    @property
    def sends_copy(self) -> bool:
        """Whether the next way sends a copy."""
        return self.copy is not None or self.needs is not None


def ways_of(decision: Decision, facts: QueueFacts, longest_delay: float, now: float) -> tuple[Way, ...]:
    """Return the ways to settle a message, best first; the last one is always ``in_place``.

    ``longest_delay``: for how many seconds an unhandled message waits.
    """
    delivery, kind = decision.delivery, decision.outcome.kind
    if kind == "release":
        return (IN_PLACE,)
    is_fifo, is_last = delivery.source.is_fifo, facts.is_last_delivery(delivery)
    seconds, longest = seconds_to_wait(decision, longest_delay), delivery.longest_wait(now)
    expires = facts.would_expire(delivery, min(longest, seconds), now)
    if kind == "unhandled" and decision.failure is not None and decision.failure.reason == "expiring":
        expires = True  # a failure step has raised, and the message may not wait as it was asked (SPEC C10)
    if decision.outcome.reason == RUNS_ELSEWHERE and kind == "wait":
        return (Way("copy_waits"), IN_PLACE) if expires and not is_fifo and may_hop(delivery) else (IN_PLACE,)
    ways: list[Way] = []
    if kind in SENDS_COPY:
        ways.append(Way("as_decided"))
    elif is_fifo:
        ways += [Way("expiring")] if expires else []  # no copy can wait in its group, so the answer is overruled
    elif kind == "wait":
        ways += _ways_of_delayed(delivery, expires=expires, is_last=is_last)
    elif expires or _waits_by_copy(decision, seconds, longest, is_last=is_last):
        ways.append(Way("copy_waits"))
    if is_last:
        ways.append(Way("last_resort"))
    if expires and kind != "wait":
        ways.append(Way("copy_waits" if kind in SENDS_COPY and not is_fifo else "expiring", only_if_refused=True))
    return (*ways, IN_PLACE)


def _ways_of_delayed(delivery: Delivery, *, expires: bool, is_last: bool) -> list[Way]:
    """Return the ways for a message that is not due: a copy, if it cannot wait in place and Lambda allows the hop."""
    if (expires or is_last) and may_hop(delivery):
        return [Way("copy_waits")]
    return [Way("expiring")] if expires else []


def _waits_by_copy(decision: Decision, seconds: float, longest: int, *, is_last: bool) -> bool:
    """Return whether a copy waits instead of the message: for a deferral, or a delay that SQS cannot keep in place.

    With an attempt store, a deferral in place costs no attempt (SPEC J5).
    """
    if decision.outcome.kind == "defer":
        in_place = decision.delivery.counts_runs and seconds <= longest and not is_last
        return not in_place and may_hop(decision.delivery)
    was_asked_for = decision.outcome.kind == "retry" and not decision.by_backoff
    return was_asked_for and longest < seconds <= MAX_VISIBILITY_SECONDS


def may_hop(delivery: Delivery) -> bool:
    """Return whether a message may be sent to its own queue without Lambda stopping the function (SPEC J5)."""
    return os.environ.get(RECURSIVE_LOOP_VARIABLE) == "Allow" or hops_of(delivery) + 1 < MANY_HOPS


def seconds_to_wait(decision: Decision, longest_delay: float) -> float:
    """Return the delay in seconds from the verdict on; for an unhandled message, the policy's longest (SPEC E4)."""
    if decision.outcome.kind in WAITS:
        return decision.outcome.delay or 0
    return 0 if decision.outcome.kind == "release" else longest_delay


def waits_until(decision: Decision, longest_delay: float) -> float:
    """Return until when a message waits, in epoch seconds (SPEC C11)."""
    if decision.until is not None and decision.outcome.kind in WAITS:
        shortest = 1 if decision.outcome.kind == "defer" else 0
        return max(decision.until, decision.decided_at + shortest)
    return decision.decided_at + seconds_to_wait(decision, longest_delay)


def why_it_could_not_wait(decision: Decision, way: Way) -> str | None:
    """Return why a message is dead-lettered without a failure, for its record and the log; None if it had failed."""
    delay = f"{decision.outcome.delay or 0:g} s"
    if decision.outcome.kind == "wait":
        return (
            f"sent with a delay; {delay} of it were left when the queue was about to delete or move the message, which "
            "could not be sent again"
        )
    if decision.outcome.kind == "defer":
        when = "before it would expire" if way.name == "expiring" else "at the queue's last delivery (maxReceiveCount)"
        return f"deferred for {delay} {when}, and could not be sent again"
    return None
