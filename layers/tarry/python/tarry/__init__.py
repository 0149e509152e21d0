"""tarry: a runtime for SQS consumers on AWS Lambda.

A consumer is a function for one message, and the handler of a Lambda function:

    from tarry import Message, consumer

    @consumer(max_attempts=5)
    def handler(message: Message) -> None:
        charge(message.json())
"""

from __future__ import annotations

from tarry.consumer import Consumer, batch_consumer, consumer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tarry.decide.retry_policy import Backoff, Exponential, Fixed, Linear, RetryPolicy, Schedule
    from tarry.decide.steps import DeadLetter, DropMessage, LocalRetry, RetryInPlace, SendAgain
    from tarry.errors import ConfigurationError, DelayNotSupported, InvalidEvent, LeaseLost, SendError, Undecodable
    from tarry.message.batch import Batch, BatchError
    from tarry.message.delivery import Failure, FailureStep
    from tarry.message.message import Message
    from tarry.message.outcomes import Defer, Discard, Outcome, Reject, Retry, State
    from tarry.observe.logs import LogOptions
    from tarry.record.attempt_store import AttemptChange, AttemptStore, DynamoDBAttempts, MemoryAttempts
    from tarry.sqs.queue import Queue

__all__ = [
    "AttemptChange", "AttemptStore", "Backoff", "Batch", "BatchError", "ConfigurationError", "Consumer", "DeadLetter",
    "Defer", "DelayNotSupported", "Discard", "DropMessage", "DynamoDBAttempts", "Exponential", "Failure", "FailureStep",
    "Fixed", "InvalidEvent", "LeaseLost", "Linear", "LocalRetry", "LogOptions", "MemoryAttempts", "Message", "Outcome",
    "Queue", "Reject", "Retry", "RetryInPlace", "RetryPolicy", "Schedule", "SendAgain", "SendError", "State",
    "Undecodable", "batch_consumer", "consumer",
]  # fmt: skip

__version__ = "0.1.0"

_HOMES = {
    "tarry.decide.retry_policy": "Backoff Exponential Fixed Linear RetryPolicy Schedule",
    "tarry.decide.steps": "DeadLetter DropMessage LocalRetry RetryInPlace SendAgain",
    "tarry.errors": "ConfigurationError DelayNotSupported InvalidEvent LeaseLost SendError Undecodable",
    "tarry.message.batch": "Batch BatchError",
    "tarry.message.delivery": "Failure FailureStep",
    "tarry.message.message": "Message",
    "tarry.message.outcomes": "Defer Discard Outcome Reject Retry State",
    "tarry.observe.logs": "LogOptions",
    "tarry.record.attempt_store": "AttemptChange AttemptStore DynamoDBAttempts MemoryAttempts",
    "tarry.sqs.queue": "Queue",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, so that a cold start loads only the names that a function uses."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'tarry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
