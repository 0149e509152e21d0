"""AWS's query protocol, which SDKs spoke until the end of 2023: a form as the request, XML as the answer.

Requests and answers are read and made from botocore's service model of SQS. It no longer has the names that lists and
maps have in this protocol; those are here, as in its last version that had them (botocore 1.31.80).
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from botocore.model import ListShape, MapShape, Shape, StructureShape

from tarry.tools.simulator.http.requests import check_required
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.simulator.sqs.errors import service_model

Fields = dict[str, Any]
"""The fields of a form as a tree: ``Attribute.1.Name=x`` is ``{"Attribute": {"1": {"Name": "x"}}}``."""

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_MAPS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "QueueAttributeMap": ("Attribute", "Name"),
    "TagMap": ("Tag", "Key"),
}
"""The names of each entry of a map, and of its key; that of its value is ``Value``."""
_LISTS = {
    "BinaryList": "BinaryListValue",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "StringList": "StringListValue",
}
"""The names of the elements of lists; the others have the name of the list without ``List``."""
_UNSAFE = {"\r": "&#13;"}
"""A carriage return, which a reader of XML changes to a line feed."""


def fields_in(body: bytes) -> Fields:
    """Return the fields of a request. Raises `SqsError` if its body is not UTF-8."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True)
    except UnicodeDecodeError as error:
        raise SqsError("MalformedQueryString", f"The request is not UTF-8: {error}") from None
    fields: Fields = {}
    for name, value in pairs:
        *parents, last = name.split(".")
        place = fields
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = value
    return fields


def operation_in(fields: Fields) -> str:
    """Return the operation of a request. Raises `SqsError` if there is none."""
    action = fields.get("Action")
    if not isinstance(action, str) or not action:
        raise SqsError("MissingAction", "The request has neither the parameter Action nor the header X-Amz-Target.")
    if action not in service_model().operation_names:
        raise SqsError("InvalidAction", f"The action {action} is not valid for this endpoint.")
    return action


def parameters_in(operation: str, fields: Fields, path: str) -> dict[str, Any]:
    """Return the parameters of a request; the ``path`` of its URL names the queue if no parameter does.

    Raises `SqsError` if a value has a wrong type, or a required parameter is missing.
    """
    shape = service_model().operation_model(operation).input_shape
    assert isinstance(shape, StructureShape)
    parameters = _structure(shape, fields)
    if "QueueUrl" in shape.members and path != "/":
        parameters.setdefault("QueueUrl", path)
    if "Entries" in shape.members:
        parameters.setdefault("Entries", [])
    check_required(shape, parameters)
    return parameters


def _structure(shape: StructureShape, fields: Fields) -> dict[str, Any]:
    given = {name: (member, fields.get(_name(name, member))) for name, member in shape.members.items()}
    return {name: _read(name, member, value) for name, (member, value) in given.items() if value is not None}


def _read(name: str, shape: Shape, value: Any) -> Any:
    match shape:
        case StructureShape() if isinstance(value, dict):
            return _structure(shape, value)
        case ListShape() if isinstance(value, dict):
            return [_read(name, shape.member, each) for each in _numbered(value)]
        case MapShape() if isinstance(value, dict):
            key = _MAPS[shape.name][1]
            entries = [each for each in _numbered(value) if isinstance(each, dict)]
            return {each.get(key, ""): _read(name, shape.value, each.get("Value", "")) for each in entries}
    if isinstance(value, dict) or isinstance(shape, StructureShape | ListShape | MapShape):
        raise _malformed(name, "a structure" if isinstance(value, dict) else value)
    return _scalar(name, shape.type_name, value)


def _numbered(value: Fields) -> list[Any]:
    """Return the elements of a list by their numbers, which need not be contiguous."""
    return [value[number] for number in sorted((each for each in value if each.isdecimal()), key=int)]


def _scalar(name: str, kind: str, value: str) -> Any:
    try:
        match kind:
            case "integer" | "long":
                return int(value)
            case "blob":
                return b64decode(value, validate=True)
    except ValueError:
        raise _malformed(name, value) from None
    return value


def _malformed(name: str, value: str) -> SqsError:
    return SqsError("MalformedInput", f"Value {value} for parameter {name} is invalid.")


def _name(name: str, shape: Shape) -> str:
    """Return the name of a member in this protocol: flattened lists and maps have that of their elements."""
    if isinstance(shape, ListShape):
        return _LISTS.get(shape.name, shape.name.removesuffix("List"))
    if isinstance(shape, MapShape):
        return _MAPS[shape.name][0]
    return name


# answers


def success(operation: str, answer: Mapping[str, Any], request_id: str) -> str:
    """Return the answer to a request as XML."""
    shape = service_model().operation_model(operation).output_shape
    result = "" if shape is None else _element(f"{operation}Result", "".join(_members(shape, answer)))
    metadata = _element("ResponseMetadata", _element("RequestId", request_id))
    return _document(f"{operation}Response", result + metadata)


def failure(error: SqsError, request_id: str) -> str:
    """Return an error as XML."""
    fault = "Sender" if error.sender_fault else "Receiver"
    parts = {"Type": fault, "Code": error.code, "Message": error.message}
    text = "".join(_element(name, _text(value)) for name, value in parts.items())
    return _document("ErrorResponse", _element("Error", f"{text}<Detail/>") + _element("RequestId", request_id))


def _document(name: str, content: str) -> str:
    return f'<?xml version="1.0"?><{name} xmlns="{NAMESPACE}">{content}</{name}>'


def _members(shape: Shape, value: Mapping[str, Any]) -> Iterator[str]:
    assert isinstance(shape, StructureShape)
    for name, member in shape.members.items():
        if name in value:
            yield from _elements(_name(name, member), member, value[name])


def _elements(name: str, shape: Shape, value: Any) -> Iterator[str]:
    match shape:
        case ListShape():
            for each in value:
                yield from _elements(name, shape.member, each)
        case MapShape():
            for key, each in value.items():
                key_element = _element(_MAPS[shape.name][1], _text(key))
                yield _element(name, key_element + "".join(_elements("Value", shape.value, each)))
        case StructureShape():
            yield _element(name, "".join(_members(shape, value)))
        case _:
            yield _element(name, _text(value))


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    return escape(str(value), _UNSAFE)
