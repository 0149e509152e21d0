"""The rules of `tarry check` as rules of cfn-lint: ``cfn-lint --append-rules tarry.lint.cfn_lint template.yaml``."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cfnlint.rules import CloudFormationLintRule, RuleMatch
from cfnlint.template import Template

from tarry.failed.usage import UsageError
from tarry.support.values import PAGES
from tarry.tools.check.checking import check_template
from tarry.tools.check.finding import RULES, Finding
from tarry.tools.template import TemplateError

PAGE = f"{PAGES}/reference/check.md"


@lru_cache(maxsize=8)
def _findings(path: Path, changed_at: int) -> Sequence[Finding]:
    """Return the findings of a template, which is read once for all rules; none if it cannot be read."""
    try:
        return check_template(path).findings
    except (TemplateError, UsageError):  # cfn-lint reports a template that it cannot read itself
        return ()


def _match(self: CloudFormationLintRule, cfn: Template) -> list[RuleMatch]:
    path = Path(str(cfn.filename))
    if not path.is_file():  # of standard input
        return []
    return [_as_match(each, path) for each in _findings(path, path.stat().st_mtime_ns) if each.rule == self.id]


def _as_match(finding: Finding, path: Path) -> RuleMatch:
    is_here = finding.file == path
    line = (finding.line or 1) - 1 if is_here else 0
    place = "" if is_here or finding.file is None else f"{finding.file}:{finding.line}: "
    text = f"{place}{finding.text} {finding.snippet}".rstrip()
    resources = ["Resources", finding.at.resource] if finding.at else []
    return RuleMatch(resources, text, location=(line, 0, line, 1))


def _made(rule: str, text: str) -> type[CloudFormationLintRule]:
    members = {
        "id": rule,
        "shortdesc": text,
        "description": text,
        "source_url": f"{PAGE}#{rule.lower()}",
        "tags": ["tarry", "sqs", "lambda"],
        "match": _match,
        "__module__": __name__,
        "__doc__": text,
    }
    return type(f"Tarry{rule}", (CloudFormationLintRule,), members)


RULE_CLASSES = {f"Tarry{rule}": _made(rule, text) for rule, text in RULES.items()}
