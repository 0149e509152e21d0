"""The errors of tarry. Verdicts that a handler raises (`Retry`, `Reject`, ...) are in `message/outcomes.py`."""

from __future__ import annotations

from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class TarryError(ValueError):
    """The base of tarry's exceptions, which are all `ValueError`s too."""


class InvalidEvent(TarryError):
    """The event is not an SQS event: not a dict, no ``Records``, or a record without a ``messageId``.

    A consumer raises it because it cannot know the messages, so Lambda must take the whole batch back.
    """


class ConfigurationError(TarryError):
    """A setting is wrong. Raised when the object is made; the text names the value and what to change."""


class DelayNotSupported(TarryError):
    """A delay that SQS cannot keep. The text names the limit.

    SQS keeps a message invisible for at most 43,200 seconds (12 hours) from its receive. A single message of a
    FIFO queue cannot have a delay.
    """


class LeaseLost(TarryError):
    """`Message.extend` cannot extend the message: another consumer may have it by now. Stop working on it.

    Its lease has ended, SQS refuses its receipt handle, or its handler has ended.
    """


class Unsent(SimpleNamespace):
    """A message of a `SendError`, with the reason."""

    index: int
    """The position among the messages, from 0."""
    message: Any
    """The message as it was given to `Queue.send_batch`."""
    reason: Exception
    """The error of SQS or botocore; for a message beyond a limit, a `ValueError` or `TypeError`. If SQS may have the
    message all the same, because a try got no answer, a note of the error (``__notes__``) says so."""
    entry: Any = None
    """The entry for another ``queue.send_batch([unsent.entry])``, with the same deduplication id; None if the message
    can never be sent."""


class SendError(TarryError):
    """Some messages of `Queue.send_batch` were not sent (all others were), or SQS did not confirm a `Queue.send`.

    ``failed`` is a tuple of `Unsent`: ``message``, ``reason``, ``index``, ``entry``. ``message_ids`` has the ids of all
    messages in order, None for those in ``failed``.
    """

    def __init__(self, failed: Sequence[Unsent], message_ids: Sequence[str | None]) -> None:
        self.failed = tuple(failed)
        self.message_ids = list(message_ids)
        shown = "; ".join(f"message {unsent.index}: {_text(unsent)}" for unsent in self.failed[:MAX_REASONS_SHOWN])
        more = f"; and {len(self.failed) - MAX_REASONS_SHOWN} more" if len(self.failed) > MAX_REASONS_SHOWN else ""
        or_not = ", or not for certain" if any(map(_notes, self.failed)) else ""
        super().__init__(f"{len(self.failed)} of {len(self.message_ids)} messages were not sent{or_not}: {shown}{more}")


def _text(unsent: Unsent) -> str:
    return " ".join([str(unsent.reason), *(f"({note})" for note in _notes(unsent))])


def _notes(unsent: Unsent) -> Sequence[str]:
    """Return the notes of a reason: that SQS may have the message all the same."""
    return getattr(unsent.reason, "__notes__", ())


MAX_REASONS_SHOWN = 5  # the most reasons in the text of a `SendError`; all are in its ``failed``


class Undecodable(TarryError):
    """The body is not JSON, or does not match the model. The message is dead-lettered unchanged and never retried."""


class ProcessCrashed(TarryError):
    """The failure of a run that did not end: the process died, or the function timed out, while the handler ran.

    Known on FIFO with an attempt store (``attempts=``). The message is retried whatever ``fatal`` and ``retry_on`` say.
    """


class UnexplainedFailure(TarryError):
    """A failure without an error: the handler returned ``batchItemFailures``, or gave the message no verdict.

    The message is retried whatever ``fatal`` and ``retry_on`` say, because the error is not known.
    """


for _public in TarryError.__subclasses__():
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs
