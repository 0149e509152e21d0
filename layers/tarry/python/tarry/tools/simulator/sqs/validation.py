"""Validation of requests against botocore's service model of SQS.

botocore's own validator is slow. It runs only if the fast checks here, compiled once for each shape, fail, and words
the error.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import create_loader
from botocore.model import ListShape, MapShape, ServiceModel, StructureShape
from botocore.validate import ParamValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from botocore.model import Shape

    Check = Callable[[Any], bool]

KINDS: dict[str, Any] = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}

_validator = ParamValidator()


@cache
def service_model() -> ServiceModel:
    return ServiceModel(create_loader().load_service_model("sqs", "service-2"), "sqs")


@cache
def _request(operation: str) -> tuple[Shape | None, Check]:
    """Return the shape of a request, and its check."""
    shape = service_model().operation_model(operation).input_shape
    return shape, fitting(shape)


def check_request(operation: str, parameters: Mapping[str, Any]) -> None:
    """Raise `ParamValidationError` for an invalid request, as boto3 does before it sends a request."""
    shape, fits = _request(operation)
    if not fits(parameters) and (report := report_of(parameters, shape)):
        raise ParamValidationError(report=report)


def report_of(value: Mapping[str, Any], shape: Shape | None) -> str:
    """Return why a value does not fit a shape, or an empty text; without a shape only an empty value fits."""
    if shape is None:
        return f"Unexpected: {value}" if value else ""
    errors = _validator.validate(value, shape)
    return errors.generate_report() if errors.has_errors() else ""


def fitting(shape: Shape | None) -> Check:
    """Make a check of whether a value fits a shape. It may return False for a value that botocore accepts."""
    match shape:
        case None:
            return lambda value: not value
        case StructureShape():
            return _structure(shape)
        case ListShape():
            return _list(shape)
        case MapShape():
            return _map(shape)
    return _scalar(shape)


def _scalar(shape: Shape) -> Check:
    kind, least = KINDS.get(shape.type_name), shape.metadata.get("min")
    if least is None:
        return lambda value: type(value) is kind
    if kind is int:
        return lambda value: type(value) is int and value >= least
    return lambda value: type(value) is kind and len(value) >= least


def _list(shape: ListShape) -> Check:
    fit, least = _check_all(shape.member), shape.metadata.get("min", 0)
    return lambda value: type(value) is list and len(value) >= least and fit(value)


def _structure(shape: StructureShape) -> Check:
    fields = {name: fitting(field) for name, field in shape.members.items()}
    kinds = {name: KINDS.get(field.type_name) for name, field in shape.members.items() if "min" not in field.metadata}
    required = frozenset(shape.required_members)

    def fits(value: Any) -> bool:
        if type(value) is not dict or not required <= value.keys():
            return False
        for name, item in value.items():
            if kinds.get(name) is not type(item):  # else it is a scalar that fits
                check = fields.get(name)
                if check is None or not check(item):
                    return False
        return True

    return fits


def _map(shape: MapShape) -> Check:
    keys_fit, values_fit = _check_all(shape.key), _check_all(shape.value)
    return lambda value: type(value) is dict and keys_fit(value) and values_fit(value.values())


def _check_all(shape: Shape) -> Callable[[Iterable[Any]], bool]:
    """Make a check of whether all values fit a shape."""
    if shape.type_name in KINDS and "min" not in shape.metadata:
        kind = {KINDS[shape.type_name]}
        return lambda values: kind.issuperset(map(type, values))
    check = fitting(shape)
    return lambda values: all(map(check, values))
