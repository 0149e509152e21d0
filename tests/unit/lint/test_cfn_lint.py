"""The rules of `tarry check` in cfn-lint."""

import json
import subprocess
import sys
from pathlib import Path

from cfnlint.config import ConfigMixIn
from cfnlint.rules import Rules
from cfnlint.runner.template.runner import run_template_by_file_path

from docs.generator.rules import rules, write_example

TEMPLATE = Path(__file__).parents[3] / "template.yaml"
ITS_OWN = [f"{level}{number}" for level in "EW" for number in (0, 1, 2, 3, 4, 6, 7, 8)]
"""The prefixes of cfn-lint's own rules."""


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


def test_the_command_of_cfn_lint_loads_the_rules_and_shows_the_line_of_a_finding(tmp_path: Path) -> None:
    wrong = write_example("W9012", "wrong", tmp_path)
    program = str(Path(sys.executable).with_name("cfn-lint"))
    command = [program, "--append-rules", "tarry.lint.cfn_lint", "--format", "json", "--ignore-checks", *ITS_OWN]
    run = subprocess.run([*command, "--template", str(wrong)], capture_output=True, text=True, check=False)
    [visibility] = json.loads(run.stdout)
    assert (visibility["Filename"], visibility["Rule"]["Id"]) == (str(wrong), "W9012"), run.stderr
    line = wrong.read_text().splitlines()[visibility["Location"]["Start"]["LineNumber"] - 1]
    assert "VisibilityTimeout" in line
