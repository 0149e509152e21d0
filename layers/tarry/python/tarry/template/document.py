"""Template files: reading YAML or JSON with short tags, and translating SAM to CloudFormation."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tarry.template.model import TemplateError

SERVERLESS = "AWS::Serverless::"
FUNCTION = f"{SERVERLESS}Function"
PLAYED = frozenset({"Function", "LayerVersion", "SimpleTable", "Connector"})
"""The SAM types that affect queues and functions here. APIs, state machines and nested applications are not played."""
FOREIGN = re.compile(r"%%\w+%%|\{\{(?!\s*resolve:).*?\}\}|\{%.*?%\}|<%.*?%>|@@\w+@@")
"""The placeholders of other tools, such as Jinja."""
CODE_KEYS = ("CodeUri", "ContentUri", "DefinitionUri", "Location")
"""Properties with local paths. `sam deploy` uploads these files before the translation."""
CODE_ELSEWHERE = {"InlineCode", "ImageUri"}
PLACEHOLDER = "s3://bucket/key"
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
    for name, parameter in _properties(document, "Parameters").items():
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


def pruned(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the document without the parts of SAM that are not played, such as APIs, and what was left out."""
    resources: dict[str, Any] = {}
    left_out: list[str] = []
    for name, each in document["Resources"].items():
        kind = str(each["Type"]) if isinstance(each, dict) and "Type" in each else ""
        if not kind or (kind.startswith(SERVERLESS) and kind.removeprefix(SERVERLESS) not in PLAYED):
            left_out.append(f"{name} ({kind})" if kind else name)
        elif kind == FUNCTION:
            resources[name] = _pruned_function(each)
            if others := _other_events(each):
                left_out.append(f"{name} ({', '.join(others)} events)")
        else:
            resources[name] = each
    shared = {name: each for name, each in _properties(document, "Globals").items() if name in PLAYED}
    if "Function" in shared:
        shared["Function"] = _without_deployment(_properties(shared, "Function"))
    return {**document, "Resources": resources, "Globals": shared}, left_out


def _pruned_function(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function with only the events of queues."""
    properties = _without_deployment(_properties(function))
    if isinstance(events := properties.get("Events"), dict):
        properties["Events"] = {name: each for name, each in events.items() if _is_of_queue(each)}
    return {**function, "Properties": properties}


def _other_events(function: dict[str, Any]) -> list[str]:
    """Return the types of the events of a function that are not of queues, each once."""
    events = _properties(function).get("Events")
    found = events.values() if isinstance(events, dict) else ()
    return list(
        dict.fromkeys(str(each.get("Type")) for each in found if isinstance(each, dict) and not _is_of_queue(each))
    )


def _without_deployment(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in properties.items() if name != "DeploymentPreference"}


def _is_of_queue(event: Any) -> bool:
    """Whether an event is of an SQS queue; an SNS event may make one (``SqsSubscription``)."""
    if not isinstance(event, dict):
        return False
    return event.get("Type") == "SQS" or (
        event.get("Type") == "SNS" and bool(_properties(event).get("SqsSubscription"))
    )


def build_method_of(resource: Mapping[str, Any]) -> str | None:
    """Return how `sam build` builds a function or layer, such as ``makefile``; None for its default."""
    method = _properties(resource, "Metadata").get("BuildMethod")
    return None if method is None else str(method)


def resource_lines(path: Path) -> dict[str, int]:
    """Return the line of each resource in a template file, by logical id; empty if the file cannot be parsed."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), NODES)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    resources = [value for key, value in _pairs(root) if key.value == "Resources"]
    return {key.value: key.start_mark.line + 1 for value in resources for key, _ in _pairs(value)}


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def translate(
    document: dict[str, Any], region: str, parameters: Mapping[str, Any], *, tolerant: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Translate a SAM template to CloudFormation: Globals are merged, SQS events become event source mappings.

    Return the translation, and why SAM refuses resources that are left out: those that consume no queue, or if
    ``tolerant`` any.

    Raises:
        TemplateError: SAM refuses the template.
    """
    if not _serverless(document):
        return document, []
    from samtranslator.model.exceptions import InvalidDocumentException  # with boto3, it takes half a second

    document = _without_local_paths(document)
    refused: list[str] = []

    while True:
        try:
            return _translated(document, region, parameters), refused
        except InvalidDocumentException as error:
            causes = {_refused(document, getattr(cause, "_logical_id", "")): cause.message for cause in error.causes}
            known = [name for name in causes if name in document["Resources"]]
            needless = [name for name in known if tolerant or not _consumes(document, name)]
            if len(needless) < max(len(causes), 1) or len(needless) == len(document["Resources"]):
                texts = "; ".join(causes.values()) or error.message
                raise TemplateError(f"SAM refuses the template: {texts}") from error
        for name in needless:
            del document["Resources"][name]
        refused += [causes[name] for name in needless]


def _without_local_paths(document: dict[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for holder in (_properties(document.get("Globals", {}), "Function"), *map(_properties, _serverless(document))):
        for key in CODE_KEYS:
            if isinstance(holder.get(key), str):
                holder[key] = PLACEHOLDER
    for properties in _functions(document).values():
        if not CODE_ELSEWHERE & properties.keys():
            properties.setdefault("ImageUri" if properties.get("PackageType") == "Image" else "CodeUri", PLACEHOLDER)
    return document


def _translated(document: dict[str, Any], region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    # The session only provides the region.
    translator = Translator({}, Parser(), boto_session=SimpleNamespace(region_name=region))
    try:
        found: dict[str, Any] = translator.translate(copy.deepcopy(document), dict(parameters))
    finally:
        translator.metrics.publish()  # without a publisher this sends nothing; it avoids a later warning
    return found


def _refused(document: dict[str, Any], refused: object) -> str:
    """Return the resource that SAM refuses; an event of a function is named by both."""
    names = [name for name in document["Resources"] if str(refused).startswith(name)]
    return max(names, key=len, default="")


def _consumes(document: dict[str, Any], name: str) -> bool:
    """Whether a resource is a SAM function that consumes a queue."""
    resource = document["Resources"][name]
    return resource["Type"] == FUNCTION and bool(_properties(resource).get("Events"))


def _functions(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    resources = document["Resources"].items()
    return {name: _properties(each) for name, each in resources if each["Type"] == FUNCTION}


def _serverless(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in document["Resources"].values() if str(r["Type"]).startswith(SERVERLESS)]


def _properties(resource: Mapping[str, Any], key: str = "Properties") -> dict[str, Any]:
    properties = resource.get(key)
    return properties if isinstance(properties, dict) else {}
