"""`--seed`: AWS calls that fill the tables, buckets and queues of a local cloud before the first message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError, UnknownServiceError
from botocore.validate import ParamValidator

from tarry.failed.usage import UsageError
from tarry.tools.local.samples import TYPES
from tarry.tools.simulator.sqs import SqsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tarry.tools.testing.moto_relay import Call

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
    shape = model.operation_model(name).input_shape
    if shape is None:
        return SeedCall(where, service, name, parameters)
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
            case "secretsmanager", "CreateSecret" if "SecretString" in given:
                found["secretsmanager", given["Name"]] = given["SecretString"]
            case "secretsmanager", "PutSecretValue" if "SecretString" in given:
                found["secretsmanager", given["SecretId"]] = given["SecretString"]
    return found


def make_calls(calls: Iterable[SeedCall], endpoint_url: str, region: str, sqs: Call) -> None:
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
