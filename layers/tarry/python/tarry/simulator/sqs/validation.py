"""Requests and answers, checked against SQS's model in botocore.

botocore's own check says what is wrong, and takes long: it is asked only where ours, made once for each shape, fails.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import create_loader
from botocore.model import ListShape, MapShape, ServiceModel, StructureShape
from botocore.validate import ParamValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.model import Shape

    Check = Callable[[Any], bool]

KINDS: dict[str, Any] = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}

_validator = ParamValidator()


class WrongAnswer(Exception):
    """An answer of the simulator that SQS could not have given: a bug of ours."""


@cache
def service_model() -> ServiceModel:
    return ServiceModel(create_loader().load_service_model("sqs", "service-2"), "sqs")


@cache
def _shapes(operation: str) -> tuple[Shape | None, Shape | None]:
    model = service_model().operation_model(operation)
    return model.input_shape, model.output_shape


@cache
def _checks(operation: str) -> tuple[Check, Check]:
    request, answer = _shapes(operation)
    return _check(request), _check(answer)


def check_request(operation: str, parameters: Mapping[str, Any]) -> None:
    """Raises `ParamValidationError`, as boto3 does before it sends anything."""
    if not _checks(operation)[0](parameters) and (report := _report(parameters, _shapes(operation)[0])):
        raise ParamValidationError(report=report)


def check_answer(operation: str, answer: Mapping[str, Any]) -> None:
    """Raises `WrongAnswer`."""
    if not _checks(operation)[1](answer) and (report := _report(answer, _shapes(operation)[1])):
        raise WrongAnswer(f"{operation}: {report}")


def _report(value: Mapping[str, Any], shape: Shape | None) -> str:
    """What is wrong with a value; nothing fits where there is no shape."""
    if shape is None:
        return f"Unexpected: {value}" if value else ""
    errors = _validator.validate(value, shape)
    return errors.generate_report() if errors.has_errors() else ""


def _check(shape: Shape | None) -> Check:
    """Whether a value certainly fits a shape."""
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
    member, least = _check(shape.member), shape.metadata.get("min", 0)
    return lambda value: type(value) is list and len(value) >= least and all(map(member, value))


def _structure(shape: StructureShape) -> Check:
    members = {name: _check(member) for name, member in shape.members.items()}
    required = frozenset(shape.required_members)

    def fits(value: Any) -> bool:
        if type(value) is not dict or not required <= value.keys():
            return False
        return all(name in members and members[name](item) for name, item in value.items())

    return fits


def _map(shape: MapShape) -> Check:
    key, item = _check(shape.key), _check(shape.value)

    def fits(value: Any) -> bool:
        return type(value) is dict and all(map(key, value)) and all(map(item, value.values()))

    return fits
