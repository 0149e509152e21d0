"""Delete dead letters, after they were written to an archive."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from tarry.failed.requests import TRIES, NotAllowed, wait
from tarry.failed.selection import Selection, by_ids, not_found
from tarry.sqs.refusals import MAX_ENTRIES, error_code, is_denied, is_refused_for_now
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.failed.archive import Archive
    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection

Outcome = Literal["retried", "deleted", "restored", "skipped", "unconfirmed", "failed"]
Hindrance = Literal["nowhere", "denied", "undecodable"]


class Result(Value):
    """The result for one dead letter, or for an id that was not found."""

    id: str
    outcome: Outcome
    """``retried``: sent back to its queue, or handled in this process. ``deleted``: removed. ``restored``: sent to a
    queue from an archive. ``skipped``: left as it is on purpose. ``unconfirmed``: SQS may have carried out the request,
    or not: an answer was lost. ``failed``: not retried, deleted or restored."""
    error: str | None = None
    """Why it failed, or was not confirmed."""
    note: str | None = None
    """An explanation that is not an error."""
    dead_letter: DeadLetterMessage | None = None
    hindrance: Hindrance | None = None
    """Why nothing was done, if the caller can change it: no queue is known to send it to, sending is not allowed, or
    the body cannot be decoded."""


def failed(dead_letter: DeadLetterMessage, error: str, hindrance: Hindrance | None = None) -> Result:
    return Result(dead_letter.id, "failed", error, dead_letter=dead_letter, hindrance=hindrance)


def unconfirmed(dead_letter: DeadLetterMessage, error: str) -> Result:
    """Return the result of a request that SQS may have carried out."""
    return Result(dead_letter.id, "unconfirmed", error, dead_letter=dead_letter)


def skipped(dead_letter: DeadLetterMessage, note: str) -> Result:
    """Return the result of a dead letter that was left alone on purpose."""
    return Result(dead_letter.id, "skipped", note=note, dead_letter=dead_letter)


def twice_in(queue: str) -> str:
    """Return the note on a message whose send SQS has confirmed, after the answer to the first try was lost."""
    return f"it may be in {queue} twice: SQS did not answer the first request"


GONE = "its visibility timeout has ended, or another consumer has received or deleted it"
UNSURE = "its visibility timeout had ended, so SQS may or may not have deleted it"
NO_HANDLE = "tarry-asks-whether-it-may-delete"


def delete_patiently(inspection: Inspection, dead_letters: Sequence[DeadLetterMessage]) -> dict[str, str]:
    """Delete dead letters, retrying throttled requests; return the errors by delivery id."""
    kept: dict[str, str] = {}
    todo, number = list(dead_letters), 0
    while True:
        errors = inspection.delete(todo)
        throttled: list[DeadLetterMessage] = []
        for each in todo:
            kept.pop(each.delivery_id, None)
            if each.delivery_id in errors:
                error = errors[each.delivery_id]
                lost = UNSURE if inspection.may_be_deleted(each) else GONE
                kept[each.delivery_id] = lost if error is None else str(error)
                throttled += [each] if error is not None and is_refused_for_now(error) else []
        todo, number = throttled, number + 1
        if not todo or number == TRIES:
            return kept
        wait(number)


def check_may_delete(inspection: Inspection) -> None:
    """Check the permission to delete, before a dead letter is duplicated. Raises `NotAllowed`."""
    # No message has this handle: SQS checks the permission, and has nothing to delete.
    parameters: dict[str, Any] = {"Entries": [{"Id": "0", "ReceiptHandle": NO_HANDLE}]}
    try:
        inspection.lookups.requests.call(
            "delete_message_batch", QueueUrl=inspection.lookups.url(inspection.queue.arn), **parameters
        )
    except Exception as error:
        if is_denied(error_code(error)):
            raise NotAllowed(f"sqs:DeleteMessage on {inspection.queue.name} is not allowed: {error}") from error


def remove(
    inspection: Inspection, selection: Selection, *, concurrency: int = 1, archive: Archive | None = None
) -> Iterator[Result]:
    """Delete the selected dead letters; yield the result of each.

    Args:
        inspection: The queue under inspection.
        selection: The dead letters to delete.
        concurrency: The number of requests sent at once.
        archive: Where each dead letter is written before it is deleted, for example an `ArchiveFile`.

    Raises:
        tarry.failed.journal.CannotWrite: the archive cannot be written. Dead letters not in it are not deleted.
        NotAllowed: the permission to delete is missing.
        botocore.exceptions.ClientError: SQS refuses another request.
    """
    check_may_delete(inspection)
    if not selection.ids:
        for dead_letters in inspection.polls(MAX_ENTRIES * concurrency):
            chosen = [each for each in dead_letters if inspection.chooses(each, selection)]
            yield from remove_dead_letters(inspection, chosen, archive)
        return
    found = by_ids(inspection, selection.ids)
    if inspection.is_stopped:
        return
    dead_letters = list(dict.fromkeys(found.values()))
    results = dict(zip(dead_letters, remove_dead_letters(inspection, dead_letters, archive), strict=True))
    for name in selection.ids:
        yield results[found[name]] if name in found else Result(name, "failed", not_found(inspection))


def remove_dead_letters(
    inspection: Inspection, dead_letters: Sequence[DeadLetterMessage], archive: Archive | None = None
) -> list[Result]:
    """Write these dead letters to the archive, then delete them; return their results in order."""
    if dead_letters:
        inspection.before_change()
    if archive is not None:  # after the audit and before the delete: if either cannot be written, nothing is deleted
        archive.add(dead_letters)
    errors = delete_patiently(inspection, dead_letters)
    results = [_result(inspection, each, errors.get(each.delivery_id)) for each in dead_letters]
    if archive is not None:
        for outcome, mark in (("deleted", archive.deleted), ("failed", archive.keep)):
            with suppress(Exception):  # `restore` asks about a dead letter without such a line
                mark([each for each, result in zip(dead_letters, results, strict=True) if result.outcome == outcome])
    return results


def _result(inspection: Inspection, dead_letter: DeadLetterMessage, error: str | None) -> Result:
    if error is None:
        return Result(dead_letter.id, "deleted", dead_letter=dead_letter)
    if inspection.may_be_deleted(dead_letter):
        return unconfirmed(dead_letter, error if error == UNSURE else f"SQS may or may not have deleted it: {error}")
    return failed(dead_letter, error)
