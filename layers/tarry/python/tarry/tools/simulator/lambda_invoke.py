"""Lambda's Invoke: a function that is invoked by code, at once or asynchronously, with retries and destinations."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from tarry.tools.simulator.invocations import FunctionHost, InvocationResult
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.template.model import TemplateAsync

RETRY_SECONDS = (60.0, 120.0)
"""The delays of the two retries of an asynchronous invocation that failed."""
MAX_THROTTLE_SECONDS = 300.0
VERSION = "$LATEST"


class InvokeAnswer(NamedTuple):
    """The answer of Lambda over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class InvokeTarget:
    """A function that can be invoked, with its settings for asynchronous invocations."""

    host: FunctionHost
    arn: str
    settings: TemplateAsync = field(default_factory=TemplateAsync)
    qualifier: str = ""
    """The alias or version that is invoked."""


class PendingCall(NamedTuple):
    """An asynchronous invocation that has not ended.

    ``due`` is when its next attempt begins, ``last`` when its last one does, if all before it fail; in epoch seconds.
    """

    function: str
    due: float
    last: float


class UnknownFunction(Exception):
    """The function cannot be invoked; the text says why."""


@dataclass(frozen=True)
class _Asynchronous:
    target: InvokeTarget
    event: Any
    request_id: str

    @property
    def retries(self) -> int:
        return min(self.target.settings.retries, len(RETRY_SECONDS))


@dataclass(eq=False)
class Invoker:
    """Invokes functions. It is used on the thread of the scheduler only.

    ``find`` returns a function by its name, or raises `UnknownFunction`; ``sqs`` answers a request to SQS. ``note`` is
    called with a text for each attempt that is repeated, and for each record that a destination does not get.
    """

    scheduler: Scheduler
    find: Callable[[str], InvokeTarget]
    sqs: Callable[[str, Mapping[str, Any]], dict[str, Any]]
    new_id: Callable[[], str]
    note: Callable[[str], None]
    _pending: dict[str, PendingCall] = field(default_factory=dict, init=False)
    """By request id."""

    @property
    def pending(self) -> list[PendingCall]:
        """The asynchronous invocations that have not ended, those under way too."""
        return list(self._pending.values())

    def invoke(self, function: str, kind: str, payload: bytes, done: Callable[[InvokeAnswer], None]) -> None:
        """Invoke a function; ``done`` is called with the answer, at once or when the function has returned.

        ``function`` is its name or ARN, with or without a qualifier; ``kind`` is ``RequestResponse``, ``Event``
        (asynchronously) or ``DryRun``; ``payload`` is the event as JSON, empty for null.
        """
        try:
            event = json.loads(payload or b"null")
            target = self._named(re.sub(r"^(.*:function:|\d+:)", "", function))
        except ValueError as error:
            done(
                invoke_error(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}")
            )
        except UnknownFunction as error:
            done(invoke_error(404, "ResourceNotFoundException", str(error)))
        else:
            match kind:
                case "DryRun":
                    done(InvokeAnswer(204, {}, b""))
                case "Event":
                    self._start(target, event)
                    done(InvokeAnswer(202, {}, b""))
                case _:
                    target.host.invoke(event, lambda result: done(_answer(result)), target.qualifier)

    def _named(self, name: str) -> InvokeTarget:
        name, _, qualifier = name.partition(":")
        return replace(self.find(name), qualifier=qualifier)

    def _start(self, target: InvokeTarget, event: Any) -> None:
        self._try_later(_Asynchronous(target, event, self.new_id()), 1, 0, 0.0)

    def _try_later(self, call: _Asynchronous, number: int, throttled: int, seconds: float) -> None:
        function = call.target.arn.rpartition(":function:")[2].partition(":")[0]
        due = self.scheduler.now + seconds
        self._pending[call.request_id] = PendingCall(function, due, due + sum(RETRY_SECONDS[number - 1 : call.retries]))
        ended = partial(self._ended, call, number, throttled)
        self.scheduler.after(seconds, partial(call.target.host.invoke, call.event, ended, call.target.qualifier))

    def _ended(self, call: _Asynchronous, number: int, throttled: int, result: InvocationResult) -> None:
        if result.kind == "throttled":
            self._try_later(call, number, throttled + 1, min(MAX_THROTTLE_SECONDS, 2.0**throttled))
            return
        if result.kind != "returned" and number <= call.retries:
            seconds = RETRY_SECONDS[number - 1]
            self._try_later(call, number + 1, 0, seconds)
            function = self._pending[call.request_id].function
            self.note(
                f"Asynchronous invocation of {function}: attempt {number} of {call.retries + 1} failed; "
                f"Lambda runs the next one in {seconds:.0f} s."
            )
            return
        del self._pending[call.request_id]
        is_success = result.kind == "returned"
        settings = call.target.settings
        if destination := settings.on_success if is_success else settings.on_failure:
            self._send(destination, self._record(call, number, result), {})
        if not is_success and settings.dead_letter_arn:
            attributes = {"RequestID": call.request_id, "ErrorCode": "200", "ErrorMessage": result.text[:1024]}
            self._send(settings.dead_letter_arn, call.event, attributes)

    def _record(self, call: _Asynchronous, number: int, result: InvocationResult) -> dict[str, Any]:
        is_success = result.kind == "returned"
        now = datetime.fromtimestamp(self.scheduler.now, UTC).isoformat(timespec="milliseconds")
        return {
            "version": "1.0",
            "timestamp": now.replace("+00:00", "Z"),
            "requestContext": {
                "requestId": call.request_id,
                "functionArn": f"{call.target.arn}:{call.target.qualifier or VERSION}",
                "condition": "Success" if is_success else "RetriesExhausted",
                "approximateInvokeCount": number,
            },
            "requestPayload": call.event,
            "responseContext": {
                "statusCode": 200,
                "executedVersion": VERSION,
                **({} if is_success else {"functionError": "Unhandled"}),
            },
            "responsePayload": result.value,
        }

    def _send(self, arn: str, content: Any, attributes: Mapping[str, str]) -> None:
        """Send a record or an event to a queue, or invoke a function with it asynchronously."""
        from tarry.tools.simulator.sqs import SqsError

        service, name = arn.split(":")[2], arn.rpartition(":function:")[2] or arn.rpartition(":")[2]
        try:
            if service == "sqs":
                url = self.sqs("GetQueueUrl", {"QueueName": arn.rpartition(":")[2]})["QueueUrl"]
                kinds = {"RequestID": "String", "ErrorCode": "Number", "ErrorMessage": "String"}
                found = {key: {"DataType": kinds[key], "StringValue": text} for key, text in attributes.items() if text}
                request = {"QueueUrl": url, "MessageBody": json.dumps(content), "MessageAttributes": found}
                self.sqs("SendMessage", request)
            elif service == "lambda":
                self._start(self._named(name), content)
            else:
                self.note(
                    f"{arn} does not get a record: destinations other than queues and functions are not emulated."
                )
        except (SqsError, UnknownFunction) as error:
            self.note(f"{arn} does not get a record: {error}")


def _answer(result: InvocationResult) -> InvokeAnswer:
    if result.kind == "throttled":
        return invoke_error(429, "TooManyRequestsException", "Rate Exceeded.")
    if result.kind == "recursive":
        return invoke_error(400, "RecursiveInvocationException", result.text)
    headers = {"Content-Type": "application/json", "X-Amz-Executed-Version": VERSION}
    if result.kind != "returned":
        headers["X-Amz-Function-Error"] = "Unhandled"
    return InvokeAnswer(200, headers, json.dumps(result.value).encode())


def invoke_error(status: int, code: str, text: str) -> InvokeAnswer:
    """Return an error of Lambda."""
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": code}
    return InvokeAnswer(status, headers, json.dumps({"Type": "User", "message": text, "Message": text}).encode())
