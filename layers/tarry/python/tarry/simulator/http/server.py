"""The model of SQS over HTTP, by its JSON protocol."""

from __future__ import annotations

import json
import logging
import os
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from aiohttp import web

from tarry.simulator.http.long_polls import LongPolls
from tarry.simulator.sqs import SqsError
from tarry.simulator.sqs.errors import missing
from tarry.simulator.sqs.validation import service_model
from tarry.tooling.queues import redrive_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tarry.simulator.sqs import Sqs
    from tarry.simulator.wall import LoopTimeline

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


HOST = "127.0.0.1"
MOST_REQUEST_BYTES = 16 * 1024 * 1024
"""1 MiB of message is a few times that in JSON, where control characters and the like are escaped."""
IDLE_SECONDS = 86_400.0
"""A client's open connection is left open: one that is closed just as a send goes out makes an SDK send twice."""
SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class PortTaken(Exception):
    """Somebody else listens at that port."""


@asynccontextmanager
async def serve(sqs: Sqs, timeline: LoopTimeline, host: str = HOST, port: int = 0) -> AsyncIterator[str]:
    """Serves the model on the running loop for as long as the context lasts; its URL, which is in all answers too.

    ``sqs`` is to live in the time of ``timeline``. Port 0 is one that is free.

    Raises `PortTaken`.
    """
    server = Server(sqs, LongPolls(sqs, timeline))
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handler_cancellation=True,  # a poll whose client goes away ends
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else error
            raise PortTaken(f"port {port} of {host} cannot be listened at: {why}") from None
        sqs.endpoint_url = f"http://{host}:{runner.addresses[0][1]}"
        yield sqs.endpoint_url
    finally:
        await runner.cleanup()


class Server:
    """What is answered at which path."""

    def __init__(self, sqs: Sqs, waiting: LongPolls) -> None:
        self._sqs = sqs
        self._waiting = waiting

    def application(self) -> web.Application:
        application = web.Application(client_max_size=MOST_REQUEST_BYTES)
        application.router.add_get("/", self._about)
        application.router.add_get("/queues", self._queues)
        application.router.add_post("/{path:.*}", self._request)  # some SDKs post to the queue's URL
        application.on_shutdown.append(self._close)
        return application

    async def _close(self, _: web.Application) -> None:
        self._waiting.close()

    async def _request(self, request: web.Request) -> web.Response:
        target = request.headers.get("X-Amz-Target")
        if target is None:
            return old_protocol()
        try:
            operation = operation_in(target)
            parameters = parameters_in(operation, await request.read())
            return answered(await self._answer(operation, parameters, request))
        except SqsError as error:
            return refused(error)
        except web.HTTPRequestEntityTooLarge as error:
            return refused(SqsError("RequestEntityTooLarge", error.text or "The request is too large.", status=413))
        except Exception as error:  # noqa: BLE001 logged, and told in a form that SDKs can read
            _log.exception("a request to SQS could not be answered: a bug of the simulator's")
            return refused(SqsError("InternalFailure", repr(error), sender_fault=False))

    async def _answer(self, operation: str, parameters: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if operation != "ReceiveMessage":
            self._sqs.history.by = "http"
            try:
                return self._sqs.call(operation, parameters)
            finally:
                self._sqs.history.by = None
        return await self._waiting.receive(parameters, lambda: _is_gone(request))

    async def _about(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f"SQS for this machine, by tarry: give an AWS SDK or CLI the endpoint URL {self._sqs.endpoint_url}\n"
            f"GET /queues lists the queues, and what they hold, as JSON.\n"
        )

    async def _queues(self, _: web.Request) -> web.Response:
        """An extension: what ListQueues and GetQueueAttributes tell at once, and the age of the oldest message."""
        return web.json_response({"queues": [self._told(name) for name in self._sqs.queues()]})

    def _told(self, name: str) -> dict[str, Any]:
        url, depth = self._sqs.url(name), self._sqs.depth(name)
        asked = {"QueueUrl": url, "AttributeNames": ["RedrivePolicy"]}
        redrive = redrive_of(self._sqs.answer("GetQueueAttributes", asked).get("Attributes", {}))
        target = redrive.target.name if redrive else None
        return {"name": name, "url": url, **depth._asdict(), "dead_letter_queue": target}


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
