"""What must hold whatever happened: pure functions of a history. Each returns its violations.

A violation names the message and the rule, and stands for a bug: in tarry, in the handler, or in the simulator. Each
rule is in a file by its subject; what excuses a message is written where it is excused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.testing.checkers.answers import (
    answers_are_well_formed,
    requests_keep_their_budget,
    tarry_itself_does_not_fail,
)
from tarry.testing.checkers.attempts import attempts_are_counted, attempts_are_within_the_policy
from tarry.testing.checkers.bare_moves import bare_moves_have_a_cause
from tarry.testing.checkers.dead_letters import letters_say_why
from tarry.testing.checkers.delays import delays_are_kept, no_wait_is_beyond_sqs, nothing_runs_before_it_is_due
from tarry.testing.checkers.doubles import duplicates_have_a_cause, nothing_runs_again_once_it_is_done
from tarry.testing.checkers.faults import faults_strike
from tarry.testing.checkers.groups import groups_keep_their_order
from tarry.testing.checkers.leases import lost_leases_are_left_alone
from tarry.testing.checkers.log import the_log_tells_the_truth
from tarry.testing.checkers.losses import everything_settles, nothing_expires_waiting, nothing_is_lost
from tarry.testing.checkers.releases import what_is_given_back_is_visible
from tarry.testing.checkers.sources import nothing_comes_from_nowhere
from tarry.testing.checkers.violation import Checker, Found, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.testing.history import RecordedHistory

__all__ = ["ALL", "Checker", "Found", "Violation", "check"]

ALL: tuple[Checker, ...] = (
    nothing_is_lost,
    nothing_expires_waiting,
    nothing_comes_from_nowhere,
    duplicates_have_a_cause,
    nothing_runs_again_once_it_is_done,
    groups_keep_their_order,
    delays_are_kept,
    nothing_runs_before_it_is_due,
    no_wait_is_beyond_sqs,
    what_is_given_back_is_visible,
    lost_leases_are_left_alone,
    attempts_are_counted,
    attempts_are_within_the_policy,
    letters_say_why,
    bare_moves_have_a_cause,
    the_log_tells_the_truth,
    answers_are_well_formed,
    tarry_itself_does_not_fail,
    requests_keep_their_budget,
    everything_settles,
    faults_strike,
)


def check(history: RecordedHistory, checkers: Iterable[Checker] = ALL) -> list[Violation]:
    """All violations, in the order of the rules."""
    return [violation for checker in checkers for violation in checker(history)]
