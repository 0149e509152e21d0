"""tarry: a runtime for SQS consumers on AWS Lambda.

from tarry import Message, consumer

@consumer(max_attempts=5)
def handler(message: Message) -> None:
    charge(message.json())
"""

from tarry.backoff import Exponential, Fixed, Linear, Schedule
from tarry.consumer import Consumer, batch_consumer, consumer
from tarry.errors import ConfigurationError, DelayNotSupported, InvalidEvent, Undecodable
from tarry.failure import DeadLetter, Failure, FailureStep, RetryInPlace
from tarry.message import Batch, Message
from tarry.outcome import Outcome, State
from tarry.policy import RetryPolicy
from tarry.signals import BatchError, Defer, Discard, Reject, Retry
from tarry.telemetry.logs import LogOptions

__all__ = [
    "Batch",
    "BatchError",
    "ConfigurationError",
    "Consumer",
    "DeadLetter",
    "Defer",
    "DelayNotSupported",
    "Discard",
    "Exponential",
    "Failure",
    "FailureStep",
    "Fixed",
    "InvalidEvent",
    "Linear",
    "LogOptions",
    "Message",
    "Outcome",
    "Reject",
    "Retry",
    "RetryInPlace",
    "RetryPolicy",
    "Schedule",
    "State",
    "Undecodable",
    "batch_consumer",
    "consumer",
]

__version__ = "0.1.0"
