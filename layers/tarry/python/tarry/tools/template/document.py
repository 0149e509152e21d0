"""Template files: reading YAML or JSON with short tags."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tarry.tools.template.model import TemplateError

FOREIGN = re.compile(r"%%\w+%%|\{\{(?!\s*resolve:).*?\}\}|\{%.*?%\}|<%.*?%>|@@\w+@@")
"""The placeholders of other tools, such as Jinja."""
MAX_VALUES = 500_000
"""The most values of a template with its YAML aliases expanded: CloudFormation takes 1 MB, which has fewer."""
NODES: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader for nodes with their lines: libyaml's, which is ten times as fast, where PyYAML has it."""


class _Loader(yaml.SafeLoader):
    """A loader that reads ``!Ref X`` as ``{"Ref": "X"}``, and dates, such as the version of a policy, as text."""


def _tag(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    elif isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    else:
        value = loader.construct_scalar(node)  # type: ignore[arg-type]
        if name == "GetAtt":
            value = value.split(".", 1)
    return {name if name in {"Ref", "Condition"} else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _tag)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)  # type: ignore[type-var]


def load_document(path: Path) -> dict[str, Any]:
    """Read a template file.

    Raises:
        TemplateError: the file cannot be read, is neither YAML nor JSON, or has no resources.
    """
    text = _text_of(path)
    try:
        document = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except json.JSONDecodeError as error:
        raise _syntax_error(path, text, "JSON", error.lineno, error.colno, error.msg) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _syntax_error(path, text, "YAML", line, column, error.problem or "") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TemplateError(f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if _values_in(document) > MAX_VALUES:
        raise TemplateError(
            f"{path} has more than {MAX_VALUES:,} values once its YAML aliases are expanded, or an alias that contains "
            "itself: CloudFormation takes no such template, and no aliases. Write the values out"
        )
    if document is None:
        raise TemplateError(f"{path} is empty: a SAM template has Resources (tarry init makes one)")
    resources = document.get("Resources") if isinstance(document, dict) else None
    if not isinstance(resources, dict) or not all(
        (isinstance(each, dict) and "Type" in each) or str(name).startswith("Fn::") for name, each in resources.items()
    ):
        raise TemplateError(f"{path} is not a template: it needs Resources, each with a Type")
    if wrong := next(_wrong_parts(document), None):
        raise TemplateError(f"{path} is not a template: {wrong}")
    return {**document, "Resources": resources}


def _values_in(document: Any) -> float:
    """Return how many values a document has with its aliases expanded; infinite if one contains itself.

    Each shared value is counted once, so the time is that of the document without its aliases expanded.
    """
    counts: dict[int, float] = {}
    todo = [document]
    while todo:
        value = todo[-1]
        inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
        if id(value) not in counts:
            counts[id(value)] = math.inf  # until it is known: a value within itself stays infinite
            todo.extend(each for each in inside if id(each) not in counts)
        else:
            counts[id(value)] = 1 + sum(counts[id(each)] for each in inside)
            todo.pop()
    return counts[id(document)]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise TemplateError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        example = path / "template.yaml"
        raise TemplateError(f"{path} is a directory: name the template file, such as {example}") from error
    except OSError as error:
        raise TemplateError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not a text file") from error


def _wrong_parts(document: dict[str, Any]) -> Iterator[str]:
    """Yield which parts have another type than CloudFormation requires."""
    for section in ("Parameters", "Mappings", "Conditions", "Globals"):
        if not isinstance(document.get(section) or {}, dict):
            yield f"{section} must be a map"
    for name, parameter in properties_of(document, "Parameters").items():
        if not isinstance(parameter, dict):
            yield f"Parameters.{name} must be a map with a Type"
    for name, resource in document["Resources"].items():
        if isinstance(resource, dict) and not isinstance(resource.get("Type", ""), str):
            yield f"the Type of {name} must be a text"
        if isinstance(resource, dict) and not isinstance(resource.get("Properties", {}), dict):
            yield f"the Properties of {name} must be a map"


def _syntax_error(path: Path, text: str, syntax: str, line: int, column: int, problem: str) -> TemplateError:
    lines = text.splitlines()
    near = lines[max(0, line - 2) : line]
    if placeholder := next((found[0] for each in reversed(near) if (found := FOREIGN.search(each))), None):
        return TemplateError(
            f"{path}, line {line}: {placeholder} is a placeholder of another tool: "
            "run that tool first, and name its output with --template"
        )
    remedy = "; indent with spaces, not tabs" if "\\t" in problem else ""
    return TemplateError(f"{path} is not {syntax}: line {line}, column {column}: {problem}{remedy}")


def listed(value: Any) -> list[Any]:
    """Return a list, or the single value that may stand in its place, as a list."""
    return value if isinstance(value, list) else [value]


def transforms_of(document: Mapping[str, Any]) -> list[Any]:
    return [each for each in listed(document.get("Transform")) if each is not None]


def properties_of(resource: Mapping[str, Any], key: str = "Properties") -> dict[str, Any]:
    """Return the map below a key; empty if it is not a map."""
    properties = resource.get(key)
    return properties if isinstance(properties, dict) else {}
