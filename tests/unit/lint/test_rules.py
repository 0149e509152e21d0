"""Every rule of `tarry check` with the examples of its page, also in cfn-lint; and the SARIF of findings."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cfnlint.config import ConfigMixIn
from cfnlint.rules import Rules
from cfnlint.runner.cli import Runner
from cfnlint.runner.template.runner import run_template_by_file_path

from docs.generator.rules import rules, write_example
from tarry.tools.check.checking import CheckReport, check_template
from tarry.tools.check.finding import RULES, At, Finding
from tarry.tools.check.formats import as_sarif

TEMPLATE = Path(__file__).parents[3] / "template.yaml"
ITS_OWN = [f"{level}{number}" for level in "EW" for number in (0, 1, 2, 3, 4, 6, 7, 8)]
"""The prefixes of cfn-lint's own rules."""


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert list(rules()) == list(RULES)


@pytest.mark.parametrize("rule", rules())
def test_the_wrong_example_gives_exactly_its_rule_and_the_right_one_nothing(rule: str, tmp_path: Path) -> None:
    wrong = check_template(write_example(rule, "wrong", tmp_path / "wrong"))
    assert {each.rule for each in wrong.findings} == {rule}
    assert all(each.file is not None and each.line for each in wrong.findings)
    right = check_template(write_example(rule, "right", tmp_path / "right"))
    assert right.findings == ()


def test_cfn_lint_finds_each_wrong_example_by_its_rule(tmp_path: Path) -> None:
    """Only the rules of tarry run: cfn-lint's own take most of the time, even if they are ignored."""
    templates = {str(write_example(rule, "wrong", tmp_path / rule)): rule for rule in rules()}
    templates[str(TEMPLATE)] = ""
    own = Rules.create_from_module("tarry.lint.cfn_lint")
    assert set(own) == {*rules()}
    found = set()
    for name in templates:
        config = ConfigMixIn(["--template", name])
        found |= {(each.filename, each.rule.id) for each in run_template_by_file_path(name, config, own, False)}
    assert found == {(name, rule) for name, rule in templates.items() if rule}


def test_the_command_of_cfn_lint_loads_the_rules_and_shows_the_line_of_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = write_example("W9012", "wrong", tmp_path)
    options = ["--append-rules", "tarry.lint.cfn_lint", "--format", "json", "--ignore-checks", *ITS_OWN]
    with pytest.raises(SystemExit):
        Runner(ConfigMixIn([*options, "--template", str(wrong)])).cli()
    [visibility] = json.loads(capsys.readouterr().out)
    assert (visibility["Filename"], visibility["Rule"]["Id"]) == (str(wrong), "W9012")
    assert "VisibilityTimeout" in wrong.read_text().splitlines()[visibility["Location"]["Start"]["LineNumber"] - 1]


# SARIF: the official schema has 3,000 lines. ``SCHEMA`` has the objects of the output, each closed, with the required
# properties, types and values of the specification (SARIF 2.1.0, sections 3.13 to 3.50).

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
