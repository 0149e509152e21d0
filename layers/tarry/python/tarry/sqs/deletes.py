"""Deleting messages: ten in a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.sqs.refusals import failed_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.delivery import Delivery
    from tarry.sqs.lookups import Lookups


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
