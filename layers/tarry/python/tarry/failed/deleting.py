"""Deleting letters, and finding out whether that may be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.failed.errors import NotAllowed
from tarry.failed.requests import TRIES, wait
from tarry.sqs.refusals import error_code, is_denied, is_refused_for_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.failed.letter import Letter
    from tarry.failed.look import Look

GONE = "somebody else has received it meanwhile, or it is deleted"
NO_HANDLE = "tarry-asks-whether-it-may-delete"


def delete_patiently(look: Look, letters: Sequence[Letter]) -> dict[str, str]:
    """Deletes letters, what is throttled again and again, for a while; why which was not, by delivery id."""
    kept: dict[str, str] = {}
    todo = list(letters)
    for number in range(1, TRIES + 1):
        errors = look.delete(todo)
        kept = {each: GONE if error is None else str(error) for each, error in errors.items()} | {
            each: why for each, why in kept.items() if each not in {letter.delivery_id for letter in todo}
        }
        todo = [
            letter for letter in todo if (why := errors.get(letter.delivery_id)) is not None and is_refused_for_now(why)
        ]
        if not todo or number == TRIES:
            break
        wait(number)
    return kept


def check_may_delete(look: Look) -> None:
    """Finds out whether letters may be deleted, before one is doubled. Raises `NotAllowed`."""
    parameters: dict[str, Any] = {"Entries": [{"Id": "0", "ReceiptHandle": NO_HANDLE}]}
    try:
        look.lookups.requests.call("delete_message_batch", QueueUrl=look.lookups.url(look.queue.arn), **parameters)
    except Exception as error:
        if is_denied(error_code(error)):
            raise NotAllowed(f"sqs:DeleteMessage on {look.queue.name} is not allowed: {error}") from error
