"""Requests that settle messages: sending copies, deleting, changing visibility. Leases: when they end, and are lost.

Send, check the confirmation, then delete the original: in this order, a crash can duplicate a message but not lose it.
An original is deleted only after SQS has confirmed its copy with a message id and the MD5 of the body.
"""

from __future__ import annotations

import hashlib
import math
import os
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar

from tarry.sqs.refusals import (
    Refused,
    doubt,
    error_code,
    failed_entries,
    is_stale_handle,
    is_worth_splitting,
    requests_of,
    tens,
    was_repeated,
)
from tarry.support.values import MAX_VISIBILITY_SECONDS, WARNING, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.settle.copies import Copy
    from tarry.sqs.client import Lookups
    from tarry.support.values import QueueArn

T = TypeVar("T")

PATIENCE_SECONDS = 2.0  # the longest wait for an extension by ``keepalive``, a delete or a delay in progress
SHARE = 0.1  # the share of the time left for such a wait, and for requests before a message runs


def patience(invocation: Invocation) -> float:
    return min(PATIENCE_SECONDS, max(0.0, invocation.time_left() * SHARE))


def lose_lease(delivery: Delivery) -> None:
    delivery.is_lost = True
    if delivery.source.is_fifo:
        vars(delivery.invocation).setdefault("lost_groups", set()).add(delivery.group)  # any thread may call this


def is_stopped_by_lost_lease(delivery: Delivery) -> bool:
    """Return whether a message must not run here: on FIFO, if a lease of its group is lost."""
    lost = delivery.invocation.lost_groups
    return bool(lost) and delivery.group in lost


def lease_end(delivery: Delivery, visibility_timeout: int | None) -> float | None:
    """Return when the lease on a delivery ends, in epoch seconds; None if the queue's timeout is not known."""
    if delivery.visible_at is not None or visibility_timeout is None:
        return delivery.visible_at
    # A lease begins at its receive; an event record has only the time of the first receive.
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


SPREAD_INTERVAL_SECONDS = 30  # the seconds between messages that become visible one by one
MAX_SPREAD_SECONDS = 900  # the longest period over which messages are spread

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
    """Return the change that keeps a message invisible for ``seconds`` from now, and until the ``end`` of its lease."""
    invocation = delivery.invocation
    # An unknown end is taken to be the deadline: Lambda maps no queue whose visibility timeout is shorter than the
    # function's timeout.
    has = invocation.time_left() if end is None else end - invocation.now()
    return extension(delivery, seconds if has == math.inf else max(seconds, has))


def spread(units: Collection[Sequence[Delivery]], beyond: float) -> list[VisibilityChange]:
    """Return changes so that messages, or FIFO groups, come back one by one, ``beyond`` seconds from now (SPEC G4)."""
    interval = min(SPREAD_INTERVAL_SECONDS, MAX_SPREAD_SECONDS / max(1, len(units) - 1))
    return [
        extension(delivery, beyond + index * interval) for index, of_unit in enumerate(units) for delivery in of_unit
    ]


def extend_leases(
    changes: Iterable[VisibilityChange], lookups: Lookups, log: Log, share: float, consequence: str
) -> list[ChangeResult]:
    """Extend leases in a ``share`` of the time left. One whose handle is refused is lost: log ``consequence``."""
    asked_at = lookups.requests.invocation.now()
    possible: list[VisibilityChange] = []
    for change in changes:
        delivery = change.delivery
        known = lookups.known(delivery.source)
        end = lease_end(delivery, None if known is None else known.visibility_timeout)
        if end is None or end > asked_at:
            possible.append(change)
        elif not delivery.is_given_up:
            lose_lease(delivery)
            text = f"The lease has ended: another consumer may have the message. {consequence}"
            log.problem("lease_lost", text, delivery, level=WARNING)
    done = list(change_visibility(possible, lookups, share))
    for result in done:
        delivery, error = result.change.delivery, result.error
        if error is None:
            ends = asked_at + result.change.seconds
            delivery.visible_at = ends if delivery.visible_at is None else max(ends, delivery.visible_at)
        elif delivery.is_given_up:
            continue
        elif result.is_lost:
            text = f"SQS refuses the receipt handle: another consumer may have the message. {consequence}"
            if error_code(error) == "ReceiptHandleIsInvalid" and "AWS_LAMBDA_RUNTIME_API" not in os.environ:
                delivery.is_lost, text = True, MADE_UP  # Lambda passes no handle that was never one of SQS
            else:
                lose_lease(delivery)
            log.problem("lease_lost", text, delivery, error=error, level=WARNING)
        else:
            lookups.warn(error, "change_message_visibility_batch", delivery.source)
    return done


def change_visibility(
    changes: Sequence[VisibilityChange], lookups: Lookups, share: float = 1
) -> Iterator[ChangeResult]:
    """Change the visibility of messages, ten of a queue in a request, in parallel requests; yield the results."""
    # It takes at most a ``share`` of the time left. An entry that SQS refuses as beyond its 12 hours is requested once
    # more, with a timeout that is certain to be allowed.
    beyond: list[VisibilityChange] = []
    for result in _in_tens(changes, lookups, share):
        if result.error is not None and BEYOND_THE_LIMIT in str(result.error):
            delivery = result.change.delivery
            certain = MAX_VISIBILITY_SECONDS - lookups.visibility_timeout(delivery.source)
            beyond.append(VisibilityChange(delivery, min(result.change.seconds, certain)))
        else:
            yield result
    yield from _in_tens(beyond, lookups, share)


def _in_tens(changes: Sequence[VisibilityChange], lookups: Lookups, share: float) -> Iterator[ChangeResult]:
    with_handle = [change for change in changes if change.delivery.receipt_handle]
    if len(with_handle) < len(changes):
        no_handle = Refused("ReceiptHandleIsInvalid", "the record has no receipt handle")
        yield from [ChangeResult(change, no_handle) for change in changes if not change.delivery.receipt_handle]
    chunks = tens_by_queue(with_handle, lambda change: change.delivery)
    answers = lookups.requests.each([partial(_request, chunk, lookups) for chunk in chunks], share)
    for chunk, answer in zip(chunks, answers, strict=True):
        yield from [ChangeResult(change, answer) for change in chunk] if isinstance(answer, Exception) else answer


def tens_by_queue(items: Iterable[T], delivery_of: Callable[[T], Delivery]) -> list[Sequence[T]]:
    """Cut items into those of one request: at most ten, of one queue."""
    by_queue: dict[QueueArn, list[T]] = {}
    for item in items:
        by_queue.setdefault(delivery_of(item).source, []).append(item)
    return [ten for of_queue in by_queue.values() for ten in tens(of_queue)]


def _request(chunk: Sequence[VisibilityChange], lookups: Lookups) -> list[ChangeResult]:
    entries = [
        {"Id": str(index), "ReceiptHandle": change.delivery.receipt_handle, "VisibilityTimeout": change.seconds}
        for index, change in enumerate(chunk)
    ]
    try:
        url = lookups.url(chunk[0].delivery.source)  # inside the bounded job: it may have to make the client
        answer = lookups.requests.call("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever the error, the lease is unchanged
        if len(chunk) > 1 and is_worth_splitting(error):
            return [result for change in chunk for result in _request([change], lookups)]
        return [ChangeResult(change, error) for change in chunk]
    failed = failed_entries(answer)
    return [ChangeResult(change, failed.get(str(index))) for index, change in enumerate(chunk)]


def delete(deliveries: Sequence[Delivery], lookups: Lookups) -> dict[str, Exception]:
    """Delete at most ten messages of one queue; return the errors by delivery id. Lambda deletes them later anyway."""
    with_handle = [delivery for delivery in deliveries if delivery.receipt_handle]
    entries = [
        {"Id": str(index), "ReceiptHandle": delivery.receipt_handle} for index, delivery in enumerate(with_handle)
    ]
    if not entries:
        return {}
    try:
        url = lookups.url(with_handle[0].source)  # inside the bounded job: it may have to make the client
        answer = lookups.requests.call("delete_message_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 the caller judges it
        return {delivery.delivery_id: error for delivery in with_handle}
    refused = failed_entries(answer)
    return {
        delivery.delivery_id: refused[str(index)] for index, delivery in enumerate(with_handle) if str(index) in refused
    }


class Sent(Value):
    """The result of sending a copy; ``may_be_twice``: it is confirmed, but the answer to an earlier try was lost."""

    copy: Copy
    error: Exception | None
    not_deleted: Exception | None = None
    may_be_twice: bool = False


def send_copies(copies: Sequence[Copy], lookups: Lookups) -> Iterator[Sent]:
    """Send copies, delete the originals of confirmed ones; yield the results while other requests are in progress."""
    routes: dict[tuple[QueueArn, QueueArn], list[Copy]] = {}
    for copy in copies:
        routes.setdefault((copy.delivery.source, copy.target), []).append(copy)
    chunks = [chunk for route in routes.values() for chunk in requests_of((copy, copy.size) for copy in route)]
    answers = lookups.requests.each([partial(_send_then_delete, chunk, lookups) for chunk in chunks])
    for chunk, answer in zip(chunks, answers, strict=True):
        if isinstance(answer, Exception):  # cut short: if a send was confirmed, only the delete failed
            yield from [Sent(copy, None, answer) if copy.delivery.is_done else Sent(copy, answer) for copy in chunk]
        else:
            yield from answer


def _send_then_delete(chunk: Sequence[Copy], lookups: Lookups) -> list[Sent]:
    twice: set[str] = set()
    is_traced = "opentelemetry.trace" in modules
    errors = _traced(chunk, lookups, twice) if is_traced else _send(chunk, 0, lookups, twice)
    confirmed = [copy for copy in chunk if errors[copy.delivery.delivery_id] is None]
    kept = delete([copy.delivery for copy in confirmed], lookups)
    return [Sent(copy, errors[each := copy.delivery.delivery_id], kept.get(each), each in twice) for copy in chunk]


def _traced(chunk: Sequence[Copy], lookups: Lookups, twice: set[str]) -> dict[str, Exception | None]:
    from tarry.observe.opentelemetry import SendSpan

    invocation, records = chunk[0].delivery.invocation, [copy.delivery.record for copy in chunk]
    with SendSpan(invocation.world, chunk[0].target.name, lookups.log, records) as span:
        errors = _send(chunk, 0, lookups, twice, span.carrier)
        if (error := next(filter(None, errors.values()), None)) is not None:
            span.failed(error)
    return errors


def _send(
    chunk: Sequence[Copy], variant: int, lookups: Lookups, twice: set[str], trace: Mapping[str, str] | None = None
) -> dict[str, Exception | None]:
    """Return the errors of the sends by delivery id; note confirmed messages as done, and those sent ``twice``."""
    target = chunk[0].target
    url = lookups.url(target)
    entries = [_entry(str(index), copy, variant, trace) for index, copy in enumerate(chunk)]
    try:
        answer = lookups.requests.call("send_message_batch", QueueUrl=url, Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever the error, no copy is confirmed
        if len(chunk) > 1 and is_worth_splitting(error):
            parts = [_send([copy], variant, lookups, twice, trace) for copy in chunk]
            return {delivery_id: why for part in parts for delivery_id, why in part.items()}
        errors: dict[str, Exception | None] = dict.fromkeys((copy.delivery.delivery_id for copy in chunk), error)
    else:
        refused = failed_entries(answer)
        receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
        errors = {
            copy.delivery.delivery_id: refused.get(str(index)) or doubt(copy.body, receipts.get(str(index), {}))
            for index, copy in enumerate(chunk)
        }
        for copy in chunk:
            if errors[copy.delivery.delivery_id] is None:
                copy.delivery.is_settled = copy.delivery.is_done = True  # the response may not wait for the deletes
        if not target.is_fifo and was_repeated(answer):  # a FIFO queue drops the second one
            twice.update(copy.delivery.delivery_id for copy in chunk)
    for copy in chunk:
        why = errors[copy.delivery.delivery_id]
        if why is not None and variant + 1 < len(copy.variants) and _is_too_large(why):
            if variant == 0 and copy.record is not None:
                from tarry.settle.copies import record_cut

                lookups.log.notices(copy.delivery, [record_cut(copy.record)])
            errors |= _send([copy], variant + 1, lookups, twice, trace)
    return errors


def _entry(entry_id: str, copy: Copy, variant: int, trace: Mapping[str, str] | None) -> dict[str, Any]:
    delivery, target, attributes = copy.delivery, copy.target, copy.variants[variant]
    entry: dict[str, Any] = {"Id": entry_id, "MessageBody": copy.body}
    trace_header = delivery.system_attribute("AWSTraceHeader")
    if isinstance(trace_header, str):
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace_header}}
    if trace and variant == 0:
        from tarry.sqs.outgoing import add_trace

        attributes = attributes.copy()
        add_trace(trace, entry, attributes, copy.room)
    if attributes:
        entry["MessageAttributes"] = attributes
    if target.is_fifo:
        # SQS drops a repeat of this transfer, and no other message.
        entry["MessageDeduplicationId"] = hashlib.sha256(
            (copy.transfer or f"{delivery.delivery_id} {target}").encode()
        ).hexdigest()
        entry["MessageGroupId"] = delivery.group_id or delivery.id
    else:
        if (seconds := copy.delay_seconds(delivery.invocation.now())) is not None:
            entry["DelaySeconds"] = seconds  # also 0: the queue may have a default delay
        if delivery.group_id:
            entry["MessageGroupId"] = delivery.group_id
    return entry


def _is_too_large(error: Exception) -> bool:
    return "BatchRequestTooLong" in error_code(error) or "must be shorter than" in str(error)
