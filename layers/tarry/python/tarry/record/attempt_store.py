"""The protocol of attempt stores. A store has one record for each message that failed, was deferred or released.

A record is a dict of JSON values. Its first three keys are lists of receive counts. Any key can be missing:

    runs             the deliveries whose runs failed or crashed: attempts
    deliveries       all deliveries that left a trace when they ended: ``runs``, deferrals, releases
    started          on FIFO, redelivered messages, written before their handler ran; those that are not in
                     ``deliveries`` have crashed, and are attempts too
    queue, message   the name of the queue, and the message's stable id
    state            see `State`; ``COMMITTED``, ``DEAD_LETTERED``, ``DISCARDED`` and ``RESENT`` end a message
    attempt          the attempt of the last delivery
    failure          the last failure, as the failure record of a dead letter has it, without a traceback
    history          the first failure and the last nine
    next_try         when the message is visible again, in epoch seconds
    latest           the receive count of the last delivery that wrote; an earlier one changes only the three lists
    closed           the receive count of the delivery that ended the message
    expires          when the record can be deleted, in epoch seconds: after the queue deletes the message
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Literal

from tarry.errors import ConfigurationError
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from botocore.exceptions import ClientError
else:
    Protocol = object  # creating a protocol class is slow, and no code needs one at run time

MAX_READS = 100  # the most ids of one `AttemptStore.read`: as many as a BatchGetItem takes
MAX_CHANGES = 25  # the most changes of one `AttemptStore.write`
OF_OPEN_MESSAGES = ("failure", "history", "next_try")  # the keys that a record has until its message ends


class AttemptChange(Value):
    """One change of a record, by one delivery. Changes made twice, or in another order, give the same counts."""

    id: str
    """The key of the record."""
    receive_count: int
    """The receive count of the delivery."""
    kind: Literal["start", "run", "seen", "end"]
    """Whether the handler is about to run; or whether the delivery was an attempt that failed, was not an attempt, or
    ended the message."""
    fields: Mapping[str, Any]
    """The keys of the record to set, unless a later delivery has set them."""
    crashed: tuple[int, ...] = ()
    """The receive counts of earlier deliveries whose runs crashed: they are attempts, like those that failed."""

    @property
    def counts(self) -> dict[str, set[int]]:
        """The receive counts that the change adds to the record, by key."""
        crashed, own = set(self.crashed), {self.receive_count}
        counts = {
            "runs": crashed | own if self.kind == "run" else crashed,
            "deliveries": crashed if self.kind == "start" else crashed | own,
            "started": own if self.kind == "start" else set(),
        }
        return {name: numbers for name, numbers in counts.items() if numbers}

    def applied_to(self, record: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the record after this change; None if nothing is to be written.

        ``record`` is the record before the change; None if there is none.

        For stores of your own: read, apply and write in one transaction. A change is void if a later delivery has
        ended the message; it only adds its `counts` if a later delivery has written.
        """
        if record is None and self.kind == "end":
            return None
        after = dict(record or {})
        if after.get("closed", 0) >= self.receive_count:
            return None
        after |= {name: sorted(numbers.union(after.get(name, ()))) for name, numbers in self.counts.items()}
        if self.kind == "end":
            after = {name: value for name, value in {**after, **self.fields}.items() if name not in OF_OPEN_MESSAGES}
            after["closed"] = self.receive_count
        elif after.get("latest", 0) <= self.receive_count:
            after |= {**self.fields, "latest": self.receive_count}
        return after


class AttemptStore(Protocol):
    """A store for ``attempts=``, such as `DynamoDBAttempts`. tarry calls it from several threads at once.

    If a method raises an exception, or takes longer than half a second, tarry counts receives instead.
    """

    def read(self, ids: Sequence[str], /) -> Mapping[str, Mapping[str, Any]]:
        """Return the records with these ids, at most 100, as last written; an id without a record is left out."""

    def write(self, changes: Sequence[AttemptChange], /) -> None:
        """Apply changes (`AttemptChange.applied_to`), at most 25, of different records."""


class MemoryAttempts:
    """An attempt store in this process, for tests: on Lambda each environment would count for itself."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        """The records by id."""
        self._lock = threading.Lock()

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """See `AttemptStore.read`."""
        with self._lock:
            return {key: dict(self.records[key]) for key in ids if key in self.records}

    def write(self, changes: Sequence[AttemptChange]) -> None:
        """See `AttemptStore.write`."""
        with self._lock:
            for change in changes:
                if (record := change.applied_to(self.records.get(change.id))) is not None:
                    self.records[change.id] = record


AS_JSON = ("failure", "history")  # the keys whose values the table has as JSON
NOT_ENDED_LATER = "(attribute_not_exists(closed) OR closed < :count)"
NOT_WRITTEN_LATER = "(attribute_not_exists(latest) OR latest <= :count)"
REFUSED = "ConditionalCheckFailed"


class DynamoDBAttempts:
    """The attempts of a consumer's messages in a DynamoDB table, so that they are exact.

    The table has the partition key ``id``, a string, and no sort key; its TTL attribute is ``expires``. Several
    consumers can share it. The function needs ``dynamodb:BatchGetItem`` and ``dynamodb:UpdateItem``.

    Args:
        table: The name or the ARN of the table.
        client: A boto3 client of DynamoDB; by default one is made at the first request.

    Raises:
        ConfigurationError: ``table`` is not a text, or empty.
    """

    def __init__(self, table: str, *, client: Any = None) -> None:
        if type(table) is not str or not table:
            raise ConfigurationError(f"DynamoDBAttempts takes the name of a table, got {table!r:.200}")
        self.table = table
        self._client = client
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"DynamoDBAttempts({self.table!r})"

    @property
    def _is_loaded(self) -> bool:
        """Whether requests need not make a client first, and import boto3, which is slow (`Tracking`)."""
        return self._client is not None

    def _load(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = make_client()
            return self._client

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """See `AttemptStore.read`. One BatchGetItem; what it leaves out is asked for once more."""
        keys, found = [{"id": {"S": key}} for key in ids], dict[str, dict[str, Any]]()
        for _ in range(2):
            asked = {self.table: {"Keys": keys, "ConsistentRead": True}}
            answer = self._load().batch_get_item(RequestItems=asked)
            found |= {item["id"]["S"]: record_of(item) for items in answer["Responses"].values() for item in items}
            if not (left := answer.get("UnprocessedKeys")):
                return found
            [keys] = [of_table["Keys"] for of_table in left.values()]
        raise TimeoutError(f"DynamoDB did not process {len(keys)} of {len(ids)} keys: the table is throttled")

    def write(self, changes: Sequence[AttemptChange]) -> None:
        """See `AttemptStore.write`. Several changes are one transaction, one is a plain update, at half the price."""
        from botocore.exceptions import ClientError

        updates = {change.id: self._update(change) for change in changes}
        counting = {change.id: self._counting(change) for change in changes if change.kind != "end"}
        failed: ClientError | None = None
        # No other request makes conditional writes to several items. A record that cannot be written cancels it:
        # after the second time, the others are written without it.
        for tries in (1, 2, 3):
            try:
                if len(updates) == 1:
                    self._load().update_item(**next(iter(updates.values())))
                elif updates:
                    items = [{"Update": update} for update in updates.values()]
                    self._load().transact_write_items(TransactItems=items)
                break
            except ClientError as error:
                codes = _codes(error, updates)
                if not codes or (tries == 3 and len(updates) > 1):
                    raise
                refused = {key for key, code in codes.items() if code == REFUSED}  # a later delivery has written
                given_up = {key for key, code in codes.items() if code not in ("None", REFUSED) and tries == 2}
                updates = {key: update for key, update in updates.items() if key not in refused | given_up}
                updates |= {key: counting.pop(key) for key in refused & counting.keys()}
                failed = error if given_up else failed
        if failed is not None:
            raise failed

    def open_records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the records of messages that have not ended. Scans the table, which needs ``dynamodb:Scan``."""
        scan = self._load().get_paginator("scan")
        for page in scan.paginate(TableName=self.table, FilterExpression="attribute_exists(next_try)"):
            yield from map(record_of, page["Items"])

    def _update(self, change: AttemptChange) -> dict[str, Any]:
        """Return the parameters of the UpdateItem for a change; see `AttemptChange.applied_to`."""
        ends = change.kind == "end"
        fields = {name: value for name, value in change.fields.items() if value is not None}
        if ends:
            fields = {name: value for name, value in fields.items() if name not in OF_OPEN_MESSAGES}
        names = {f"#{name}": name for name in fields}
        set_to = [*(f"#{name} = :{name}" for name in fields), "closed = :count" if ends else "latest = :count"]
        update = self._counting(change)
        update["UpdateExpression"] = f"SET {', '.join(set_to)} {update['UpdateExpression']}"
        if ends:
            update["UpdateExpression"] += f" REMOVE {', '.join(OF_OPEN_MESSAGES)}"
        also = "attribute_exists(id)" if ends else NOT_WRITTEN_LATER
        update["ConditionExpression"] += f" AND {also}"
        update["ExpressionAttributeValues"] |= {f":{name}": _typed(name, value) for name, value in fields.items()}
        return {**update, "ExpressionAttributeNames": names} if names else update

    def _counting(self, change: AttemptChange) -> dict[str, Any]:
        """Return the parameters of the UpdateItem that only adds the counts of a change."""
        counts = {name: {"NS": [str(number) for number in sorted(numbers)]} for name, numbers in change.counts.items()}
        return {
            "TableName": self.table,
            "Key": {"id": {"S": change.id}},
            "UpdateExpression": f"ADD {', '.join(f'{name} :{name}' for name in counts)}",
            "ConditionExpression": NOT_ENDED_LATER,
            "ExpressionAttributeValues": {
                ":count": {"N": str(change.receive_count)},
                **{f":{name}": numbers for name, numbers in counts.items()},
            },
        }


def make_client() -> Any:
    """Make a client with short timeouts: no message waits longer than a second for the table."""
    from botocore.config import Config

    from tarry.support.clients import client_with

    retries: Any = {"total_max_attempts": 2, "mode": "standard"}
    return client_with(Config(connect_timeout=1, read_timeout=1, retries=retries), "dynamodb")


def _codes(error: ClientError, keys: Iterable[str]) -> dict[str, str]:
    """Return for each key of a refused request why it was refused, "None" if it was not; nothing for other errors."""
    code = error.response["Error"]["Code"]
    if code == f"{REFUSED}Exception":
        return dict.fromkeys(keys, REFUSED)
    reasons: Any = error.response.get("CancellationReasons") or []
    codes = dict.fromkeys(keys, "None") if code == "TransactionCanceledException" else {}
    return codes | {key: reason.get("Code", "None") for key, reason in zip(codes, reasons, strict=False)}


def record_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of the table as a record."""
    return {name: _plain(name, *typed.items()) for name, typed in item.items()}


def _typed(name: str, value: Any) -> dict[str, Any]:
    if name in AS_JSON:
        return {"S": json.dumps(value, separators=(",", ":"))}
    return {"S": value} if isinstance(value, str) else {"N": repr(value)}


def _plain(name: str, typed: tuple[str, Any]) -> Any:
    kind, value = typed
    try:
        if kind == "NS":
            return sorted(map(int, value))
        if kind == "N":
            return float(value) if "." in value else int(value)
        return json.loads(value) if name in AS_JSON else value
    except (ValueError, TypeError):  # another program wrote it
        return value
