"""What tarry itself raises.

    TarryError
    ├── InvalidEvent          the event is not an SQS event
    ├── ConfigurationError    a setting is wrong, or two contradict each other
    ├── DelayNotSupported     SQS cannot keep this delay
    ├── LeaseLost             a message cannot be held any longer: another consumer may have it
    ├── SendError             messages of a `Queue` were not sent for certain
    ├── Undecodable           a body that is not what it should be
    └── UnexplainedFailure    a handler reported a failed message without an error

All are `ValueError`s too. Verdicts that are raised (`Retry`, `Reject`, ...) are not errors: see `tarry.signals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence


class TarryError(ValueError):
    """The base of what tarry raises."""


class InvalidEvent(TarryError):
    """The event is not an SQS event: no dict, no ``Records``, or a record without a ``messageId``.

    The only thing for which a consumer raises: it cannot know the messages, so Lambda must take the whole batch
    back.
    """


class ConfigurationError(TarryError):
    """A setting was refused when the object was made; the text names the value and what to change."""


class DelayNotSupported(TarryError):
    """A delay that SQS cannot keep; the text names the limit.

    SQS hides a message for at most 43,200 seconds (12 hours), counted from its receive; a message to a FIFO queue can
    have no delay of its own.
    """


class LeaseLost(TarryError):
    """A message cannot be held any longer (`Message.extend`): another consumer may have it by now.

    Its lease has ended, SQS refuses its receipt handle, or its handler has ended. Stop working on it.
    """


class Unsent(Value):
    """A message that was not sent for certain, and why."""

    index: int
    """Its place among those that were to be sent, from 0."""
    message: Any
    """As it was given to `Queue.send_batch`."""
    reason: Exception
    """What SQS or botocore said; for a message beyond a limit the `ValueError` or `TypeError` that says which."""
    entry: Any = None
    """To send it again with the same deduplication id (``queue.send_batch([unsent.entry])``); None for a message that
    cannot be sent as it is."""


class SendError(TarryError):
    """Some messages of a `Queue.send_batch` were not sent, all others were; or that of a `Queue.send` is in doubt.

    ``failed`` has each of those that were not, as `Unsent`: ``message``, ``reason``, ``index``, ``entry``.
    ``message_ids`` has the ids of all in their order, None for those that were not sent.
    """

    def __init__(self, failed: Sequence[Unsent], message_ids: Sequence[str | None]) -> None:
        self.failed = tuple(failed)
        self.message_ids = list(message_ids)
        told = "; ".join(f"message {unsent.index}: {unsent.reason}" for unsent in self.failed[:REASONS_TOLD])
        more = f"; and {len(self.failed) - REASONS_TOLD} more" if len(self.failed) > REASONS_TOLD else ""
        super().__init__(f"{len(self.failed)} of {len(self.message_ids)} messages were not sent: {told}{more}")


REASONS_TOLD = 5
"""In the text of a `SendError`; all are in its ``failed``."""


class Undecodable(TarryError):
    """The body cannot be decoded. Fatal by nature: the message is dead-lettered byte for byte and never retried."""


class UnexplainedFailure(TarryError):
    """A failure without an error: the handler returned ``batchItemFailures``, or gave no verdict on the message.

    Worth another attempt whatever ``fatal`` and ``retry_on`` say, since it does not tell which error it was.
    """


for _public in (
    InvalidEvent,
    ConfigurationError,
    DelayNotSupported,
    LeaseLost,
    SendError,
    Undecodable,
    UnexplainedFailure,
):
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs
