"""A consumer: a handler and its settings, callable as a Lambda handler."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast, overload

from tarry import world
from tarry.errors import ConfigurationError
from tarry.execution import driver
from tarry.execution.intake import records_of
from tarry.execution.run import Run
from tarry.failure import FailureStep, FailureSteps
from tarry.invocation import Invocation
from tarry.message import T
from tarry.policy import DEFAULT_MAX_ATTEMPTS, Errors, RetryPolicy
from tarry.telemetry.logs import Log, LogOptions

P = TypeVar("P")  # no default as T has: it must be inferred, or the function is refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Protocol, Unpack

    from tarry.backoff import Backoff
    from tarry.batch import Batch
    from tarry.decision import Decision
    from tarry.message import Message
    from tarry.payload import EnvelopeName, PayloadReader
    from tarry.policy import RetryWhen
    from tarry.sqs.settlement import Settlement

    class Handler(Protocol[P]):
        """A function of one message, sync or async."""

        def __call__(self, message: Message[P], /) -> Any: ...

    class BatchHandler(Protocol[P]):
        """A function of a whole batch, sync or async."""

        def __call__(self, batch: Batch[P], /) -> Any: ...


class Settings(TypedDict, total=False):
    """What `consumer` and `batch_consumer` take, besides ``model``.

    ``model``: a pydantic model, dataclass or ``TypedDict``, of which `Message.payload` is made; by default the one that
    the handler's annotation names. ``envelope``: ``"sns"``, ``"eventbridge"`` or ``"s3"``, what the payload comes
    wrapped in.

    ``max_attempts``, ``backoff``, ``fatal``, ``retry_on``, ``retry_when``, ``traverse_causes``: see `RetryPolicy`.
    ``on_failure``: the list of failure steps, by default ``[RetryInPlace(), DeadLetter()]``, or a dict of such lists by
    queue name, with ``default`` for the rest. ``name``: in the log, by default the function's qualified
    name. ``log``: see `LogOptions`.
    """

    max_attempts: int
    backoff: Backoff | None
    fatal: Errors
    retry_on: Errors | None
    retry_when: RetryWhen | None
    traverse_causes: bool
    on_failure: Sequence[FailureStep] | Mapping[str, Sequence[FailureStep]] | None
    envelope: EnvelopeName | None
    name: str | None
    log: LogOptions


class AllSettings(Settings, total=False):
    """With ``model``, which the overloads name by itself, since it gives the payload its type."""

    model: Any


SETTINGS = ("model", *Settings.__annotations__)
Response = dict[str, list[dict[str, str]]]


class Consumer(Generic[T]):
    """A Lambda handler for SQS events. Made by `consumer` and `batch_consumer`; it never changes.

    ``handler(event, context)`` is the Lambda entry point. ``handler.function`` is the plain function, for tests.
    """

    # In slots, since functools.wraps copies a __dict__ over that of the wrapper; the dunders are in one.
    __slots__ = (
        "__dict__", "_payload_reader", "_settings", "_takes_batch", "function", "is_async", "log", "name", "policy",
        "steps",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], takes_batch: bool, settings: AllSettings) -> None:
        if not callable(function):
            raise ConfigurationError(f"a consumer is made of a function, got {function!r}; settings go by name")
        if isinstance(function, Consumer) or (trouble := driver.cannot_take_one(function)) is not None:
            why = "it is a consumer already" if isinstance(function, Consumer) else trouble
            raise ConfigurationError(f"{function!r} cannot be a handler: {why}")
        self._settings: AllSettings = {**settings}
        self._takes_batch = takes_batch
        self.function = function
        """The handler itself."""
        self.steps = FailureSteps(settings.get("on_failure"))
        if takes_batch and any(of_queue.tries_locally for of_queue in self.steps.all):
            raise ConfigurationError("LocalRetry() is for handlers of one message: a batch cannot be run again in part")
        self.policy: RetryPolicy = _policy(settings, self.steps)
        """When a message is tried again."""
        self._payload_reader = _payload_reader(function, settings)
        self.is_async = driver.is_async(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__module__ = getattr(function, "__module__", __name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.name: str = settings.get("name") or self.__qualname__
        """Which consumer this is, in logs."""
        options = settings.get("log", LogOptions())
        if not isinstance(options, LogOptions):
            raise ConfigurationError(f"log takes LogOptions(...), got {options!r}")
        self.log = Log(self.name, options)

    def __repr__(self) -> str:
        return f"<Consumer {self.__module__}.{self.__qualname__}>"

    @overload
    def replace(self, *, model: type[P], **settings: Unpack[Settings]) -> Consumer[P]: ...
    @overload
    def replace(self, **settings: Unpack[Settings]) -> Consumer[T]: ...
    def replace(self, **settings: Any) -> Any:
        """A consumer of the same function with some settings changed."""
        _refuse_unknown(settings)
        changed = cast("AllSettings", {**self._settings, **settings})
        return Consumer(self.function, self._takes_batch, changed)

    def __call__(self, event: Any, context: Any = None) -> Response:
        """Handles one batch; the answer names the messages that SQS is to deliver again.

        Raises `InvalidEvent`, and nothing else: for an event that is not an SQS event.
        """
        pending = records_of(event)
        if pending:
            self._handle(pending, context)
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in pending]}

    def _handle(self, pending: dict[str, dict[str, Any]], context: Any) -> None:
        """Runs and settles a batch. What is done leaves ``pending``; all else counts as failed."""
        here = world.current()
        invocation = Invocation(here, context, self._max_attempts_of, self.log, self._payload_reader)
        settlement = LazySettlement(self, invocation)
        run = Run(self if here.watch is None else here.watch(self), invocation, pending, settlement)
        try:
            if self._takes_batch:
                run.batch()
            else:
                run.each()
            if decisions := run.close():
                settlement.get().finish(decisions)
        except BaseException as error:  # noqa: BLE001 a fault of our own must not lose or double a message
            text = "tarry itself failed; what was not settled is reported as failed"
            self.log.problem("runtime_failed", text, error=error)
        finally:
            invocation.ended = True
            for message_id in settlement.away:
                pending.pop(message_id, None)

    def _max_attempts_of(self, queue: str) -> int | None:
        return self.policy.max_attempts if self.steps.of(queue).retries_in_place else None


class LazySettlement:
    """The settlement of one invocation, made when it is needed: a clean batch loads nothing of it."""

    def __init__(self, consumer: Consumer[Any], invocation: Invocation) -> None:
        self._consumer = consumer
        self._invocation = invocation
        self._made: Settlement | None = None

    def get(self) -> Settlement:
        if self._made is None:
            from tarry.sqs.settlement import Settlement

            consumer = self._consumer
            self._made = Settlement(self._invocation, consumer.policy, consumer.steps, consumer.log)
        return self._made

    @property
    def away(self) -> Collection[str]:
        """The delivery ids of what was sent elsewhere for certain."""
        return self._made.away if self._made is not None else ()

    def is_last_delivery(self, message: Message[Any]) -> bool:
        return self.get().is_last_delivery(message)

    def would_expire(self, message: Message[Any], delay: float) -> bool:
        return self.get().would_expire(message, delay)

    def send_away(self, decisions: Sequence[Decision]) -> set[str]:
        return self.get().send_away(decisions)


def _policy(settings: Settings, steps: FailureSteps) -> RetryPolicy:
    if not any(of_queue.retries_in_place for of_queue in steps.all):
        for name in ("max_attempts", "backoff"):
            if settings.get(name) is not None:
                raise ConfigurationError(f"{name} means nothing where on_failure holds no RetryInPlace(): drop one")
    return RetryPolicy(
        settings.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
        settings.get("backoff"),
        settings.get("fatal", ()),
        settings.get("retry_on"),
        settings.get("retry_when"),
        settings.get("traverse_causes", False),
    )


def _payload_reader(function: Callable[..., Any], settings: AllSettings) -> PayloadReader | None:
    model, envelope = settings.get("model"), settings.get("envelope")
    if model is None and not _is_plain(function):
        from tarry.annotation import annotated_model

        model = annotated_model(function)
    if model is None and envelope is None:
        return None
    from tarry.payload import payload_reader

    return payload_reader(model, envelope)


def _is_plain(function: Callable[..., Any]) -> bool:
    """Whether its annotations cannot name a model: told without loading anything, for the sake of the cold start."""
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return False
    try:
        return all(each is None or isinstance(each, type) for each in function.__annotations__.values())
    except NameError:  # Python 3.14 evaluates them only here
        return False


@overload
def consumer(function: Handler[P], /) -> Consumer[P]: ...
@overload
def consumer(*, model: type[P], **settings: Unpack[Settings]) -> Callable[[Handler[P]], Consumer[P]]: ...
@overload
def consumer(*, model: None = None, **settings: Unpack[Settings]) -> Callable[[Handler[P]], Consumer[P]]: ...
def consumer(function: Any = None, /, **settings: Any) -> Any:
    """Makes a Lambda handler of a function of one `Message`; see `Settings`.

        @consumer(max_attempts=4, backoff=Exponential(2, 3, maximum=900), fatal=OrderDeclined)
        def handler(message: Message) -> None: ...

    Raises `ConfigurationError` for settings that are out of range or contradict each other.
    """
    return _made(function, False, settings)


@overload
def batch_consumer(function: BatchHandler[P], /) -> Consumer[P]: ...
@overload
def batch_consumer(*, model: type[P], **settings: Unpack[Settings]) -> Callable[[BatchHandler[P]], Consumer[P]]: ...
@overload
def batch_consumer(*, model: None = None, **settings: Unpack[Settings]) -> Callable[[BatchHandler[P]], Consumer[P]]: ...
def batch_consumer(function: Any = None, /, **settings: Any) -> Any:
    """Makes a Lambda handler of a function of one `Batch`; settings and errors as for `consumer`."""
    return _made(function, True, settings)


def _refuse_unknown(settings: Any) -> None:
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise TypeError(f"unknown settings: {', '.join(unknown)}; there are {', '.join(SETTINGS)}")


def _made(function: Any, takes_batch: bool, settings: Any) -> Any:
    _refuse_unknown(settings)
    if function is not None:
        return Consumer(function, takes_batch, settings)
    # A wrong setting is refused where it stands; whether an envelope has its model, only the handler can tell.
    without_handler: Any = settings if settings.get("model") is not None else {**settings, "envelope": None}
    Consumer(lambda _: None, takes_batch, without_handler)
    return lambda handler: Consumer(handler, takes_batch, settings)
