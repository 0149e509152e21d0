"""Leases: until when a message stays invisible, when that is lost (SPEC E6); changing visibility, ten in a request."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING

from tarry.message.notices import WARNING
from tarry.sqs.limits import tens
from tarry.sqs.refusals import Refused, error_code, failed_entries, is_stale_handle, is_worth_splitting
from tarry.support.delays import MAX_VISIBILITY_SECONDS
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.sqs.lookups import Lookups
    from tarry.support.values import QueueArn

PATIENCE_SECONDS = 2.0
"""How long a request waits for an extension by ``keepalive`` that is in progress."""


def lose_lease(delivery: Delivery) -> None:
    """Note that the lease on a delivery is lost."""
    delivery.is_lost = True
    if delivery.source.is_fifo:
        vars(delivery.invocation).setdefault("lost_groups", set()).add(delivery.group)  # any thread may call this


def is_stopped_by_lost_lease(delivery: Delivery) -> bool:
    """Return whether a message must not run here: on FIFO, if a lease of its group is lost."""
    lost = delivery.invocation.lost_groups
    return bool(lost) and delivery.group in lost


def lease_end(delivery: Delivery, visibility_timeout: int | None) -> float | None:
    """Return when the lease on a delivery ends, in epoch seconds; None if that is not known.

    ``visibility_timeout`` is the queue's, in seconds. A lease begins at its receive; an event record has only the time
    of the first receive.
    """
    if delivery.visible_at is not None or visibility_timeout is None:
        return delivery.visible_at
    started_at, received_at = delivery.invocation.started_at, delivery.received_at
    if received_at is None or started_at >= received_at + visibility_timeout:
        # The receive is not known, or Lambda keeps the messages invisible for longer: with a batching window for the
        # window, the function's timeout and 30 s. (Or it is a sample event, received long ago.)
        received_at = started_at
    return min(started_at, received_at) + visibility_timeout


def await_keepalive(invocation: Invocation) -> None:
    """Wait for an extension by ``keepalive`` in progress: reaching SQS after the next request, it would undo that."""
    if (idle := invocation.keepalive_idle) is not None:
        idle.wait(PATIENCE_SECONDS)


SPREAD_INTERVAL_SECONDS = 30
"""The seconds between messages that become visible one by one."""
MAX_SPREAD_SECONDS = 900
"""The longest period over which messages are spread."""

BEYOND_THE_LIMIT = "Total VisibilityTimeout"
MADE_UP = (
    "SQS does not know the receipt handle, which is made up, as in a unit test. The message runs; if its handler "
    "fails, it is only reported as failed. On Lambda, its FIFO group would not run."
)


class VisibilityChange(Value):
    """A new visibility timeout of a message, in seconds from now; 0 makes it visible at once."""

    delivery: Delivery
    seconds: int


class ChangeResult(Value):
    """The result of a `VisibilityChange`: the change as it was made, or the error."""

    change: VisibilityChange
    error: Exception | None

    @property
    def is_lost(self) -> bool:
        """Whether SQS refused the receipt handle: another consumer may have the message by now."""
        return self.error is not None and is_stale_handle(self.error)


def extension(delivery: Delivery, seconds: float) -> VisibilityChange:
    """Return the change that keeps a message invisible for ``seconds`` from now, or as long as SQS allows."""
    return VisibilityChange(delivery, min(math.ceil(seconds), delivery.longest_wait()))


def prolongation(delivery: Delivery, seconds: float, end: float | None) -> VisibilityChange:
    """Return the change that keeps a message invisible for ``seconds`` from now, and never for less than its lease.

    ``end``: when the lease ends, in epoch seconds. If that is unknown, it is taken to last until the deadline: Lambda
    maps no queue whose visibility timeout is shorter than the function's timeout.
    """
    invocation = delivery.invocation
    has = invocation.time_left() if end is None else end - invocation.now()
    return extension(delivery, seconds if has == math.inf else max(seconds, has))


def spread(units: Collection[Sequence[Delivery]], beyond: float) -> list[VisibilityChange]:
    """Return changes that make messages, or FIFO groups, visible one by one, the first ``beyond`` seconds from now.

    A message that kills the process then comes back without the others (SPEC G4).
    """
    interval = min(SPREAD_INTERVAL_SECONDS, MAX_SPREAD_SECONDS / max(1, len(units) - 1))
    return [
        extension(delivery, beyond + index * interval) for index, of_unit in enumerate(units) for delivery in of_unit
    ]


def extend_leases(
    changes: Iterable[VisibilityChange], lookups: Lookups, log: Log, share: float, consequence: str
) -> list[ChangeResult]:
    """Extend the leases of messages of any queues, in at most a ``share`` of the time left; return the results.

    A lease whose receipt handle SQS refuses is lost for the rest of the invocation, and logged with ``consequence``.
    """
    invocation = lookups.requests.invocation
    asked_at = invocation.now()
    by_queue: dict[QueueArn, list[VisibilityChange]] = {}
    for change in changes:
        delivery = change.delivery
        known = lookups.known(delivery.source)
        end = lease_end(delivery, None if known is None else known.visibility_timeout)
        if end is None or end > asked_at:
            by_queue.setdefault(delivery.source, []).append(change)
        elif not delivery.is_given_up:
            lose_lease(delivery)
            log.problem(
                "lease_lost",
                f"The lease has ended: another consumer may have the message. {consequence}",
                delivery,
                level=WARNING,
            )
    done = [result for queue, batch in by_queue.items() for result in change_visibility(batch, queue, lookups, share)]
    for result in done:
        delivery, error = result.change.delivery, result.error
        if error is None:
            ends = asked_at + result.change.seconds
            delivery.visible_at = ends if delivery.visible_at is None else max(ends, delivery.visible_at)
        elif delivery.is_given_up:
            continue
        elif result.is_lost:
            text = f"SQS refuses the receipt handle: another consumer may have the message. {consequence}"
            if _is_made_up(error):
                delivery.is_lost, text = True, MADE_UP
            else:
                lose_lease(delivery)
            log.problem("lease_lost", text, delivery, error=error, level=WARNING)
        else:
            lookups.warn(error, "change_message_visibility_batch", delivery.source)
    return done


def change_visibility(
    changes: Sequence[VisibilityChange], queue: QueueArn, lookups: Lookups, share: float = 1
) -> Iterator[ChangeResult]:
    """Change the visibility of messages of one queue, ten in a request, in parallel requests; yield the results.

    The results of one request are yielded while others wait for their answers. An entry that SQS refuses as beyond its
    12 hours is requested once more with a timeout that is certain to be allowed. It takes at most a ``share`` of the
    time left.
    """
    beyond: list[VisibilityChange] = []
    for result in _in_tens(changes, queue, lookups, share):
        if _is_beyond(result):
            beyond.append(result.change)
        else:
            yield result
    if beyond:
        certain = MAX_VISIBILITY_SECONDS - lookups.visibility_timeout(queue)
        shorter = [VisibilityChange(change.delivery, min(change.seconds, certain)) for change in beyond]
        yield from _in_tens(shorter, queue, lookups, share)


def _is_made_up(error: Exception) -> bool:
    """Return whether a receipt handle was never one of SQS, and this is not Lambda, which passes no such handle."""
    return error_code(error) == "ReceiptHandleIsInvalid" and "AWS_LAMBDA_RUNTIME_API" not in os.environ


def _is_beyond(result: ChangeResult) -> bool:
    return result.error is not None and BEYOND_THE_LIMIT in str(result.error)


def _in_tens(
    changes: Sequence[VisibilityChange], queue: QueueArn, lookups: Lookups, share: float
) -> Iterator[ChangeResult]:
    with_handle = [change for change in changes if change.delivery.receipt_handle]
    if len(with_handle) < len(changes):
        no_handle = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
        yield from [ChangeResult(change, no_handle) for change in changes if not change.delivery.receipt_handle]
    chunks = list(tens(with_handle))
    answers = lookups.requests.each([partial(_request, chunk, queue, lookups) for chunk in chunks], share)
    for chunk, answer in zip(chunks, answers, strict=True):
        yield from [ChangeResult(change, answer) for change in chunk] if isinstance(answer, Exception) else answer


def _request(chunk: Sequence[VisibilityChange], queue: QueueArn, lookups: Lookups) -> list[ChangeResult]:
    entries = [
        {"Id": str(index), "ReceiptHandle": change.delivery.receipt_handle, "VisibilityTimeout": change.seconds}
        for index, change in enumerate(chunk)
    ]
    try:
        url = lookups.url(queue)  # inside the bounded job: it may have to make the client
        answer = lookups.requests.call("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever the error, the lease is unchanged
        if len(chunk) > 1 and is_worth_splitting(error):
            return [result for change in chunk for result in _request([change], queue, lookups)]
        return [ChangeResult(change, error) for change in chunk]
    failed = failed_entries(answer)
    return [ChangeResult(change, failed.get(str(index))) for index, change in enumerate(chunk)]
