"""The model in a handler's annotation: the ``Order`` of ``message: Message[Order]``."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints

from tarry.batch import Batch
from tarry.errors import ConfigurationError
from tarry.message import Message


def annotated_model(function: Any) -> Any:
    """Return the model that the annotation of a handler names; None if it names none.

    Other names in the annotations may be imported for type checkers only.

    Raises:
        ConfigurationError: The model cannot be resolved.
    """
    function = _written(function)
    for name, annotation in _annotations(function).items():
        if name == "return" or isinstance(annotation, type):
            continue
        found = _resolved(annotation, function)
        if getattr(found, "__origin__", None) in (Message, Batch):
            [model] = found.__args__
            return None if model in (Any, object) or isinstance(model, TypeVar) else model
    return None


def _written(function: Any) -> Any:
    """Return the function that the user wrote, below ``partial``, decorators and ``__call__``."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function if hasattr(function, "__globals__") else type(function).__call__


def _annotations(function: Any) -> dict[str, Any]:
    try:
        return getattr(function, "__annotations__", {})
    except NameError:
        if sys.version_info >= (3, 14):  # Python 3.14 evaluates annotations here, all at once
            import annotationlib

            return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        raise


def _resolved(annotation: Any, function: Any) -> Any:
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
