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

from tarry.failed.archive import Archive, ArchiveFile
from tarry.failed.archive_bucket import ArchiveBucket
from tarry.failed.conditions import Condition, condition, matches
from tarry.failed.dead_letters import DeadLetterMessage, as_event, as_json, edit
from tarry.failed.errors import AmbiguousId, BadFilter, CannotEdit, NotAllowed, NowhereToGo, UnknownQueue
from tarry.failed.in_process import run, run_dead_letter
from tarry.failed.inspection import Inspection, opened
from tarry.failed.queues import DeadLetterQueue, Routes, find
from tarry.failed.removing import check_may_delete, remove, remove_dead_letters
from tarry.failed.restoring import restore
from tarry.failed.result import Result
from tarry.failed.retrying import retry, retry_dead_letters
from tarry.failed.selection import Selection, Shown, not_found, scanned, select, show

__all__ = [
    "AmbiguousId",
    "Archive",
    "ArchiveBucket",
    "ArchiveFile",
    "BadFilter",
    "CannotEdit",
    "Condition",
    "DeadLetterMessage",
    "DeadLetterQueue",
    "Inspection",
    "NotAllowed",
    "NowhereToGo",
    "Result",
    "Routes",
    "Selection",
    "Shown",
    "UnknownQueue",
    "as_event",
    "as_json",
    "check_may_delete",
    "condition",
    "edit",
    "find",
    "matches",
    "not_found",
    "opened",
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
]
