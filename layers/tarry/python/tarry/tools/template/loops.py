"""The loops of AWS::LanguageExtensions: ``Fn::ForEach`` in resources, their properties, and conditions."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import TemplateError

LOOP = "Fn::ForEach::"
TRANSFORM = "AWS::LanguageExtensions"
SECTIONS = ("Resources", "Conditions")


def expanded(document: Mapping[str, Any], scope: Intrinsics) -> dict[str, Any]:
    """Return the document with each loop replaced by what it makes.

    Args:
        document: The template.
        scope: The values of parameters, and the mappings.

    Raises:
        TemplateError: a loop has another form than it must have, or its collection cannot be resolved.
    """
    transforms = document.get("Transform")
    is_allowed = TRANSFORM in (transforms if isinstance(transforms, list) else [transforms])
    sections = {name: document[name] for name in SECTIONS if document.get(name)}
    if not is_allowed:
        if loop := next(_loops(sections), None):
            raise TemplateError(f"{loop} needs the transform {TRANSFORM}: add it to Transform, before that of SAM")
        return dict(document)
    found = {name: _expanded(section, scope, name) for name, section in sections.items()}
    for name, resource in found["Resources"].items():
        if name not in document["Resources"] and not (isinstance(resource, dict) and "Type" in resource):
            raise TemplateError(f"Resources.{name}, made by a {LOOP.rstrip(':')}, must be a resource with a Type")
    return {**document, **found}


def _loops(value: Any, where: str = "") -> Iterator[str]:
    """Yield the places of loops."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        place = f"{where}.{key}".lstrip(".")
        if str(key).startswith(LOOP):
            yield place
        yield from _loops(each, place)


def _expanded(value: Any, scope: Intrinsics, where: str) -> Any:
    if isinstance(value, list):
        return [_expanded(each, scope, where) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[Any, Any] = {}
    for key, each in value.items():
        place = f"{where}.{key}"
        made = _repeated(each, scope, place) if str(key).startswith(LOOP) else [(key, _expanded(each, scope, place))]
        for name, part in made:
            if name in found:
                raise TemplateError(f"{place} makes {name} twice: its keys must contain its identifier")
            found[name] = part
    return found


def _repeated(loop: Any, scope: Intrinsics, where: str) -> Iterator[tuple[str, Any]]:
    match loop:
        case [str(identifier), collection, dict(body)]:
            items = scope.settled(collection, f"{where}, its collection")
        case _:
            raise TemplateError(f"{where} must be a list of an identifier, a collection and a map, got {loop!r:.60}")
    if not isinstance(items, list) or any(isinstance(each, list | dict) for each in items):
        raise TemplateError(f"{where}: its collection must be a list of texts, got {items!r:.60}")
    for item in items:
        for key, value in _with_item(body, identifier, str(item)).items():
            made = _expanded({key: value}, scope, where)
            yield from made.items()


def _with_item(value: Any, identifier: str, item: str) -> Any:
    """Return the value with an item in place of the identifier; ``&{Identifier}`` keeps only letters and digits."""
    match value:
        case {"Ref": name} if name == identifier:
            return item
        case dict():
            parts = {key: _with_item(each, identifier, item) for key, each in value.items()}
            return {_with_item(key, identifier, item): each for key, each in parts.items()}
        case list():
            return [_with_item(each, identifier, item) for each in value]
        case str():
            plain = re.sub(r"[^A-Za-z0-9]", "", item)
            return value.replace(f"${{{identifier}}}", item).replace(f"&{{{identifier}}}", plain)
        case _:
            return value
