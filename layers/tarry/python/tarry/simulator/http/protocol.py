"""The JSON protocol of SQS: what stands in a request, and what in an answer.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-making-api-requests-json.html
The query protocol, which SDKs spoke before the end of 2023, is not spoken: it is told so in its own form.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from aiohttp import web

from tarry.simulator.sqs import SqsError
from tarry.simulator.sqs.errors import missing
from tarry.simulator.sqs.validation import service_model

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."

Parameters = dict[str, Any]


def operation_in(target: str) -> str:
    """The operation that the header X-Amz-Target names. Raises `SqsError`."""
    operation = target.removeprefix(TARGET)
    if operation == target or operation not in service_model().operation_names:
        raise SqsError("UnknownOperationException", f"There is no operation {target}.")
    return operation


def parameters_in(operation: str, body: bytes) -> Parameters:
    """What a request says: nulls and members that SQS does not know count for nothing. Raises `SqsError`."""
    try:
        given = json.loads(body or b"{}")
    except ValueError as error:
        raise SqsError("SerializationException", f"The request is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise SqsError("SerializationException", "The request is no JSON object.")
    shape: Any = service_model().operation_model(operation).input_shape
    parameters = {name: value for name, value in given.items() if name in shape.members and value is not None}
    for name in shape.required_members:
        if name not in parameters:
            raise missing(name)
    _read_binaries(parameters)
    return parameters


def _read_binaries(parameters: Mapping[str, Any]) -> None:
    """Binary values are base64 in JSON, bytes in the model."""
    entries = parameters.get("Entries")
    for message in [parameters, *(entries if isinstance(entries, list) else ())]:
        attributes = message.get("MessageAttributes") if isinstance(message, dict) else None
        for attribute in attributes.values() if isinstance(attributes, dict) else ():
            if isinstance(attribute, dict) and isinstance(value := attribute.get("BinaryValue"), str):
                try:
                    attribute["BinaryValue"] = b64decode(value, validate=True)
                except ValueError as error:
                    raise SqsError("SerializationException", f"A BinaryValue is no base64: {error}") from None


def answered(answer: Mapping[str, Any]) -> web.Response:
    return _response(200, answer)


def refused(error: SqsError) -> web.Response:
    """The error by its name in SQS's model, and beside it by its code in the query protocol, which SDKs go by."""
    told = {"__type": f"com.amazonaws.sqs#{error.name}", "message": error.message}
    fault = "Sender" if error.sender_fault else "Receiver"
    return _response(error.status, told, {"x-amzn-query-error": f"{error.code};{fault}"})


def _response(status: int, told: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(told, default=_base64, separators=(",", ":"))
    response = web.Response(status=status, body=text.encode(), content_type=CONTENT_TYPE, headers=headers)
    response.headers["x-amzn-RequestId"] = os.urandom(16).hex()
    return response


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def old_protocol() -> web.Response:
    """The answer to a request without an X-Amz-Target, as an SDK of the query protocol can read it."""
    text = (
        "This SQS speaks the JSON protocol alone (the header X-Amz-Target names the operation), "
        "as every AWS SDK and CLI does since the end of 2023: use a newer one."
    )
    error = f"<Error><Type>Sender</Type><Code>InvalidAction</Code><Message>{escape(text)}</Message></Error>"
    body = f"<ErrorResponse>{error}<RequestId>{os.urandom(16).hex()}</RequestId></ErrorResponse>"
    return web.Response(status=400, text=body, content_type="text/xml")
