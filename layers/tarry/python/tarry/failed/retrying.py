"""Sending letters back: send, confirm, then delete. Whatever goes wrong, a letter is where it was, or in both places.

In tens, each confirmed and deleted before the next: a process that is killed leaves at most those that were under way
in both queues, with one id.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from tarry.failed.copies import DoesNotFit, copy_of
from tarry.failed.deleting import GONE, check_may_delete, delete_patiently
from tarry.failed.errors import NowhereToGo
from tarry.failed.requests import TRIES, wait
from tarry.failed.result import Result, failed, skipped
from tarry.failed.selection import Selection, by_ids, not_found, offered
from tarry.settlement.sending import Sent, send_on
from tarry.sqs.limits import MAX_ENTRIES
from tarry.sqs.refusals import error_code, is_denied, is_refused_for_now, may_be_applied

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.failed.letter import Letter
    from tarry.failed.look import Look
    from tarry.failed.routes import Routes
    from tarry.settlement.copies import Copy

UNDECODABLE = "no handler can read its body: edit it, or remove it"


def retry(look: Look, selection: Selection, routes: Routes, *, concurrency: int = 1) -> Iterator[Result]:
    """Sends the letters that are meant back to their queues, ten at a time; what came of each.

    Those with ids go in the order of these. Before anything is sent it is found out whether letters may be deleted, and
    for ids where each of them goes. ``concurrency``: how many requests go out at once.

    Raises `NowhereToGo` for an id whose letter cannot go back, `NotAllowed`, and whatever botocore raises.
    """
    check_may_delete(look)
    at_once = MAX_ENTRIES * concurrency
    if not selection.ids:
        for letters in look.polls(at_once):
            results = retry_letters(look, offered(look, letters, selection), routes, by_id=False)
            yield from results
            if results and all(result.hindrance == "denied" for result in results):
                return  # nor will the others be
        return
    found = by_ids(look, selection.ids)
    for letter in found.values():
        if not letter.is_undecodable:
            routes.target(letter)
    named = iter(selection.ids)
    while not look.is_stopped and (some := list(islice(named, at_once))):
        letters = list(dict.fromkeys(found[name] for name in some if name in found))
        by_letter = dict(zip(letters, retry_letters(look, letters, routes), strict=True))
        for name in some:
            yield by_letter[found[name]] if name in found else Result(name, "failed", not_found(look))


def retry_letters(look: Look, letters: Sequence[Letter], routes: Routes, *, by_id: bool = True) -> list[Result]:
    """Sends these back. ``by_id``: they were named, so that it is a failure if one cannot go."""
    results: dict[str, Result] = {}
    sendable: list[tuple[Letter, Copy]] = []
    for letter in letters:
        answer = _prepared(look, letter, routes, by_id=by_id)
        if isinstance(answer, Result):
            results[letter.delivery_id] = answer
        else:
            look.done.add(letter.id)
            sendable.append((letter, answer))
    for batch in _in_order(sendable):
        results |= _send(look, batch)
    return [results[letter.delivery_id] for letter in letters]


def _prepared(look: Look, letter: Letter, routes: Routes, *, by_id: bool) -> Copy | Result:
    if letter.id in look.done:
        return skipped(letter, "a letter of this id was retried already: it is a double, or has died again")
    if letter.is_undecodable:
        return failed(letter, UNDECODABLE, "undecodable") if by_id else skipped(letter, UNDECODABLE)
    try:
        target = routes.target(letter)
        held = look.delivery(letter)
        return failed(letter, GONE) if held is None else copy_of(letter, held, target, look.lookups)
    except NowhereToGo as error:
        return failed(letter, str(error), "nowhere")
    except DoesNotFit as error:
        return failed(letter, str(error))


def _in_order(sendable: list[tuple[Letter, Copy]]) -> Iterator[list[tuple[Letter, Copy]]]:
    """To FIFO queues one letter of a group at a time, so that none overtakes one that could not be sent."""
    rest = sendable
    while rest:
        taken: set[tuple[str, str]] = set()
        batch, later = [], []
        for letter, copy in rest:
            group = _group(letter, copy)
            if copy.target.is_fifo and group in taken:
                later.append((letter, copy))
            else:
                batch.append((letter, copy))
                taken.add(group)
        yield batch
        rest = later


def _send(look: Look, batch: list[tuple[Letter, Copy]]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    letters: dict[str, Letter] = {}
    copies: list[Copy] = []
    for letter, copy in batch:
        ahead = look.stopped_groups.get(_group(letter, copy))
        if ahead is None:
            letters[letter.delivery_id] = letter
            copies.append(copy)
        else:
            results[letter.delivery_id] = failed(letter, f"it stands behind {ahead} in its group, which was not sent")
    for sent in send_patiently(look, copies):
        letter = letters[sent.copy.delivery.delivery_id]
        results[letter.delivery_id] = _told(look, letter, sent)
        if sent.error is not None and sent.copy.target.is_fifo:
            look.stopped_groups[_group(letter, sent.copy)] = letter.id
    return results


def _group(letter: Letter, copy: Copy) -> tuple[str, str]:
    return copy.target.text, letter.group_id or letter.id


def send_patiently(look: Look, copies: list[Copy]) -> list[Sent]:
    """Sends them, then deletes what they are copies of; what is throttled again and again, for a while."""
    done: list[Sent] = []
    for number in range(1, TRIES + 1):
        sent = send_on(copies, look.lookups)
        throttled = [each for each in sent if each.error is not None and is_refused_for_now(each.error)]
        if number == TRIES or not throttled:
            throttled = []
        done += [each for each in sent if each not in throttled]
        if not throttled:
            return done
        copies = [each.copy for each in throttled]
        wait(number)
    return done


def _told(look: Look, letter: Letter, sent: Sent) -> Result:
    queue, target = look.queue.name, sent.copy.target.name
    if sent.error is not None:
        if is_denied(error_code(sent.error)):
            return failed(letter, f"sqs:SendMessage on {target} is not allowed: {sent.error}", "denied")
        if may_be_applied(sent.error):
            error = f"not confirmed ({sent.error}): it may be in {target}, and is still in {queue}"
            return failed(letter, error)
        return failed(letter, f"{target}: {sent.error}")
    if sent.not_deleted is not None and (why := delete_patiently(look, [letter]).get(letter.delivery_id)):
        return failed(letter, f"it is in {target}, and could not be deleted from {queue} ({why}): remove it there")
    look.forget([letter])
    has_record = len(sent.copy.variants[0]) > len(letter.attributes)
    note = None if has_record else "it went without a record, for which there is no room: it has a new id"
    return Result(letter.id, "retried", note=note, letter=letter)
