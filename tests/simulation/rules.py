"""The rules of the campaign: those of the sandbox, and one for handlers that can all be interrupted."""

from tarry.sqs.client import ANSWER_SECONDS
from tarry.tools.testing.checkers import ALL, Checker, check
from tarry.tools.testing.checkers.leases import slow_reading
from tarry.tools.testing.checkers.violation import Found, Violation
from tarry.tools.testing.recorded_history import RecordedHistory
from tarry.tools.testing.report import Report

LATE_BY_ITSELF = frozenset({"timeout", "slow", "crash"})
"""Faults that take an invocation its time."""
READINGS_OF_RESERVE = 40
"""The readings of the clock, and those for each message, for which the time kept for settlement suffices."""
READINGS_OF_MESSAGE = 7
READINGS_WITH_TABLE = 2
"""How many times as many there are with an attempt store, or idempotency."""
READINGS_OF_ANSWER = 25
"""The readings for which the time suffices that is kept for the answer while a request is awaited."""
UNANSWERED = frozenset({"hang", "late"})
RESERVE_SECONDS = 1.0
RESERVE_SHARE = 1 / 3
"""The most of an invocation's time that is kept for settlement."""


def answers_come_in_time(history: RecordedHistory) -> Found:
    """A consumer answers before its deadline, also if a handler, a hook, a table or SQS is slow (SPEC I2, I7)."""
    for request_id, invocation in history.invocations.items():
        answered = invocation.answered
        if answered is None or answered.fields["kind"] != "timeout" or invocation.consumed is None:
            continue
        if any(fault.fields["kind"] in LATE_BY_ITSELF for fault in invocation.faults):
            continue
        seconds = float(invocation.invoked.fields["deadline"]) - invocation.invoked.at
        reading = slow_reading(invocation, history)
        readings = READINGS_OF_RESERVE + READINGS_OF_MESSAGE * len(invocation.batch)
        if history.uses_attempt_store or invocation.consumed.fields["has_claims"]:
            readings *= READINGS_WITH_TABLE
        has_time = reading * readings <= min(RESERVE_SECONDS, seconds * RESERVE_SHARE)
        if any(fault.fields["kind"] in UNANSWERED for fault in invocation.faults):
            has_time &= reading * READINGS_OF_ANSWER <= ANSWER_SECONDS
        if has_time:
            yield Violation("answers come in time", request_id, "Lambda ended it: it gave no answer", answered.at)


RULES: tuple[Checker, ...] = (*ALL, answers_come_in_time)


def judged(report: Report) -> Report:
    """Return the report with the violations of all rules of the campaign."""
    vars(report)["violations"] = check(report.history, RULES)  # in place of those that it would look for itself
    return report
