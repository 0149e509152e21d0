"""The records of a persistence layer: one for each message that runs or is done.

Only four methods of the layer are called: those that Powertools documents for layers of one's own (decision 0012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

IN_PROGRESS, COMPLETED = "INPROGRESS", "COMPLETED"


class Found(NamedTuple):
    """A record that another delivery has written."""

    is_completed: bool
    in_progress_until: int | None
    """When a record in progress may be replaced, in epoch milliseconds; None if that is unknown."""
    expires_at: int | None = None
    """When the record expires, in epoch seconds."""


class Records:
    """The records of a layer. Every method makes requests, and raises the errors of the layer's client."""

    def __init__(self, layer: BasePersistenceLayer) -> None:
        self._layer = layer

    def begin(self, key: str, in_progress_until: int, expires_at: int) -> Found | None:
        """Write a record in progress; return the record of another delivery if there is one, and None if not.

        A record in progress whose time is over is replaced. If an answer was lost, the client's own repetition meets
        the record that it wrote before: that one is not another's.
        """
        from aws_lambda_powertools.utilities.idempotency.exceptions import (
            IdempotencyItemAlreadyExistsError,
            IdempotencyValidationError,
        )

        record = self._record(key, IN_PROGRESS, expires_at, in_progress_until)
        try:
            self._layer._put_record(record)
        except (IdempotencyItemAlreadyExistsError, IdempotencyValidationError) as error:
            # The second one: there is a record, and another user of the layer has configured it to compare payloads.
            old = getattr(error, "old_data_record", None)
            found = self._found(old) if old is not None else self.read(key)
            found = found or Found(is_completed=False, in_progress_until=0)  # gone in the meantime
            return None if _is_own(found, in_progress_until, expires_at) else found
        return None

    def complete(self, key: str, expires_at: int) -> None:
        """Write that the message is done, whichever delivery the record is of: it is done for all of them."""
        self._layer._update_record(self._record(key, COMPLETED, expires_at))

    def remove(self, key: str, in_progress_until: int, expires_at: int) -> None:
        """Remove a record if it is this delivery's own.

        Another delivery may have replaced it after the deadline, or may have run without a record and completed it.
        """
        self._remove(key, in_progress_until, expires_at)

    def shorten(self, key: str, in_progress_until: int, expires_at: int, until: int) -> None:
        """Have a record count only ``until`` then, in epoch milliseconds, if it is this delivery's own.

        A layer can change the time of a record in progress only by writing it anew.
        """
        if self._remove(key, in_progress_until, expires_at):
            self.begin(key, until, expires_at)

    def _remove(self, key: str, in_progress_until: int, expires_at: int) -> bool:
        found = self.read(key)
        is_own = found is not None and _is_own(found, in_progress_until, expires_at)
        if is_own:
            self._layer._delete_record(self._record(key))
        return is_own

    def read(self, key: str) -> Found | None:
        """Return the record; None if there is none."""
        from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyItemNotFoundError

        try:
            return self._found(self._layer._get_record(key))
        except IdempotencyItemNotFoundError:
            return None

    @staticmethod
    def _found(record: Any) -> Found:
        until, expires_at = record.in_progress_expiry_timestamp, record.expiry_timestamp
        return Found(
            record.status == COMPLETED,
            None if until is None else int(until),
            None if expires_at is None else int(expires_at),
        )

    @staticmethod
    def _record(key: str, status: str = "", expires_at: int | None = None, until: int | None = None) -> Any:
        from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

        return DataRecord(
            idempotency_key=key,
            status=status,
            expiry_timestamp=expires_at,
            in_progress_expiry_timestamp=until,
            response_data="null",
        )


def _is_own(found: Found, in_progress_until: int, expires_at: int) -> bool:
    """Return whether a record in progress is this delivery's own: no other one has the same two times."""
    times = (found.in_progress_until, found.expires_at)
    return not found.is_completed and times == (in_progress_until, expires_at)
