"""The SARIF of `tarry check` is valid by the parts of the SARIF 2.1.0 schema that it uses.

The official schema has 3,000 lines. ``SCHEMA`` has the objects of the output, each closed, with the required
properties, types and values of the specification (sections 3.13 to 3.50).
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tarry.tools.check.checking import CheckReport
from tarry.tools.check.finding import RULES, At, Finding
from tarry.tools.check.formats import as_sarif

TEXT = {"type": "string"}
URI = {"type": "string", "format": "uri"}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other properties; ``$`` is written as ``_``."""
    named = {name.replace("_", "$"): each for name, each in properties.items()}
    return {"type": "object", "required": list(required), "properties": named, "additionalProperties": False}


def unique(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True}


def several(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


MESSAGE = closed("text", text={**TEXT, "minLength": 1})
RULE = closed("id", id=TEXT, shortDescription=closed("text", text=TEXT), defaultConfiguration=closed(level=LEVEL))
ARTIFACT = closed(uri={"type": "string", "format": "uri-reference"})
REGION = closed(startLine={"type": "integer", "minimum": 1})
PLACE = closed("artifactLocation", artifactLocation=ARTIFACT, region=REGION)
LOGICAL = closed(name=TEXT, kind={"enum": ["resource", "function", "member", "module", "namespace", "object", "type"]})
RESULT = closed(
    "message",
    ruleId={"enum": list(RULES)},
    level=LEVEL,
    message=MESSAGE,
    locations=several(closed(physicalLocation=PLACE, logicalLocations=unique(LOGICAL))),
)
INVOCATION = closed(
    "executionSuccessful",
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=several(closed("message", message=MESSAGE, level=LEVEL)),
)
DRIVER = closed("name", name=TEXT, version=TEXT, rules=unique(RULE))
RUN = closed("tool", tool=closed("driver", driver=DRIVER), invocations=several(INVOCATION), results=several(RESULT))
SCHEMA = closed("version", "runs", _schema=URI, version={"const": "2.1.0"}, runs=several(RUN))

FINDINGS = (
    Finding("W9012", ("Consumer",), "Too short. Set:", "VisibilityTimeout: 60", Path("a b/t.yaml"), 20, At("Queue")),
    Finding("E9010", ("Consumer",), "Lambda ignores it.", file=Path("/srv/template.yaml")),
    Finding("W9020", (), "No alarm.", at=At("shop-orders-dlq")),
    Finding("W9004", (), "Without a place."),
)


@pytest.mark.parametrize("findings", [(), FINDINGS])
def test_sarif_has_the_properties_and_values_of_the_specification(findings: tuple[Finding, ...]) -> None:
    log = json.loads(as_sarif(CheckReport(findings, ("The code of Consumer is not here.",))))
    validator = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
    assert [error.message for error in validator.iter_errors(log)] == []
    assert len(log["runs"][0]["results"]) == len(findings)
