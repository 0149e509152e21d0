"""Rules that hold in every history, as functions that return their violations.

A violation names the message and the rule, and stands for a bug: in tarry, in the handler, or in the simulator. Rules
are grouped in files by subject; each exception to a rule is explained where it is made.
"""

from collections.abc import Iterable

from tarry.tools.testing.checkers import answers, leases, losses, retries
from tarry.tools.testing.checkers.violation import Checker, Found, Violation, faults_strike
from tarry.tools.testing.recorded_history import RecordedHistory

__all__ = ["ALL", "Checker", "Found", "Violation", "check"]

ALL: tuple[Checker, ...] = (
    losses.no_message_is_lost,
    losses.no_message_expires_waiting,
    leases.copies_match_their_originals,
    leases.duplicates_have_a_cause,
    leases.finished_messages_do_not_run_again,
    leases.groups_keep_their_order,
    retries.delays_are_kept,
    retries.no_message_runs_before_it_is_due,
    retries.no_wait_exceeds_sqs_limits,
    leases.released_messages_are_visible,
    leases.lost_leases_are_left_alone,
    leases.running_messages_keep_their_lease,
    retries.attempts_are_counted,
    retries.attempts_are_within_the_policy,
    retries.retries_asked_for_are_made,
    losses.dead_letters_say_why,
    losses.moves_by_sqs_have_a_cause,
    answers.the_log_is_true,
    answers.answers_are_well_formed,
    answers.tarry_itself_does_not_fail,
    answers.requests_keep_their_budget,
    losses.every_message_settles,
    faults_strike,
)


def check(history: RecordedHistory, checkers: Iterable[Checker] = ALL) -> list[Violation]:
    """Return all violations, in the order of the rules."""
    return [violation for checker in checkers for violation in checker(history)]
