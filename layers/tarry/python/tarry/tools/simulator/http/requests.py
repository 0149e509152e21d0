"""Reading requests in AWS's JSON protocol: the operation, and its parameters with the types of SQS's service model.

A value of a wrong type is refused with the text of AWS's JSON reader, which is the same for its services.
"""

import json
from base64 import b64decode
from math import isfinite
from typing import Any, NoReturn

from botocore.model import ListShape, MapShape, Shape, StructureShape

from tarry.tools.simulator.sqs import SqsError
from tarry.tools.simulator.sqs.errors import missing, service_model

TARGET = "AmazonSQS."
MAX_BODY_BYTES = 6 * 1_048_576 + 90_112
"""The limit of AWS as far as it is known: 1,662,976 for messages of 262,144, which is six times as much and 88 KiB."""

Parameters = dict[str, Any]


def operation_in(target: str) -> str:
    """Return the operation in the header X-Amz-Target, which may be empty. Raises `SqsError` if there is none."""
    if not target:
        raise SqsError(
            "UnknownOperationException", "The request has no header X-Amz-Target, which names the operation."
        )
    operation = target.removeprefix(TARGET)
    if operation == target and (service := target.partition(".")[0].partition("_")[0]):
        raise SqsError("UnknownOperationException", only_sqs(service))
    if operation == target or operation not in service_model().operation_names:
        raise SqsError("UnknownOperationException", f"There is no operation {target}.")
    return operation


def only_sqs(service: str) -> str:
    """Return the text of the error for a request to another service."""
    return f"This endpoint has only SQS, not {service}: set AWS_ENDPOINT_URL to the endpoint of the other services."


def parameters_in(operation: str, body: bytes) -> Parameters:
    """Parse the parameters of a request, without nulls and unknown parameters.

    Raises `SqsError` if the body is not a JSON object, a value has a wrong type, or a required parameter is missing.
    """
    try:
        given = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"The request is not JSON: {error}") from None
    if not isinstance(given, dict | list):
        raise _unreadable("The request is not a JSON object.")
    shape = service_model().operation_model(operation).input_shape
    assert isinstance(shape, StructureShape)
    parameters = _structure(shape, given)
    check_required(shape, parameters)
    return parameters


def _refuse(constant: str) -> NoReturn:
    raise _unreadable(f"The request is not JSON: {constant} is not a number")


def check_required(shape: StructureShape, parameters: Parameters) -> None:
    """Raise `SqsError` if a required parameter is missing, in the request itself or in an entry of a batch."""
    for name in shape.required_members:
        if name not in parameters:
            raise missing(name)
    entries = shape.members.get("Entries")
    if isinstance(entries, ListShape):
        for number, entry in enumerate(parameters["Entries"], start=1):
            for name in entries.member.required_members:
                if name not in entry:
                    raise missing(f"{entries.member.name}.{number}.{name}")


def _read(shape: Shape, value: Any) -> Any:
    """Convert a JSON value to the type of a shape; raise `SqsError` if AWS would not."""
    match shape:
        case StructureShape():
            return _structure(shape, value)
        case MapShape():
            return {name: _read(shape.value, each) for name, each in _object(value).items() if each is not None}
        case ListShape():
            if isinstance(value, dict):
                raise _misplaced(value)
            if not isinstance(value, list):
                raise _unreadable("Expected list or null")
            return [_read(shape.member, each) for each in value if each is not None]
    return _scalar(shape.type_name, value)


def _structure(shape: StructureShape, value: Any) -> dict[str, Any]:
    members = shape.members
    given = {name: each for name, each in _object(value).items() if name in members and each is not None}
    return {name: _read(members[name], each) for name, each in given.items()}


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        raise _misplaced(value)
    if not isinstance(value, dict):
        raise _unreadable("Expected null")
    return value


def _scalar(kind: str, value: Any) -> Any:
    if isinstance(value, dict | list):
        raise _misplaced(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer" and is_number and isfinite(value):
        return int(value)
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "blob" and isinstance(value, str):
        try:
            return b64decode(value, validate=True)
        except ValueError as error:
            raise _unreadable(f"A BinaryValue is not base64: {error}") from None
    given = "STRING" if isinstance(value, str) else "NUMBER" if is_number else str(value).upper()
    article = "an" if kind == "integer" else "a"
    raise _unreadable(f"{given}_VALUE can not be converted to {article} {kind.capitalize()}")


def _misplaced(value: dict[str, Any] | list[Any]) -> SqsError:
    """Return the error for an object or a list in place of another type."""
    if isinstance(value, list):
        return _unreadable("Start of list found where not expected")
    return _unreadable("Start of structure or map found where not expected.")


def _unreadable(text: str) -> SqsError:
    return SqsError("SerializationException", text)
