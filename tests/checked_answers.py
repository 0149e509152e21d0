"""Answers of the model of SQS, checked against botocore's service model."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from botocore.model import ListShape, StructureShape

from tarry.tools.simulator.sqs import Sqs
from tarry.tools.simulator.sqs.errors import fitting, report_of, service_model

Answer = Callable[[Sqs, str, Mapping[str, Any]], dict[str, Any]]


def with_checked_answers(answer: Answer) -> Answer:
    """Return `Sqs.answer` with a check that no answer of a correct model fails."""

    def checked(sqs: Sqs, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answered = answer(sqs, operation, parameters)
        shape, fits, lists = _answer(operation)
        completed = {**lists, **answered}
        assert fits(completed) or not report_of(completed, shape), f"{operation}: {report_of(completed, shape)}"
        return answered

    return checked


@cache
def _answer(operation: str) -> tuple[Any, Callable[[Any], bool], dict[str, list[Any]]]:
    """Return the shape of an answer, its check, and the lists that SQS leaves out although the model requires them."""
    shape = service_model().operation_model(operation).output_shape
    members = shape.members if isinstance(shape, StructureShape) else {}
    required = shape.required_members if isinstance(shape, StructureShape) else ()
    return shape, fitting(shape), {name: [] for name in required if isinstance(members[name], ListShape)}
