"""Every rule of `tarry check`, with the examples of its page."""

from pathlib import Path

import pytest

from docs.generator.rules import rules, write_example
from tarry.tools.check.checking import check_template
from tarry.tools.check.finding import RULES


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert list(rules()) == list(RULES)


@pytest.mark.parametrize("rule", rules())
def test_the_wrong_example_gives_exactly_its_rule_and_the_right_one_nothing(rule: str, tmp_path: Path) -> None:
    wrong = check_template(write_example(rule, "wrong", tmp_path / "wrong"))
    assert {each.rule for each in wrong.findings} == {rule}
    assert all(each.file is not None and each.line for each in wrong.findings)
    right = check_template(write_example(rule, "right", tmp_path / "right"))
    assert right.findings == ()
