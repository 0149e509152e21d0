"""The rules of `tarry check` in cfn-lint."""

import json
import subprocess
import sys
from pathlib import Path

from tests.reference.rules import rules, write_example

ITS_OWN = [f"{level}{number}" for level in "EW" for number in (0, 1, 2, 3, 4, 6, 7, 8)]
"""The prefixes of cfn-lint's own rules."""


def test_cfn_lint_finds_each_wrong_example_by_its_rule(tmp_path: Path) -> None:
    templates = {str(write_example(rule, "wrong", tmp_path / rule)): rule for rule in rules()}
    templates[str(Path(__file__).parents[3] / "template.yaml")] = ""
    program = str(Path(sys.executable).with_name("cfn-lint"))
    command = [program, "--append-rules", "tarry.lint.cfn_lint", "--format", "json"]
    run = subprocess.run(
        [*command, "--ignore-checks", *ITS_OWN, "--template", *templates], capture_output=True, text=True, check=False
    )
    found = json.loads(run.stdout)
    assert {(each["Filename"], each["Rule"]["Id"]) for each in found} == {
        (name, rule) for name, rule in templates.items() if rule
    }, run.stderr
    [visibility] = [each for each in found if each["Rule"]["Id"] == "W9012"]
    lines = Path(visibility["Filename"]).read_text().splitlines()
    assert "VisibilityTimeout" in lines[visibility["Location"]["Start"]["LineNumber"] - 1]
