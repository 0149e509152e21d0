"""Errors of the services beside SQS, each in the form of the service that was called."""

import json
import re
from collections.abc import Callable
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

SCOPE = re.compile(r"Credential=[^/]+/\d+/[^/]+/(?P<service>[^/]+)/aws4_request")


def asked_for(environ: dict[str, Any]) -> tuple[str, str]:
    """Return the service and the operation of a request, as far as its headers and its body tell."""
    scope = SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    service = scope["service"] if scope else target.partition(".")[0].partition("_")[0] or "this service"
    path = environ.get("PATH_INFO", "")
    operation = target.rpartition(".")[2] or path.rpartition("/operation/")[2]
    if is_query(environ):
        operation = "".join(parse_qs(_body(environ).decode(errors="replace")).get("Action", [""]))
    return service, operation if operation and operation != path else f"{environ['REQUEST_METHOD']} {path}"


def not_there(service: str, operation: str) -> str:
    """Return the text of the error for an operation that moto lacks."""
    return f"{operation} cannot be emulated: moto, which emulates {service} here, does not implement it."


def is_query(environ: dict[str, Any]) -> bool:
    """Whether a request has the query protocol: a form, answered in XML."""
    return str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")


def _body(environ: dict[str, Any]) -> bytes:
    """Return the body of a request, which stays readable."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = BytesIO(body)
    return body


def refused(
    environ: dict[str, Any],
    respond: Callable[..., Any],
    code: str,
    text: str,
    status: HTTPStatus = HTTPStatus.NOT_IMPLEMENTED,
) -> list[bytes]:
    """Answer with an error in the protocol of the request. SDKs do not retry its status."""
    service, _ = asked_for(environ)
    line = f"{status.value} {status.phrase}"
    if environ.get("HTTP_SMITHY_PROTOCOL") == "rpc-v2-cbor":
        kind, body = "application/cbor", cbor({"__type": code, "message": text})
        respond(line, [("Content-Type", kind), ("smithy-protocol", "rpc-v2-cbor")])
        return [body]
    if service == "s3" or is_query(environ):
        found = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(text)}</Message></Error>"
        if service == "ec2":
            found = f"<Response><Errors>{found}</Errors></Response>"
        elif service != "s3":
            found = f"<ErrorResponse>{found}</ErrorResponse>"
        respond(line, [("Content-Type", "text/xml")])
        return [found.encode()]
    respond(line, [("Content-Type", "application/json"), ("x-amzn-ErrorType", code)])
    return [json.dumps({"__type": code, "message": text, "Message": text}).encode()]


def cbor(found: dict[str, str]) -> bytes:
    """Return a short map of texts in CBOR."""
    encoded = bytes([0xA0 | len(found)])
    for each in (text for pair in found.items() for text in pair):
        text = each.encode()[:0xFFFF]
        encoded += b"\x79" + len(text).to_bytes(2, "big") + text
    return encoded
