"""Recognizing what belongs to Powertools, without importing it."""

from __future__ import annotations

from types import NoneType
from typing import Any

from tarry.payload.annotation import alternatives, shown

_RECORD_MODELS = ("SqsRecordModel", "SqsModel")


def is_of_powertools(module: object) -> bool:
    """Return whether a module name is one of Powertools."""
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
