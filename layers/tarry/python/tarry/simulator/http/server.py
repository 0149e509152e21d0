"""The HTTP server of the SQS model, which speaks SQS's JSON protocol."""

from __future__ import annotations

import json
import logging
import os
import re
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from aiohttp import web

from tarry.simulator.http.long_polls import LongPolls
from tarry.simulator.recursion import lineage_in
from tarry.simulator.sqs import SqsError
from tarry.simulator.sqs.errors import missing
from tarry.simulator.sqs.validation import service_model
from tarry.tooling.queues import redrive_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tarry.simulator.asyncio_scheduler import AsyncioScheduler
    from tarry.simulator.sqs import Sqs

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."
SCOPE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request")
"""The service that a request is signed for."""

Parameters = dict[str, Any]


def operation_in(target: str) -> str:
    """Return the operation in the header X-Amz-Target. Raises `SqsError` if there is no such operation."""
    operation = target.removeprefix(TARGET)
    if operation == target and (service := target.partition(".")[0].partition("_")[0]):
        raise SqsError("UnknownOperationException", only_sqs(service))
    if operation == target or operation not in service_model().operation_names:
        raise SqsError("UnknownOperationException", f"There is no operation {target}.")
    return operation


def parameters_in(operation: str, body: bytes) -> Parameters:
    """Parse the parameters of a request, without nulls and unknown parameters.

    Raises:
        SqsError: The body is not a JSON object, or a required parameter is missing.
    """
    try:
        given = json.loads(body or b"{}")
    except ValueError as error:
        raise SqsError("SerializationException", f"The request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise SqsError("SerializationException", "The request is not a JSON object.")
    shape: Any = service_model().operation_model(operation).input_shape
    parameters = {name: value for name, value in given.items() if name in shape.members and value is not None}
    for name in shape.required_members:
        if name not in parameters:
            raise missing(name)
    _decode_binaries(parameters)
    return parameters


def _decode_binaries(parameters: Mapping[str, Any]) -> None:
    """Decode binary attribute values, which are base64 in JSON."""
    entries = parameters.get("Entries")
    for message in [parameters, *(entries if isinstance(entries, list) else ())]:
        attributes = message.get("MessageAttributes") if isinstance(message, dict) else None
        for attribute in attributes.values() if isinstance(attributes, dict) else ():
            if isinstance(attribute, dict) and isinstance(value := attribute.get("BinaryValue"), str):
                try:
                    attribute["BinaryValue"] = b64decode(value, validate=True)
                except ValueError as error:
                    raise SqsError("SerializationException", f"A BinaryValue is not base64: {error}") from None


def success(answer: Mapping[str, Any]) -> web.Response:
    return _response(200, answer)


def failure(error: SqsError) -> web.Response:
    """Return an error response: its body has the error's name in SQS's model, a header the code that SDKs show."""
    body = {"__type": f"com.amazonaws.sqs#{error.name}", "message": error.message}
    fault = "Sender" if error.sender_fault else "Receiver"
    return _response(error.status, body, {"x-amzn-query-error": f"{error.code};{fault}"})


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(body, default=_base64, separators=(",", ":"))
    response = web.Response(status=status, body=text.encode(), content_type=CONTENT_TYPE, headers=headers)
    response.headers["x-amzn-RequestId"] = os.urandom(16).hex()
    return response


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def only_sqs(service: str) -> str:
    """Return the text of the error for a request to another service."""
    return f"This endpoint has only SQS, not {service}: set AWS_ENDPOINT_URL to the endpoint of the other services."


def service_of(request: web.Request) -> str:
    """Return the service that a request is signed for; empty if it is not signed."""
    scope = SCOPE.search(request.headers.get("Authorization", ""))
    return scope[1] if scope else ""


def query_protocol_error(service: str) -> web.Response:
    """Return the error for a request without X-Amz-Target, in the XML form that an SDK of the query protocol reads.

    ``service`` is the one that the request is signed for.
    """
    text = (
        "This SQS supports only the JSON protocol (the header X-Amz-Target names the operation), which every AWS SDK "
        "and CLI has used since the end of 2023: update yours."
    )
    if service not in {"", "sqs"}:
        text = only_sqs(service)
    if service == "s3":
        return web.Response(
            body=f"<Error><Code>InvalidAction</Code><Message>{escape(text)}</Message></Error>",
            status=400,
            content_type="text/xml",
        )
    error = f"<Error><Type>Sender</Type><Code>InvalidAction</Code><Message>{escape(text)}</Message></Error>"
    body = f"<ErrorResponse>{error}<RequestId>{os.urandom(16).hex()}</RequestId></ErrorResponse>"
    return web.Response(status=400, text=body, content_type="text/xml")


HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""Larger than the 1 MiB of a message, since JSON escapes control characters."""
IDLE_SECONDS = 86_400.0
"""How long idle connections stay open. If one closed just as an SDK sends a message, the SDK would send it twice."""
SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class PortTaken(Exception):
    """The port is in use or cannot be opened."""


@asynccontextmanager
async def serve(sqs: Sqs, scheduler: AsyncioScheduler, host: str = HOST, port: int = 0) -> AsyncIterator[str]:
    """Serve the model on the running loop within the context; yield the endpoint URL.

    Args:
        sqs: The model, which must use the time of ``scheduler``. Its ``endpoint_url`` is set.
        scheduler: The scheduler of the running loop.
        host: The address to listen at.
        port: The port to listen at; 0 for a free one.

    Raises:
        PortTaken: The port is in use or cannot be opened.
    """
    server = SqsServer(sqs, LongPolls(sqs, scheduler))
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handler_cancellation=True,  # ends a long poll whose client disconnects
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else error
            raise PortTaken(f"cannot listen at port {port} of {host}: {why}") from None
        sqs.endpoint_url = f"http://{host}:{runner.addresses[0][1]}"
        yield sqs.endpoint_url
    finally:
        await runner.cleanup()


class SqsServer:
    """The HTTP handlers of the SQS model."""

    def __init__(self, sqs: Sqs, long_polls: LongPolls) -> None:
        self._sqs = sqs
        self._long_polls = long_polls

    def application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        application.router.add_get("/", self._about)
        application.router.add_get("/queues", self._queues)
        application.router.add_route("*", "/{path:.*}", self._request)  # some SDKs post to the queue's URL
        application.on_shutdown.append(self._close)
        return application

    async def _close(self, _: web.Application) -> None:
        self._long_polls.close()

    async def _request(self, request: web.Request) -> web.Response:
        target = request.headers.get("X-Amz-Target")
        if target is None:
            return query_protocol_error(service_of(request))
        try:
            operation = operation_in(target)
            parameters = parameters_in(operation, await request.read())
            return success(await self._answer(operation, parameters, request))
        except SqsError as error:
            return failure(error)
        except web.HTTPRequestEntityTooLarge as error:
            return failure(SqsError("RequestEntityTooLarge", error.text or "The request is too large.", status=413))
        except Exception as error:  # noqa: BLE001 logged, and returned in a form that SDKs can read
            _log.exception("a bug in the simulator: a request to SQS failed")
            return failure(SqsError("InternalFailure", repr(error), sender_fault=False))

    async def _answer(self, operation: str, parameters: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if operation != "ReceiveMessage":
            trace = request.headers.get("X-Amzn-Trace-Id")
            return self._sqs.called_by("http", operation, parameters, lineage_in(trace), trace)
        return await self._long_polls.receive(parameters, lambda: _is_gone(request))

    async def _about(self, request: web.Request) -> web.Response:
        if service := service_of(request):
            return query_protocol_error(service)
        return web.Response(
            text=f"tarry's local SQS. Give an AWS SDK or CLI the endpoint URL {self._sqs.endpoint_url}\n"
            f"GET /queues lists the queues and their numbers of messages as JSON.\n"
        )

    async def _queues(self, _: web.Request) -> web.Response:
        """List the queues with their attributes and the age of the oldest message; SQS itself has no such request."""
        queues = [self._described(name) for name in self._sqs.queues()]
        about = {"queues": queues, "region": self._sqs.region, "other_services": self._sqs.other_services}
        return web.json_response(about)

    def _described(self, name: str) -> dict[str, Any]:
        url, depth = self._sqs.url(name), self._sqs.depth(name)
        asked = {"QueueUrl": url, "AttributeNames": ["RedrivePolicy"]}
        redrive = redrive_of(self._sqs.answer("GetQueueAttributes", asked).get("Attributes", {}))
        target = redrive.target.name if redrive else None
        return {"name": name, "url": url, **depth._asdict(), "dead_letter_queue": target}


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
