"""The values of a template's parameters: given, from the samconfig file, their defaults, or placeholders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tarry.template.model import TemplateError


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
        TemplateError: a given value is for a parameter that the template does not have.
    """
    for name in given:
        if name not in declared:
            raise TemplateError(f"the template has no parameter {name}; it has {', '.join(declared) or 'none'}")
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
