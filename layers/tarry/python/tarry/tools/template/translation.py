"""Translating a SAM template to CloudFormation, with the translator of SAM itself."""

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tarry.tools.template.document import properties_of
from tarry.tools.template.model import TemplateError

SERVERLESS = "AWS::Serverless::"
FUNCTION = f"{SERVERLESS}Function"
CODE_KEYS = ("CodeUri", "ContentUri", "DefinitionUri", "Location")
"""Properties with local paths. `sam deploy` uploads these files before the translation."""
CODE_ELSEWHERE = {"InlineCode", "ImageUri"}
PLACEHOLDER = "s3://bucket/key"


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
    for holder in (properties_of(document.get("Globals", {}), "Function"), *map(properties_of, _serverless(document))):
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
    return resource["Type"] == FUNCTION and bool(properties_of(resource).get("Events"))


def _functions(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    resources = document["Resources"].items()
    return {name: properties_of(each) for name, each in resources if each["Type"] == FUNCTION}


def _serverless(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in document["Resources"].values() if str(r["Type"]).startswith(SERVERLESS)]
