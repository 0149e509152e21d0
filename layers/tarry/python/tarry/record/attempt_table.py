"""The attempt store in a DynamoDB table."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.record.attempt_store import OF_OPEN_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from botocore.exceptions import ClientError

    from tarry.record.attempt_store import AttemptChange

AS_JSON = ("failure", "history")
"""The keys whose values the table has as JSON."""
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
        """Return the client; make it if there is none."""
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
        """See `AttemptStore.write`.

        Several changes are one transaction: the only request that makes conditional writes to several items. One
        change is a plain update, at half the price. A record that cannot be written cancels the transaction: after the
        second time, the others are written without it.
        """
        from botocore.exceptions import ClientError

        updates = {change.id: self._update(change) for change in changes}
        counting = {change.id: self._counting(change) for change in changes if change.kind != "end"}
        failed: ClientError | None = None
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
        pages = (
            self._load()
            .get_paginator("scan")
            .paginate(TableName=self.table, FilterExpression="attribute_exists(next_try)")
        )
        for page in pages:
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
    import boto3
    from botocore.config import Config

    retries: Any = {"total_max_attempts": 2, "mode": "standard"}
    config = Config(connect_timeout=1, read_timeout=1, retries=retries)
    return boto3.session.Session().client("dynamodb", config=config)


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
        match kind:
            case "NS":
                return sorted(map(int, value))
            case "N":
                return float(value) if "." in value else int(value)
            case _:
                return json.loads(value) if name in AS_JSON else value
    except (ValueError, TypeError):  # another program wrote it
        return value
