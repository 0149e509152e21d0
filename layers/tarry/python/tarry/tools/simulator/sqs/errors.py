"""The errors of SQS, with its own codes and texts."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import create_loader
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator

Check = Callable[[Any], bool]

PREFIX = "AWS.SimpleQueueService."
_NAMES = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
    "NonExistentQueue": "QueueDoesNotExist",
    "QueueAlreadyExists": "QueueNameExists",
}
"""The names of errors in SQS's service model, by the code that SDKs show; the others have the code as their name."""
_STATUSES = {
    "OverLimit": 403,
    "PurgeQueueInProgress": 403,
    "ReceiptHandleIsInvalid": 404,
    "RequestThrottled": 403,
    "ResourceNotFoundException": 404,
}
"""The HTTP statuses that are not 400."""


class SqsError(Exception):
    """SQS refuses a request, or one entry of a batch request.

    ``code`` is the ``Error.Code`` of the SDKs, ``name`` the error's name in SQS's service model (``QueryErrorCode``),
    ``status`` the HTTP status if the whole request is refused.
    """

    def __init__(self, code: str, message: str, *, sender_fault: bool = True, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        short = code.removeprefix(PREFIX)
        usual_status = _STATUSES.get(short, 400 if sender_fault else 500)
        self.code = code
        self.name = _NAMES.get(short, short)
        self.message = message
        self.sender_fault = sender_fault
        self.status = usual_status if status is None else status


def invalid(value: object, parameter: str, reason: str) -> SqsError:
    """Return the error for a parameter with an invalid value."""
    return SqsError("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


NO_SUCH_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def no_such_queue(text: str = "The specified queue does not exist.") -> SqsError:
    return SqsError(NO_SUCH_QUEUE, text)


def wrong_for_queue_type(value: object, parameter: str) -> SqsError:
    """Return the error for a parameter that only the other type of queue accepts."""
    return invalid(value, parameter, "The request include parameter that is not valid for this queue type.")


def check_range(value: int, parameter: str, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise invalid(value, parameter, f"Must be >= {minimum} and <= {maximum}, if provided.")


KINDS: dict[str, Any] = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}

_validator = ParamValidator()


@cache
def service_model() -> ServiceModel:
    return ServiceModel(create_loader().load_service_model("sqs", "service-2"), "sqs")


@cache
def names_of(shape: str) -> frozenset[str]:
    """Return the names in an enumeration of SQS's service model, ``All`` among them."""
    return frozenset(service_model().shape_for(shape).enum)  # type: ignore[attr-defined]


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
            fits, least = fitting(shape.member), shape.metadata.get("min", 0)
            return lambda value: type(value) is list and len(value) >= least and all(map(fits, value))
        case MapShape():
            key_fits, value_fits = fitting(shape.key), fitting(shape.value)
            return lambda value: (
                type(value) is dict and all(map(key_fits, value)) and all(map(value_fits, value.values()))
            )
    kind, least = KINDS.get(shape.type_name), shape.metadata.get("min")
    if least is None:
        return lambda value: type(value) is kind
    return lambda value: type(value) is kind and (value if kind is int else len(value)) >= least


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
