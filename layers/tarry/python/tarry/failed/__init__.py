"""Inspect dead letters, send them back, and remove them: the operations of `tarry failed`, for programs.

    from tarry import failed

    with failed.opened("orders-dlq") as inspection:
        for dead_letter in failed.show(inspection, failed.select(where=["reason = exhausted"])).dead_letters:
            ...
        for result in failed.retry(inspection, failed.select(ids), failed.Routes(inspection.queue)):
            ...

Requests go to SQS through the current `tarry.world`. The functions print nothing. Conditions need ``jmespath``, which
boto3 installs.
"""

from tarry.failed.archive import Archive, ArchiveBucket, ArchiveFile
from tarry.failed.conditions import Condition, condition, matches
from tarry.failed.dead_letters import DeadLetterMessage, as_event, as_json, edit
from tarry.failed.groups import Group, groups
from tarry.failed.inspection import Inspection, opened
from tarry.failed.pacing import Canary, CanaryReturned, Limits, Pace, TooManyReturned
from tarry.failed.queues import (
    DeadLetterQueue,
    MessageMoveTask,
    Routes,
    cancel_move,
    find,
    last_move,
    moved_since,
    start_move,
)
from tarry.failed.removing import Result, check_may_delete, remove, remove_dead_letters
from tarry.failed.requests import (
    AmbiguousId,
    BadFilter,
    CannotEdit,
    MoveUnconfirmed,
    NotAllowed,
    NowhereToGo,
    UnknownQueue,
)
from tarry.failed.restoring import restore
from tarry.failed.retrying import preview, retry, run, run_dead_letter
from tarry.failed.selection import Selection, Shown, not_found, scanned, select, show
from tarry.failed.sending import retry_dead_letters

__all__ = [
    "AmbiguousId",
    "Archive",
    "ArchiveBucket",
    "ArchiveFile",
    "BadFilter",
    "Canary",
    "CanaryReturned",
    "CannotEdit",
    "Condition",
    "DeadLetterMessage",
    "DeadLetterQueue",
    "Group",
    "Inspection",
    "Limits",
    "MessageMoveTask",
    "MoveUnconfirmed",
    "NotAllowed",
    "NowhereToGo",
    "Pace",
    "Result",
    "Routes",
    "Selection",
    "Shown",
    "TooManyReturned",
    "UnknownQueue",
    "as_event",
    "as_json",
    "cancel_move",
    "check_may_delete",
    "condition",
    "edit",
    "find",
    "groups",
    "last_move",
    "matches",
    "moved_since",
    "not_found",
    "opened",
    "preview",
    "remove",
    "remove_dead_letters",
    "restore",
    "retry",
    "retry_dead_letters",
    "run",
    "run_dead_letter",
    "scanned",
    "select",
    "show",
    "start_move",
]
