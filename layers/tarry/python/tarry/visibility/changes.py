"""The visibility of messages in flight: how long they stay hidden from the next receive."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.sqs.limits import tens
from tarry.sqs.refusals import Refused, failed_entries, is_stale_handle, is_worth_splitting
from tarry.support.value import Value
from tarry.telemetry.logs import WARNING, Log
from tarry.visibility.leases import lease_end, lose_lease

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tarry.delivery import Delivery
    from tarry.sqs.lookups import Lookups
    from tarry.support.arn import QueueArn

APART_SECONDS = 30
"""How far apart messages come back that are to come back one by one."""
SPREAD_SECONDS = 900
"""Within which they come back, however many they are."""

BEYOND_THE_LIMIT = "Total VisibilityTimeout"


class Hide(Value):
    """To hide a message for so many seconds from now; 0 shows it at once."""

    delivery: Delivery
    seconds: int


class Hidden(Value):
    """What came of a `Hide`: for how long it really is, or the error."""

    hide: Hide
    error: Exception | None

    @property
    def is_lost(self) -> bool:
        """Whether SQS refuses the receipt handle: the message may be with somebody else by now."""
        return self.error is not None and is_stale_handle(self.error)


def until(delivery: Delivery, seconds: float) -> Hide:
    """To hide it for so many seconds from now, or as long as SQS can."""
    return Hide(delivery, min(math.ceil(seconds), delivery.longest_wait()))


def spread(units: Collection[Sequence[Delivery]], beyond: float) -> list[Hide]:
    """A visibility of its own for each message or FIFO group, the first ``beyond`` seconds from now (SPEC G4).

    What kills the process among them comes back without the others.
    """
    apart = min(APART_SECONDS, SPREAD_SECONDS / max(1, len(units) - 1))
    return [until(delivery, beyond + index * apart) for index, of_unit in enumerate(units) for delivery in of_unit]


def hold(hides: Iterable[Hide], lookups: Lookups, log: Log, share: float, consequence: str) -> list[Hidden]:
    """Hides messages of any queues while their invocation runs, in at most a ``share`` of the time left.

    A lease that SQS refuses is lost, for all of the invocation: the log says so, with the ``consequence``.
    """
    invocation = lookups.requests.invocation
    asked_at = invocation.now()
    by_queue: dict[QueueArn, list[Hide]] = {}
    for hide in hides:
        delivery = hide.delivery
        known = lookups.source(delivery.source).visibility_timeout if lookups.knows(delivery.source) else None
        end = lease_end(delivery, known)
        if end is None or end > asked_at:
            by_queue.setdefault(delivery.source, []).append(hide)
        elif not delivery.is_given_up:
            lose_lease(delivery)
            log.problem(
                "lease_lost",
                f"The lease has ended: another consumer may have the message. {consequence}",
                delivery,
                level=WARNING,
            )
    done = [hidden for queue, of_it in by_queue.items() for hidden in change_visibility(of_it, queue, lookups, share)]
    for hidden in done:
        delivery, error = hidden.hide.delivery, hidden.error
        if error is None:
            ends = asked_at + hidden.hide.seconds
            delivery.visible_at = ends if delivery.visible_at is None else max(ends, delivery.visible_at)
        elif delivery.is_given_up:
            continue
        elif hidden.is_lost:
            lose_lease(delivery)
            text = f"SQS refuses the receipt handle: another consumer may have the message. {consequence}"
            log.problem("lease_lost", text, delivery, error=error, level=WARNING)
        else:
            lookups.warn(error, "change_message_visibility_batch", delivery.source)
    return done


def change_visibility(hides: Sequence[Hide], queue: QueueArn, lookups: Lookups, share: float = 1) -> list[Hidden]:
    """Hides messages of one queue, ten in a request whatever their delays, several requests at once.

    An entry refused as beyond SQS's 12 hours is asked for once more, with as much as is certain to be allowed. At most
    ``share`` of the time left is spent on it.
    """
    done = _in_tens(hides, queue, lookups, share)
    beyond = [hidden.hide for hidden in done if _is_beyond(hidden)]
    if not beyond:
        return done
    certain = MAX_VISIBILITY_SECONDS - lookups.visibility_timeout(queue)
    shorter = [Hide(hide.delivery, min(hide.seconds, certain)) for hide in beyond]
    return [hidden for hidden in done if not _is_beyond(hidden)] + _in_tens(shorter, queue, lookups, share)


def _is_beyond(hidden: Hidden) -> bool:
    return hidden.error is not None and BEYOND_THE_LIMIT in str(hidden.error)


def _in_tens(hides: Sequence[Hide], queue: QueueArn, lookups: Lookups, share: float) -> list[Hidden]:
    chunks = list(tens([hide for hide in hides if hide.delivery.receipt_handle]))
    answers = lookups.requests.all([partial(_request, chunk, queue, lookups) for chunk in chunks], share)
    no_handle = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
    done = [Hidden(hide, no_handle) for hide in hides if not hide.delivery.receipt_handle]
    for chunk, answer in zip(chunks, answers, strict=True):
        done += [Hidden(hide, answer) for hide in chunk] if isinstance(answer, Exception) else answer
    return done


def _request(chunk: Sequence[Hide], queue: QueueArn, lookups: Lookups) -> list[Hidden]:
    entries = [
        {"Id": str(index), "ReceiptHandle": hide.delivery.receipt_handle, "VisibilityTimeout": hide.seconds}
        for index, hide in enumerate(chunk)
    ]
    try:
        url = lookups.url(queue)  # here, where the time is watched: it may have to make the client
        answer = lookups.requests.call("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever it is, the lease is as it was
        if len(chunk) > 1 and is_worth_splitting(error):
            return [hidden for hide in chunk for hidden in _request([hide], queue, lookups)]
        return [Hidden(hide, error) for hide in chunk]
    failed = failed_entries(answer)
    return [Hidden(hide, failed.get(str(index))) for index, hide in enumerate(chunk)]
