"""What all parts of a template are read with: the rule for values that cannot be resolved, and texts as numbers."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tarry.template.intrinsics import Intrinsics
from tarry.template.model import TemplateError

T = TypeVar("T")

Resources = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Reading:
    """How to read: what cannot be resolved is left out if ``lenient``. ``made_up`` are the values of placeholders."""

    lenient: bool
    left_out: list[str]
    made_up: frozenset[str]

    def attempt(self, make: Callable[[], T], *, is_needed: bool = True) -> T | None:
        """Return the value; None if it cannot be resolved and may be left out."""
        try:
            return make()
        except TemplateError as error:
            if is_needed and not self.lenient:
                raise
            self.left_out.append(str(error))
            return None


def of_type(resources: Resources, kind: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return (
        (name, resource.get("Properties") or {}) for name, resource in resources.items() if resource["Type"] == kind
    )


def map_of(value: Any, where: str) -> Mapping[str, Any]:
    """Return a map, which may be written as JSON text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TemplateError(f"{where} must be a map, got {value!r}")
    return found


def integer(properties: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = properties.get(key, default)
    try:
        return int(value)
    except (ValueError, TypeError) as error:
        raise TemplateError(f"{where}.{key} must be a whole number, got {value!r}") from error


def optional_integer(properties: Mapping[str, Any], key: str, where: str) -> int | None:
    return integer(properties, key, 0, where) if properties.get(key) is not None else None


def optional_text(value: Any, scope: Intrinsics) -> str | None:
    try:
        resolved = scope.settled(value, "")
    except TemplateError:
        return None
    return resolved if isinstance(resolved, str) else None


def attribute_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
