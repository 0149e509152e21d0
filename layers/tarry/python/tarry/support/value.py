"""Frozen values: equality, hash and repr from their fields.

What `dataclasses` would give, without its import of `inspect` at every cold start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing import Self


class Value:
    """A base for small immutable classes; the fields are the names in ``__slots__``, set once by ``_freeze``."""

    __slots__: tuple[str, ...] = ()

    def _freeze(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _changed(self, **fields: Any) -> Self:
        """Return the same value with some fields changed."""
        changed = object.__new__(type(self))
        changed._freeze(**{name: getattr(self, name) for name in self.__slots__} | fields)
        return changed

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

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
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__ if not name.startswith("_"))
        return f"{type(self).__name__}({shown})"

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Value:
        return self
