"""The model in a handler's annotation: the ``Order`` of ``message: Message[Order]``."""

from __future__ import annotations

import re
import sys
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, get_origin, get_type_hints

from tarry.errors import ConfigurationError
from tarry.message.batch import Batch
from tarry.message.message import Message


def annotated_model(function: Any) -> Any:
    """Return the model that the annotation of a handler names; None if it names none. See `resolved`."""
    function = _written(function)
    for name, annotation in annotations_of(function).items():
        if name == "return" or isinstance(annotation, type):
            continue
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
    if not isinstance(annotation, type) or get_origin(annotation) is not None:
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
    except NameError:
        if sys.version_info >= (3, 14):  # Python 3.14 evaluates annotations here, all at once
            import annotationlib

            return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        raise


def resolved(annotation: Any, function: Any) -> Any:
    """Return an annotation as a type; None if it cannot be resolved, or `ConfigurationError` if it names a model.

    Other names may be imported for type checkers only.
    """
    # `Message` may have been imported for type checkers only; a user's own `Message` takes precedence over tarry's.
    scope = {"Message": Message, "Batch": Batch, **getattr(function, "__globals__", {})}
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, scope, scope, include_extras=True)["it"]
    except Exception as error:
        if "Message[" not in str(annotation) and "Batch[" not in str(annotation):
            return None
        raise ConfigurationError(
            f"the annotation {annotation} names a model that cannot be resolved ({error}): "
            "define or import it above the handler, or set model="
        ) from error
