"""Frozen values, with constructor, equality, hash and repr made from their annotated fields; queue ARNs."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, dataclass_transform

if TYPE_CHECKING:
    from typing import Self


@dataclass_transform(frozen_default=True)
class Value:
    """A base for small immutable classes.

    The annotations of a subclass are its fields, in the order of the constructor's arguments; a class attribute is a
    default. A subclass that checks or computes its fields has its own constructor, which ends in `_freeze`.
    """

    _names: tuple[str, ...] = ()
    _known = _needed = frozenset[str]()  # the names as a set, and those without a default

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("tarry.") or Value in cls.__bases__:  # a user's subclass may annotate anything
            cls._names = tuple(dict.fromkeys((*cls.__annotations__, *cls._names)))
        cls._known = frozenset(cls._names)
        cls._needed = frozenset([name for name in cls._names if not hasattr(cls, name)])

    def __init__(self, *values: Any, **fields: Any) -> None:
        names, given = self._names, self.__dict__
        if len(values) == len(names) and not fields:
            for name, value in zip(names, values, strict=True):  # faster than `update`
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


def named_queue(name: str, beside: QueueArn) -> QueueArn:
    """Return the ARN of a queue given as ARN, URL or name; a name is taken to be in the account of ``beside``."""
    if name.startswith("arn:"):
        return queue_arn(name)
    if "/" not in name:
        return beside.sibling(name)
    from urllib.parse import urlsplit

    parts = urlsplit(name).path.strip("/").split("/")
    return beside.sibling(parts[-1], account=parts[-2] if len(parts) > 1 else None)
