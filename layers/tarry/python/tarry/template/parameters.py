"""The values of a template's parameters: given, from samconfig.toml, their defaults, or placeholders."""

import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarry.template.finding import project_of
from tarry.template.model import TemplateError
from tarry.tooling.errors import UsageError

CONFIG = "samconfig.toml"
DEFAULT_ENVIRONMENT = "default"
COMMANDS = ("global", "build", "deploy", "local_invoke")
"""The sections of samconfig.toml with the parameters of a template; a later one has precedence."""


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
        configured: Values of samconfig.toml; those of parameters that the template does not have are ignored.
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


def configured_values(template: Path, environment: str | None) -> dict[str, str]:
    """Return the ``parameter_overrides`` of the samconfig.toml of a project.

    Args:
        template: The template of the project.
        environment: The environment in the file; None for ``default``, which need not exist.

    Raises:
        UsageError: the file cannot be read, or does not have the named environment.
    """
    path = project_of(template) / CONFIG
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        config = {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    if environment is not None and environment not in config:
        known = ", ".join(name for name, value in config.items() if isinstance(value, dict)) or "none"
        raise UsageError(f"{path} has no environment {environment} (--config-env); it has {known}")
    section = config.get(environment or DEFAULT_ENVIRONMENT)
    values: dict[str, str] = {}
    for command in COMMANDS:
        options = _table(_table(section, command), "parameters")
        try:
            values |= _overrides(options.get("parameter_overrides"))
        except ValueError as error:
            where = f"{environment or DEFAULT_ENVIRONMENT}.{command}.parameters"
            raise UsageError(f"{path}: parameter_overrides of {where} must be NAME=VALUE ...: {error}") from error
    return values


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


def _table(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _overrides(value: Any) -> dict[str, str]:
    """Parse ``parameter_overrides``: one text, a list of texts, or a table."""
    if isinstance(value, dict):
        return {name: _text(each) for name, each in value.items()}
    tokens = shlex.split(value) if isinstance(value, str) else [str(each) for each in value or []]
    return dict(_pair(each) for each in tokens)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair(token: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``, or the older ``ParameterKey=NAME,ParameterValue=VALUE``."""
    name, separator, value = token.removeprefix("ParameterKey=").partition(
        ",ParameterValue=" if token.startswith("ParameterKey=") else "="
    )
    if not name or not separator:
        raise ValueError(f"got {token!r}")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return name, value[1:-1] if quoted else value
