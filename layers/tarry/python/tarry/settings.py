"""The settings of consumers, and their checks when a consumer is made."""

from __future__ import annotations

import math

from tarry.decide.retry_policy import RetryPolicy
from tarry.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal, TypedDict

    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

    from tarry.decide.retry_policy import Backoff, Errors, RetryWhen
    from tarry.message.delivery import Step
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.message.payloads import EnvelopeName, PayloadReader
    from tarry.observe.logs import LogOptions
    from tarry.record.attempt_store import AttemptStore

else:

    class TypedDict:
        """A stand-in for `typing.TypedDict` at run time: to import typing is slow."""

        def __init_subclass__(cls, total: bool) -> None: ...


class Settings(TypedDict, total=False):
    """The settings of `consumer`, which describes them, and of `batch_consumer`, besides ``model``."""

    policy: RetryPolicy | None
    max_attempts: int
    backoff: Backoff | None
    fatal: Errors
    retry_on: Errors | None
    retry_when: RetryWhen | None
    traverse_causes: bool
    on_failure: Sequence[Step] | Mapping[str, Sequence[Step]] | None
    envelope: EnvelopeName | None
    concurrency: int
    timeout: float | None
    keepalive: float | None
    ack: Literal["on_return", "eager"]
    isolate: bool
    idempotency: BasePersistenceLayer | None
    attempts: AttemptStore | None
    name: str | None
    log: LogOptions
    on_outcome: Callable[[Message[Any], Outcome], None] | None


class BatchSettings(Settings, total=False):
    """The settings of `batch_consumer`: those of `consumer`, and ``unsaid``."""

    unsaid: Literal["ack", "fail"]


class AllSettings(BatchSettings, total=False):
    """All settings with ``model``, which the overloads name separately because it sets the type of the payload."""

    model: Any


MAX_CONCURRENCY = 1_000
SETTINGS = ("model", *Settings.__annotations__, *BatchSettings.__annotations__)


def concurrency_of(concurrency: object, takes_batch: bool) -> int:
    if type(concurrency) is not int or not 1 <= concurrency <= MAX_CONCURRENCY:
        raise ConfigurationError(f"concurrency must be a whole number from 1 to {MAX_CONCURRENCY}, got {concurrency!r}")
    if takes_batch and concurrency != 1:
        raise ConfigurationError(
            f"concurrency={concurrency} has no effect with @batch_consumer, which gets all messages at once: "
            "remove it, or use @consumer"
        )
    return concurrency


def seconds_of(name: str, seconds: object) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ConfigurationError(f"{name} must be a number of seconds above 0, got {seconds!r}")
    return seconds


def acks_eagerly(settings: Settings) -> bool:
    ack: object = settings.get("ack", "on_return")
    if ack not in ("on_return", "eager"):
        raise ConfigurationError(f'ack takes "on_return" or "eager", got {ack!r}')
    return ack == "eager"


def attempt_store_of(settings: Settings) -> AttemptStore | None:
    store: Any = settings.get("attempts")
    has_methods = callable(getattr(store, "read", None)) and callable(getattr(store, "write", None))
    if store is None or (has_methods and not isinstance(store, type)):
        return store
    more = "; max_attempts limits the number of attempts" if isinstance(store, int) else ""
    raise ConfigurationError(f'attempts takes a store, such as DynamoDBAttempts("table"), got {store!r:.200}{more}')


def fails_without_verdict(settings: BatchSettings, takes_batch: bool) -> bool:
    if "unsaid" not in settings:
        return False
    unsaid: object = settings["unsaid"]
    if not takes_batch:
        raise ConfigurationError(
            f"unsaid={unsaid!r} is for @batch_consumer: a handler of one message acknowledges it by returning"
        )
    if unsaid not in ("ack", "fail"):
        raise ConfigurationError(f'unsaid takes "ack" or "fail", got {unsaid!r}')
    return unsaid == "fail"


POLICY_SETTINGS = ("max_attempts", "backoff", "fatal", "retry_on", "retry_when", "traverse_causes")


def policy_of(settings: Settings) -> RetryPolicy:
    policy: object = settings.get("policy")
    if policy is None:
        given: Any = settings
        return RetryPolicy(**{name: given[name] for name in POLICY_SETTINGS if name in given})
    if not isinstance(policy, RetryPolicy):
        raise ConfigurationError(f"policy takes a RetryPolicy(...), got {policy!r:.200}")
    for name in POLICY_SETTINGS:
        if settings.get(name) is not None:
            raise ConfigurationError(
                f"policy and {name} are both given: set {name} in the RetryPolicy, or remove policy"
            )
    return policy


def settings_of(policy: RetryPolicy) -> dict[str, Any]:
    """Return the single settings that make an equal policy, without defaults."""
    default = RetryPolicy()
    settings = {name: getattr(policy, name) for name in POLICY_SETTINGS}
    is_set = {name: value is not getattr(default, name) for name, value in settings.items()}
    is_set["max_attempts"] = policy.limit(retries_in_place=False) is not None
    return {name: value for name, value in settings.items() if is_set[name]}


def with_policy(settings: AllSettings, policy: RetryPolicy) -> AllSettings:
    """Return the settings with a policy instead of single ones, so that a user's backoff is checked only once."""
    changed: Any = {name: value for name, value in settings.items() if name not in POLICY_SETTINGS}
    changed["policy"] = policy
    return changed  # type: ignore[no-any-return]


def payload_reader_of(function: Callable[..., Any], settings: AllSettings, *, plain: bool) -> PayloadReader | None:
    """Return the reader of payloads; the annotation of a ``plain`` handler, as most are, names no model."""
    model, envelope = settings.get("model"), settings.get("envelope")
    if model is None and envelope is None and plain:
        return None
    from tarry.message.payloads import PayloadReader, annotated_model

    if model is None and not plain:
        model = annotated_model(function)
    return None if model is None and envelope is None else PayloadReader(model, envelope)


def outcome_hook_of(
    settings: Settings, is_async: Callable[[object], bool]
) -> Callable[[Message[Any], Outcome], None] | None:
    hook: object = settings.get("on_outcome")
    if hook is None:
        return None
    if not callable(hook):
        raise ConfigurationError(f"on_outcome takes a function of a message and its outcome, got {hook!r:.200}")
    if is_async(hook):
        raise ConfigurationError(
            f"on_outcome cannot be async, got {hook!r:.200}: it is called when all handlers have ended. "
            "Make it a plain function"
        )
    return hook


def refuse_unknown(settings: Any) -> None:
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise TypeError(f"unknown settings: {', '.join(unknown)}; the settings are {', '.join(SETTINGS)}")
