"""Tables in moto, whose requests can fail, and a table of idempotency records in memory, which is slow."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
from botocore.config import Config

from tarry.world import current

TABLE = "idempotency"


def no_fault(operation: str, is_applied: bool) -> None:
    """Let a request succeed."""


class Table:
    """A table in moto."""

    name = TABLE

    def __init__(self) -> None:
        login: Any = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.plain = boto3.client("dynamodb", **login)
        """A client whose requests are neither counted nor fail."""
        self.client = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 1}), **login)
        self.operations: list[str] = []
        """The operations that were requested."""
        self.fault: Callable[[str, bool], Exception | None] = no_fault
        """Returns the error of a request: of one that is refused, or of one whose answer is lost (it is applied)."""
        self.client.meta.events.register("before-call.dynamodb", self._before)
        self.client.meta.events.register("after-call.dynamodb", self._after)

    def make(self, key: str = "id") -> None:
        self.plain.create_table(
            TableName=self.name,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def delete(self) -> None:
        self.plain.delete_table(TableName=self.name)
        self.operations.clear()
        self.fault = no_fault

    def _before(self, model: Any, **_: Any) -> None:
        self.operations.append(model.name)
        if (error := self.fault(model.name, False)) is not None:
            raise error

    def _after(self, model: Any, **_: Any) -> None:
        if (error := self.fault(model.name, True)) is not None:
            raise error


class IdempotencyTable(Table):
    """A table of idempotency records, and the persistence layer for it."""

    def layer(self) -> DynamoDBPersistenceLayer:
        return DynamoDBPersistenceLayer(table_name=TABLE, boto3_client=self.client)

    def statuses(self) -> dict[str, str]:
        """Return the status of each record by its key."""
        return {item["id"]["S"]: item["status"]["S"] for item in self.plain.scan(TableName=TABLE)["Items"]}

    def put(self, key: str, in_progress_until: float) -> None:
        """Write the record of another delivery that runs."""
        attributes = {"expiration": in_progress_until + 1e6, "in_progress_expiration": in_progress_until * 1000}
        numbers = {name: {"N": str(int(value))} for name, value in attributes.items()}
        self.plain.put_item(TableName=TABLE, Item={"id": {"S": key}, "status": {"S": "INPROGRESS"}, **numbers})


@contextmanager
def made(table: Table, key: str = "id") -> Iterator[None]:
    """Make a table, and delete it in the end."""
    table.make(key)
    try:
        yield
    finally:
        table.delete()


Seconds = float | Callable[[str, str], float]
"""How long a request takes: a number, or a function of the operation (``put``, ``get`` ...) and the key."""


class SlowTable(BasePersistenceLayer):
    """A table in memory. A request takes virtual time, and is applied when half of it is over."""

    def __init__(self, seconds: Seconds = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: Seconds = seconds
        self.items: dict[str, DataRecord] = {}
        self.requests: Counter[str] = Counter()
        """The number of requests of each operation."""

    def statuses(self) -> Counter[str]:
        """Return how many records have each status."""
        return Counter(item.status for item in self.items.values())

    def _request(self, operation: str, key: str, apply: Callable[[], Any]) -> Any:
        self.requests[operation] += 1
        seconds = self.seconds(operation, key) if callable(self.seconds) else self.seconds
        clock = current().clock
        if seconds:
            clock.sleep(seconds / 2)
        try:
            return apply()
        finally:
            if seconds:
                clock.sleep(seconds / 2)

    def _get_record(self, idempotency_key: str) -> DataRecord:
        def apply() -> DataRecord:
            if idempotency_key not in self.items:
                raise IdempotencyItemNotFoundError
            return self.items[idempotency_key]

        found: DataRecord = self._request("get", idempotency_key, apply)
        return found

    def _put_record(self, data_record: DataRecord) -> None:
        def apply() -> None:
            old = self.items.get(data_record.idempotency_key)
            if old is not None and not self._is_over(old):
                raise IdempotencyItemAlreadyExistsError(old_data_record=old)
            self.items[data_record.idempotency_key] = data_record

        self._request("put", data_record.idempotency_key, apply)

    @staticmethod
    def _is_over(item: DataRecord) -> bool:
        """Return whether a record in progress counts no more, as the condition of Powertools' DynamoDB layer says."""
        until = item.in_progress_expiry_timestamp
        return item.status == "INPROGRESS" and until is not None and until < current().clock.time() * 1000

    def _update_record(self, data_record: DataRecord) -> None:
        def apply() -> None:
            self.items[data_record.idempotency_key] = data_record

        self._request("update", data_record.idempotency_key, apply)

    def _delete_record(self, data_record: DataRecord) -> None:
        self._request("delete", data_record.idempotency_key, lambda: self.items.pop(data_record.idempotency_key, None))
