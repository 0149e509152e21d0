"""Template files: reading YAML or JSON with short tags, and translating SAM to CloudFormation."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from samtranslator.model.exceptions import InvalidDocumentException
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

from tarry.template.model import TemplateError

CODE_KEYS = ("CodeUri", "ContentUri", "DefinitionUri", "Location")
"""Properties with local paths. `sam deploy` uploads these files before the translation."""
CODE_ELSEWHERE = {"InlineCode", "ImageUri"}
PLACEHOLDER = "s3://bucket/key"


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


DEFAULT_TEMPLATE = Path("template.yaml")
"""The template if no option names one."""


def load_document(path: Path) -> dict[str, Any]:
    """Read a template file.

    Raises:
        TemplateError: the file cannot be read, is neither YAML nor JSON, or has no resources.
    """
    try:
        with path.open(encoding="utf-8") as file:
            document = json.load(file) if path.suffix == ".json" else yaml.load(file, _Loader)
    except FileNotFoundError as error:
        if path == DEFAULT_TEMPLATE:
            text = f"there is no {path} in this directory: name the template with --template FILE"
            raise TemplateError(text) from error
        raise TemplateError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        example = path / DEFAULT_TEMPLATE
        raise TemplateError(f"{path} is a directory: name the template file, such as {example}") from error
    except OSError as error:
        raise TemplateError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise TemplateError(f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if document is None:
        raise TemplateError(f"{path} is empty: a SAM template has Resources (tarry init makes one)")
    resources = document.get("Resources") if isinstance(document, dict) else None
    if not isinstance(resources, dict) or not all(isinstance(r, dict) and "Type" in r for r in resources.values()):
        raise TemplateError(f"{path} is not a template: it needs Resources, each with a Type")
    for name, resource in resources.items():
        if not isinstance(resource.get("Properties", {}), dict):
            raise TemplateError(f"{path}: the Properties of {name} must be a map")
    return {**document, "Resources": resources}


def code_paths(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the code path of each SAM function as written, by logical id; None if the code is not local."""
    default = _properties(document.get("Globals", {}), "Function").get("CodeUri", ".")  # the default of SAM CLI
    paths: dict[str, str | None] = {}
    for name, properties in _functions(document).items():
        uri = properties.get("CodeUri", default) if not CODE_ELSEWHERE & properties.keys() else None
        paths[name] = uri if isinstance(uri, str) and not uri.startswith("s3://") else None
    return paths


def layers_of(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the layers of each SAM function as written, by logical id, those of ``Globals`` first."""
    of_all = _listed(_properties(document.get("Globals", {}), "Function").get("Layers", []))
    return {
        name: [*of_all, *_listed(properties.get("Layers", []))] for name, properties in _functions(document).items()
    }


def local_layers(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of the layers that are on this machine as written, by logical id."""
    paths = {
        name: _properties(each).get("ContentUri", ".")
        for name, each in document["Resources"].items()
        if each["Type"] == "AWS::Serverless::LayerVersion"
    }
    return {name: uri for name, uri in paths.items() if isinstance(uri, str) and not uri.startswith("s3://")}


def build_method_of(resource: Mapping[str, Any]) -> str | None:
    """Return how `sam build` builds a function or layer, such as ``makefile``; None for its default."""
    method = _properties(resource, "Metadata").get("BuildMethod")
    return None if method is None else str(method)


def build_methods(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the build method of each SAM function, by logical id."""
    return {name: build_method_of(document["Resources"][name]) for name in _functions(document)}


def resource_lines(path: Path) -> dict[str, int]:
    """Return the line of each resource in a template file, by logical id; empty if the file cannot be parsed."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    resources = [value for key, value in _pairs(root) if key.value == "Resources"]
    return {key.value: key.start_mark.line + 1 for value in resources for key, _ in _pairs(value)}


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def _listed(layers: Any) -> list[Any]:
    return layers if isinstance(layers, list) else [layers]


def translate(document: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Translate a SAM template to CloudFormation: Globals are merged, SQS events become event source mappings.

    Raises:
        TemplateError: SAM refuses the template.
    """
    document = copy.deepcopy(document)
    for holder in (_properties(document.get("Globals", {}), "Function"), *map(_properties, _serverless(document))):
        for key in CODE_KEYS:
            if isinstance(holder.get(key), str):
                holder[key] = PLACEHOLDER
    for properties in _functions(document).values():
        if not CODE_ELSEWHERE & properties.keys():
            properties.setdefault("CodeUri", PLACEHOLDER)
    # The session only provides the region.
    translator = Translator({}, Parser(), boto_session=SimpleNamespace(region_name=region))
    try:
        translated: dict[str, Any] = translator.translate(document, dict(parameters))
    except InvalidDocumentException as error:
        causes = "; ".join(cause.message for cause in error.causes) or error.message
        raise TemplateError(f"SAM refuses the template: {causes}") from error
    finally:
        translator.metrics.publish()  # without a publisher this sends nothing; it avoids a later warning
    return translated


def _functions(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    resources = document["Resources"].items()
    return {name: _properties(each) for name, each in resources if each["Type"] == "AWS::Serverless::Function"}


def _serverless(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in document["Resources"].values() if str(r["Type"]).startswith("AWS::Serverless::")]


def _properties(resource: Mapping[str, Any], key: str = "Properties") -> dict[str, Any]:
    properties = resource.get(key)
    return properties if isinstance(properties, dict) else {}
