"""The rule about moves by SQS: it moves no message that failed or waited in tarry (SPEC C8).

Such a move leaves the dead letter without a failure record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.sqs.limits import MAX_REQUEST_BYTES, message_size
from tarry.tools.testing.checkers.dead_letters import dead_lettered_from, users_attributes
from tarry.tools.testing.checkers.leases import known_end
from tarry.tools.testing.checkers.violation import Found, violation
from tarry.tools.testing.deliveries import FAILED

if TYPE_CHECKING:
    from tarry.tools.testing.deliveries import MessageCopy, ObservedDelivery, ObservedInvocation
    from tarry.tools.testing.recorded_history import RecordedHistory

NO_TIME_LEFT_SECONDS = 0.3
"""With less time than this before its deadline, a function may only report messages as failed (SPEC I2). A handler that
hangs is interrupted earlier, so that its message is settled."""
DONE = frozenset({"committed", "discarded"})
"""Log events of messages that the failure steps finished with."""
STAYED = frozenset({"waiting_retry", "deferred", "unhandled"})
"""Log events of messages that were decided on and stay in the queue; a ``released`` message was not run."""


def moves_by_sqs_have_a_cause(history: RecordedHistory) -> Found:
    """If a message fails at its last delivery, or cannot wait any longer, tarry sends it to the dead-letter queue.

    SQS moves it, without a record, only if its process died, if no outcome was decided, or if it could not be sent.
    """
    for copy in history.copies.values():
        moved = next(copy.all("moved"), None)
        if moved is None or moved.fields.get("origin") == "redrive":
            continue
        before = [each for each in copy.deliveries if each.at <= moved.at]
        if not before:
            continue
        last, target = before[-1], str(moved.fields["to"])
        is_done = any(event.fields["event"] in DONE for event in last.log_lines)
        if last.sends or is_done:
            continue  # settled by a copy, or dropped; SQS delivered it again after the delete
        if _was_decided(last, moved.at, history) and not _may_lack_record(last, target, history):
            what = f"its last delivery ended with {last.verdict!r}" if last.run else "it could not wait"
            text = f"SQS moved it to {target} without a record, though {what}, and tarry could have sent it with one"
            yield violation("moves by SQS have a cause", copy, text, moved.at)


def _was_decided(last: ObservedDelivery, moved_at: float, history: RecordedHistory) -> bool:
    """Whether a consumer had the message in its last delivery, and decided on an outcome other than a release."""
    invocation = last.invocation
    if invocation is None or invocation.consumed is None or not invocation.ended_well:
        return False
    if invocation.answered is None or invocation.answered.at > moved_at:
        return False
    if last.verdict in FAILED or last.verdict == "defer":
        return True
    return any(event.fields["event"] in STAYED for event in last.log_lines)


def _may_lack_record(last: ObservedDelivery, target: str, history: RecordedHistory) -> bool:
    """Whether an exception of SPEC C8 applies."""
    invocation, copy = last.invocation, last.copy
    assert invocation is not None
    assert invocation.answered is not None
    held_until = min(last.held_until, known_end(last, history))
    lease_lost = history.had_problem(last, "lease_lost") or invocation.answered.at >= held_until
    waits_for_twin = any(event.fields.get("reason") == "in_progress" for event in last.log_lines)  # SPEC K4
    waits_for_other_copy = waits_for_twin or bool(last.other_copies)
    was_there_before = target in (dead_lettered_from(copy), copy.sent_to)  # SPEC F7
    return (
        lease_lost
        or waits_for_other_copy
        or was_there_before
        or _had_no_time(invocation)
        or history.look_up_failed(last)
        or _send_failed(invocation, target)
        or (copy.is_fifo and invocation.struck("ChangeMessageVisibilityBatch"))  # the test of its lease (SPEC E6)
        or not _fits(copy, target, history)
    )


def _had_no_time(invocation: ObservedInvocation) -> bool:
    assert invocation.answered is not None
    deadline = float(invocation.invoked.fields.get("deadline", math.inf))
    return invocation.answered.at > deadline - NO_TIME_LEFT_SECONDS


def _send_failed(invocation: ObservedInvocation, target: str) -> bool:
    """Whether a fault struck a send to the dead-letter queue itself; a fault on another queue is no excuse."""
    return any(
        fault.fields.get("operation") == "SendMessageBatch" and fault.fields.get("queue") == target
        for fault in invocation.faults
    )


def _fits(copy: MessageCopy, target: str, history: RecordedHistory) -> bool:
    """Whether the dead-letter queue accepts messages of this size (SPEC F3, F5)."""
    limit = int(history.queues.get(target, {}).get("MaximumMessageSize", MAX_REQUEST_BYTES))
    return message_size(copy.body, users_attributes(copy)) <= limit
