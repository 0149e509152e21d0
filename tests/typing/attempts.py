"""Consumers with an attempt store, as a user writes them. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from tarry import (
    AttemptChange,
    AttemptStore,
    Batch,
    DynamoDBAttempts,
    Failure,
    MemoryAttempts,
    Message,
    batch_consumer,
    consumer,
)


class RedisAttempts:
    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def write(self, changes: Sequence[AttemptChange]) -> None:
        for change in changes:
            assert_type(change.applied_to(None), dict[str, Any] | None)


@consumer(attempts=DynamoDBAttempts("attempts"))
def in_dynamodb(message: Message) -> None:
    assert_type(message.attempt, int)
    if message.failure is not None:
        assert_type(message.failure.attempts_at_most, bool)
        assert_type(message.failure.crashes, int | None)


@batch_consumer(attempts=MemoryAttempts())
def in_memory(batch: Batch) -> None: ...


@consumer(attempts=RedisAttempts())
def in_redis(message: Message) -> None: ...


def chosen(is_test: bool) -> AttemptStore:
    return MemoryAttempts() if is_test else DynamoDBAttempts("attempts", client=None)


def crashes(failure: Failure) -> None:
    assert_type(failure.crashes, int | None)
