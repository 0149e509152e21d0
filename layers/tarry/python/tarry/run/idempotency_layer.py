"""The persistence layer of ``idempotency=``: the key and the life of its records, and the requests for them.

Only four methods of the layer are called: those that Powertools documents for layers of one's own (decision 0012).
"""

from __future__ import annotations

import math
import sys
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

    from tarry.message.delivery import Delivery

LONGEST_RETENTION_SECONDS = 1_209_600  # the longest time for which SQS keeps a message: 14 days
MOST_BACKOFF_SECONDS = 20  # the longest pause that botocore makes before it repeats a request
_PERSISTENCE = "aws_lambda_powertools.utilities.idempotency.persistence"


class Idempotency:
    """A consumer's idempotency: the layer, with what it is configured with when the consumer is made."""

    def __init__(self, layer: Any) -> None:
        base = getattr(sys.modules.get(f"{_PERSISTENCE}.base"), "BasePersistenceLayer", None)
        if base is None or not isinstance(layer, base):
            raise ConfigurationError(
                "idempotency takes a persistence layer of Powertools, such as "
                f'DynamoDBPersistenceLayer(table_name="idempotency"), got {layer!r:.200}'
            )
        if layer.payload_validation_enabled:
            raise ConfigurationError(
                "idempotency does not validate payloads: remove payload_validation_jmespath from the layer's "
                "IdempotencyConfig, or put its value into event_key_jmespath"
            )
        self.layer = layer
        self.records = Records(layer)
        self.name: str | None = None  # the ``name=`` of its consumer
        self.function_name = ""  # the name of its consumer's function, with the module
        # Read now: an @idempotent_function with the same layer configures it later, at its first call.
        self.expression: str = layer.event_key_jmespath if layer.configured else ""
        self._find: Any = layer.event_key_compiled_jmespath if self.expression else None
        self._options: dict[str, Any] = dict(layer.jmespath_options or {})
        self._hash: Callable[[bytes], Any] = layer.hash_function
        self.seconds: int = layer.expires_after_seconds if layer.configured else LONGEST_RETENTION_SECONDS
        """For how many seconds a record lives."""

    def key_of(self, delivery: Delivery) -> str:
        """Return the key of a message's record: the consumer's name, and the message's id or the value in its body.

        Without ``name=``, the name is that of the Lambda function, with the module and the name of the handler. An
        edited copy has another key than its message.

        Raises:
            IdempotencyKeyError: The expression finds nothing in the body.
            Undecodable: The body is not JSON.
        """
        name = self.name or f"{delivery.invocation.function_name or ''}.{self.function_name}".lstrip(".")
        key = self._hashed(delivery) if self._find is not None else delivery.id
        edited = delivery.envelope.edited if delivery.envelope else None
        return f"{name}#{key}#{edited}" if edited else f"{name}#{key}"

    def _hashed(self, delivery: Delivery) -> str:
        import json

        import jmespath
        from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyKeyError

        try:
            value = self._find.search(delivery.message.json(), options=jmespath.Options(**self._options))
        except jmespath.exceptions.JMESPathError as error:  # its text may quote the body
            raise IdempotencyKeyError(self._no_key(f"cannot be applied to the body ({type(error).__name__})")) from None
        if self.layer.is_missing_idempotency_key(value) or lacks_part(self._find.parsed, value):
            raise IdempotencyKeyError(self._no_key("finds no key in the body"))
        return str(self._hash(json.dumps(value, sort_keys=True).encode()).hexdigest())

    def _no_key(self, why: str) -> str:
        return (
            f"event_key_jmespath {self.expression!r} {why}, so the message cannot be protected from running twice, and "
            "has not run. Correct the expression, or the body (tarry failed retry can edit it)"
        )


def lacks_part(expression: Mapping[str, Any], value: Any) -> bool:
    """Return whether a part of the key that a node of jmespath's tree names is missing: null, or empty."""
    kind, children = expression["type"], expression["children"]
    # Else all messages without it had one key. Powertools looks for this only if all parts are null.
    if value is None or value in ("", [], {}):
        return True
    if kind in ("pipe", "subexpression"):
        return lacks_part(children[-1], value)
    if kind == "multi_select_list":
        return any(map(lacks_part, children, value))
    if kind == "multi_select_dict":
        return any(lacks_part(each["children"][0], value[each["value"]]) for each in children)
    return False


def longest_request(layer: object) -> float:
    """Return how many seconds a request of a layer takes at most, by its client's timeouts; infinite if unknown."""
    of_dynamodb = getattr(sys.modules.get(f"{_PERSISTENCE}.dynamodb"), "DynamoDBPersistenceLayer", None)
    config = getattr(getattr(getattr(layer, "client", None), "meta", None), "config", None)
    if type(layer) is not of_dynamodb or config is None:  # a layer of the user's own may do anything
        return math.inf
    retries = config.retries or {}
    tries, mode = retries.get("total_max_attempts"), retries.get("mode", "legacy")
    connect, read, numbers = config.connect_timeout, config.read_timeout, (int, float)
    if type(tries) is not int or mode not in ("legacy", "standard"):
        return math.inf
    if type(connect) not in numbers or type(read) not in numbers:
        return math.inf
    pauses = [min(2.0**number, MOST_BACKOFF_SECONDS) for number in range(tries - 1)]
    return float((connect + read) * tries + sum(pauses))


def idempotency_of(given: Any, name: str | None, function_name: str) -> Idempotency:
    """Return the setting of a consumer, made of a layer or of another consumer's setting."""
    found = copy(given) if isinstance(given, Idempotency) else Idempotency(given)
    found.name, found.function_name = name, function_name
    return found


IN_PROGRESS, COMPLETED = "INPROGRESS", "COMPLETED"


class Found(NamedTuple):
    """A record that another delivery has written."""

    is_completed: bool
    in_progress_until: int | None  # when it may be replaced, in epoch milliseconds; None if unknown
    expires_at: int | None = None


class Records:
    """The records of a layer. Every method makes requests, and raises the errors of the layer's client."""

    def __init__(self, layer: BasePersistenceLayer) -> None:
        # Not in the methods: an import at each request takes longer than the rest of a method.
        from aws_lambda_powertools.utilities.idempotency import exceptions
        from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

        self._layer, self._data_record = layer, DataRecord
        self._not_found = exceptions.IdempotencyItemNotFoundError
        # The second one: there is a record, and another user of the layer has configured it to compare payloads.
        self._exists = (exceptions.IdempotencyItemAlreadyExistsError, exceptions.IdempotencyValidationError)

    def begin(self, key: str, in_progress_until: int, expires_at: int) -> Found | None:
        """Write a record in progress; return that of another delivery which still counts, None if there is none."""
        record = self._record(key, IN_PROGRESS, expires_at, in_progress_until)
        try:
            self._layer._put_record(record)
        except self._exists as error:
            old = getattr(error, "old_data_record", None)
            found = self._found(old) if old is not None else self.read(key)
            found = found or Found(is_completed=False, in_progress_until=0)  # gone in the meantime
            # If an answer was lost, the client's own repetition meets the record that it wrote before: not another's.
            return None if _is_own(found, in_progress_until, expires_at) else found
        return None

    def complete(self, key: str, expires_at: int) -> None:
        """Write that the message is done, whichever delivery the record is of: it is done for all of them."""
        self._layer._update_record(self._record(key, COMPLETED, expires_at))

    def remove(self, key: str, in_progress_until: int, expires_at: int) -> bool:
        """Remove a record if it is this delivery's own, not replaced or completed by another; return whether it is."""
        found = self.read(key)
        is_own = found is not None and _is_own(found, in_progress_until, expires_at)
        if is_own:
            self._layer._delete_record(self._record(key, IN_PROGRESS))
        return is_own

    def shorten(self, key: str, in_progress_until: int, expires_at: int, until: int) -> None:
        """Have a record of this delivery count only ``until`` then, in epoch ms: a layer can only write it anew."""
        if self.remove(key, in_progress_until, expires_at):
            self.begin(key, until, expires_at)

    def read(self, key: str) -> Found | None:
        try:
            return self._found(self._layer._get_record(key))
        except self._not_found:
            return None

    @staticmethod
    def _found(record: Any) -> Found:
        until, expires_at = record.in_progress_expiry_timestamp, record.expiry_timestamp
        return Found(
            record.status == COMPLETED,
            None if until is None else int(until),
            None if expires_at is None else int(expires_at),
        )

    def _record(self, key: str, status: str, expires_at: int | None = None, until: int | None = None) -> Any:
        return self._data_record(
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
