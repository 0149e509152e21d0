"""CloudFormation intrinsic functions, as far as they can be resolved from the template."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from tarry.tools.template.model import TemplateError

DYNAMIC = "{{resolve:"
Fill = Callable[[Sequence[Any], str], list[Any]]
NO_VALUE = object()
"""The value of ``AWS::NoValue``: the property is left out."""

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_METHODS = {
    "Ref": "_ref",
    "Fn::GetAtt": "_get_att",
    "Fn::Sub": "_sub",
    "Fn::Join": "_join",
    "Fn::If": "_if",
    "Fn::FindInMap": "_find_in_map",
    "Fn::Select": "_select",
    "Fn::Split": "_split",
    "Fn::Length": "_length",
    "Fn::ToJsonString": "_to_json",
}


class Intrinsics:
    """The resolver of intrinsic functions.

    References to logical ids in ``pending`` stay intrinsics (a Ref, a GetAtt, or a Join around them): only an endpoint
    knows their values, such as the name of a table. Any other intrinsic that cannot be resolved raises `TemplateError`
    with its place in the template.
    """

    def __init__(
        self,
        refs: Mapping[str, Any],
        attributes: Mapping[str, str] | None = None,
        mappings: Mapping[str, Any] | None = None,
        conditions: Mapping[str, Any] | None = None,
        pending: frozenset[str] = frozenset(),
        watch: Callable[[str], None] | None = None,
    ) -> None:
        self.refs = refs
        self.attributes: Mapping[str, str] = {} if attributes is None else attributes
        self.mappings = mappings or {}
        self.conditions = conditions or {}
        self.pending = pending
        self.fill: Fill | None = None
        """Replaces dynamic references in the parts of a text; None to keep them."""
        self._watch = watch
        """Called with each name in ``refs`` that is referred to."""

    def unwatched(self) -> "Intrinsics":
        """Return the same scope for values that do not matter to what is played."""
        found = copy(self)
        found._watch = None
        return found

    def resolve(self, value: Any, where: str) -> Any:
        """Return the value with all intrinsics resolved, except pending ones."""
        if isinstance(value, list):
            return [each for each in (self.resolve(one, where) for one in value) if each is not NO_VALUE]
        if isinstance(value, str) and DYNAMIC in value:
            return self._joined("", [value], where)
        if not isinstance(value, dict):
            return value
        name = intrinsic_of(value)
        if name is None:
            found = {key: self.resolve(each, f"{where}.{key}") for key, each in value.items()}
            return {key: each for key, each in found.items() if each is not NO_VALUE}
        if name not in _METHODS:
            raise TemplateError(f"{where}: {name} cannot be resolved here")
        try:
            return getattr(self, _METHODS[name])(value[name], where)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            raise TemplateError(f"{where}: {name} cannot be resolved with {value[name]!r}") from error

    def settled(self, value: Any, where: str) -> Any:
        """Return the value with all intrinsics resolved; raise `TemplateError` for a pending one too."""
        value = self.resolve(value, where)
        for reference in references(value):
            raise TemplateError(f"{where}: {reference} cannot be resolved from the template alone")
        return value

    def condition(self, name: Any, where: str) -> bool:
        """Return the value of a condition of the template."""
        if not isinstance(name, str) or name not in self.conditions:
            raise TemplateError(f"{where}: the template has no condition {name}")
        try:
            return self._evaluate(self.conditions[name], f"Conditions.{name}")
        except RecursionError:
            raise TemplateError(f"{where}: the condition {name} refers to itself") from None

    def _evaluate(self, value: Any, where: str) -> bool:
        match value:
            case {"Condition": str(name)}:
                return self.condition(name, where)
            case {"Fn::Equals": [one, other]}:
                return attribute_text(self.settled(one, where)) == attribute_text(self.settled(other, where))
            case {"Fn::Not": [one]}:
                return not self._evaluate(one, where)
            case {"Fn::And": [*several]}:
                return all(self._evaluate(each, where) for each in several)
            case {"Fn::Or": [*several]}:
                return any(self._evaluate(each, where) for each in several)
            case _:
                raise TemplateError(f"{where} is not a condition")

    def _ref(self, name: str, where: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.refs:
            if self._watch is not None:
                self._watch(name)
            return self.refs[name]
        if name in self.pending:
            return {"Ref": name}
        raise TemplateError(
            f"{where}: Ref {name} cannot be resolved: it is neither a resource nor a parameter with a value"
        )

    def _get_att(self, argument: str | list[str], where: str) -> Any:
        path = argument if isinstance(argument, str) else ".".join(argument)
        if path in self.attributes:
            return self.attributes[path]
        name, _, attribute = path.partition(".")
        if name in self.pending:
            return {"Fn::GetAtt": [name, attribute]}
        raise TemplateError(f"{where}: GetAtt {path} cannot be resolved: the template has no resource {name}")

    def _sub(self, argument: str | list[Any], where: str) -> Any:
        text, variables = (argument, {}) if isinstance(argument, str) else argument
        parts: list[Any] = _VARIABLE.split(text)
        for index in range(1, len(parts), 2):
            name = parts[index].strip()
            if name.startswith("!"):
                parts[index] = f"${{{name[1:]}}}"
            elif name in variables:
                parts[index] = self.resolve(variables[name], where)
            else:
                parts[index] = self._get_att(name, where) if "." in name else self._ref(name, where)
        return self._joined("", parts, where)

    def _join(self, argument: list[Any], where: str) -> Any:
        separator, parts = argument
        return self._joined(separator, self.resolve(parts, where), where)

    def _joined(self, separator: str, parts: Any, where: str) -> Any:
        """Return the text of the parts; parts with references stay intrinsics."""
        if not references(parts):
            parts, separator = [separator.join(attribute_text(part) for part in parts)], ""
        if self.fill is not None and DYNAMIC in str(parts):
            between = [each for part in parts for each in (separator, part)][1:]
            parts, separator = self.fill(between, where), ""
        if not references(parts):
            return separator.join(map(attribute_text, parts))
        return parts[0] if len(parts) == 1 else {"Fn::Join": [separator, parts]}

    def _if(self, argument: list[Any], where: str) -> Any:
        name, yes, no = argument
        return self.resolve(yes if self.condition(name, where) else no, where)

    def _find_in_map(self, argument: list[Any], where: str) -> Any:
        name, *keys = [attribute_text(key) for key in self.settled(argument[:3], where)]
        found = self.mappings.get(name, {}).get(keys[0], {}).get(keys[1])
        if found is None:
            if argument[3:]:  # of AWS::LanguageExtensions
                return self.resolve(argument[3]["DefaultValue"], where)
            raise TemplateError(f"{where}: FindInMap finds no value for {name}, {', '.join(keys)}")
        return found

    def _select(self, argument: list[Any], where: str) -> Any:
        index, choices = self.resolve(argument, where)
        return {"Fn::Select": [index, choices]} if references(choices) else choices[int(index)]

    def _split(self, argument: list[Any], where: str) -> Any:
        separator, text = self.resolve(argument, where)
        return {"Fn::Split": [separator, text]} if references(text) else text.split(separator)

    def _length(self, argument: Any, where: str) -> int:
        found = self.settled(argument, where)
        if not isinstance(found, list):
            raise TypeError
        return len(found)

    def _to_json(self, argument: Any, where: str) -> Any:
        found = self.resolve(argument, where)
        return {"Fn::ToJsonString": found} if references(found) else json.dumps(found, separators=(",", ":"))


class Reference(NamedTuple):
    """A reference to a resource: a GetAtt, or a Ref if the attribute is empty."""

    name: str
    attribute: str = ""

    def __str__(self) -> str:
        return f"GetAtt {self.name}.{self.attribute}" if self.attribute else f"Ref {self.name}"


def references(value: Any) -> list[Reference]:
    """Return the references that are left in a resolved value."""
    match value:
        case {"Ref": str(name)}:
            return [Reference(name)]
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return [Reference(name, attribute)]
        case dict():
            return [found for each in value.values() for found in references(each)]
        case list():
            return [found for each in value for found in references(each)]
        case _:
            return []


def intrinsic_of(value: dict[str, Any]) -> str | None:
    """Return the name of the intrinsic that a map is, such as ``Fn::Sub``; None for a map of values."""
    name = str(next(iter(value))) if len(value) == 1 else ""
    return name if name == "Ref" or name.startswith("Fn::") else None


def attribute_text(value: Any) -> str:
    """Return a value as CloudFormation writes it in a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
