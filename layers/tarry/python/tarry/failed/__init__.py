"""Dead letters: looked at, sent back, removed. What `tarry failed` does, for programs.

    from tarry import failed

    with failed.opened("orders-dlq") as look:
        for letter in failed.show(look, failed.select(where=["reason = exhausted"])).letters:
            ...
        for result in failed.retry(look, failed.select(ids), failed.Routes(look.queue)):
            ...

It talks to SQS through the current `tarry.world`. Nothing is printed. It needs ``jmespath`` (which boto3 brings) for
conditions alone.
"""

from tarry.failed.deleting import check_may_delete
from tarry.failed.errors import BadFilter, CannotEdit, NotAllowed, NowhereToGo, UnknownQueue
from tarry.failed.in_process import run, run_letter
from tarry.failed.letter import Letter, edit
from tarry.failed.look import Look, opened
from tarry.failed.queues import DeadLetterQueue, find
from tarry.failed.removing import remove, remove_letters
from tarry.failed.result import Result
from tarry.failed.retrying import retry, retry_letters
from tarry.failed.routes import Routes
from tarry.failed.selection import Selection, not_found, scanned, select
from tarry.failed.showing import Shown, as_event, as_json, show
from tarry.failed.where import Condition, condition, matches

__all__ = [
    "BadFilter",
    "CannotEdit",
    "Condition",
    "DeadLetterQueue",
    "Letter",
    "Look",
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
    "remove_letters",
    "retry",
    "retry_letters",
    "run",
    "run_letter",
    "scanned",
    "select",
    "show",
]
