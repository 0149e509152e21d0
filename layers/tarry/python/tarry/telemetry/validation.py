"""Texts of pydantic's validation errors without the input, which may be secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import ValidationError

MOST_PROBLEMS = 20


def text_without_input(error: ValidationError) -> str:
    """Return the text of an error that a handler raised: ``1 validation error for Order: number: Field required``."""
    count = error.error_count()
    return f"{count} validation error{'s' * (count > 1)} for {error.title}: {problems_of(error, _names())}"


def problems_of(error: ValidationError, names: Collection[str]) -> str:
    """Return the places and reasons of a validation error; paths show only ``names``, since keys may be secret."""
    found = [_problem(each, names) for each in error.errors(include_input=False, include_url=False)[:MOST_PROBLEMS]]
    if (more := error.error_count() - len(found)) > 0:
        found.append(f"and {more} more")
    return "; ".join(found)


def _problem(details: Any, names: Collection[str]) -> str:
    text = details["msg"]
    if details["type"] == "union_tag_invalid":  # the only message of pydantic that quotes the input
        tags = details["ctx"]
        text = f"Input tag found using {tags['discriminator']} does not match any of: {tags['expected_tags']}"
    path = ".".join(str(part) if isinstance(part, int) or part in names else "<key>" for part in details["loc"])
    return f"{path}: {text}" if path else text


def _names() -> set[str]:
    """Return the names of all models in the process, of their fields, and the aliases of these."""
    from pydantic import BaseModel

    names, todo = set[str](), [BaseModel]
    while todo:
        model = todo.pop()
        todo += model.__subclasses__()
        names.add(model.__name__)
        for name, field in getattr(model, "__pydantic_fields__", {}).items():
            names.update(each for each in (name, field.alias, field.validation_alias) if isinstance(each, str))
    return names
