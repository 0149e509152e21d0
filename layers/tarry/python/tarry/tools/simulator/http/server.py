"""The HTTP server of the SQS model, which speaks SQS's JSON protocol, and the query protocol of older SDKs."""

import asyncio
import json
import logging
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from functools import partial
from typing import Any
from xml.sax.saxutils import escape

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tarry.failed.queue_names import queue_name, redrive_of
from tarry.tools.simulator.http import query
from tarry.tools.simulator.http.admission import LOCAL_ONLY, Admission
from tarry.tools.simulator.http.requests import MAX_BODY_BYTES, only_sqs, operation_in, parameters_in
from tarry.tools.simulator.recursion import lineage_in
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import QueueWatch, Sqs, SqsError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

Parameters = dict[str, Any]
Answer = dict[str, Any]


class LongPolls:
    """Answers ReceiveMessage requests, including long polls: of those that wait at one queue, the first comes first."""

    def __init__(self, sqs: Sqs, scheduler: AsyncioScheduler) -> None:
        self._sqs = sqs
        self._scheduler = scheduler
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}
        self._watches: dict[str, QueueWatch] = {}
        self._closed = False

    async def receive(self, parameters: Parameters, is_gone: Callable[[], bool]) -> Answer:
        """Answer a ReceiveMessage as soon as there is a message or its wait time is over.

        ``is_gone`` returns whether the client has disconnected. Raises `SqsError` if SQS would refuse the request.
        """
        answer = self._sqs.call("ReceiveMessage", parameters)
        seconds = self._sqs.wait_seconds(parameters)
        if answer or not seconds or self._closed:
            return answer
        ends_at, is_over = asyncio.get_running_loop().time() + seconds, False
        with self._waiter(queue_name(parameters["QueueUrl"])) as waiter:
            while not answer and not is_over:
                try:
                    async with asyncio.timeout_at(ends_at):
                        await waiter.wait()
                except TimeoutError:
                    is_over = True  # and the last receive follows
                waiter.clear()
                if is_gone() or self._closed:
                    break
                answer = self._sqs.answer("ReceiveMessage", parameters)
        return answer

    def close(self) -> None:
        """End all waits."""
        self._closed = True
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.set()

    @contextmanager
    def _waiter(self, queue: str) -> Iterator[asyncio.Event]:
        """Add a waiter at the end. When it leaves, wake the next, since there may be messages left."""
        waiter, waiting = asyncio.Event(), self._waiting.setdefault(queue, {})
        waiting[waiter] = None
        if queue in self._watches:
            self._watches[queue].update()
        else:
            self._watches[queue] = QueueWatch(self._sqs, self._scheduler, queue, partial(self._wake, queue))
        try:
            yield waiter
        finally:
            del waiting[waiter]
            self._wake(queue)

    def _wake(self, queue: str) -> None:
        """Wake the first waiter that is not awake yet, since there may be a message."""
        if (waiter := next((each for each in self._waiting[queue] if not each.is_set()), None)) is not None:
            waiter.set()


CONTENT_TYPE = "application/x-amz-json-1.0"
READ_AS_JSON = frozenset({CONTENT_TYPE, "application/json"})
OF_ALL_SERVICES = frozenset({"InternalFailure", "SerializationException", "UnknownOperationException"})
"""The errors that are not of SQS's own model."""
MAPPINGS = r"/{version:\d{4}-\d\d-\d\d}/{kind:event-source-mappings|tags}{name:.*}"
"""The requests to Lambda about event source mappings."""
SCOPE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request")
"""The service that a request is signed for."""


def success(answer: Mapping[str, Any]) -> web.Response:
    return _response(200, answer)


def failure(error: SqsError) -> web.Response:
    """Return an error response: its body has the error's name in SQS's model, a header the code that SDKs show."""
    namespace = "com.amazon.coral.service" if error.name in OF_ALL_SERVICES else "com.amazonaws.sqs"
    body = {"__type": f"{namespace}#{error.name}", "message": error.message}
    fault = "Sender" if error.sender_fault else "Receiver"
    return _response(error.status, body, {"x-amzn-query-error": f"{error.code};{fault}"})


def _response(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(body, default=lambda value: b64encode(value).decode(), separators=(",", ":"))
    response = web.Response(status=status, body=text.encode(), content_type=CONTENT_TYPE, headers=headers)
    response.headers["x-amzn-RequestId"] = os.urandom(16).hex()
    return response


def xml(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, content_type="text/xml")


def query_failure(error: SqsError) -> web.Response:
    """Return an error in the query protocol."""
    return xml(query.failure(error, os.urandom(16).hex()), error.status)


def service_of(request: web.Request) -> str:
    """Return the service that a request is signed for; empty if it is not signed."""
    scope = SCOPE.search(request.headers.get("Authorization", ""))
    return scope[1] if scope else ""


def other_service_error(service: str) -> web.Response:
    """Return the error for a request that is signed for another service, in the XML form that its SDK reads."""
    error = SqsError("InvalidAction", only_sqs(service))
    if service != "s3":
        return query_failure(error)
    text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    return xml(text, error.status)


def content_type_error(content_type: str) -> web.Response:
    """Return the error for a Content-Type that AWS does not read: XML and 404, to which this one adds a message."""
    text = f"The Content-Type is {content_type}; a request in the JSON protocol has {CONTENT_TYPE}."
    error = f"<UnknownOperationException><Message>{escape(text)}</Message></UnknownOperationException>"
    return xml(error, 404)


HOST = "127.0.0.1"
IDLE_SECONDS = 86_400.0
"""How long idle connections stay open. If one closed just as an SDK sends a message, the SDK would send it twice."""
SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(__name__)


def is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether a line that aiohttp logs is about more than a request that is not HTTP, which it has refused."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


log_of_aiohttp = logging.getLogger(f"{__name__}.aiohttp")
log_of_aiohttp.addFilter(is_our_fault)


class PortTaken(Exception):
    """The port is in use or cannot be opened."""


@asynccontextmanager
async def serve(
    sqs: Sqs, scheduler: AsyncioScheduler, host: str = HOST, port: int = 0, admission: Admission = LOCAL_ONLY
) -> AsyncIterator[str]:
    """Serve the model on the running loop within the context; yield the endpoint URL.

    The model must use the time of ``scheduler``, that of the running loop; its ``endpoint_url`` is set. A ``port`` of 0
    is a free one. Raises `PortTaken` if the port is in use or cannot be opened.
    """
    server = SqsServer(sqs, LongPolls(sqs, scheduler), admission)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        logger=log_of_aiohttp,
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

    def __init__(self, sqs: Sqs, long_polls: LongPolls, admission: Admission) -> None:
        self._sqs = sqs
        self._long_polls = long_polls
        self._admission = admission

    def application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._admit])
        application.router.add_get("/", self._about)
        application.router.add_get("/queues", self._queues)
        application.router.add_get("/story", self._story)
        application.router.add_route("*", MAPPINGS, self._event_source_mappings)
        application.router.add_route("*", "/{path:.*}", self._request)  # some SDKs post to the queue's URL
        application.on_response_prepare.append(self._date)
        application.on_shutdown.append(self._close)
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through if its caller is admitted; answer preflights of admitted pages."""
        if problem := self._admission.refusal(request.headers):
            return failure(SqsError("AccessDenied", problem, status=403))
        is_preflight = request.method == "OPTIONS" and "Origin" in request.headers
        response = web.Response(status=204) if is_preflight else await handler(request)
        response.headers.update(self._admission.cors(request.headers))
        return response

    async def _date(self, _: web.Request, response: web.StreamResponse) -> None:
        """Date the answer by the time of the model, which `tarry local --skip-time` moves ahead of the machine's."""
        response.headers["Date"] = formatdate(self._sqs.now(), usegmt=True)

    async def _close(self, _: web.Application) -> None:
        self._long_polls.close()

    async def _request(self, request: web.Request) -> web.Response:
        is_query = "X-Amz-Target" not in request.headers and request.content_type not in READ_AS_JSON
        if is_query and (service := service_of(request)) not in {"", "sqs"}:
            return other_service_error(service)
        fail = query_failure if is_query else failure
        try:
            if is_query:  # not from the URL: a browser asks for an image of any page with a GET
                fields = query.fields_in(await request.read())
                operation = query.operation_in(fields)
                answer = await self._answer(operation, query.parameters_in(operation, fields, request.path), request)
                return xml(query.success(operation, answer, os.urandom(16).hex()))
            operation = operation_in(request.headers.get("X-Amz-Target", ""))
            if request.content_type not in READ_AS_JSON:
                return content_type_error(request.headers.get("Content-Type", "missing"))
            return success(await self._answer(operation, parameters_in(operation, await request.read()), request))
        except SqsError as error:
            return fail(error)
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413, text=f"HTTP content length exceeded {MAX_BODY_BYTES} bytes.")
        except web.RequestPayloadError as error:
            return fail(SqsError("SerializationException", f"The body of the request cannot be read: {error}"))
        except Exception as error:  # noqa: BLE001 logged, and returned in a form that SDKs can read
            _log.exception("a bug in the simulator: a request to SQS failed")
            return fail(SqsError("InternalFailure", repr(error), sender_fault=False))

    async def _answer(self, operation: str, parameters: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if operation != "ReceiveMessage":
            trace = request.headers.get("X-Amzn-Trace-Id")
            return self._sqs.called_by("http", operation, parameters, lineage_in(trace), trace)
        gone = lambda: request.transport is None or request.transport.is_closing()  # noqa: E731 used once
        return await self._long_polls.receive(parameters, gone)

    async def _about(self, request: web.Request) -> web.Response:
        if service := service_of(request):
            return other_service_error(service)
        return web.Response(
            text=f"tarry's local SQS. Give an AWS SDK or CLI the endpoint URL {self._sqs.endpoint_url}\n"
            f"GET /queues lists the queues and their numbers of messages as JSON.\n"
        )

    async def _queues(self, _: web.Request) -> web.Response:
        """List the queues with their attributes and the age of the oldest message; SQS itself has no such request."""
        queues = [self._described(name) for name in self._sqs.queues()]
        about: dict[str, Any] = {
            "queues": queues,
            "region": self._sqs.region,
            "other_services": self._sqs.other_services,
        }
        if self._sqs.latest_errors is not None:
            about["latest_errors"] = self._sqs.latest_errors()
        return web.json_response(about)

    async def _story(self, request: web.Request) -> web.Response:
        """Tell the story of a message, for `tarry story`."""
        if self._sqs.find_story is None:
            return web.json_response({"problem": "this SQS keeps no stories"}, status=404)
        return web.json_response(self._sqs.find_story(request.query.get("id", "")))

    async def _event_source_mappings(self, request: web.Request) -> web.Response:
        """Answer for Lambda, as `tarry pause` and the guard ask it."""
        if self._sqs.event_source_mappings is None:
            return other_service_error("lambda")
        try:
            body = json.loads(await request.read() or b"{}")
        except ValueError:
            body = {}
        status, found = self._sqs.event_source_mappings(
            request.method, request.path, request.query, body if isinstance(body, dict) else {}
        )
        return web.json_response(found, status=status)

    def _described(self, name: str) -> dict[str, Any]:
        url, depth = self._sqs.url(name), self._sqs.depth(name)
        asked = {"QueueUrl": url, "AttributeNames": ["RedrivePolicy"]}
        redrive = redrive_of(self._sqs.answer("GetQueueAttributes", asked).get("Attributes", {}))
        target = redrive.target.name if redrive else None
        return {"name": name, "url": url, **depth._asdict(), "dead_letter_queue": target}
