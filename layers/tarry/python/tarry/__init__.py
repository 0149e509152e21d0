"""tarry: a runtime for SQS consumers on AWS Lambda.

from tarry import Message, consumer

@consumer(max_attempts=5)
def handler(message: Message) -> None:
    charge(message.json())
"""

from typing import TYPE_CHECKING, Any

from tarry.consumer import Consumer, batch_consumer, consumer

if TYPE_CHECKING:
    from tarry.attempts.dynamodb import DynamoDBAttempts
    from tarry.attempts.memory import MemoryAttempts
    from tarry.attempts.store import AttemptChange, AttemptStore
    from tarry.batch import Batch
    from tarry.errors import (
        ConfigurationError,
        DelayNotSupported,
        InvalidEvent,
        LeaseLost,
        SendError,
        Undecodable,
    )
    from tarry.message import Message
    from tarry.outcome import Outcome, State
    from tarry.policy.backoff import Backoff, Exponential, Fixed, Linear, Schedule
    from tarry.policy.failure import Failure, FailureStep
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.policy.steps import DeadLetter, DropMessage, LocalRetry, RetryInPlace, SendAgain
    from tarry.signals import BatchError, Defer, Discard, Reject, Retry
    from tarry.sqs.producer import Queue
    from tarry.telemetry.logs import LogOptions

__all__ = [
    "AttemptChange",
    "AttemptStore",
    "Backoff",
    "Batch",
    "BatchError",
    "ConfigurationError",
    "Consumer",
    "DeadLetter",
    "Defer",
    "DelayNotSupported",
    "Discard",
    "DropMessage",
    "DynamoDBAttempts",
    "Exponential",
    "Failure",
    "FailureStep",
    "Fixed",
    "InvalidEvent",
    "LeaseLost",
    "Linear",
    "LocalRetry",
    "LogOptions",
    "MemoryAttempts",
    "Message",
    "Outcome",
    "Queue",
    "Reject",
    "Retry",
    "RetryInPlace",
    "RetryPolicy",
    "Schedule",
    "SendAgain",
    "SendError",
    "State",
    "Undecodable",
    "batch_consumer",
    "consumer",
]

__version__ = "0.1.0"

_HOMES = {
    "tarry.attempts.dynamodb": ("DynamoDBAttempts",),
    "tarry.attempts.memory": ("MemoryAttempts",),
    "tarry.attempts.store": ("AttemptChange", "AttemptStore"),
    "tarry.policy.backoff": ("Backoff", "Exponential", "Fixed", "Linear", "Schedule"),
    "tarry.errors": (
        "ConfigurationError",
        "DelayNotSupported",
        "InvalidEvent",
        "LeaseLost",
        "SendError",
        "Undecodable",
    ),
    "tarry.policy.failure": ("Failure", "FailureStep"),
    "tarry.policy.steps": ("DeadLetter", "DropMessage", "LocalRetry", "RetryInPlace", "SendAgain"),
    "tarry.batch": ("Batch",),
    "tarry.message": ("Message",),
    "tarry.outcome": ("Outcome", "State"),
    "tarry.policy.retry_policy": ("RetryPolicy",),
    "tarry.signals": ("BatchError", "Defer", "Discard", "Reject", "Retry"),
    "tarry.sqs.producer": ("Queue",),
    "tarry.telemetry.logs": ("LogOptions",),
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, so that a cold start loads only the names that a function uses."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'tarry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
