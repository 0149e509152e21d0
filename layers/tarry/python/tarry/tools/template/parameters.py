"""The values of a template's parameters: given, from the samconfig file, their defaults, or placeholders."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tarry.tools.template.model import TemplateError

LIMITS_OF_NUMBERS = (("MinValue", 1, "must be at least {}"), ("MaxValue", -1, "must be at most {}"))
LIMITS_OF_TEXTS = (
    ("MinLength", 1, "must have at least {} characters"),
    ("MaxLength", -1, "must have at most {} characters"),
)


@dataclass(frozen=True)
class ParameterValues:
    """The values of parameters; ``placeholders`` are those made up, ``missing`` the names of those without a value.

    ``invented`` are the names of those placeholders that are not among the allowed values of their parameter.
    """

    values: Mapping[str, Any]
    placeholders: Mapping[str, str]
    missing: tuple[str, ...]
    invented: frozenset[str]

    def refs(self) -> dict[str, Callable[[], Any]]:
        """Return functions that return a value; that of a missing parameter raises `TemplateError`, naming all."""
        found: dict[str, Callable[[], Any]] = dict.fromkeys(self.missing, self._refuse)
        return found | {name: _constant(value) for name, value in self.values.items()}

    def _refuse(self) -> Any:
        raise missing_values(self.missing)


def missing_values(names: tuple[str, ...]) -> TemplateError:
    """Return the error for parameters without a value, with the options to type."""
    options = " ".join(f"--parameter {name}=VALUE" for name in names)
    return TemplateError(f"parameters without a value: {', '.join(names)}. Add {options}")


def parameter_values(
    declared: Mapping[str, Any], given: Mapping[str, str], configured: Mapping[str, str], *, placeholders: bool
) -> ParameterValues:
    """Return the values of the declared parameters.

    Args:
        declared: The section ``Parameters`` of the template.
        given: Values with precedence over all others.
        configured: Values of the samconfig file; those of parameters that the template does not have are ignored.
        placeholders: Whether a parameter without a value gets a placeholder.

    Raises:
        TemplateError: a given value is for a parameter that the template does not have, or CloudFormation would refuse
            a given or configured value.
    """
    for name in given:
        if name not in declared:
            raise TemplateError(f"the template has no parameter {name}; it has {', '.join(declared) or 'none'}")
    for name, declaration in declared.items():
        if name in given:
            _check(f"parameter {name}", given[name], declaration)
        elif name in configured:
            _check(f"parameter {name} of the samconfig file", configured[name], declaration)
    texts = {
        name: given.get(name, configured.get(name, declaration.get("Default")))
        for name, declaration in declared.items()
    }
    missing = tuple(name for name, value in texts.items() if value is None)
    made_up = {name: _placeholder(name, declared[name]) for name in missing} if placeholders else {}
    values = {name: _typed(value, declared[name]) for name, value in (texts | made_up).items() if value is not None}
    invented = frozenset(name for name in made_up if not _allowed(declared[name]))
    return ParameterValues(values, made_up, missing, invented)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _placeholder(name: str, declaration: Mapping[str, Any]) -> str:
    if allowed := _allowed(declaration):
        return str(allowed[0])
    if "Number" in str(declaration.get("Type")):
        return str(declaration.get("MinValue", 1))
    return name


def _allowed(declaration: Mapping[str, Any]) -> list[Any]:
    allowed = declaration.get("AllowedValues")
    return allowed if isinstance(allowed, list) else []


def _typed(value: Any, declaration: Mapping[str, Any]) -> Any:
    is_list = "List" in str(declaration.get("Type"))
    return [part.strip() for part in str(value).split(",")] if is_list else value


def _check(what: str, value: str, declaration: Mapping[str, Any]) -> None:
    """Raise `TemplateError` for a value that CloudFormation refuses; of a list, each part must meet the constraints."""
    parts = _typed(value, declaration)
    for part in (parts if value else []) if isinstance(parts, list) else [parts]:
        if broken := next(_broken(str(part), declaration), None):
            shown = "the given value (NoEcho)" if _text(declaration.get("NoEcho")) == "true" else repr(value)
            raise TemplateError(f"{what} cannot be {shown}: {declaration.get('ConstraintDescription', broken)}")


def _broken(value: str, declaration: Mapping[str, Any]) -> Iterator[str]:
    """Yield the constraints of a parameter that a value does not meet."""
    allowed = [_text(each) for each in _allowed(declaration)]
    is_number = "Number" in str(declaration.get("Type"))
    number = _number(value)
    if is_number and number is None:
        yield "must be a number"
    elif allowed and value not in allowed and not (is_number and number in map(_number, allowed)):
        yield f"must be one of {', '.join(allowed)}"
    for key, sign, text in LIMITS_OF_NUMBERS if is_number else LIMITS_OF_TEXTS:
        measured, limit = number if is_number else len(value), _number(_text(declaration.get(key)))
        if measured is not None and limit is not None and measured * sign < limit * sign:
            yield text.format(_text(declaration[key]))
    pattern = declaration.get("AllowedPattern")
    with suppress(re.error):  # CloudFormation reads patterns of Java, and most of them are patterns of Python, too
        if isinstance(pattern, str) and not is_number and not re.fullmatch(pattern, value):
            yield f"must match {pattern}"


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
