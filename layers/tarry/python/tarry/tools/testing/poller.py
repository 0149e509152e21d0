"""The requests of Lambda's poller to a queue, made with boto3: receive a batch, and delete what has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tarry.failed.queue_names import counts_of, region_of
from tarry.failed.received import event_record
from tarry.sqs.limits import tens
from tarry.sqs.refusals import error_code, failed_entries, is_no_queue, is_stale_handle
from tarry.tools.simulator.mapping import EVENT_OVERHEAD_BYTES, MAX_EVENT_BYTES, MAX_PER_REQUEST, record_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.message.delivery import Delivery

Record = dict[str, Any]
"""A record of an SQS event."""


class Poller:
    """A queue, accessed as the poller of Lambda does."""

    def __init__(self, client: Any, url: str, name: str) -> None:
        self.client = client
        self._url = url
        try:
            attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        except ClientError as error:
            if not is_no_queue(error_code(error)):
                raise
            where = f"{client.meta.endpoint_url}, {client.meta.region_name}"
            raise ValueError(
                f"SQS ({where}) has no queue {name!r}: make it with the same client, and with moto in the same "
                "mock_aws() as the call of deliver"
            ) from error
        self._arn: str = attributes["QueueArn"]
        counts = counts_of(attributes)
        self.invisible = counts.in_flight + counts.delayed

    def receive(self, most: int) -> list[Record]:
        """Receive up to ``most`` messages, ten per request, until there are no more visible ones."""
        records: dict[str, Record] = {}
        while len(records) < most:
            messages = self.client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=min(MAX_PER_REQUEST, most - len(records)),
                WaitTimeSeconds=0,
                AttributeNames=["All"],  # the old name, which all emulators support
                MessageAttributeNames=["All"],
            ).get("Messages", [])
            fresh = [each for each in messages if each["MessageId"] not in records]
            if not fresh:
                break  # the queue is empty, or its visibility timeout is 0
            records |= {each["MessageId"]: event_record(each, self._arn, region_of(self._arn)) for each in fresh}
        size = EVENT_OVERHEAD_BYTES + sum(map(record_bytes, records.values()))
        if size > MAX_EVENT_BYTES:
            self._release(records.values())
            raise ValueError(
                f"the batch of {len(records)} messages has {size:,} bytes, and Lambda's events at most "
                f"{MAX_EVENT_BYTES:,}: give a smaller batch_size"
            )
        return list(records.values())

    def delete(self, deliveries: Sequence[Delivery]) -> dict[str, str]:
        """Delete messages; return why, by delivery id, for those that SQS refuses to delete."""
        refused: dict[str, str] = {}
        for ten in tens(deliveries):
            entries = [{"Id": str(index), "ReceiptHandle": each.receipt_handle} for index, each in enumerate(ten)]
            errors = failed_entries(self.client.delete_message_batch(QueueUrl=self._url, Entries=entries))
            refused |= {
                ten[int(index)].delivery_id: f"not deleted: {error}"
                for index, error in errors.items()
                if not is_stale_handle(error)  # the handler has deleted it
            }
        return refused

    def _release(self, records: Iterable[Record]) -> None:
        for record in records:
            self.client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=record["receiptHandle"], VisibilityTimeout=0
            )
