"""Requests and answers, checked against SQS's model in botocore."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import create_loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.model import Shape

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


def check_request(operation: str, parameters: Mapping[str, Any]) -> None:
    """Raises `ParamValidationError`, as boto3 does before it sends anything."""
    if report := _report(parameters, _shapes(operation)[0]):
        raise ParamValidationError(report=report)


def check_answer(operation: str, answer: Mapping[str, Any]) -> None:
    """Raises `WrongAnswer`."""
    if report := _report(answer, _shapes(operation)[1]):
        raise WrongAnswer(f"{operation}: {report}")


def _report(value: Mapping[str, Any], shape: Shape | None) -> str:
    """What is wrong with a value; nothing fits where there is no shape."""
    if shape is None:
        return f"Unexpected: {value}" if value else ""
    errors = _validator.validate(value, shape)
    return errors.generate_report() if errors.has_errors() else ""
