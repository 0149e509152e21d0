"""Sending copies: send, check the confirmation, then delete the originals. Deleting messages, ten in a request.

In this order, a crash can duplicate a message but not lose it. An original is deleted only after SQS has confirmed its
copy with a message id and the MD5 of the body.
"""

from __future__ import annotations

import hashlib
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any

from tarry.settle.copies import Copy, record_cut
from tarry.sqs.limits import requests_of
from tarry.sqs.outgoing import SYSTEM_ATTRIBUTES, add_trace
from tarry.sqs.refusals import doubt, error_code, failed_entries, is_worth_splitting, was_repeated
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tarry.message.delivery import Delivery
    from tarry.sqs.lookups import Lookups
    from tarry.support.values import QueueArn


def delete(deliveries: Sequence[Delivery], lookups: Lookups) -> dict[str, Exception]:
    """Delete at most ten messages of one queue; return the errors by delivery id.

    A failed delete loses nothing: Lambda deletes every message that the response does not report as failed.
    """
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
    """The result of sending a copy: confirmed if ``error`` is None; ``not_deleted`` is the error of the delete.

    ``may_be_twice``: the send is confirmed, but the answer to an earlier try was lost.
    """

    copy: Copy
    error: Exception | None
    not_deleted: Exception | None = None
    may_be_twice: bool = False


def send_copies(copies: Sequence[Copy], lookups: Lookups) -> Iterator[Sent]:
    """Send copies in as few requests as possible, and delete the originals of confirmed copies; yield the results.

    The results of one request are yielded while others wait for their answers.
    """
    routes: dict[tuple[QueueArn, QueueArn], list[Copy]] = {}
    for copy in copies:
        routes.setdefault((copy.delivery.source, copy.target), []).append(copy)
    chunks = [chunk for route in routes.values() for chunk in requests_of((copy, copy.size) for copy in route)]
    answers = lookups.requests.each([partial(_send_then_delete, chunk, lookups) for chunk in chunks])
    for chunk, answer in zip(chunks, answers, strict=True):
        yield from [_cut_short(copy, answer) for copy in chunk] if isinstance(answer, Exception) else answer


def _cut_short(copy: Copy, error: Exception) -> Sent:
    """Return the result of a copy whose request was cut short: if the send was confirmed, only the delete failed."""
    return Sent(copy, None, error) if copy.delivery.is_done else Sent(copy, error)


def _send_then_delete(chunk: Sequence[Copy], lookups: Lookups) -> list[Sent]:
    twice: set[str] = set()
    is_traced = "opentelemetry.trace" in modules
    errors = _traced(chunk, lookups, twice) if is_traced else _send(chunk, 0, lookups, twice)
    confirmed = [copy for copy in chunk if errors[copy.delivery.delivery_id] is None]
    kept = delete([copy.delivery for copy in confirmed], lookups)
    ids = [copy.delivery.delivery_id for copy in chunk]
    return [Sent(copy, errors[each], kept.get(each), each in twice) for copy, each in zip(chunk, ids, strict=True)]


def _traced(chunk: Sequence[Copy], lookups: Lookups, twice: set[str]) -> dict[str, Exception | None]:
    """Send copies as `_send`, within a span."""
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
    """Return the errors of the sends by delivery id, None if confirmed; note confirmed messages as done at once.

    Add the delivery ids of messages that may have been sent twice to ``twice``.
    """
    url = lookups.url(chunk[0].target)
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
        if not chunk[0].target.is_fifo and was_repeated(answer):  # a FIFO queue drops the second one
            twice.update(copy.delivery.delivery_id for copy in chunk)
    for copy in chunk:
        why = errors[copy.delivery.delivery_id]
        if why is not None and variant + 1 < len(copy.variants) and _is_too_large(why):
            if variant == 0 and copy.record is not None:
                lookups.log.notices(copy.delivery, [record_cut(copy.record)])
            errors |= _send([copy], variant + 1, lookups, twice, trace)
    return errors


def _entry(entry_id: str, copy: Copy, variant: int, trace: Mapping[str, str] | None) -> dict[str, Any]:
    delivery, target, attributes = copy.delivery, copy.target, copy.variants[variant]
    entry: dict[str, Any] = {"Id": entry_id, "MessageBody": copy.body}
    trace_header = delivery.system_attribute("AWSTraceHeader")
    if isinstance(trace_header, str):
        entry[SYSTEM_ATTRIBUTES] = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace_header}}
    if trace and variant == 0:
        attributes = attributes.copy()
        add_trace(trace, entry, attributes, copy.room)
    if attributes:
        entry["MessageAttributes"] = attributes
    if target.is_fifo:
        # SQS drops a repeat of this transfer, and no other message.
        entry["MessageDeduplicationId"] = hashlib.sha256(copy.transfer.encode()).hexdigest()
        entry["MessageGroupId"] = delivery.group_id or delivery.id
    else:
        if (seconds := copy.delay_seconds(delivery.invocation.now())) is not None:
            entry["DelaySeconds"] = seconds  # also 0: the queue may have a default delay
        if delivery.group_id:
            entry["MessageGroupId"] = delivery.group_id
    return entry


def _is_too_large(error: Exception) -> bool:
    return "BatchRequestTooLong" in error_code(error) or "must be shorter than" in str(error)
