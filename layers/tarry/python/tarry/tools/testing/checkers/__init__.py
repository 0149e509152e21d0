"""Rules that hold in every history, as functions that return their violations.

A violation names the message and the rule, and stands for a bug: in tarry, in the handler, or in the simulator. Rules
are grouped in files by subject; each exception to a rule is explained where it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.testing.checkers.answers import (
    answers_are_well_formed,
    requests_keep_their_budget,
    tarry_itself_does_not_fail,
    the_log_is_true,
)
from tarry.tools.testing.checkers.attempts import (
    attempts_are_counted,
    attempts_are_within_the_policy,
    retries_asked_for_are_made,
)
from tarry.tools.testing.checkers.dead_letters import dead_letters_say_why
from tarry.tools.testing.checkers.delays import (
    delays_are_kept,
    no_message_runs_before_it_is_due,
    no_wait_exceeds_sqs_limits,
)
from tarry.tools.testing.checkers.doubles import duplicates_have_a_cause, finished_messages_do_not_run_again
from tarry.tools.testing.checkers.groups import copies_match_their_originals, groups_keep_their_order
from tarry.tools.testing.checkers.leases import (
    lost_leases_are_left_alone,
    released_messages_are_visible,
    running_messages_keep_their_lease,
)
from tarry.tools.testing.checkers.losses import (
    every_message_settles,
    moves_by_sqs_have_a_cause,
    no_message_expires_waiting,
    no_message_is_lost,
)
from tarry.tools.testing.checkers.violation import Checker, Found, Violation, faults_strike

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.tools.testing.recorded_history import RecordedHistory

__all__ = ["ALL", "Checker", "Found", "Violation", "check"]

ALL: tuple[Checker, ...] = (
    no_message_is_lost,
    no_message_expires_waiting,
    copies_match_their_originals,
    duplicates_have_a_cause,
    finished_messages_do_not_run_again,
    groups_keep_their_order,
    delays_are_kept,
    no_message_runs_before_it_is_due,
    no_wait_exceeds_sqs_limits,
    released_messages_are_visible,
    lost_leases_are_left_alone,
    running_messages_keep_their_lease,
    attempts_are_counted,
    attempts_are_within_the_policy,
    retries_asked_for_are_made,
    dead_letters_say_why,
    moves_by_sqs_have_a_cause,
    the_log_is_true,
    answers_are_well_formed,
    tarry_itself_does_not_fail,
    requests_keep_their_budget,
    every_message_settles,
    faults_strike,
)


def check(history: RecordedHistory, checkers: Iterable[Checker] = ALL) -> list[Violation]:
    """Return all violations, in the order of the rules."""
    return [violation for checker in checkers for violation in checker(history)]
