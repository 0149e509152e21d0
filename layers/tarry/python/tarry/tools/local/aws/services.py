"""The AWS services beside SQS: moto behind one endpoint in this process, which starts with the first request."""

from __future__ import annotations

import json
import logging
import re
import select
import socket
import threading
import warnings
from contextlib import ExitStack
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tarry.failed.usage import UsageError
from tarry.tools.common.installation import install_command
from tarry.tools.local.aws.client import HOST
from tarry.tools.local.aws.invoking import with_qualifier
from tarry.tools.simulator.http.admission import CORS_HEADERS, LOCAL_ONLY, Admission
from tarry.tools.testing.moto_relay import relayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tarry.tools.simulator.lambda_invoke import InvokeAnswer
    from tarry.tools.testing.moto_relay import Call

    Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
    Invoke = Callable[[str, str, bytes], InvokeAnswer]
    """Invokes a function: its name or ARN, the invocation type, the payload."""

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
        sqs_url: The endpoint URL of SQS, for a client that asks for queues here.
        port: The preferred port; a free one if it is in use.
        admission: The callers that are answered.
        now: The time for moto, in epoch seconds; None for the time of day.
    """

    def __init__(
        self,
        sqs: Call,
        invoke: Invoke,
        note: Callable[[str], None],
        *,
        sqs_url: str | None = None,
        port: int = 0,
        admission: Admission = LOCAL_ONLY,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._sqs = sqs
        self._invoke = invoke
        self._note = note
        self._sqs_url = sqs_url
        self._admission = admission
        self._now = now
        self._socket = _listening(port)
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
        with self._lock:
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
            fd, handler = self._socket.fileno(), _request_handler()
            self._server = make_server(HOST, 0, self._admit, threaded=True, request_handler=handler, fd=fd)
        self._server.serve_forever(poll_interval=0.05)

    def _moto(self, needed_for: str) -> Wsgi:
        try:
            with warnings.catch_warnings():  # moto warns of a missing library before it raises the error
                warnings.filterwarnings("ignore", "When using MotoServer", UserWarning)
                from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            command = install_command("local-aws")
            raise UsageError(f"tarry local needs {library} for {needed_for}; install it with: {command}") from error
        from moto.moto_api._internal import mock_random
        from moto.moto_api._internal.models import moto_api_backend

        class Application(DomainDispatcherApplication):
            def get_backend_for_host(self, host: str | None) -> Any:
                if (
                    host
                    and "amazonaws" in host
                    and not any(p.match(f"http://{host}") for _, p in self.backend_url_patterns)
                ):
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
            return refused(environ, respond, "NotImplemented", not_there(service, operation))
        except Exception as error:  # noqa: BLE001 moto raises errors of many types for requests that it does not expect
            return refused(
                environ,
                respond,
                "InternalFailure",
                f"moto, which plays {service} here, failed on {operation}: {error!r}",
            )
        status, headers = started[0]
        kind = next((value for name, value in headers if name.lower() == "content-type"), "")
        if status.startswith(HTML_STATUS) and "text/html" in kind and not environ["PATH_INFO"].startswith("/moto-api"):
            return refused(environ, respond, "NotImplemented", not_there(service, operation))
        respond(status, headers)
        return body


def _listening(port: int) -> socket.socket:
    for each in (port, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, each))
        except (OSError, OverflowError):
            listener.close()
            if not each:
                raise
            continue
        listener.listen(BACKLOG)
        return listener
    raise AssertionError


def _request_handler() -> Any:
    try:
        from moto.moto_server.werkzeug_app import MotoRequestHandler
    except ImportError:  # before moto 5.2
        from werkzeug.serving import WSGIRequestHandler

        return WSGIRequestHandler
    return MotoRequestHandler
