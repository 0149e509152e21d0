"""Finding the template of a project, and the project of a template."""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tarry.failed.usage import UsageError
from tarry.tools.template.document import properties_of

SOURCES = ("template.yaml", "template.yml", "template.json")
BUILD = Path(".aws-sam", "build")
CDK_APP = "cdk.json"
CDK_OUTPUT = "cdk.out"


def find_template(directory: Path = Path()) -> Path:
    """Return the template of a project: a source, or else the output of ``sam build`` or of ``cdk synth``.

    Raises:
        UsageError: there is none, or there are several stacks in the output of ``cdk synth``.
    """
    for name in (*SOURCES, BUILD / SOURCES[0]):
        if (directory / name).is_file():
            return directory / name
    stacks = _stacks(directory / CDK_OUTPUT)
    if len(stacks) > 1:
        raise UsageError(f"{CDK_OUTPUT} has several stacks: name one with --template: {', '.join(map(str, stacks))}")
    if not stacks:
        looked_for = ", ".join(map(str, (*SOURCES, BUILD / SOURCES[0], f"{CDK_OUTPUT}/*.template.json")))
        remedy = "name one with --template FILE"
        if (directory / CDK_APP).is_file():
            remedy = f"{CDK_APP} is here, so make one with cdk synth"
        raise UsageError(f"there is no template here ({looked_for}): {remedy}")
    return stacks[0]


def refuse_template(function: str) -> None:
    """Raise `UsageError` for the path of a template in the place of a function, whose name has no dot."""
    if function.endswith((".yaml", ".yml", ".json")):
        raise UsageError(f"{function} is not a function: for a template, give --template {function}")


def project_of(template: Path) -> Path:
    """Return the directory of the project; a template may be in the output of ``sam build`` or ``cdk synth``."""
    directory = template.parent
    for each in (directory, *directory.parents):
        if each.name == CDK_OUTPUT:
            return each.parent
    return directory.parents[1] if is_built(template) else directory


def is_built(template: Path) -> bool:
    """Whether a template is the output of ``sam build``."""
    return template.parent.parts[-2:] == BUILD.parts


def _stacks(output: Path) -> list[Path]:
    """Return the templates of a CDK app; if there are several, only those that consume a queue or stream."""
    found = sorted(each for each in output.rglob("*.template.json") if ".nested." not in each.name)
    consuming = [each for each in found if "AWS::Lambda::EventSourceMapping" in each.read_text(encoding="utf-8")]
    return (consuming or found) if len(found) > 1 else found


NAMES = ("samconfig.toml", "samconfig.yaml", "samconfig.yml")
"""The names of the file; SAM CLI takes the first that exists."""
DEFAULT_ENVIRONMENT = "default"
COMMANDS = ("global", "build", "deploy", "local_invoke")
"""The sections with the options that apply to a template; a later one has precedence."""


@dataclass(frozen=True)
class SamConfig:
    """The options of one environment of a samconfig file."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    region: str | None = None
    stack: str | None = None


def read_samconfig(template: Path, environment: str | None, *, is_local: bool = True) -> SamConfig:
    """Return the options of the samconfig file of a project.

    Args:
        template: The template of the project.
        environment: The environment in the file; None for ``default``, which need not exist.
        is_local: Whether the values of ``local_invoke`` apply, which `sam deploy` does not read.

    Raises:
        UsageError: the file cannot be read, or does not have the named environment.
    """
    folder = project_of(template)
    path = next((folder / name for name in NAMES if (folder / name).is_file()), folder / NAMES[0])
    config = _content(path)
    if environment is not None and environment not in config:
        known = ", ".join(str(name) for name, value in config.items() if isinstance(value, dict)) or "none"
        raise UsageError(f"{path} has no environment {environment} (--config-env); it has {known}")
    section = properties_of(config, environment or DEFAULT_ENVIRONMENT)
    values: dict[str, str] = {}
    places: dict[str, Any] = {}
    for command in COMMANDS if is_local else COMMANDS[:-1]:
        options = properties_of(properties_of(section, command), "parameters")
        places |= {name: str(options[name]) for name in ("region", "stack_name") if options.get(name) is not None}
        try:
            values |= _overrides(options.get("parameter_overrides"))
        except ValueError as error:
            where = f"{environment or DEFAULT_ENVIRONMENT}.{command}.parameters"
            raise UsageError(f"{path}: parameter_overrides of {where} must be NAME=VALUE ...: {error}") from error
    return SamConfig(values, places.get("region"), places.get("stack_name"))


def _content(path: Path) -> Mapping[str, Any]:
    is_toml = path.suffix == ".toml"
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if is_toml else yaml.safe_load(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError) as error:
        syntax = "TOML" if is_toml else "YAML"
        raise UsageError(f"{path} is not {syntax}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise UsageError(f"{path} has no environments: write a map such as default: {{deploy: {{parameters: {{}}}}}}")
    return found or {}


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
