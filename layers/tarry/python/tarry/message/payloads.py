"""Decoding and validating bodies for `message.payload`, with Powertools' parser (pydantic).

Only a consumer with a model loads this module. It does so when it is made: an invalid model then fails at deployment,
not at the first message, and Lambda has a full CPU during initialization.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from tarry.errors import ConfigurationError, Undecodable
from tarry.message.annotations import alternatives, shown
from tarry.message.diagnosis import problems_of
from tarry.message.outcomes import Discard

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

    from tarry.message.message import Message

_RECORD_MODELS = ("SqsRecordModel", "SqsModel")


def is_of_powertools(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "aws_lambda_powertools"


def describes_record(model: object) -> bool:
    """Return whether a model is one of Powertools for an SQS record or event, or derived from one."""
    return _record_model(model) is not None


def body_model_of(record_model: Any) -> str | None:
    """Return the model of the ``body`` of a record model, as it is written; None if it leaves ``body`` as it was."""
    own, inherited = _body_of(record_model), _body_of(_record_model(record_model))
    if own is None or own == inherited:
        return None
    models = [each for each in alternatives(own) if each not in (Any, NoneType, object)]
    named = [shown(each) for each in models if not str(getattr(each, "__module__", "")).startswith("pydantic.")]
    return " | ".join(named) or None


def _record_model(model: object) -> type | None:
    bases = model.__mro__ if isinstance(model, type) else ()
    found = (each for each in bases if each.__name__ in _RECORD_MODELS and is_of_powertools(each.__module__))
    return next(found, None)


def _body_of(record_model: Any) -> Any:
    """Return the annotation of the field; pydantic has unwrapped ``Json[Order]``."""
    return getattr(getattr(record_model, "model_fields", {}).get("body"), "annotation", None)


EnvelopeName = Literal["sns", "eventbridge", "s3"]

ENVELOPES = {
    "sns": ("SNS notification", "Message"),
    "eventbridge": ("EventBridge event", "detail"),
    "s3": ("S3 notification", "Records"),
}  # the display name of each envelope, and the field that contains the payload


class PayloadReader:
    """The reader of one consumer's payloads, for its ``model`` and ``envelope``.

    Raises:
        ConfigurationError: The envelope is unknown or has no model, pydantic cannot validate the model, or Powertools
            or pydantic is not installed.
    """

    def __init__(self, model: Any, envelope: EnvelopeName | None = None) -> None:
        _refuse_envelope(model, envelope)
        _refuse_text(model)
        _refuse_record_model(model)
        try:
            from aws_lambda_powertools.utilities.parser import parse
            from aws_lambda_powertools.utilities.parser.exceptions import InvalidModelTypeError
            from pydantic import TypeAdapter, ValidationError
        except ImportError as error:
            raise ConfigurationError(
                "model needs Powertools' parser and pydantic: install aws-lambda-powertools[parser], or add AWS's "
                f"Powertools layer to the function ({error})"
            ) from error
        self._parse: Callable[..., Any] = parse
        self._invalid = ValidationError
        self._attribute_error = InvalidModelTypeError
        self._envelope = envelope
        self._name = model.__name__ if isinstance(model, type) else repr(model)
        self._names: frozenset[str] | None = None
        try:
            self._bare: TypeAdapter[Any] = TypeAdapter(model)
            self._wrapped: TypeAdapter[Any] | None = TypeAdapter(_wrapper(envelope, model)) if envelope else None
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigurationError(
                f"model takes a pydantic model, a dataclass or a TypedDict; pydantic refuses {self._name}: {reason}"
            ) from error

    def read(self, message: Message[Any]) -> Any:
        """Return the payload of a message.

        Raises:
            Undecodable: The body does not match the model.
            Discard: The body is the test event that S3 sends once.
            Exception: Any other exception of the model's own validators.
        """
        body = message.body
        problems, not_json, failure = "", "", None
        try:
            return self._payload(body)
        except self._invalid as error:
            first = error.errors(include_input=False, include_url=False)[0]
            if first["type"] == "json_invalid" and not first["loc"]:
                not_json = first["ctx"]["error"]
            else:
                problems = problems_of(error, self._known_names())
        except self._attribute_error as error:  # Powertools wraps any AttributeError so, here one of a validator
            failure = error.__cause__ or error
        # Raised outside the except block, without a context: pydantic's errors contain the input, which may be secret.
        if failure is not None:
            raise failure
        if self._envelope == "s3" and _top_level(body).get("Event") == "s3:TestEvent":
            raise Discard("s3:TestEvent, which S3 sends when its notifications are set up")
        place = f", as {ENVELOPES[self._envelope][0]}," if self._envelope else ""
        if not_json:
            raise Undecodable(f"the body of message {message.id}{place} is not JSON: {not_json}")
        raise Undecodable(f"the body of message {message.id}{place} does not fit {self._name}: {problems}")

    def _known_names(self) -> frozenset[str]:
        """Return the names that an error's path may show, those of the model. They are collected at the first error."""
        if self._names is None:
            names = set[str]()
            for adapter in (self._bare, self._wrapped):
                if adapter is not None:
                    _collect_names(adapter.core_schema, names)
            self._names = frozenset(names)
        return self._names

    def _payload(self, body: str) -> Any:
        if self._envelope is None or (self._envelope == "sns" and not _is_notification(body)):
            return self._parse(event=body, model=self._bare)
        payload = getattr(self._parse(event=body, model=self._wrapped), ENVELOPES[self._envelope][1])
        return payload[0] if self._envelope == "s3" else payload


def _refuse_envelope(model: Any, envelope: Any) -> None:
    if envelope is not None and envelope not in tuple(ENVELOPES):
        raise ConfigurationError(f"envelope must be 'sns', 'eventbridge' or 's3', got {envelope!r}")
    if model is None:
        raise ConfigurationError(
            f"envelope={envelope!r} needs a model: set model=Order, or annotate the handler's parameter Message[Order]"
        )


def _refuse_text(model: Any) -> None:
    if model in (str, bytes):
        raise ConfigurationError(
            f"model takes a pydantic model, a dataclass or a TypedDict, not {model.__name__}: "
            "the text of a message is message.body"
        )


def _refuse_record_model(model: Any) -> None:
    if describes_record(model):
        payload = body_model_of(model) or "Order"
        raise ConfigurationError(
            f"{model.__name__} is a model of a whole SQS record, and message.payload comes from the body alone: write "
            f"Message[{payload}], or model={payload}, with the model of the body"
        )


# These wrappers replace Powertools' envelopes, which require fields that no payload needs (a good message without one
# would be dead-lettered), and whose validators pass Python values, not JSON, to a strict model.


def _wrapper(envelope: EnvelopeName, model: Any) -> Any:
    """Return a model of the envelope with the payload in it, so that an error's path starts at the top of the body."""
    from pydantic import Json, conlist, create_model

    json_of: Any = Json
    kinds = {"sns": json_of[model], "eventbridge": model, "s3": conlist(model, min_length=1, max_length=1)}
    fields: Any = {ENVELOPES[envelope][1]: (kinds[envelope], ...)}
    return create_model("Envelope", **fields)


def _is_notification(body: str) -> bool:
    """Return whether SNS wrapped the body; with raw message delivery it does not."""
    found = _top_level(body)
    return found.get("Type") == "Notification" and "TopicArn" in found


def _top_level(body: str) -> dict[str, Any]:
    import json

    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _collect_names(schema: Any, names: set[str]) -> None:
    """Add the names in a pydantic core schema: of fields, aliases, tags, classes and types."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, (list, tuple)):
            todo += part
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key in _NAMED_BY_KEYS and isinstance(value, dict):
                names.update(str(getattr(name, "value", name)) for name in value)
            if key in _ALIASES:
                names.update(_texts_in(value))
            elif key == "cls" and isinstance(value, type):
                names.add(value.__name__)
            elif key not in _NO_SCHEMA:
                todo.append(value)


_NAMED_BY_KEYS = frozenset({"fields", "choices"})
_ALIASES = frozenset({"name", "alias", "validation_alias", "type"})
_NO_SCHEMA = frozenset(
    {"metadata", "serialization", "default", "config", "function", "custom_error_context", "expected"}
)


def _texts_in(value: object) -> list[str]:
    """Return the strings in an alias, which may be a path or a choice of paths."""
    if isinstance(value, (list, tuple)):
        return [text for each in value for text in _texts_in(each)]
    return [value] if isinstance(value, str) else []
