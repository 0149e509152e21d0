"""Waits are kept: never shorter than asked for, never longer, never beyond what SQS allows."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from tarry.delay import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.policy import SHORTEST_UNHANDLED_WAIT
from tarry.sqs.settlement import SHORTEST_CUT_SECONDS
from tarry.testing.checkers.doubles import is_by_sqs
from tarry.testing.checkers.violation import MOMENT, Found, Violation, violation

if TYPE_CHECKING:
    from tarry.testing.lives import Delivery, Life
    from tarry.testing.past import Past

NEVER = re.compile(
    "parameter DelaySeconds|parameter VisibilityTimeout|longer than|too many|Maximum number|not distinct"
)
TOO_LONG = "Total VisibilityTimeout"
SETTLING_SECONDS = 60.0
"""How long an invocation may take to settle, retries of its requests included."""
RULE = "delays are kept"


def delays_are_kept(past: Past) -> Found:
    """What failed and stays comes back when its wait is over: the one asked for, else the policy's."""
    for life in past.lives.values():
        for delivery in life.deliveries:
            yield from _kept(delivery, past)
        for delivery, following in pairwise(life.deliveries):
            until = delivery.hidden[-1].fields["visible_until"] if delivery.hidden else 0.0
            if following.at < until - MOMENT and not is_by_sqs(delivery, following):
                text = f"came back {until - following.at:.3f} s before its wait was over"
                yield violation(RULE, life, text, following.at)


def _kept(delivery: Delivery, past: Past) -> Found:
    """In place, or by a copy that waits in the message's stead."""
    life, run, invocation = delivery.life, delivery.run, delivery.invocation
    wait = run.wait(life.delivery_id) if run is not None else None
    if run is None or run.ended is None or wait is None or invocation is None or not invocation.ended_well:
        return
    ended, asked = run.ended.at, run.verdict(life.delivery_id) in ("retry", "defer")
    copies = [past.lives[copy.fields["delivery_id"]] for copy in delivery.copies if copy.what == "sent"]
    if copies:
        for copy in copies:
            is_deferred = run.verdict(life.delivery_id) == "defer" and not copy.is_letter and not delivery.twins
            if is_deferred and _due(copy) < ended + wait[0] - MOMENT:
                text = f"its copy is due {_due(copy) - ended:.3f} s after it was deferred for {wait[0]:g} s"
                yield violation(RULE, life, text, copy.sent.at)
        return
    if not delivery.was_reported or _is_excused(delivery, past):
        return
    if not delivery.hidden:
        yield violation(RULE, life, f"failed, and is not hidden for {wait[0]:g} s", ended)
        return
    hidden = delivery.hidden[-1]
    longest = MAX_VISIBILITY_SECONDS - (hidden.at - delivery.at) - UNKNOWN_RECEIVE_SECONDS - 2
    shortest = min(wait[0], longest, half_of_its_life(delivery, hidden.at, past))
    if hidden.fields["visible_until"] < ended + shortest - MOMENT:
        text = f"is hidden for {hidden.fields['seconds']} s, and is to wait at least {shortest:g} s"
        yield violation(RULE, life, text, hidden.at)
    stuck = max(SHORTEST_UNHANDLED_WAIT, _longest_of_policy(delivery)) if _is_stuck(delivery, past) else 0
    if hidden.fields["seconds"] > max(math.ceil(wait[1]), stuck):
        text = f"is hidden for {hidden.fields['seconds']} s, and is to wait at most {wait[1]:g} s"
        yield violation(RULE, life, text, hidden.at)
    if asked is False and hidden.at > ended + SETTLING_SECONDS + _length(delivery):
        yield violation(RULE, life, f"was settled {hidden.at - ended:.1f} s after its handler ended", hidden.at)


def half_of_its_life(delivery: Delivery, now: float, past: Past) -> float:
    """What would expire and could not be sent on comes back in time to try that again (SPEC C10)."""
    retention = past.queues.get(delivery.life.sent.fields["queue"], {}).get("MessageRetentionPeriod")
    left = math.inf if retention is None else delivery.life.sent.at + int(retention) - now
    return max(SHORTEST_CUT_SECONDS, math.floor(left / 2) - 1) if math.isfinite(left) else left


def _length(delivery: Delivery) -> float:
    invocation = delivery.invocation
    assert invocation is not None
    assert invocation.answered is not None
    return invocation.answered.at - invocation.invoked.at


def _longest_of_policy(delivery: Delivery) -> float:
    assert delivery.run is not None
    return float(delivery.run.began.fields["longest"])


def _is_stuck(delivery: Delivery, past: Past) -> bool:
    """Whether the log says that it waits since nothing wanted it: as long as the policy knows (SPEC E4)."""
    return any(event.fields["event"] == "unhandled" for event in past.said_by(delivery))


def _is_excused(delivery: Delivery, past: Past) -> bool:
    """Whether the request that hides it may have failed: by a fault, or since the lease was somebody else's by then."""
    invocation, life = delivery.invocation, delivery.life
    assert invocation is not None
    assert invocation.answered is not None
    if invocation.struck("ChangeMessageVisibilityBatch", "ChangeMessageVisibility") or life.left_at is not None:
        return True
    later = life.delivery(delivery.count + 1)
    return past.had_problem(delivery, "lease_lost") or (later is not None and later.at <= invocation.answered.at)


def _due(copy: Life) -> float:
    record = copy.record or {}
    return max(float(copy.sent.fields["visible_at"]), float(record.get("due", 0)))


def nothing_runs_before_it_is_due(past: Past) -> Found:
    """What was sent with a long delay does not run before it is over."""
    for delivery in past.deliveries():
        due = float((delivery.life.record or {}).get("due", 0))
        if delivery.life.sent.fields["queue"].endswith(".fifo"):
            continue
        for run in delivery.runs:
            if run.began.at < due - MOMENT:
                text = f"ran {due - run.began.at:.3f} s before it was due"
                yield violation("nothing runs before it is due", delivery.life, text, run.began.at)


def no_wait_is_beyond_sqs(past: Past) -> Found:
    """No request asks for what SQS never allows: 12 hours from the receive, 900 s of delay, eleven entries.

    When a message was received is told of its first receive alone; later ones may have waited for their invocation.
    """
    for request_id, invocation in past.invocations.items():
        latest = max((each.at for each in past.received_by(invocation)), default=invocation.invoked.at)
        for event in invocation.refusals:
            text = event.fields["text"]
            is_late = invocation.struck("ChangeMessageVisibilityBatch")  # by the try before, which got no answer
            told = TOO_LONG in text and invocation.invoked.at - latest < UNKNOWN_RECEIVE_SECONDS and not is_late
            if (TOO_LONG not in text and NEVER.search(text)) or told:
                yield Violation("no wait is beyond SQS", request_id, f"SQS refused a request: {text}", event.at)
