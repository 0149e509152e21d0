"""The setting ``idempotency=``: a persistence layer of Powertools, and the key and the life of its records."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.message.delivery import Delivery

LONGEST_RETENTION_SECONDS = 1_209_600
"""The longest time for which SQS keeps a message: 14 days."""
_BASE = "aws_lambda_powertools.utilities.idempotency.persistence.base"


class Idempotency:
    """A consumer's idempotency: the layer, with what it is configured with when the consumer is made."""

    def __init__(self, layer: Any) -> None:
        base = getattr(sys.modules.get(_BASE), "BasePersistenceLayer", None)
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
        self._name: str | None = None
        self._function_name = ""
        # Read now: an @idempotent_function with the same layer configures it later, at its first call.
        self.expression: str = layer.event_key_jmespath if layer.configured else ""
        self._find: Any = layer.event_key_compiled_jmespath if self.expression else None
        self._options: dict[str, Any] = dict(layer.jmespath_options or {})
        self._hash: Callable[[bytes], Any] = layer.hash_function
        self.seconds: int = layer.expires_after_seconds if layer.configured else LONGEST_RETENTION_SECONDS
        """For how many seconds a record lives."""

    def of_consumer(self, name: str | None, function_name: str) -> Idempotency:
        """Return the same setting for a consumer, with its ``name=`` and the name of its function with the module."""
        found = copy(self)
        found._name, found._function_name = name, function_name
        return found

    def key_of(self, delivery: Delivery) -> str:
        """Return the key of a message's record: the consumer's name, and the message's id or the value in its body.

        Without ``name=``, the name is that of the Lambda function, with the module and the name of the handler. An
        edited copy has another key than its message.

        Raises:
            IdempotencyKeyError: The expression finds nothing in the body.
            Undecodable: The body is not JSON.
        """
        name = self._name or f"{delivery.invocation.function_name or ''}.{self._function_name}".lstrip(".")
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
    """Return whether a part of the key that an expression names is missing: null, or empty.

    Otherwise all messages without that part would have one key. Powertools looks for this only if all parts are null.

    Args:
        expression: A node of the tree that jmespath has parsed.
        value: The value that it has found.
    """
    kind, children = expression["type"], expression["children"]
    if value is None or value in ("", [], {}):
        return True
    if kind in ("pipe", "subexpression"):
        return lacks_part(children[-1], value)
    if kind == "multi_select_list":
        return any(map(lacks_part, children, value))
    if kind == "multi_select_dict":
        return any(lacks_part(each["children"][0], value[each["value"]]) for each in children)
    return False


def idempotency_of(given: Any, name: str | None, function_name: str) -> Idempotency:
    """Return the setting of a consumer, made of a layer or of another consumer's setting.

    Raises:
        ConfigurationError: It is not a persistence layer, or its configuration is not supported.
    """
    setting = given if isinstance(given, Idempotency) else Idempotency(given)
    return setting.of_consumer(name, function_name)
