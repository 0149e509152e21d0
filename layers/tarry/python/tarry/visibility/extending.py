"""`Message.extend`: a handler that needs more time keeps its message invisible (SPEC I6)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, cast

from tarry.delay import MAX_VISIBILITY_SECONDS, whole_seconds
from tarry.errors import LeaseLost
from tarry.sqs.client import Requests, result_of
from tarry.sqs.lookups import Lookups
from tarry.visibility.changes import Hide, change_visibility
from tarry.visibility.leases import lease_end, lose_lease

if TYPE_CHECKING:
    from datetime import timedelta

    from tarry.delivery import Delivery
    from tarry.telemetry.logs import Log


def extend(delivery: Delivery, seconds: float | timedelta) -> None:
    """See `Message.extend`."""
    wanted = whole_seconds(seconds)
    if not 0 < wanted <= MAX_VISIBILITY_SECONDS:
        raise ValueError(f"extend takes seconds above 0 and at most {MAX_VISIBILITY_SECONDS}, got {seconds!r}")
    invocation = delivery.invocation
    if invocation.ended or delivery.is_closed:
        raise LeaseLost(f"message {delivery.id} cannot be extended: its handler has ended")
    if delivery.receipt_handle is None:
        raise LeaseLost(f"message {delivery.id} cannot be extended: its record has no receipt handle")
    lookups = Lookups(Requests(invocation), cast("Log", invocation.log))
    now = invocation.now()
    known = lookups.source(delivery.source).visibility_timeout if lookups.knows(delivery.source) else None
    end = lease_end(delivery, known)
    if delivery.is_lost or (end is not None and end <= now):
        lose_lease(delivery)
        raise LeaseLost(f"message {delivery.id} cannot be extended: its lease has ended, another consumer may have it")
    together = [delivery, *_behind(delivery)]
    hides = [Hide(each, _seconds(each, wanted, end, now)) for each in together]
    for hidden in change_visibility(hides, delivery.source, lookups):
        if hidden.error is None:
            hidden.hide.delivery.visible_at = now + hidden.hide.seconds
        elif hidden.is_lost:
            lose_lease(hidden.hide.delivery)
            if hidden.hide.delivery is delivery:
                raise LeaseLost(f"message {delivery.id} cannot be extended: {hidden.error}") from hidden.error
        elif hidden.hide.delivery is delivery:
            raise hidden.error


async def extend_async(delivery: Delivery, seconds: float | timedelta) -> None:
    """See `Message.extend_async`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def end(answer: object) -> None:
        if not done.done():
            done.set_result(answer)

    def work() -> None:
        loop.call_soon_threadsafe(end, result_of(lambda: extend(delivery, seconds)))

    delivery.invocation.world.threads.start(work)
    error = await done
    if isinstance(error, Exception):
        raise error


def _seconds(delivery: Delivery, wanted: int, end: float | None, now: float) -> int:
    """Never less than the message is known to have, nor more than SQS allows."""
    end = end if delivery.visible_at is None else delivery.visible_at
    has = 0 if end is None else math.ceil(end - now)
    return min(max(wanted, has), delivery.longest_wait())


def _behind(delivery: Delivery) -> list[Delivery]:
    """On FIFO, the messages of its group that wait behind it in the batch."""
    if not delivery.source.is_fifo:
        return []
    invocation = delivery.invocation
    ids = list(invocation.records)
    later = ids[ids.index(delivery.delivery_id) + 1 :] if delivery.delivery_id in invocation.records else []
    others = [invocation.delivery(each) for each in later]
    return [each for each in others if each.group == delivery.group and not (each.is_given_up or each.is_lost)]
