"""Extending leases: for `Message.extend`, for ``keepalive=``, and on FIFO before anything runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from tarry.errors import LeaseLost
from tarry.settle.eager_acks import Acks
from tarry.settle.requests import (
    SHARE,
    ChangeResult,
    VisibilityChange,
    await_keepalive,
    change_visibility,
    extend_leases,
    extension,
    lease_end,
    lose_lease,
    patience,
    prolongation,
    spread,
)
from tarry.sqs.client import Lookups, Requests, result_of
from tarry.support.values import MAX_VISIBILITY_SECONDS, WARNING, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation, Records
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn
    from tarry.world import Thread


def extend(delivery: Delivery, seconds: float | timedelta) -> None:
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
    for result in change_visibility(changes, lookups):
        if result.error is None:
            result.change.delivery.visible_at = now + result.change.seconds
        elif result.is_lost:
            lose_lease(result.change.delivery)
            if result.change.delivery is delivery:
                raise LeaseLost(f"message {delivery.id} cannot be extended: {result.error}") from result.error
        elif result.change.delivery is delivery:
            raise result.error


async def extend_async(delivery: Delivery, seconds: float | timedelta) -> None:
    import asyncio

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


INTERVALS = 3  # the length of an extension, in intervals: two extensions may fail before the lease ends

IF_LOST_ON_FIFO = "Its FIFO group does not run here, and is only reported as failed."
IF_LOST = "Unless its handler succeeds, it is only reported as failed."


class Keepalive:
    """The thread that extends the leases of a batch at a fixed interval."""

    # ``pending``: the messages that run, wait for their turn, or have failed and are not settled. One that has left
    # it is acknowledged, and deleted: it would otherwise come back before the response.
    def __init__(self, every: float, pending: Records, invocation: Invocation, log: Log) -> None:
        self._every = every
        self._pending = pending
        self._batch = pending.copy()
        self._invocation = invocation
        self._log = log
        self._requests = Requests(invocation)
        self._lookups = Lookups(self._requests, log)
        self._acks = Acks(invocation, log, waits=False)
        self._ended = invocation.world.threads.event()
        self._idle = invocation.keepalive_idle = invocation.world.threads.event()
        self._idle.set()
        self._thread: Thread | None = None

    def start(self) -> None:
        try:
            self._thread = self._invocation.world.threads.start(self._work)
        except RuntimeError:  # the process may have no more threads
            text = "No thread could be started for keepalive=, so the leases of this batch are not extended."
            self._log.problem("not_kept_alive", text, level=WARNING)

    def stop(self) -> None:
        """Stop the thread and its requests: a later extension would undo the visibility that a decision asked for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(patience(self._invocation))
        self._requests.close()
        self._acks.close()

    # in its own thread

    def _work(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._idle.clear()
                pending, delivery = self._pending.copy(), self._invocation.delivery
                self._extend([delivery(*item) for item in pending.items()])
                self._acks.delete_now(delivery(*item) for item in self._batch.items() if item[0] not in pending)
            except Exception as error:  # noqa: BLE001 a defect of tarry must not end the thread
                text = "tarry itself failed to extend leases. It tries again after the interval."
                self._log.problem("runtime_failed", text, error=error)
            finally:
                self._idle.set()

    def _extend(self, deliveries: list[Delivery]) -> None:
        active = [each for each in deliveries if not (each.is_given_up or each.is_lost)]
        for delivery in active:
            if (end := lease_end(delivery, self._visibility_timeout(delivery.source))) is not None:
                delivery.visible_at = end
        changes = [change for delivery in active if (change := self._extension(delivery)) is not None]
        time_left = self._invocation.time_left()
        share = 1.0 if time_left == math.inf else min(1.0, self._every / max(time_left, self._every))
        for result in extend_leases(changes, self._lookups, self._log, share, IF_LOST):
            delivery, error = result.change.delivery, result.error
            if error is not None and not result.is_lost and self._is_over(delivery):
                lose_lease(delivery)
                text = (
                    f"The lease could not be extended and has ended: another consumer may have the message. {IF_LOST}"
                )
                self._log.problem("lease_lost", text, delivery, error=error, level=WARNING)

    def _extension(self, delivery: Delivery) -> VisibilityChange | None:
        """Return the change that extends a lease; None if SQS allows no longer one."""
        end = delivery.visible_at
        # While the handler extends it, the later of two requests would decide, perhaps the shorter one: it is left to
        # the handler's, unless the lease ends before the next interval.
        if delivery.is_being_extended and (end is None or end - self._invocation.now() > self._every):
            return None
        change = prolongation(delivery, self._every * INTERVALS, end)
        return change if change.seconds > 0 else None

    def _is_over(self, delivery: Delivery) -> bool:
        """Return whether the lease of a pending message has ended; one that is being settled is not checked."""
        is_ours = delivery.delivery_id in self._pending and not delivery.is_given_up
        return is_ours and delivery.visible_at is not None and delivery.visible_at <= self._invocation.now()

    def _visibility_timeout(self, queue: QueueArn) -> int | None:
        timeout = self._lookups.source(queue).visibility_timeout
        if timeout is not None and self._every >= timeout:
            text = (
                f"keepalive={self._every:g} is too long: the visibility timeout of {queue.name} is {timeout} s. "
                f"Set keepalive={max(1, timeout // INTERVALS)}, or a longer VisibilityTimeout."
            )
            self._log.once(self._invocation.world, "keepalive_too_long", text)
        return timeout


def renew(
    deliveries: Sequence[Delivery], margin: float, log: Log, one_by_one: Sequence[Sequence[tuple[str, object]]]
) -> None:
    """Renew the leases of FIFO messages until after the deadline, before any of them runs (SPEC H4)."""
    invocation = deliveries[0].invocation
    beyond = invocation.time_left() + margin
    by_id = {each.delivery_id: each for each in deliveries}
    groups = [[by_id.pop(message_id) for message_id, _ in group if message_id in by_id] for group in one_by_one]
    # SQS keeps a group's order only as long as the lease: a message whose lease has ended would run twice at once.
    # Each group of ``one_by_one`` comes back on its own, so the one that crashes comes back alone (SPEC G4).
    changes = [*(extension(each, beyond) for each in by_id.values()), *spread(groups, beyond)]
    possible = [change for change in changes if change.delivery.receipt_handle]
    extend_before_run(possible, invocation, log, IF_LOST_ON_FIFO)


def extend_before_run(
    changes: Sequence[VisibilityChange], invocation: Invocation, log: Log, consequence: str
) -> list[ChangeResult]:
    """Extend leases as `extend_leases` does, but none late: that would undo the visibility that a decision asks for."""
    requests = Requests(invocation)
    try:
        return extend_leases(changes, Lookups(requests, log), log, SHARE, consequence)
    finally:
        requests.close()
