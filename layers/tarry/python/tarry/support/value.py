"""Frozen values, with constructor, equality, hash and repr made from their annotated fields.

A replacement for `dataclasses`, which imports `inspect` at every cold start (docs/decisions/0001-cold-start.md).
"""

from __future__ import annotations

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
    _known = _needed = frozenset[str]()
    """The names as a set, and those without a default."""

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
