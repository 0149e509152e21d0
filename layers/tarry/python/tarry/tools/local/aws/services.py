"""The embedded SQS of a local cloud, and the AWS services beside it: moto, which starts with the first request."""

import asyncio
import json
import logging
import re
import select
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from http import HTTPStatus
from io import BytesIO
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tarry.failed.usage import UsageError
from tarry.tools.common.installation import install_command
from tarry.tools.local.aws.client import HOST, isolated_from_aws
from tarry.tools.local.samples import SeedCall, make_calls
from tarry.tools.simulator.client import SimulatedClient, SqsPort
from tarry.tools.simulator.history import History
from tarry.tools.simulator.http.admission import CORS_HEADERS, LOCAL_ONLY, Admission
from tarry.tools.simulator.http.server import SCOPE
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, Invoker
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.sqs import Depth, Sqs
from tarry.tools.template import Template, TemplateFunction, TemplateQueue
from tarry.tools.template.model import make_queues, with_foreign_queues
from tarry.tools.template.resources import QUEUE_ATTRIBUTES
from tarry.tools.testing.hosting import at_once
from tarry.tools.testing.moto_relay import relayed
from tarry.tools.testing.resources import Resources
from tarry.world import WallClock

if TYPE_CHECKING:
    from tarry.tools.testing.moto_relay import Call

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Invoke = Callable[[str, str, bytes], InvokeAnswer]
"""Invokes a function: its name or ARN, the invocation type, the payload."""


def with_qualifier(function: str, query: str) -> str:
    """Return a name or ARN with the ``Qualifier`` of the query of a request, if it has one."""
    [qualifier] = parse_qs(query).get("Qualifier", [""])
    return f"{function}:{qualifier}" if qualifier else function


def asked_for(environ: dict[str, Any]) -> tuple[str, str]:
    """Return the service and the operation of a request, as far as its headers and its body tell."""
    scope = SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    service = scope[1] if scope else target.partition(".")[0].partition("_")[0] or "this service"
    path = environ.get("PATH_INFO", "")
    operation = target.rpartition(".")[2] or path.rpartition("/operation/")[2]
    if is_query(environ):
        body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)  # it stays readable
        operation = "".join(parse_qs(body.decode(errors="replace")).get("Action", [""]))
    return service, operation if operation and operation != path else f"{environ['REQUEST_METHOD']} {path}"


def is_query(environ: dict[str, Any]) -> bool:
    """Whether a request has the query protocol: a form, answered in XML."""
    return str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")


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
        respond(line, [("Content-Type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor")])
        return [cbor({"__type": code, "message": text})]
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


BACKLOG = 128
STOP_SECONDS = 1.0
INVOCATION = re.compile(r"/2015-03-31/functions/(?P<function>[^/]+)/invocations")
HTML_STATUS = ("404", "405", "5")
"""The statuses with which Flask answers, in HTML, what moto has no route for."""


class Services:
    """The endpoint. ``url`` is open from the start; moto is imported when it is called first.

    Args:
        sqs: The SQS that gets the messages of topics, buckets and event buses. Called in the threads of moto.
        invoke: Invokes a function of the template. Called in the threads of moto.
        note: Called, in any thread, with a text for the developer.
        sqs_url: The endpoint URL of SQS, for a client that asks for queues here. The next port is preferred.
        admission: The callers that are answered.
        now: The time for moto, in epoch seconds; None for the time of day.
    """

    def __init__(
        self,
        sqs: "Call",
        invoke: Invoke,
        note: Callable[[str], None],
        *,
        sqs_url: str | None = None,
        admission: Admission = LOCAL_ONLY,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._sqs = sqs
        self._invoke = invoke
        self._note = note
        self._sqs_url = sqs_url
        self._admission = admission
        self._now = now
        self._socket = _listening(int(sqs_url.rpartition(":")[2]) + 1 if sqs_url else 0)
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        self._patches = ExitStack()
        self.is_starting = False
        """Whether moto is imported for a client that waits."""
        self._server: Any = None
        self._is_closed = False
        self._application: Wsgi | None = None
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve_when_called, name="services", daemon=True)
        self._thread.start()

    def start(self, needed_for: str = "AWS services other than SQS") -> None:
        """Import moto now, and reset its global state. Raises `UsageError` if moto is not installed."""
        with self._lock:  # resources of the template and a first request may import moto at the same time
            if self._application is None:
                self._application = self._moto(needed_for)

    def close(self) -> None:
        """Stop, and close the port."""
        self._wake.send(b"x")
        with self._lock:
            self._is_closed = True
        if self._server is not None:
            # The server does not always stop in time; its daemon threads do not block the exit of the process.
            stopping = threading.Thread(target=self._server.shutdown, daemon=True)
            stopping.start()
            stopping.join(STOP_SECONDS)
        self._thread.join(STOP_SECONDS)
        for each in (self._socket, self._wake, self._woken):
            each.close()
        self._patches.close()

    def _serve_when_called(self) -> None:
        ready, _, _ = select.select([self._socket, self._woken], [], [])
        if self._woken in ready:
            return
        self.is_starting = True
        try:
            self.start()
        except UsageError as error:
            self._note(str(error))
            self._socket.close()  # the client gets an error at once
            return
        finally:
            self.is_starting = False
        from werkzeug.serving import make_server

        with self._lock:
            if self._is_closed:
                return
            try:
                from moto.moto_server.werkzeug_app import MotoRequestHandler as Handler
            except ImportError:  # before moto 5.2
                from werkzeug.serving import WSGIRequestHandler as Handler  # type: ignore[assignment]
            fd = self._socket.fileno()
            self._server = make_server(HOST, 0, self._admit, threaded=True, request_handler=Handler, fd=fd)
        self._server.serve_forever(poll_interval=0.05)

    def _moto(self, needed_for: str) -> Wsgi:
        try:
            with warnings.catch_warnings():  # moto warns of a missing library before it raises the error
                warnings.filterwarnings("ignore", "When using MotoServer", UserWarning)
                from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            raise UsageError(
                f"tarry local needs {library} for {needed_for}; install it with: {install_command('local-aws')}"
            ) from error
        from moto.moto_api._internal import mock_random
        from moto.moto_api._internal.models import moto_api_backend

        class Application(DomainDispatcherApplication):
            def get_backend_for_host(self, host: str | None) -> Any:
                is_known = any(pattern.match(f"http://{host}") for _, pattern in self.backend_url_patterns)
                if host and "amazonaws" in host and not is_known:
                    raise NotImplementedError  # as moto, but without its printed line; caught below
                return super().get_backend_for_host(host)

        def application_of(service: Any) -> Any:
            flask = create_backend_app(service)
            flask.config["PROPAGATE_EXCEPTIONS"] = True
            return flask

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        moto_api_backend.reset()
        mock_random.seed(None if self._now is None else 0)  # in virtual time each run has the same ids
        self._patches.enter_context(relayed(self._sqs, self._note, self._now))
        return Application(application_of)

    def _admit(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request if its caller is admitted; answer preflights of admitted pages."""
        from werkzeug.datastructures import EnvironHeaders

        headers = dict(EnvironHeaders(environ))
        if problem := self._admission.refusal(headers):
            return refused(environ, respond, "AccessDenied", problem, HTTPStatus.FORBIDDEN)
        cors = list(self._admission.cors(headers).items())
        if environ["REQUEST_METHOD"] == "OPTIONS" and "Origin" in headers:
            respond("204 No Content", cors)
            return []

        def with_cors(status: str, answered: list[tuple[str, str]], *more: Any) -> Any:
            own = [(name, value) for name, value in answered if not name.lower().startswith(CORS_HEADERS)]
            return respond(status, [*own, *cors], *more)  # moto lets every page read its answers

        return self._answer(environ, with_cors)

    def _answer(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        assert self._application is not None
        if (called := INVOCATION.fullmatch(environ["PATH_INFO"])) and environ["REQUEST_METHOD"] == "POST":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            kind = environ.get("HTTP_X_AMZ_INVOCATION_TYPE", "RequestResponse")
            function = with_qualifier(called["function"], environ.get("QUERY_STRING", ""))
            code, fields, payload = self._invoke(function, kind, body)
            respond(f"{code} {HTTPStatus(code).phrase}", list(fields.items()))
            return [payload]
        service, operation = asked_for(environ)
        if service == "sqs":
            where = f"at {self._sqs_url}: set AWS_ENDPOINT_URL_SQS to it" if self._sqs_url else "not at this endpoint"
            return refused(environ, respond, "InvalidAddress", f"SQS is {where}.")
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            started[:] = [(status, headers)]

        try:
            body = self._application(environ, start)
        except NotImplementedError:
            pass
        except Exception as error:  # noqa: BLE001 moto raises errors of many types for requests that it does not expect
            text = f"moto, which plays {service} here, failed on {operation}: {error!r}"
            return refused(environ, respond, "InternalFailure", text)
        else:
            status, headers = started[0]
            is_html = any("text/html" in value for name, value in headers if name.lower() == "content-type")
            is_of_flask = is_html and status.startswith(HTML_STATUS)
            if not is_of_flask or environ["PATH_INFO"].startswith("/moto-api"):
                respond(status, headers)
                return body
        text = f"{operation} cannot be emulated: moto, which emulates {service} here, does not implement it."
        return refused(environ, respond, "NotImplemented", text)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=BACKLOG)
    except (OSError, OverflowError):
        return socket.create_server((HOST, 0), backlog=BACKLOG)


ANSWER_SECONDS = 10.0
MAX_SECONDS = 900.0
"""The longest that a function can run."""


class EmbeddedSqs:
    """The embedded SQS with the queues of a template, and moto with its tables, buckets and topics.

    moto starts for a template with such resources, or when it is called. ``others`` is its endpoint URL. Made on the
    running loop; ``stack`` ends it. ``note`` is called with texts for the developer.
    """

    invoker: Invoker
    """Invokes functions for the code of others."""

    def __init__(
        self,
        model: Sqs,
        scheduler: Scheduler,
        template: Template,
        admission: Admission,
        note: Callable[[str], None],
        stack: AsyncExitStack,
    ) -> None:
        self.model = model
        self._scheduler = scheduler
        self._queues = list(with_foreign_queues(template).values())
        self.urls: dict[str, str] = {}
        self.arns: dict[str, str] = {}
        self._loop = loop = asyncio.get_running_loop()
        self._resources: Resources | None = None

        def note_later(text: str) -> None:
            loop.call_soon_threadsafe(note, text)

        self._services = Services(self._call, self._invoke, note_later, sqs_url=model.endpoint_url, admission=admission)
        self.others = model.other_services = self._services.url
        stack.push_async_callback(loop.run_in_executor, None, self._services.close)
        stack.enter_context(isolated_from_aws(template.region, self.others))  # moto makes boto3 clients itself

    def _call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call the model on its loop, for a thread of moto."""

        async def called() -> dict[str, Any]:
            return self.model.called_by("http", operation, parameters)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(ANSWER_SECONDS)

    def _invoke(self, function: str, kind: str, payload: bytes) -> InvokeAnswer:
        """Invoke a function on the loop, for a thread of moto; wait for the answer."""
        answer: Future[InvokeAnswer] = Future()
        self._loop.call_soon_threadsafe(self.invoker.invoke, function, kind, payload, answer.set_result)
        return answer.result(MAX_SECONDS)

    async def ready(self) -> None:
        """Create the queues. Raises `UsageError` if SQS would refuse a queue."""
        self.urls = _make(self.model, self._queues)
        self.arns = {name: self.model.arn(name) for name in self.urls}

    async def check(self, queues: Iterable[TemplateQueue]) -> dict[str, str]:
        """Return the URLs that these queues have or will have. Raises `UsageError` if SQS would refuse a queue."""
        _make(self._scratch(), queues)
        return {queue.name: self.model.url(queue.name) for queue in queues}

    async def update(self, queues: Iterable[TemplateQueue]) -> list[str]:
        """Create the queues that are missing, and change the attributes of those that the template changed.

        Queues that are not among them stay. Return notes about what could not be changed.
        """
        before, self._queues = {queue.name: queue for queue in self._queues}, list(queues)
        wanted = self._scratch()
        _make(wanted, self._queues)
        created = [queue for queue in self._queues if queue.name not in self.model.queues()]
        for queue in created:
            self.model.call("CreateQueue", {"QueueName": queue.name, "Attributes": dict(queue.attributes)})
        for queue in self._queues:
            self.urls[queue.name], self.arns[queue.name] = self.model.url(queue.name), self.model.arn(queue.name)
            if before.get(queue.name) != queue:
                attributes = _settings(wanted, queue.name)
                if not attributes.items() <= _settings(self.model, queue.name).items():
                    request = {"QueueUrl": self.urls[queue.name], "Attributes": attributes}
                    self.model.call("SetQueueAttributes", request)
        return []

    def _scratch(self) -> Sqs:
        """Make an SQS without queues, to try a template with."""
        return Sqs(lambda: self._scheduler.now, Random(), History(lambda: 0.0, keep=False), region=self.model.region)

    def port(self, settings: MappingSettings) -> SqsPort:
        """Return the access of a mapping to its queue."""
        return SqsPort(self._scheduler, self.model, settings)

    async def send(self, request: Mapping[str, Any]) -> str:
        """Send a message; return its id. Raises `SqsError` if SQS refuses the message."""
        return str(self.model.call("SendMessage", request)["MessageId"])

    def depths(self) -> dict[str, Depth]:
        """Return the numbers of messages of each queue."""
        return {name: self.model.depth(name) for name in self.model.queues()}

    async def make_resources(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Create the resources of a template that do not exist yet; return notes about those that are not as in it.

        ``urls`` are those of its queues. Raises `UsageError` if a resource cannot be created, or moto is not installed.
        """
        if template.backing:
            await self._loop.run_in_executor(None, self._services.start, ", ".join(template.backing))
        make = partial(Resources, template, urls, self._resources)
        self._resources = await self._loop.run_in_executor(None, make)
        unchanged = [f"{name} stays as it was until you restart tarry local." for name in self._resources.unchanged]
        return [*unchanged, *self._resources.problems]

    async def seed(self, calls: Sequence[SeedCall], region: str) -> None:
        """Make the calls of a seed file. Raises `UsageError` if one is refused."""
        make = partial(make_calls, calls, self.others, region, self._call)
        await self._loop.run_in_executor(None, make)

    def environment(self, function: TemplateFunction, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a function, resolved; ``given`` overrides them.

        Raises `UsageError` if a value refers to a resource that `tarry local` does not create, `TemplateError` if a
        value cannot be resolved.
        """
        assert self._resources is not None
        return self._resources.environment(function, given)


def _make(model: Sqs, queues: Iterable[TemplateQueue]) -> dict[str, str]:
    client = SimulatedClient(model, WallClock(), at_once)
    try:
        return make_queues(client, queues)
    except client.exceptions.ClientError as error:
        raise UsageError(f"SQS refuses a queue of the template: {error}") from error


def _settings(model: Sqs, queue: str) -> dict[str, str]:
    """Return all attributes of a queue that a template can change, with their defaults."""
    request = {"QueueUrl": model.url(queue), "AttributeNames": ["All"]}
    found = model.call("GetQueueAttributes", request)["Attributes"]
    attributes = {name: found[name] for name in QUEUE_ATTRIBUTES if name in found and name != "FifoQueue"}
    return {**attributes, "RedrivePolicy": found.get("RedrivePolicy", "")}
