"""The findings of `tarry check` for programs: JSON, SARIF, and the commands of GitHub Actions."""

import json
from typing import Any
from urllib.parse import quote

from tarry import __version__
from tarry.tools.check.checking import CheckReport
from tarry.tools.check.finding import RULES, Finding, level_of

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: CheckReport) -> str:
    """Return the findings as a JSON object: ``findings`` and ``skipped``."""
    findings = [
        {
            "rule": each.rule,
            "level": level_of(each.rule),
            "file": None if each.file is None else str(each.file),
            "line": each.line,
            "resource": resource_of(each),
            "text": each.text,
            "snippet": each.snippet or None,
        }
        for each in report.findings
    ]
    return json.dumps({"findings": findings, "skipped": list(report.skipped)}, indent=2, ensure_ascii=False)


def as_sarif(report: CheckReport) -> str:
    """Return the findings as a SARIF log, for code scanning."""
    rules = [
        {"id": rule, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level_of(rule)}}
        for rule, text in RULES.items()
    ]
    skipped = [{"level": "warning", "message": {"text": text}} for text in report.skipped]
    run = {
        "tool": {"driver": {"name": "tarry", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": skipped}],
        "results": [_sarif_result(each) for each in report.findings],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def as_github(report: CheckReport) -> str:
    """Return the findings as workflow commands, which GitHub shows at the lines of a pull request."""
    lines = []
    for each in report.findings:
        place = {} if each.file is None else {"file": str(each.file), "line": str(each.line or 1)}
        properties = ",".join(
            f"{name}={_escaped(value, ':,')}" for name, value in {**place, "title": each.rule}.items()
        )
        lines.append(f"::{level_of(each.rule)} {properties}::{_escaped(message_of(each))}")
    lines += [f"::notice title=tarry check::{_escaped(f'Skipped: {text}')}" for text in report.skipped]
    return "\n".join(lines)


def message_of(finding: Finding) -> str:
    """Return a finding as text: the problem, the remedy, and what to write."""
    return f"{finding.text}\n{finding.snippet}" if finding.snippet else finding.text


def resource_of(finding: Finding) -> str | None:
    """Return the resource that a finding is about: a logical id, or a name."""
    return finding.at.resource if finding.at else next(iter(finding.functions), None)


def _sarif_result(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": level_of(finding.rule),
        "message": {"text": message_of(finding)},
    }
    if finding.file is not None:
        region = {"startLine": finding.line or 1}
        file = finding.file
        uri = file.as_uri() if file.is_absolute() else quote(file.as_posix())
        place = {"artifactLocation": {"uri": uri}, "region": region}
        found["locations"] = [{"physicalLocation": place}]
    elif (resource := resource_of(finding)) is not None:
        found["locations"] = [{"logicalLocations": [{"name": resource, "kind": "resource"}]}]
    return found


def _escaped(text: str, more: str = "") -> str:
    """Return a text as GitHub's workflow commands need it."""
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
