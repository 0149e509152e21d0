"""`Message.extend`: a handler that needs more time extends its lease (SPEC I6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from tarry.errors import LeaseLost
from tarry.settle.visibility import await_keepalive, change_visibility, lease_end, lose_lease, prolongation
from tarry.sqs.client import Requests, result_of
from tarry.sqs.lookups import Lookups
from tarry.support.delays import MAX_VISIBILITY_SECONDS, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tarry.message.delivery import Delivery
    from tarry.observe.logs import Log


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
    together = [delivery, *_behind(delivery)]
    for each in together:
        each.is_being_extended = True
    try:
        await_keepalive(invocation)
        _extend(together, wanted)
    finally:
        for each in together:
            each.is_being_extended = False


def _extend(together: Sequence[Delivery], wanted: int) -> None:
    """Extend the lease of the first message, and with it those of the messages behind it."""
    delivery, invocation = together[0], together[0].invocation
    lookups = Lookups(Requests(invocation), cast("Log", invocation.log))
    timeout = lookups.source(delivery.source).visibility_timeout
    now, end = invocation.now(), lease_end(delivery, timeout)
    if delivery.is_lost or (end is not None and end <= now):
        lose_lease(delivery)
        raise LeaseLost(f"message {delivery.id} cannot be extended: its lease has ended, another consumer may have it")
    changes = [prolongation(each, wanted, lease_end(each, timeout)) for each in together]
    for result in change_visibility(changes, delivery.source, lookups):
        if result.error is None:
            result.change.delivery.visible_at = now + result.change.seconds
        elif result.is_lost:
            lose_lease(result.change.delivery)
            if result.change.delivery is delivery:
                raise LeaseLost(f"message {delivery.id} cannot be extended: {result.error}") from result.error
        elif result.change.delivery is delivery:
            raise result.error


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


def _behind(delivery: Delivery) -> list[Delivery]:
    """Return the messages of its FIFO group that wait behind it in the batch."""
    if not delivery.source.is_fifo:
        return []
    invocation = delivery.invocation
    ids = list(invocation.records)
    later = ids[ids.index(delivery.delivery_id) + 1 :] if delivery.delivery_id in invocation.records else []
    others = [invocation.delivery(each) for each in later]
    return [each for each in others if each.group == delivery.group and not (each.is_given_up or each.is_lost)]
