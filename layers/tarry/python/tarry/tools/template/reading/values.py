"""The values of properties: resolved, left out if they cannot be, and as numbers and texts."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tarry.tools.template.intrinsics import NO_VALUE, Intrinsics, intrinsic_of
from tarry.tools.template.model import ACCOUNT, TemplateError
from tarry.tools.template.parameters import ParameterValues
from tarry.tools.template.placeholders import KnownValues, MadeUpValue

T = TypeVar("T")

Resources = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Reading:
    """How to read: parts that cannot be resolved are left out if ``lenient``."""

    lenient: bool
    parameters: ParameterValues
    tolerant: bool = False
    """Whether resources that cannot be read are left out, whatever the reason."""
    left_out: list[str] = field(default_factory=list)
    """Why parts of the template are left out."""
    defaulted: dict[str, str] = field(default_factory=dict)
    """The properties left out because they depend on a made-up value, each with the name of the parameter."""
    unknown: set[str] = field(default_factory=set)
    """The properties that cannot be resolved."""
    used: dict[str, None] = field(default_factory=dict)
    """The names that were referred to, in order."""

    def use(self, name: str) -> None:
        """Note that a parameter or resource is referred to."""
        self.used[name] = None

    def attempt(self, make: Callable[[], T], *, is_needed: bool = True) -> T | None:
        """Return the value; None if it cannot be resolved and may be left out."""
        try:
            return make()
        except TemplateError as error:
            if is_needed and not self.lenient:
                raise
            self.left_out.append(str(error))
            return None

    def each(self, make: Callable[[], T]) -> T | None:
        """Return a resource; None if it cannot be read and every such resource is left out."""
        return self.attempt(make, is_needed=False) if self.tolerant else make()

    def known(
        self, properties: Mapping[str, Any], names: Iterable[str], scope: Intrinsics, where: str
    ) -> dict[str, Any]:
        """Return the named properties, resolved, without the parts that depend on a made-up value."""
        resolver = KnownValues(scope, self.parameters.invented)
        given = {name: properties[name] for name in names if name in properties}
        found = {name: self.attempt(partial(self._items, {name: given[name]}, resolver, where)) for name in given}
        self.unknown.update(f"{where}.{name}" for name, value in found.items() if value is None)
        return {name: value[name] for name, value in found.items() if value}

    def _items(self, values: Mapping[Any, Any], resolver: KnownValues, where: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in values.items():
            place = f"{where}.{key}"
            try:
                part = self._part(value, resolver, place)
            except MadeUpValue as error:
                self.defaulted[place] = error.parameter
            else:
                if part is not NO_VALUE:
                    found[key] = part
        return found

    def _part(self, value: Any, resolver: KnownValues, where: str) -> Any:
        match value:
            case {"Fn::If": [name, yes, no]}:
                return self._part(yes if resolver.condition(name, where) else no, resolver, where)
            case dict() if intrinsic_of(value) is None:
                return self._items(value, resolver, where)
            case list():
                return list(self._items(dict(enumerate(value)), resolver, where).values())
            case _:
                return resolver.settled(value, where)

    def queue_arn(self, value: Any, scope: Intrinsics) -> Any:
        """Return the ARN of a queue; one given by a parameter without a value has the name of the placeholder."""
        if value in self.parameters.placeholders.values():
            return f"arn:aws:sqs:{scope.refs['AWS::Region']}:{ACCOUNT}:{value}"
        return value


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


def attribute_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
