"""Lambda's Invoke for the functions of a template: over HTTP in real time, in the process in virtual time."""

from __future__ import annotations

from concurrent.futures import Future
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.awsrequest import AWSResponse

from tarry.tools.simulator.actors import VirtualEvent
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, InvokeTarget

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tarry.tools.simulator.invocations import FunctionHost
    from tarry.tools.simulator.lambda_invoke import Invoker
    from tarry.tools.simulator.simulation import Actors
    from tarry.tools.template import TemplateFunction

MAX_SECONDS = 900.0
"""The longest that a function can run."""


def target_of(function: TemplateFunction, host: FunctionHost) -> InvokeTarget:
    """Return a function of the template as a target of Invoke."""
    found = function.asynchronous
    return InvokeTarget(host, function.arn, found.retries, found.on_success, found.on_failure, found.dead_letter_arn)


def with_qualifier(function: str, query: str) -> str:
    """Return a name or ARN with the ``Qualifier`` of the query of a request, if it has one."""
    [qualifier] = parse_qs(query).get("Qualifier", [""])
    return f"{function}:{qualifier}" if qualifier else function


class Invoking:
    """Invokes functions from the threads of moto; ``invoker`` runs on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.invoker: Invoker | None = None

    def __call__(self, function: str, kind: str, payload: bytes) -> InvokeAnswer:
        """Invoke a function; wait for the answer."""
        answer: Future[InvokeAnswer] = Future()
        assert self.invoker is not None
        self._loop.call_soon_threadsafe(self.invoker.invoke, function, kind, payload, answer.set_result)
        return answer.result(MAX_SECONDS)


def virtual_invoke(invoker: Invoker, actors: Actors) -> Callable[..., AWSResponse]:
    """Return a handler of botocore's event ``before-send.lambda.Invoke`` that answers it in virtual time.

    A request over HTTP would block the thread of the caller, and with it the time in which the function runs.
    """

    def before_send(request: Any, **_: Any) -> AWSResponse:
        answers: list[InvokeAnswer] = []
        is_done = VirtualEvent(actors)

        def done(answer: InvokeAnswer) -> None:
            answers.append(answer)
            is_done.set()

        url = urlsplit(request.url)
        function = with_qualifier(unquote(url.path.split("/")[3]), url.query)
        kind = request.headers.get("X-Amz-Invocation-Type", "RequestResponse")
        kind = kind.decode() if isinstance(kind, bytes) else kind
        body = request.body or b""
        invoker.invoke(function, kind, body if isinstance(body, bytes) else body.read(), done)
        is_done.wait()
        [answer] = answers
        headers: Any = dict(answer.headers)
        return AWSResponse(request.url, answer.status, headers, _Raw(answer.body))

    return before_send


class _Raw(BytesIO):
    """The body of a response, as botocore reads it."""

    def stream(self, *_: Any, **__: Any) -> Any:
        yield self.read()
