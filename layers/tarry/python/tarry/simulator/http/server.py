"""The server: an address at which SQS answers."""

from __future__ import annotations

import json
import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tarry.simulator.http.protocol import answered, old_protocol, operation_in, parameters_in, refused
from tarry.simulator.http.waiting import LongPolls
from tarry.simulator.sqs import SqsError
from tarry.tooling.queues import queue_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tarry.simulator.sqs import Sqs
    from tarry.simulator.wall import LoopTimeline

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
        policy = self._sqs.answer("GetQueueAttributes", asked)["Attributes"].get("RedrivePolicy")
        target = queue_name(json.loads(policy)["deadLetterTargetArn"]) if policy else None
        return {"name": name, "url": url, **depth._asdict(), "dead_letter_queue": target}


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
