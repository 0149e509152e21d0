"""A consumer: a handler and its settings, callable as a Lambda handler."""

from __future__ import annotations

from contextvars import copy_context
from os import environ
from sys import modules

from tarry import settings as checks
from tarry import world
from tarry.decide.steps import FailureSteps
from tarry.errors import ConfigurationError
from tarry.message.invocation import Invocation, records_of
from tarry.message.message import Message, T
from tarry.observe.logs import Log, LogOptions
from tarry.run.deadline import MINIMUM_SECONDS
from tarry.run.handlers import is_async, is_plain
from tarry.run.run import Run
from tarry.run.sequential import Sequential
from tarry.support.guards import exit_if_forked
from tarry.support.values import WARNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Generic, Protocol, TypeVar, Unpack, overload

    from tarry.decide.retry_policy import RetryPolicy
    from tarry.message.batch import Batch
    from tarry.message.invocation import Records
    from tarry.observe.opentelemetry import RunSpans
    from tarry.observe.tracing import Subsegments
    from tarry.run.concurrent import Concurrent
    from tarry.run.idempotency_layer import Idempotency
    from tarry.run.whole_batch import WholeBatch
    from tarry.settings import AllSettings, BatchSettings, Settings

    P = TypeVar("P")  # without T's default: P must be inferred, or type checkers reject the function

    class Handler(Protocol[P]):
        """A function of one message, sync or async."""

        def __call__(self, message: Message[P], /) -> Any: ...

    class BatchHandler(Protocol[P]):
        """A function of a whole batch, sync or async."""

        def __call__(self, batch: Batch[P], /) -> Any: ...
else:
    from tarry.support.values import Generic, overload


Response = dict[str, list[dict[str, str]]]


class Consumer(Generic[T]):
    """A Lambda handler for SQS events, made by `consumer` or `batch_consumer`. It cannot be changed.

    ``handler(event, context)`` is the Lambda entry point. ``handler.function`` is the plain function, for tests.
    """

    # Slots, because functools.wraps would copy a __dict__ into the wrapper; __dict__ is for __name__ and the like.
    __slots__ = (
        "__dict__", "_idempotency", "_metrics", "_on_outcome", "_payload_reader", "_settings", "_takes_batch",
        "acks_eagerly", "attempts", "concurrency", "fails_without_verdict", "function", "is_async", "isolate",
        "keepalive", "log", "name", "policy", "steps", "timeout",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], takes_batch: bool, settings: AllSettings) -> None:
        if isinstance(function, Consumer):
            raise ConfigurationError(
                f"{function!r} cannot be a handler: it is a consumer already. Write one decorator with all settings; "
                "handler.replace(...) makes a copy with other settings"
            )
        plain = is_plain(function, _kind(takes_batch))
        if not plain:
            from tarry.run.handler_checks import refuse_mistakes

            refuse_mistakes(function, takes_batch)
        self._takes_batch = takes_batch
        self.function = function
        """The handler itself."""
        self.steps = FailureSteps(settings.get("on_failure"))
        if takes_batch and any(of_queue.tries_locally for of_queue in self.steps.all):
            raise ConfigurationError("LocalRetry() works with @consumer only: a batch cannot run again in part")
        self.policy: RetryPolicy = checks.policy_of(settings)
        """The retry policy: the ``policy=`` that was given, or one made of the single settings."""
        self._settings = checks.with_policy(settings, self.policy)
        self.concurrency = checks.concurrency_of(settings.get("concurrency", 1), takes_batch)
        """The number of messages that run at once."""
        self.timeout = checks.seconds_of("timeout", settings.get("timeout"))
        """The time limit of one run of the handler, in seconds; None is no limit."""
        self.keepalive = checks.seconds_of("keepalive", settings.get("keepalive"))
        """The seconds between two extensions of visibility; None is no extension."""
        self._payload_reader = checks.payload_reader_of(function, settings, plain=plain)
        self.is_async = is_async(function)
        self.isolate = bool(settings.get("isolate", True))
        self.acks_eagerly = checks.acks_eagerly(settings)
        self.attempts = checks.attempt_store_of(settings)
        """The store that counts the attempts of messages; None if receives are counted."""
        self.fails_without_verdict = checks.fails_without_verdict(settings, takes_batch)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__module__ = getattr(function, "__module__", __name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.name: str = settings.get("name") or self.__qualname__
        """The consumer's name in the log."""
        self._idempotency: Idempotency | None = None
        if (layer := settings.get("idempotency")) is not None:
            from tarry.run.idempotency_layer import idempotency_of

            self._idempotency = idempotency_of(layer, settings.get("name"), f"{self.__module__}.{self.__qualname__}")
            # For `replace`: an @idempotent_function may have configured the layer by then.
            self._settings = {**self._settings, "idempotency": self._idempotency}  # type: ignore[typeddict-item]
        options = settings.get("log", LogOptions())
        if not isinstance(options, LogOptions):
            raise ConfigurationError(f"log takes LogOptions(...), got {options!r}")
        self.log = Log(self.name, options)
        self._metrics = environ.get("POWERTOOLS_METRICS_NAMESPACE")  # their namespace; None or empty if they are off
        self._on_outcome = checks.outcome_hook_of(settings, is_async)
        if "AWS_LAMBDA_INITIALIZATION_TYPE" in environ:
            from tarry.run.loading import load

            load(world.current())

    def __repr__(self) -> str:
        return f"<Consumer {self.__module__}.{self.__qualname__}>"

    @overload
    def replace(self, *, model: type[P], **settings: Unpack[BatchSettings]) -> Consumer[P]: ...
    @overload
    def replace(self, **settings: Unpack[BatchSettings]) -> Consumer[T]: ...
    def replace(self, **settings: Any) -> Any:
        """Return a consumer of the same function with some settings changed.

        Args:
            model: Another model for the payload.
            settings: As for `consumer`. A single setting of the policy (``max_attempts=2``) changes a copy of the
                consumer's policy; ``policy=`` replaces all of it, None with the default policy.

        Raises:
            ConfigurationError: As for `consumer`.
        """
        checks.refuse_unknown(settings)
        before: Mapping[str, Any] = self._settings
        if "policy" not in settings and any(name in settings for name in checks.POLICY_SETTINGS):
            before = {**before, "policy": None, **checks.settings_of(self.policy)}
        changed: Any = {**before, **settings}
        return Consumer(self.function, self._takes_batch, changed)

    def __call__(self, event: Any, context: Any = None) -> Response:
        """Process one batch; return the response, which names the messages that failed.

        Raises:
            InvalidEvent: The event is not an SQS event.
            SystemExit: A handler is still running that cannot be stopped, so the process must not take another batch.
                All messages are settled.
        """
        pending, are_plain, is_fifo = records_of(event)
        # In a separate context, so that context variables set by a hook are not seen by the next invocation.
        must_end = copy_context().run(self._handle, pending, are_plain, is_fifo, context) if pending else False
        if must_end:
            raise SystemExit(1)
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in pending]}

    def _handle(self, pending: Records, are_plain: bool, is_fifo: bool, context: Any) -> bool:
        """Run and settle a batch; messages that are done leave ``pending``. Return whether the process must end now."""
        here = world.current()
        invocation = Invocation(here, context, self._max_attempts_of, self.log, self._payload_reader, are_plain)
        run = Run(self if here.watch is None else here.watch(self), invocation, pending, is_fifo)
        try:
            if self._on_outcome is not None or self._metrics or "aws_lambda_powertools.logging.formatter" in modules:
                self._prepare(invocation, pending)
            if invocation.began_with < MINIMUM_SECONDS:
                text = (
                    f"The invocation began with {max(0.0, invocation.began_with):.2f} s left, which is not enough to "
                    "settle a message. No message was run; all are reported as failed. Give the function a longer "
                    "Timeout."
                )
                self.log.problem("out_of_time", text, level=WARNING)
            else:
                self._run(run)
                run.finish()
                if invocation.must_end_process is not None:
                    run.verdicts.outcomes.settlement.executor.delete(run.acknowledged())
        except BaseException as error:  # noqa: BLE001 a defect of tarry must not lose or duplicate a message
            self._log_fault(invocation, error, "Messages that are not settled are reported as failed.")
        invocation.ended = True
        if invocation.acks is not None:
            self._end(invocation, invocation.acks.close)
        if run.made_verdicts is not None:
            self._end(invocation, run.made_verdicts.outcomes.stop)
        if invocation.observes:
            from tarry.observe.reports import report

            run.deadline.settled()
            self._end(invocation, report, invocation, self.name, self._metrics, self._on_outcome)
        if invocation.deliveries or invocation.spans is not None:
            self._end(invocation, invocation.clear)
        if (why := invocation.must_end_process) is not None:
            self.log.problem("process_ends", f"{why}. This process ends, and Lambda starts another.")
        return why is not None

    def _end(self, invocation: Invocation, step: Callable[..., None], *arguments: object) -> None:
        """Take a step after the settlement, whose failure changes no outcome."""
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 a defect of tarry must not fail messages that are settled
            self._log_fault(invocation, error, "It has settled the messages before.")

    def _log_fault(self, invocation: Invocation, error: BaseException, text: str) -> None:
        exit_if_forked(invocation.began_in, error)
        self.log.problem("runtime_failed", f"tarry itself failed. {text}", error=error)

    def _prepare(self, invocation: Invocation, pending: Records) -> None:
        """Prepare an invocation for metrics, ``on_outcome``, and the keys of Powertools' `Logger` if it is in use."""
        if self._on_outcome is not None or self._metrics:
            from tarry.observe.reports import Observer

            keeps_failures = self._on_outcome is not None
            invocation.observer = Observer(invocation, pending, self.log, keeps_failures=keeps_failures)
            invocation.observes = True
        if "aws_lambda_powertools.logging.formatter" in modules:
            from tarry.observe.logger_keys import formatters

            if formatters():
                invocation.logger_keys = invocation.observes = True

    def _run(self, run: Run) -> None:
        if self.acks_eagerly:
            from tarry.settle.eager_acks import Acks

            run.invocation.acks = Acks(run.invocation, self.log, waits=not self.is_async)
        if self.attempts is not None:
            run.count_attempts(self.attempts)
        if self._idempotency is not None:
            from tarry.run.idempotency import Claims

            run.claims = Claims(self._idempotency, run.invocation, self.log, run.deadline)
        if "opentelemetry.trace" in modules or "aws_xray_sdk.core" in modules:
            run.tracing = self._tracing(run)
        runner: Sequential | Concurrent | WholeBatch
        if self._takes_batch:
            from tarry.run.whole_batch import WholeBatch

            runner = WholeBatch(run)
        elif run.handling.is_async or run.handling.concurrency > 1:
            from tarry.run.concurrent import Concurrent

            runner = Concurrent(run)
        else:
            runner = Sequential(run)
        if self.keepalive is None:
            return runner.run()
        from tarry.settle.extending import Keepalive

        keepalive = Keepalive(self.keepalive, run.pending, run.invocation, self.log)
        keepalive.start()
        try:
            return runner.run()
        finally:
            keepalive.stop()

    def _tracing(self, run: Run) -> list[RunSpans | Subsegments]:
        """Return the tracing by loaded libraries that are on."""
        from tarry.observe.tracing import TracingGuard, subsegments_of

        tracing: list[Any] = []
        invocation = run.invocation
        with TracingGuard(self.log, invocation.world):  # another version of a library may raise anything
            if "opentelemetry.trace" in modules:
                from tarry.observe import opentelemetry

                if opentelemetry.is_on():
                    invocation.spans = spans = opentelemetry.RunSpans(invocation, run.pending, self.name, self.log)
                    tracing.append(spans)
            runs_take_turns = self.is_async and self.concurrency > 1  # in one thread
            if "aws_xray_sdk.core" in modules and not runs_take_turns:
                tracing.extend(subsegments_of(self.log, invocation.world))
        return tracing

    def _max_attempts_of(self, queue: str) -> int | None:
        return self.policy.limit(retries_in_place=self.steps.of(queue).retries_in_place)


def _kind(takes_batch: bool) -> type:
    if takes_batch:
        from tarry.message.batch import Batch

        return Batch
    return Message


def _extending() -> Any:
    from tarry.settle import extending

    return extending


Invocation.extending = staticmethod(_extending)


@overload
def consumer(function: Handler[P], /) -> Consumer[P]: ...
@overload
def consumer(*, model: type[P], **settings: Unpack[Settings]) -> Callable[[Handler[P]], Consumer[P]]: ...
@overload
def consumer(*, model: None = None, **settings: Unpack[Settings]) -> Callable[[Handler[P]], Consumer[P]]: ...
def consumer(function: Any = None, /, **settings: Any) -> Any:
    """Make a Lambda handler of a function that takes one `Message`.

        @consumer(max_attempts=4, backoff=Exponential(initial=2, multiplier=3, maximum=900), fatal=OrderDeclined)
        def handler(message: Message) -> None: ...

    Args:
        function: The handler, sync or async.
        model: The type of `Message.payload`: a pydantic model, a dataclass or a ``TypedDict``. By default the one in
            the handler's annotation.
        envelope: The service that wrapped the payload: ``"sns"``, ``"eventbridge"`` or ``"s3"``.
        max_attempts, backoff, fatal, retry_on, retry_when, traverse_causes: As for `RetryPolicy`.
        policy: A `RetryPolicy` instead of these; several consumers can share it.
        on_failure: The failure steps, by default ``[RetryInPlace(), DeadLetter()]``; or a dict of such lists by queue
            name, with ``"default"`` for all other queues.
        concurrency: How many messages run at once, 1 to 1,000: sync handlers in threads, async handlers as tasks. On
            FIFO, messages of different groups only.
        timeout: The seconds that one run of the handler may take; one that takes longer fails with `TimeoutError`.
        keepalive: Extend the visibility of all unfinished messages of the batch at this interval in seconds, to three
            intervals. For queues whose visibility timeout is shorter than the handler takes.
        ack: ``"eager"`` deletes acknowledged messages during the invocation, ten at a time or after one second, so that
            they stay deleted if the process dies later; `Message.ack` then deletes before the handler returns (not on
            FIFO). By default, ``"on_return"``, Lambda deletes them after the response.
        isolate: False runs messages in the order of their batch. By default, redelivered messages run last, each with
            a visibility of its own, so that a message that kills the process takes no other with it. No effect for a
            batch handler.
        idempotency: A persistence layer of Powertools, such as ``DynamoDBPersistenceLayer``. A message that was already
            processed is acknowledged without running, and no two deliveries of it run at once. Its key is the
            consumer's name and the message's id, or the ``event_key_jmespath`` that the layer is configured with, over
            the body.
        attempts: A store such as `DynamoDBAttempts`, which makes `Message.attempt` exact.
        name: The consumer's name in the log and in metrics, by default the function's qualified name.
        log: See `LogOptions`.
        on_outcome: A function of a message and its `Outcome`, called for each message of a batch when all of them are
            settled, before the response, while there is time. If the message failed, ``outcome.reason`` says why, and
            ``message.failure`` is the record of this failure. An exception that it raises is logged once, and has no
            effect. It cannot be async.
        settings: All settings are given by name.

    Raises:
        ConfigurationError: A setting is out of range, or two settings contradict each other.
        TypeError: There is no such setting.
    """
    return _consumer_or_decorator(function, False, settings)


@overload
def batch_consumer(function: BatchHandler[P], /) -> Consumer[P]: ...
@overload
def batch_consumer(
    *, model: type[P], **settings: Unpack[BatchSettings]
) -> Callable[[BatchHandler[P]], Consumer[P]]: ...
@overload
def batch_consumer(
    *, model: None = None, **settings: Unpack[BatchSettings]
) -> Callable[[BatchHandler[P]], Consumer[P]]: ...
def batch_consumer(function: Any = None, /, **settings: Any) -> Any:
    """Make a Lambda handler of a function that takes a `Batch`.

    Args:
        function: The handler, sync or async.
        unsaid: ``"fail"``: a message without a verdict has failed when the handler returns. By default, ``"ack"``, it
            is acknowledged. In either mode, `BatchError` acknowledges the messages before the one that it names.
        settings: All others are those of `consumer`, by name.

    Raises:
        ConfigurationError: A setting is out of range, or two settings contradict each other.
        TypeError: There is no such setting.
    """
    return _consumer_or_decorator(function, True, settings)


def _consumer_or_decorator(function: Any, takes_batch: bool, settings: Any) -> Any:
    checks.refuse_unknown(settings)
    if function is not None:
        return Consumer(function, takes_batch, settings)
    # Settings are checked at the decorator; only with the handler is it known whether an envelope has a model.
    without_handler: Any = settings if settings.get("model") is not None else {**settings, "envelope": None}
    checked = Consumer(lambda _: None, takes_batch, without_handler)
    return lambda handler: Consumer(handler, takes_batch, checks.with_policy(settings, checked.policy))
