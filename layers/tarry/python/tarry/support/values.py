"""Plain values: frozen types, log lines, queue ARNs, delays, and how long SQS can keep a message invisible.

Limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from types import GenericAlias

from tarry import world

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Any, NoReturn, Self, SupportsFloat, TypeAlias, dataclass_transform
else:
    # Stand-ins for those of typing, which takes longer to import than a third of the modules of tarry

    class Generic:
        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    def overload(function):
        return function

    def dataclass_transform(**_):
        return overload


@dataclass_transform(frozen_default=True)
class Value:
    """A base for small immutable classes.

    The annotations of a subclass are its fields, in the order of the constructor's arguments; a class attribute is a
    default. A subclass that checks or computes its fields has its own constructor, which ends in `_freeze`.
    """

    _names: tuple[str, ...] = ()
    _known = _needed = frozenset[str]()  # the names as a set, and those without a default
    _least = 0  # how many values by position give all that are needed

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("tarry.") or Value in cls.__bases__:  # a user's subclass may annotate anything
            cls._names = tuple(dict.fromkeys((*cls.__annotations__, *cls._names)))
        cls._known = frozenset(cls._names)
        cls._needed = frozenset([name for name in cls._names if not hasattr(cls, name)])
        cls._least = max([cls._names.index(name) + 1 for name in cls._needed], default=0)

    def __init__(self, *values: Any, **fields: Any) -> None:
        names, given = self._names, self.__dict__
        if not fields and self._least <= len(values) <= len(names):
            for name, value in zip(names, values, strict=False):  # faster than `update`
                given[name] = value
            return
        given.update(zip(names, values, strict=False))
        given.update(fields)
        if len(given) != len(values) + len(fields) or not fields.keys() <= self._known:
            takes = ", ".join(names) or "nothing"
            raise TypeError(f"{type(self).__name__} takes {takes}; got {len(values)} values and {[*fields]}")
        if not given.keys() >= self._needed:
            missing = next(name for name in names if name in self._needed and name not in given)
            raise TypeError(f"{type(self).__name__} needs {missing}")

    def _freeze(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def _changed(self, **fields: Any) -> Self:
        """Return the same value with some fields changed."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.__dict__.update(fields)
        return changed

    def _fields(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._names])

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names if not name.startswith("_"))
        return f"{type(self).__name__}({shown})"

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Value:
        return self


def fields_of(value: Value) -> dict[str, Any]:
    """Return the fields of a value by name."""
    return {name: getattr(value, name) for name in value._names}


DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # the levels of `logging`, which the first line imports


class Notice(Value):
    """A log line about one delivery, for `Log.notices`: planning does not log, it returns notices with the plan."""

    event: str
    text: str
    error: Any = None  # an exception, or its `Diagnosis`
    level: int = ERROR
    more: dict[str, Any] | None = None


class QueueArn(Value):
    """The ARN of an SQS queue and its parts. A missing or invalid ARN has no name; tarry makes no request about it."""

    text: str

    @cached_property
    def account(self) -> str:
        return _account_and_name(self.text)[0]

    @cached_property
    def name(self) -> str:
        return _account_and_name(self.text)[1]

    @cached_property
    def is_fifo(self) -> bool:
        """Whether the queue is FIFO, from its name: since 2025, messages of standard queues can have a group id."""
        return self.text.endswith(".fifo")

    def sibling(self, name: str, account: str | None = None) -> QueueArn:
        """Return the queue ``name`` in the same partition and region, by default in the same account."""
        parts = self.text.split(":")
        if not self.name:  # the source is unknown: only a URL has an account
            return QueueArn(f"arn:aws:sqs::{account}:{name}" if account else "")
        return QueueArn(":".join([*parts[:4], account or parts[4], name]))

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=256)
def _account_and_name(text: str) -> tuple[str, str]:
    parts = text.split(":")
    return (parts[4], parts[5]) if len(parts) == 6 and parts[2] == "sqs" else ("", "")


@lru_cache(maxsize=256)
def _made_once(text: str) -> QueueArn:
    return QueueArn(text)


def queue_arn(text: object) -> QueueArn:
    """Return the `QueueArn` for the ``eventSourceARN`` of an event, which may be of any type."""
    return _made_once(text if isinstance(text, str) else "")


def receive_count(text: object) -> int:
    """Return SQS's ``ApproximateReceiveCount`` as a number; 1 if it is missing, unreadable or not positive."""
    try:
        return max(1, int(text))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 1


def named_queue(name: str, beside: QueueArn) -> QueueArn:
    """Return the ARN of a queue given as ARN, URL or name; a name is taken to be in the account of ``beside``."""
    if name.startswith("arn:"):
        return queue_arn(name)
    if "/" not in name:
        return beside.sibling(name)
    from urllib.parse import urlsplit

    parts = urlsplit(name).path.strip("/").split("/")
    return beside.sibling(parts[-1], account=parts[-2] if len(parts) > 1 else None)


Delay: TypeAlias = "float | timedelta | datetime"

END_OF_TIME = 253_402_300_800  # the year 10000, beyond the range of datetime

PAGES = "https://address-of-this-repository.example/tarry/blob/main/docs"
"""The address of the documentation, for the texts of errors and log lines: under that of pyproject.toml."""
MAX_VISIBILITY_SECONDS = 43_200
"""The longest visibility timeout, counted from the receive: 12 hours. SQS refuses more; it does not cut it."""

MAX_DELAY_SECONDS = 900  # SQS's longest ``DelaySeconds``

MOMENT_SECONDS = 0.001  # a message may come back so early: float errors must not round its delay up by a second

UNKNOWN_RECEIVE_SECONDS = 330
"""The assumed time between a receive and its invocation, if the record does not have the time of the receive: the
longest batching window (300 s) and 30 s. A record has only the time of the *first* receive."""


def whole_seconds(delay: Delay) -> int:
    """Return ``delay`` as whole seconds from now, rounded up; 0 for a past ``datetime``.

    Raises:
        ValueError: The delay is negative, not finite, a naive ``datetime``, or of another type.
    """
    seconds = _as_seconds(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a delay must be a finite number of seconds, 0 or more, got {delay!r}")
    return math.ceil(seconds)


def moment_of(delay: object) -> float | None:
    """Return the epoch seconds of a delay given as a ``datetime``; None for a delay from the failure (SPEC C11)."""
    if delay is None or isinstance(delay, (int, float)):
        return None
    from datetime import datetime

    return delay.timestamp() if isinstance(delay, datetime) and delay.utcoffset() is not None else None


def _as_seconds(delay: object) -> float:
    is_bool = isinstance(delay, bool)
    if isinstance(delay, (int, float)) and not is_bool:
        return _as_float(delay)
    from datetime import datetime, timedelta
    from decimal import Decimal
    from numbers import Real

    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, datetime):
        if delay.utcoffset() is None:
            raise ValueError(f"a delay as a datetime needs a time zone, got the naive {delay!r}")
        return max(0.0, delay.timestamp() - world.current().clock.time())
    if isinstance(delay, (Real, Decimal)) and not is_bool:
        return _as_float(delay)
    raise ValueError(f"a delay is a number of seconds, a timedelta or an aware datetime, got {delay!r}")


def _as_float(number: SupportsFloat) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def epoch_seconds(milliseconds: object) -> float | None:
    """Return a timestamp of SQS (milliseconds as text) in epoch seconds; None if it is invalid."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < END_OF_TIME else None


def longest_wait(*, received_at: float | None, invoked_at: float, now: float) -> int:
    """Return for how many whole seconds from ``now`` SQS can keep a message invisible; times are epoch seconds."""
    # ``received_at`` is the time of *this* receive, which a record has for the first one only
    if received_at is None or now - received_at > MAX_VISIBILITY_SECONDS:  # no lease is that old: an old sample event
        received_at = invoked_at - UNKNOWN_RECEIVE_SECONDS
    return max(0, math.floor(MAX_VISIBILITY_SECONDS - max(0.0, now - received_at) - 1))
