"""Tables of the campaign that are slow, throttled or down: an attempt store, and a persistence layer of Powertools."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from tarry import AttemptChange, MemoryAttempts, world

MOODS = ["well", "well", "throttled", "lost answers", "slow", "down", "read only", "mixed"]
SLOW = ("slow", "busy", "stalls once")
"""The moods of a table that answers every request, except that ``stalls once`` leaves one request unanswered."""
STALL_SECONDS = 90.0


class FailingStore(MemoryAttempts):
    """A store that fails as its mood says, and remembers the runs that it counted and returned."""

    def __init__(self, seed: int, mood: str | None = None) -> None:
        super().__init__()
        self._random = Random(f"store {seed}")
        self.mood = mood or self._random.choice(MOODS)
        self.returned: dict[str, set[tuple[int, ...]]] = {}
        """The runs that were read, by record."""

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self._trouble()
        found = super().read(ids)
        for key in ids:
            self.returned.setdefault(key, set()).add(tuple(counted_runs(found.get(key, {}))))
        self._lost()
        return found

    def write(self, changes: Sequence[AttemptChange]) -> None:
        assert len({change.id for change in changes}) == len(changes) <= 25
        if self.mood == "read only":
            raise PermissionError("no")
        self._trouble()
        super().write(changes)
        self._lost()

    def _is(self, mood: str, chance: float) -> bool:
        return self.mood in (mood, "mixed") and self._random.random() < chance

    def _trouble(self) -> None:
        if self.mood == "down" or self._is("throttled", 0.4):
            raise RuntimeError("throttled")
        if self._is("slow", 0.5):
            world.current().clock.sleep(self._random.choice([0.1, 0.4, 0.7, 3, 20]))

    def _lost(self) -> None:
        if self._is("lost answers", 0.4):
            raise ConnectionError("the answer was lost")


def counted_runs(record: Mapping[str, Any]) -> set[int]:
    """Return the deliveries of a record that are attempts: runs that failed, or started and did not end."""
    runs, ended = set(record.get("runs", ())), set(record.get("deliveries", ()))
    return runs | (set(record.get("started", ())) - ended)


class FailingRecords(BasePersistenceLayer):
    """Idempotency records in memory, which fail as the table's mood says. Each request takes ``seconds``."""

    def __init__(self, seed: int, mood: str, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._random = Random(f"records {seed}")
        self.mood = mood
        self.seconds = seconds
        self.records: dict[str, DataRecord] = {}
        """The records by key."""
        self._requests = 0
        self._stalls_at = self._random.randrange(1, 12)

    def _get_record(self, idempotency_key: str) -> DataRecord:
        self._trouble()
        found = self.records.get(idempotency_key)
        self._lost()
        if found is None:
            raise IdempotencyItemNotFoundError
        return found

    def _put_record(self, data_record: DataRecord) -> None:
        self._trouble()
        key, now = data_record.idempotency_key, world.current().clock.time()
        old = self.records.get(key)
        if old is not None and (old.expiry_timestamp or 0) > now and _counts(old, now):
            raise IdempotencyItemAlreadyExistsError(old_data_record=old)
        self.records[key] = data_record
        self._lost()

    def _update_record(self, data_record: DataRecord) -> None:
        self._trouble()
        self.records[data_record.idempotency_key] = data_record
        self._lost()

    def _delete_record(self, data_record: DataRecord) -> None:
        self._trouble()
        self.records.pop(data_record.idempotency_key, None)
        self._lost()

    def _trouble(self) -> None:
        self._requests += 1
        clock = world.current().clock
        if self.mood == "stalls once" and self._requests == self._stalls_at:
            clock.sleep(STALL_SECONDS)
        clock.sleep(self.seconds * (self._random.uniform(0.5, 1.5) if self.mood == "busy" else 1))
        if self.mood == "down" or (self.mood == "throttled" and self._random.random() < 0.4):
            raise RuntimeError("ProvisionedThroughputExceededException")

    def _lost(self) -> None:
        if self.mood == "lost answers" and self._random.random() < 0.3:
            raise ConnectionError("the answer was lost")


def _counts(record: DataRecord, now: float) -> bool:
    return record.status == "COMPLETED" or (record.in_progress_expiry_timestamp or 0) > now * 1000
