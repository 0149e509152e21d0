"""Decoding and validating bodies for `message.payload`, with Powertools' parser (pydantic).

Only a consumer with a model, or with a handler that is not plain, loads this module. It does so when it is made: an
invalid model then fails at deployment, not at the first message, and Lambda has a full CPU during initialization.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_origin, get_type_hints

from tarry.errors import ConfigurationError, Undecodable
from tarry.message.batch import Batch
from tarry.message.diagnosis import details_of, problems_of
from tarry.message.message import Message
from tarry.message.outcomes import Discard

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

# the model in the annotation of a handler: the ``Order`` of ``message: Message[Order]``


def annotated_model(function: Any) -> Any:
    """Return the model that the annotation of a handler names; None if it names none. See `resolved`."""
    function = _written(function)
    for annotation in [each for name, each in annotations_of(function).items() if name != "return"]:
        for found in alternatives(resolved(annotation, function)):
            if getattr(found, "__origin__", None) in (Message, Batch):
                [model] = found.__args__
                return None if model in (Any, object) or isinstance(model, TypeVar) else model
    return None


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, without `Annotated`, `Union` and aliases: at least one."""
    if hasattr(annotation, "__metadata__"):
        return alternatives(annotation.__origin__)
    if hasattr(annotation, "__value__"):  # `type Orders = Message[Order]`
        return alternatives(annotation.__value__)
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in annotation.__args__ for each in alternatives(part)]
    return [annotation]


def shown(annotation: Any) -> str:
    """Return an annotation as it is written; a ``Message`` that is not tarry's with its module."""
    if not isinstance(annotation, type):
        return re.sub(r"\b(?:[^\W\d]\w*\.)+", "", repr(annotation))
    is_namesake = annotation.__name__ in ("Message", "Batch") and annotation not in (Message, Batch)
    return f"{annotation.__module__}.{annotation.__name__}" if is_namesake else annotation.__name__


def _written(function: Any) -> Any:
    """Return the function that the user wrote, below ``partial``, decorators and ``__call__``."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function if hasattr(function, "__globals__") else type(function).__call__


def annotations_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, some or all of them as text."""
    try:
        return getattr(function, "__annotations__", {})
    except NameError:  # Python 3.14 evaluates annotations here, all at once
        annotationlib: Any = import_module("annotationlib")
        found: dict[str, Any] = annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        return found


def resolved(annotation: Any, function: Any) -> Any:
    """Return an annotation as a type; None if it cannot be resolved, or `ConfigurationError` if it names a model."""
    # `Message` may have been imported for type checkers only; a user's own `Message` takes precedence over tarry's.
    scope = {"Message": Message, "Batch": Batch, **getattr(function, "__globals__", {})}
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, scope, scope, include_extras=True)["it"]
    except Exception as error:
        # another name may be imported for type checkers only
        if "Message[" not in str(annotation) and "Batch[" not in str(annotation):
            return None
        raise ConfigurationError(
            f"the annotation {annotation} names a model that cannot be resolved ({error}): "
            "define or import it above the handler, or set model="
        ) from error


# bodies

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
            first = details_of(error)[0]
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
            elif isinstance(value, type):
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
