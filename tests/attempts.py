"""A table of attempts in moto, whose requests are counted and can fail."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from moto import mock_aws

from tarry import AttemptChange, DynamoDBAttempts

TABLE = "attempts"
LOGIN = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class OneAtATime(DynamoDBAttempts):
    """A store that makes one request after the other: moto fails if several threads write to a table at once."""

    def __init__(self, table: str, *, client: Any) -> None:
        super().__init__(table, client=client)
        self._one = threading.Lock()

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        with self._one:
            return super().read(ids)

    def write(self, changes: Sequence[AttemptChange]) -> None:
        with self._one:
            super().write(changes)


class AttemptsTable:
    """The table, and the store in it."""

    def __init__(self) -> None:
        self.plain = boto3.client("dynamodb", **LOGIN)  # type: ignore[call-overload]
        config = Config(retries={"total_max_attempts": 1})
        client = boto3.client("dynamodb", config=config, **LOGIN)  # type: ignore[call-overload]
        self.store = OneAtATime(TABLE, client=client)
        self.operations: list[str] = []
        """The operations that were requested."""
        self.fault: Callable[[str, bool], Exception | None] = _no_fault
        """Returns the error of a request: of one that is refused, or of one whose answer is lost (it is applied)."""
        client.meta.events.register("before-call.dynamodb", self._before)
        client.meta.events.register("after-call.dynamodb", self._after)

    def make(self, key: str = "id") -> None:
        self.plain.create_table(
            TableName=TABLE,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def delete(self) -> None:
        self.plain.delete_table(TableName=TABLE)
        self.operations.clear()
        self.fault = _no_fault

    def refuses(self, error: Exception) -> None:
        """Refuse all requests."""
        self.fault = lambda operation, is_applied: None if is_applied else error

    def record(self, key: str) -> dict[str, Any]:
        """Return a record; an empty one if there is none."""
        return dict(DynamoDBAttempts(TABLE, client=self.plain).read([key]).get(key, {}))

    def _before(self, model: Any, **_: Any) -> None:
        self.operations.append(model.name)
        if (error := self.fault(model.name, False)) is not None:
            raise error

    def _after(self, model: Any, **_: Any) -> None:
        if (error := self.fault(model.name, True)) is not None:
            raise error


def _no_fault(operation: str, is_applied: bool) -> None:
    """Let a request succeed."""


@contextmanager
def attempts_tables() -> Iterator[AttemptsTable]:
    """Provide moto with a table that is not made yet; all tests of a module share it, since this takes a while."""
    with mock_aws():
        yield AttemptsTable()
