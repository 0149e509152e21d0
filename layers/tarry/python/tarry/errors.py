"""What tarry itself raises.

    TarryError
    ├── InvalidEvent          the event is not an SQS event
    ├── ConfigurationError    a setting is wrong, or two contradict each other
    ├── DelayNotSupported     SQS cannot keep this delay
    └── Undecodable           a body that is not what it should be

All are `ValueError`s too. Verdicts that are raised (`Retry`, `Reject`, ...) are not errors: see `tarry.signals`.
"""

from __future__ import annotations


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

    SQS hides a message for at most 43,200 seconds (12 hours), counted from its receive.
    """


class Undecodable(TarryError):
    """The body cannot be decoded. Fatal by nature: the message is dead-lettered byte for byte and never retried."""


for _public in (InvalidEvent, ConfigurationError, DelayNotSupported, Undecodable):
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs
