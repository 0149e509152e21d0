"""`Message.extend`: a handler that needs more time keeps its message invisible (SPEC I6)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, cast

from tarry.delay import MAX_VISIBILITY_SECONDS, whole_seconds
from tarry.errors import LeaseLost
from tarry.message import Message
from tarry.sqs.client import Requests, result_of
from tarry.sqs.lookups import Lookups
from tarry.visibility.changes import Hide, change_visibility

if TYPE_CHECKING:
    from datetime import timedelta

    from tarry.telemetry.logs import Log


def extend(message: Message[Any], seconds: float | timedelta) -> None:
    """See `Message.extend`."""
    wanted = whole_seconds(seconds)
    if not 0 < wanted <= MAX_VISIBILITY_SECONDS:
        raise ValueError(f"extend takes seconds above 0 and at most {MAX_VISIBILITY_SECONDS}, got {seconds!r}")
    invocation = message._invocation
    if invocation.ended or message._is_closed:
        raise LeaseLost(f"message {message.id} cannot be extended: its handler has ended")
    if message._receipt_handle is None:
        raise LeaseLost(f"message {message.id} cannot be extended: its record has no receipt handle")
    lookups = Lookups(Requests(invocation), cast("Log", invocation.log))
    leases, now = invocation.leases, invocation.now()
    known = lookups.source(message._source).visibility_timeout if lookups.knows(message._source) else None
    end = leases.end_of(message, known)
    if message.delivery_id in leases.lost or (end is not None and end <= now):
        leases.lose(message)
        raise LeaseLost(f"message {message.id} cannot be extended: its lease has ended, another consumer may have it")
    together = [message, *_behind(message)]
    hides = [Hide(each, _seconds(each, wanted, leases.ends.get(each.delivery_id, end), now)) for each in together]
    for hidden in change_visibility(hides, message._source, lookups):
        if hidden.error is None:
            leases.ends[hidden.hide.message.delivery_id] = now + hidden.hide.seconds
        elif hidden.is_lost:
            leases.lose(hidden.hide.message)
            if hidden.hide.message is message:
                raise LeaseLost(f"message {message.id} cannot be extended: {hidden.error}") from hidden.error
        elif hidden.hide.message is message:
            raise hidden.error


async def extend_async(message: Message[Any], seconds: float | timedelta) -> None:
    """See `Message.extend_async`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def end(answer: object) -> None:
        if not done.done():
            done.set_result(answer)

    def work() -> None:
        loop.call_soon_threadsafe(end, result_of(lambda: extend(message, seconds)))

    message._invocation.world.threads.start(work)
    error = await done
    if isinstance(error, Exception):
        raise error


def _seconds(message: Message[Any], wanted: int, end: float | None, now: float) -> int:
    """Never less than the message is known to have, nor more than SQS allows."""
    has = 0 if end is None else math.ceil(end - now)
    return min(max(wanted, has), message._longest_wait())


def _behind(message: Message[Any]) -> list[Message[Any]]:
    """On FIFO, the messages of its group that wait behind it in the batch."""
    if not message._source.is_fifo:
        return []
    invocation = message._invocation
    ids = list(invocation.records)
    later = ids[ids.index(message.delivery_id) + 1 :] if message.delivery_id in invocation.records else []
    gone = invocation.leases.given_up | invocation.leases.lost
    later = [each for each in later if each not in gone]
    others = [Message[Any](invocation.records[each], each, invocation) for each in later]
    return [each for each in others if each._source == message._source and each.group_id == message.group_id]
