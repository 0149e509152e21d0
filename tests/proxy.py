"""A proxy before a served SQS whose requests and answers get lost, cut, repeated, throttled and refused.

Real boto3 clients and whole processes run under its faults; those of `sandbox.faults` are for the simulated client.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random

import aiohttp
from aiohttp import web

from tarry.tools.simulator.http.server import CONTENT_TYPE, failure
from tarry.tools.simulator.sqs import SqsError
from tests.served import PATIENCE_SECONDS, Served

FAULTS = (
    "unsent",
    "lost",
    "cut",
    "repeated",
    "throttled",
    "internal",
    "internal_after",
    "bad_gateway",
    "portal",
    "denied",
)
"""The faults of a request.

``unsent``: it does not reach SQS. ``lost``, ``cut``: SQS carries it out, and no answer or half of it arrives.
``repeated``: SQS carries it out twice, and the second answer arrives. ``throttled``, ``denied``: SQS refuses it.
``internal``, ``internal_after``, ``bad_gateway``: an error 500 without and after carrying it out, and a page of HTML
with status 502 after it. ``portal``: a page of HTML with status 200 instead of SQS.
"""
UNAPPLIED = frozenset({"unsent", "throttled", "internal", "portal", "denied"})
CODES = {
    "throttled": SqsError("RequestThrottled", "Request is throttled.", status=403),
    "internal": SqsError("InternalFailure", "internal", status=500, sender_fault=False),
    "internal_after": SqsError("InternalFailure", "internal", status=500, sender_fault=False),
    "denied": SqsError("AccessDenied", "not authorized", status=403),
}

Choice = Callable[[str], str | None]
"""Return the fault of a request by its operation, such as ``SendMessageBatch``; None for none."""


class FaultProxy:
    """A running proxy."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.choose: Choice = lambda operation: None
        self.struck: Counter[tuple[str, str]] = Counter()
        """How often each fault struck requests, by operation and fault."""

    async def forward(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        fault = self.choose(operation)
        self.struck.update([(operation, fault)] if fault else [])
        answer = web.Response()
        if fault not in UNAPPLIED:
            for _ in range(2 if fault == "repeated" else 1):
                answer = await self._answer(request)
        if fault in CODES:
            return failure(CODES[fault])
        if fault in {"bad_gateway", "portal"}:
            page = "<html><h1>Please log in</h1></html>"
            return web.Response(status=502 if fault == "bad_gateway" else 200, text=page, content_type="text/html")
        if fault in {"unsent", "lost", "cut"}:
            return await self._cut(request, answer if fault == "cut" else web.Response())
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name not in {"Host", "Content-Length"}}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self.target + request.raw_path, headers=headers, data=await request.read()
            ) as found,
        ):
            kept = {name: value for name, value in found.headers.items() if name.lower().startswith("x-amz")}
            answer = web.Response(status=found.status, body=await found.read(), headers=kept)
            answer.headers["Content-Type"] = found.headers.get("Content-Type", CONTENT_TYPE)
            return answer

    async def _cut(self, request: web.Request, answer: web.Response) -> web.StreamResponse:
        """Close the connection, after half of the answer."""
        response = web.StreamResponse(status=answer.status)
        if isinstance(answer.body, bytes) and answer.body:
            response.content_length = len(answer.body)
            await response.prepare(request)
            await response.write(answer.body[: len(answer.body) // 2])
        if request.transport is not None:
            request.transport.close()
        return response


@contextmanager
def proxied(sqs: Served) -> Iterator[FaultProxy]:
    """Run a proxy before a served SQS, and let the URLs of its queues lead to the proxy."""
    proxy = FaultProxy(sqs.url)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        application, end = web.Application(client_max_size=2**22), asyncio.Event()
        application.router.add_route("*", "/{path:.*}", proxy.forward)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set_result((asyncio.get_running_loop(), end))
        await end.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    loop, end = started.result(PATIENCE_SECONDS)
    sqs.on_the_loop(lambda: setattr(sqs.sqs, "endpoint_url", proxy.url))
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_SECONDS)


def at_random(random: Random, chance: float) -> Choice:
    """Let faults strike requests about messages with this chance, and other requests seldom.

    Half of the seeds have only faults that leave open, or end with a refusal, whether SQS has carried a request out.
    """
    faults = FAULTS if random.random() < 0.5 else ("lost", "cut", "internal_after", "bad_gateway", "portal", "denied")

    def choose(operation: str) -> str | None:
        strikes = random.random() < (chance if "Message" in operation else chance / 10)
        return random.choice(faults) if strikes else None

    return choose
