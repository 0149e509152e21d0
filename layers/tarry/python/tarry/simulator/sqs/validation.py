"""Validation of requests and answers against botocore's service model of SQS.

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


class InvalidAnswer(Exception):
    """The simulator gave an answer that does not fit SQS's service model: a bug in the simulator."""


@cache
def service_model() -> ServiceModel:
    return ServiceModel(create_loader().load_service_model("sqs", "service-2"), "sqs")


@cache
def _shapes(operation: str) -> tuple[Shape | None, Shape | None]:
    model = service_model().operation_model(operation)
    return model.input_shape, model.output_shape


@cache
def _empty_lists(operation: str) -> dict[str, list[Any]]:
    """Return the lists that the service model requires in an answer, all of them empty."""
    shape = _shapes(operation)[1]
    if not isinstance(shape, StructureShape):
        return {}
    return {name: [] for name in shape.required_members if isinstance(shape.members[name], ListShape)}


@cache
def _checks(operation: str) -> tuple[Check, Check]:
    request, answer = _shapes(operation)
    return _check(request), _check(answer)


def check_request(operation: str, parameters: Mapping[str, Any]) -> None:
    """Raise `ParamValidationError` for an invalid request, as boto3 does before it sends a request."""
    if not _checks(operation)[0](parameters) and (report := _report(parameters, _shapes(operation)[0])):
        raise ParamValidationError(report=report)


def check_answer(operation: str, answer: Mapping[str, Any]) -> None:
    """Raise `InvalidAnswer` for an answer that does not fit the service model.

    A list that the model requires may be missing: SQS leaves out ``Successful`` and ``Failed`` if they are empty.
    """
    if lists := _empty_lists(operation):
        answer = {**lists, **answer}
    if not _checks(operation)[1](answer) and (report := _report(answer, _shapes(operation)[1])):
        raise InvalidAnswer(f"{operation}: {report}")


def _report(value: Mapping[str, Any], shape: Shape | None) -> str:
    """Return why a value does not fit a shape, or an empty text; without a shape only an empty value fits."""
    if shape is None:
        return f"Unexpected: {value}" if value else ""
    errors = _validator.validate(value, shape)
    return errors.generate_report() if errors.has_errors() else ""


def _check(shape: Shape | None) -> Check:
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
    fields = {name: _check(field) for name, field in shape.members.items()}
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
    check = _check(shape)
    return lambda values: all(map(check, values))
