"""The files given to a run: the messages of an event, the calls of a seed."""

import base64
import binascii
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError, UnknownServiceError
from botocore.validate import ParamValidator

from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.template import TemplateQueue

if TYPE_CHECKING:
    from tarry.tools.testing.moto_relay import Call


def json_of(content: bytes, name: str) -> Any:
    """Return the value of a JSON text, which is UTF-8. Raises `UsageError`."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not JSON: byte {error.start} is not text; give a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}; give a JSON file") from error


STDIN = "-"


def read_event(name: str) -> Any:
    """Read an event from a file, or from stdin for ``-``. Raises `UsageError` if it cannot be read, or is not JSON."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}; give a file with the event") from error
    return json_of(data, "stdin" if name == STDIN else name)


SERVICES = {"s3": "an S3 event", "sns": "an SNS event", "dynamodb": "a DynamoDB stream event"}
KINDS = {
    "detail-type": "an EventBridge event",
    "requestContext": "an API Gateway event",
    "httpMethod": "an API Gateway event",
}
"""Kinds of events without Records, by one of their keys."""
TYPES = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
SQS_EVENT = "give an object with Records, each with the eventSourceARN of a queue and a body"


def not_sqs(event: Any) -> str:
    """Return what an event is instead of an SQS event, and what to give; empty for an SQS event."""
    if not isinstance(event, dict):
        kind = TYPES.get(type(event), "not an object")
    elif not isinstance(event.get("Records"), list):
        kind = next((kind for key, kind in KINDS.items() if key in event), "an object without a list of Records")
    else:
        source = next((source for each in event["Records"] if (source := _source(each)) not in ("", "sqs")), "")
        kind = source and SERVICES.get(source, f"an event of {source}")
    return f"{kind}, not an SQS event: {SQS_EVENT}" if kind else ""


def _source(record: Any) -> str:
    """Return the service of a record, such as ``s3``; empty if it names none."""
    source = record.get("eventSource") or record.get("EventSource") if isinstance(record, dict) else None
    return source.removeprefix("aws:") if isinstance(source, str) else ""


@dataclass(frozen=True)
class Sample:
    """A record of the event, to be sent as a message.

    ``number`` is its position in the file, from 1; ``queue`` is empty if the record names none.
    """

    number: int
    queue: str
    body: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    receive_count: int = 1

    def request(self, queue: TemplateQueue, url: str) -> dict[str, Any]:
        """Return the parameters of SendMessage."""
        request: dict[str, Any] = {
            "QueueUrl": url,
            "MessageBody": self.body,
            "MessageAttributes": dict(self.attributes),
        }
        if self.group_id:
            request["MessageGroupId"] = self.group_id
        if queue.is_fifo and (self.deduplication_id or not queue.deduplicates_by_content):
            request["MessageDeduplicationId"] = self.deduplication_id or f"record-{self.number}"
        if self.trace_header:
            header = {"StringValue": self.trace_header, "DataType": "String"}
            request["MessageSystemAttributes"] = {"AWSTraceHeader": header}
        return request


def read_samples(path: Path) -> list[Sample]:
    """Read the records of an SQS event file.

    Raises:
        UsageError: the file cannot be read, or is not an SQS event; with the number of the record and the problem.
    """
    try:
        event = json_of(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; give a file with an SQS event") from error
    if problem := not_sqs(event):
        raise UsageError(f"{path} is {problem}")
    return [_sample(number, record, path) for number, record in enumerate(event["Records"], start=1)]


def _sample(number: int, record: Any, path: Path) -> Sample:
    where = f"{path}: record {number}"
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {record!r:.40}, not a message")
    source = record.get("eventSourceARN")
    arn = queue_arn(source if isinstance(source, str) else "")
    if source is not None and not arn.name:
        raise UsageError(f"{where}: eventSourceARN must be the ARN of a queue, got {source!r}")
    if not isinstance(record.get("body"), str):
        raise UsageError(f"{where}: body must be a string")
    system = record.get("attributes") or {}
    attributes = record.get("messageAttributes") or {}
    if not isinstance(system, dict) or not isinstance(attributes, dict):
        raise UsageError(f"{where}: attributes and messageAttributes must be objects")
    if arn.is_fifo and not system.get("MessageGroupId"):
        raise UsageError(f"{where} needs attributes.MessageGroupId: {arn.name} is a FIFO queue")
    count = str(system.get("ApproximateReceiveCount", ""))
    return Sample(
        number=number,
        queue=arn.name,
        body=record["body"],
        attributes={name: _attribute(value, f"{where}: attribute {name}") for name, value in attributes.items()},
        group_id=system.get("MessageGroupId"),
        deduplication_id=system.get("MessageDeduplicationId"),
        trace_header=system.get("AWSTraceHeader"),
        receive_count=int(count) if count.isdecimal() else 1,
    )


def _attribute(value: Any, where: str) -> dict[str, Any]:
    """Convert a message attribute of an event to one of SendMessage."""
    kind = value.get("dataType") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise UsageError(f"{where} needs a dataType")
    if not kind.startswith("Binary"):
        return {"DataType": kind, "StringValue": str(value.get("stringValue", ""))}
    try:
        return {"DataType": kind, "BinaryValue": base64.b64decode(value.get("binaryValue", ""), validate=True)}
    except (binascii.Error, TypeError, ValueError) as error:
        raise UsageError(f"{where}: its binaryValue is not base64") from error


KEYS = ("service", "operation", "parameters")
EXAMPLE = '{"service": "s3", "operation": "put_object", "parameters": {"Bucket": "files", "Key": "a", "Body": "text"}}'


@dataclass(frozen=True)
class SeedCall:
    """A call of a seed file. ``where`` is its file and line, ``operation`` the name in the service's model."""

    where: str
    service: str
    operation: str
    parameters: Mapping[str, Any]


def read_seed(path: Path) -> list[SeedCall]:
    """Read a seed file: JSON lines, each with a service, an operation and its parameters, as boto3 takes them.

    Raises `UsageError` if the file cannot be read, or a line is not such a call; with its number and the problem.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"--seed {path} cannot be read: {error.strerror or error}; give a file of JSON lines"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--seed {path} is not text: byte {error.start} is not UTF-8; give a file of JSON lines"
        ) from error
    session = botocore.session.Session()
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    return [_call(session, line, f"{path}, line {number}") for number, line in lines]


def _call(session: botocore.session.Session, line: str, where: str) -> SeedCall:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({error}); each line is one call, such as {EXAMPLE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{where} is {TYPES[type(found)]}, not a call such as {EXAMPLE}")
    if unknown := sorted(found.keys() - set(KEYS)):
        raise UsageError(f"{where} has {', '.join(unknown)}; a call has only {', '.join(KEYS)}")
    for key, kind in zip(KEYS, (str, str, dict), strict=True):
        if not isinstance(found.get(key, {} if key == "parameters" else None), kind):
            what = "an object" if kind is dict else "a text"
            raise UsageError(f"{where}: {key} must be {what}; write a call such as {EXAMPLE}")
    return _checked(session, found["service"], found["operation"], found.get("parameters", {}), where)


def _checked(
    session: botocore.session.Session, service: str, operation: str, parameters: Mapping[str, Any], where: str
) -> SeedCall:
    try:
        model = session.get_service_model(service)
    except UnknownServiceError as error:
        near = _near(service, session.get_available_services())
        raise UsageError(f"{where}: boto3 has no service {service!r}{near}") from error
    names = {xform_name(name): name for name in model.operation_names}
    name = names.get(xform_name(operation))
    if name is None:
        raise UsageError(f"{where}: {service} has no operation {operation!r}{_near(xform_name(operation), names)}")
    if (shape := model.operation_model(name).input_shape) is not None:
        report = ParamValidator().validate(parameters, shape)
        if report.has_errors():
            raise UsageError(f"{where}: {'; '.join(report.generate_report().splitlines())}")
    return SeedCall(where, service, name, parameters)


def _near(given: str, known: Iterable[str]) -> str:
    found = get_close_matches(given, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def stored_values(calls: Iterable[SeedCall]) -> dict[tuple[str, str], str]:
    """Return the SSM parameters and secrets that the calls make, by service and name."""
    found: dict[tuple[str, str], str] = {}
    for call in calls:
        given = call.parameters
        match call.service, call.operation:
            case "ssm", "PutParameter":
                found["ssm", given["Name"]] = given["Value"]
            case "secretsmanager", ("CreateSecret" | "PutSecretValue") as kind if "SecretString" in given:
                name = given["Name" if kind == "CreateSecret" else "SecretId"]
                found["secretsmanager", name] = given["SecretString"]
    return found


def make_calls(calls: Iterable[SeedCall], endpoint_url: str, region: str, sqs: "Call") -> None:
    """Make the calls, in the order of the file: those of SQS at ``sqs``, all others at the endpoint.

    Raises `UsageError` if a service refuses a call; with its line.
    """
    session: Any = boto3.session.Session("local", "local", "local", region)  # its stubs know each service by name
    clients: dict[str, Any] = {}
    for call in calls:
        try:
            if call.service == "sqs":
                sqs(call.operation, call.parameters)
                continue
            if call.service not in clients:
                clients[call.service] = session.client(call.service, endpoint_url=endpoint_url)
            getattr(clients[call.service], xform_name(call.operation))(**call.parameters)
        except (ClientError, BotoCoreError) as error:
            raise UsageError(f"{call.where}: {error}") from error
        except SqsError as error:
            raise UsageError(f"{call.where}: SQS refuses {call.operation}: {error.message}") from error
