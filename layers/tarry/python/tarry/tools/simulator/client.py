"""The SQS client of a simulation, with the interface, the errors and the retries of the boto3 client in production."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from botocore import xform_name
from botocore.errorfactory import ClientExceptionsFactory
from botocore.exceptions import ClientError
from botocore.hooks import HierarchicalEmitter
from botocore.retries.quota import RetryQuota
from botocore.retries.standard import (
    ExponentialBackoff,
    RetryContext,
    RetryPolicy,
    RetryQuotaChecker,
    StandardRetryConditions,
)
from botocore.session import Session

from tarry.failed.queue_names import queue_name
from tarry.sqs.client import TRIES
from tarry.sqs.refusals import is_no_queue
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.sqs import QueueWatch, Sqs, SqsError
from tarry.tools.simulator.sqs.errors import check_request, service_model
from tarry.world import Clock

Parameters = dict[str, Any]
Apply = Callable[[], dict[str, Any]]
Transport = Callable[[str, Mapping[str, Any], Apply], dict[str, Any]]
"""The way of one try of a request to SQS and back; the place for faults.

A transport takes time on the clock, calls ``apply`` if the request arrives, and returns the answer. It may raise
any `SqsError` and botocore's connection errors.
"""

LONG_POLL_SECONDS = 20
"""Makes each receive a long poll, which queries all servers of SQS. The port does not wait: it watches the queue."""


class SqsPort:
    """The `tarry.tools.simulator.mapping.QueuePort` of a mapping with these settings."""

    def __init__(self, scheduler: Scheduler, sqs: Sqs, settings: MappingSettings) -> None:
        self._scheduler = scheduler
        self._sqs = sqs
        self._queue = settings.mapping.queue
        self._url = sqs.url(self._queue)
        self._receive: dict[str, Any] = {
            "QueueUrl": self._url,
            "WaitTimeSeconds": LONG_POLL_SECONDS,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        if settings.visibility_timeout_seconds > settings.queue_visibility_seconds:
            self._receive["VisibilityTimeout"] = int(settings.visibility_timeout_seconds)
        self._watch: QueueWatch

    def receive(self, max_messages: int, then: Callable[[list[dict[str, Any]] | Exception], None]) -> None:
        def answered(answer: dict[str, Any] | Exception) -> None:
            self._watch.update()
            if isinstance(answer, SqsError) and is_no_queue(answer.code):
                answer = {}  # the queue was deleted: no messages until it is created again
            then(answer if isinstance(answer, Exception) else answer.get("Messages", []))

        self._request("ReceiveMessage", {**self._receive, "MaxNumberOfMessages": max_messages}, answered)

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        def answered(answer: dict[str, Any] | Exception) -> None:
            then(answer if isinstance(answer, Exception) else None)

        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(receipt_handles)]
        self._request("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries}, answered)

    def on_change(self, callback: Callable[[], None]) -> None:
        self._watch = QueueWatch(self._sqs, self._scheduler, self._queue, callback)

    def _request(
        self, operation: str, parameters: dict[str, Any], then: Callable[[dict[str, Any] | Exception], None]
    ) -> None:
        """Make a request that takes `ONE_WAY_SECONDS` to arrive; so does its answer."""

        def arrive() -> None:
            answer: dict[str, Any] | Exception
            self._sqs.history.by = "mapping"
            try:
                answer = self._answer(operation, parameters)
            except SqsError as error:
                answer = error
            finally:
                self._sqs.history.by = None
            self._scheduler.after(ONE_WAY_SECONDS, partial(then, answer))

        self._scheduler.after(ONE_WAY_SECONDS, arrive)

    def _answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return self._sqs.answer(operation, parameters)


ONE_WAY_SECONDS = 0.003
MAX_POLL_SECONDS = 0.1
"""The longest pause between two receives of a long poll."""


@dataclass(frozen=True)
class LatencyTransport:
    """A transport without faults, whose requests and answers take ``seconds`` each."""

    clock: Clock
    seconds: float = ONE_WAY_SECONDS

    def __call__(self, operation: str, parameters: Mapping[str, Any], apply: Apply) -> dict[str, Any]:
        self.clock.sleep(self.seconds)
        try:
            return apply()
        finally:
            self.clock.sleep(self.seconds)


class SimulatedClient:
    """A client of the SQS model that behaves like the client of `tarry.sqs.client`: two tries with botocore's backoff.

    It has the methods of the boto3 client (``send_message(QueueUrl=..., MessageBody=...)`` ...) and raises the same
    errors. All waits are sleeps of ``clock``.
    """

    def __init__(self, sqs: Sqs, clock: Clock, transport: Transport | None = None) -> None:
        self._sqs = sqs
        self._clock = clock
        self._transport = transport or LatencyTransport(clock)
        conditions = StandardRetryConditions(max_attempts=TRIES)
        self._retries = RetryPolicy(conditions, ExponentialBackoff(random=sqs.random.random))
        self._quota = RetryQuotaChecker(RetryQuota())
        self._requests = 0
        self._events = HierarchicalEmitter()
        self.meta = SimpleNamespace(
            endpoint_url=sqs.endpoint_url, region_name=sqs.region, service_model=service_model(), events=self._events
        )
        self.exceptions: Any = _exceptions()

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        operation = _operations().get(name)
        if operation is None:
            raise AttributeError(f"'SQS' object has no attribute '{name}'")

        def method(**parameters: Any) -> dict[str, Any]:
            return self._call(operation, parameters)

        method.__name__ = name
        setattr(self, name, method)
        return method

    def _call(self, operation: str, parameters: Parameters) -> dict[str, Any]:
        check_request(operation, parameters)
        request: dict[str, Any] = {}
        tried = self._try(operation, parameters, number := 1, request)
        while (delay := self._delay(tried, request)) is not None:
            self._clock.sleep(delay)
            tried = self._try(operation, parameters, number := number + 1, request)
        details = {"RetryAttempts": number - 1, "HTTPHeaders": {}}
        metadata = {"RequestId": f"request-{self._requests}", **tried.metadata, **details}
        if tried.exception is not None:
            raise tried.exception
        if tried.refusal is not None:
            raise _client_error(tried.refusal, metadata, operation)
        return {**tried.answer, "ResponseMetadata": metadata}

    def _try(self, operation: str, parameters: Parameters, number: int, request: dict[str, Any]) -> "Try":
        self._requests += 1
        tried = Try(operation, number)
        try:
            self._events.emit(f"before-send.sqs.{operation}", request=None)
            queue = queue_name(str(parameters.get("QueueUrl", "")))
            call = current_call()
            source = {} if call is None else {"request_id": call.request_id}
            self._sqs.history.record("request", operation=operation, queue=queue, number=number, **source)
            tried.answer = self._transport(operation, parameters, lambda: self._apply(operation, parameters))
        except SqsError as error:
            tried.refusal, tried.status = error, error.status
        except Exception as error:  # noqa: BLE001 raised by `_call` if there is no next try, as botocore does
            tried.exception = error
        tried.metadata["HTTPStatusCode"] = tried.status
        fields = {"context": request, "parsed_response": tried.parsed, "exception": tried.exception}
        self._events.emit(f"response-received.sqs.{operation}", **fields)
        return tried

    def _delay(self, tried: "Try", request: Any) -> float | None:
        """Return the seconds to wait before the next try; None if there is none.

        ``request`` is the same dict for all tries of a request. botocore keeps its retry quota in it: a client whose
        requests keep failing gets no more retries.
        """
        response = SimpleNamespace(status_code=tried.status, headers={}) if tried.exception is None else None
        if tried.refusal is None and tried.exception is None:
            self._quota.release_retry_quota(request, response)
            return None
        context = RetryContext(
            attempt_number=tried.number,
            operation_model=service_model().operation_model(tried.operation),
            parsed_response=tried.parsed if tried.refusal is not None else None,
            http_response=response,
            caught_exception=tried.exception,
            request_context=request,
        )
        if not self._retries.should_retry(context) or not self._quota.acquire_retry_quota(context):
            return None
        return float(self._retries.compute_retry_delay(context))

    def _apply(self, operation: str, parameters: Parameters) -> dict[str, Any]:
        answer = self._sqs.answer(operation, parameters)
        return self._long_poll(parameters) if operation == "ReceiveMessage" and not answer else answer

    def _long_poll(self, parameters: Parameters) -> dict[str, Any]:
        """Receive until there is a message or the wait time of the request is over."""
        queue = queue_name(parameters["QueueUrl"])
        ends_at = self._clock.time() + self._sqs.wait_seconds(parameters)
        answer: dict[str, Any] = {}
        while not answer and (now := self._clock.time()) < ends_at:
            next_at = self._sqs.next_visible_at(queue) or ends_at
            self._clock.sleep(min(max(next_at - now, 0), ends_at - now, MAX_POLL_SECONDS))
            answer = self._sqs.answer("ReceiveMessage", parameters)
        return answer


@cache
def _operations() -> dict[str, str]:
    """Return SQS's operations, by the names of boto3's methods."""
    return {xform_name(name): name for name in service_model().operation_names}


@cache
def _exceptions() -> Any:
    return ClientExceptionsFactory().create_client_exceptions(service_model())


def _client_error(error: SqsError, metadata: dict[str, Any], operation: str) -> ClientError:
    """Make the error that boto3 raises: the class is that of the error's name, the code that of the query protocol."""
    described = {
        "Message": error.message,
        "Code": error.code,
        "QueryErrorCode": error.name,
        "Type": "Sender" if error.sender_fault else "Receiver",
    }
    response: Any = {"Error": described, "ResponseMetadata": metadata}
    model: Any = service_model()
    shape = model.shape_for_error_code(error.code)  # botocore uses the code here
    if shape is not None and "message" in shape.members:
        response["message"] = error.message
    found: ClientError = _exceptions().from_code(error.name)(response, operation)
    return found


@dataclass
class Try:
    """One try of a request with its result: an answer, an error of SQS, or an exception of the transport."""

    operation: str
    number: int
    answer: dict[str, Any] = field(default_factory=dict)
    refusal: SqsError | None = None
    exception: Exception | None = None
    status: int = 200
    metadata: dict[str, Any] = field(default_factory=dict)
    """The metadata of the answer; handlers of hooks may add to it."""

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The answer as botocore parses it; None if there is none."""
        if self.exception is not None:
            return None
        error = {} if self.refusal is None else {"Error": {"Code": self.refusal.code}}
        return {**self.answer, **error, "ResponseMetadata": self.metadata}


@contextmanager
def simulated_clients(make: Callable[[], Any], invoke: Callable[..., Any] | None = None) -> Iterator[None]:
    """Have boto3 return SQS clients made by ``make`` within the context.

    ``invoke`` answers Lambda's Invoke: a handler of botocore's event ``before-send``.
    """
    real = Session.create_client

    def create_client(session: Session, service_name: str, *args: Any, **kwargs: Any) -> Any:
        if service_name == "sqs":
            return make()
        client = real(session, service_name, *args, **kwargs)
        if service_name == "lambda" and invoke is not None:
            client.meta.events.register("before-send.lambda.Invoke", invoke)
        return client

    Session.create_client = create_client  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Session.create_client = real  # type: ignore[method-assign]
