"""The values of --env."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import read_overrides
from tarry.tools.template import TemplateFunction

ORDERS = TemplateFunction(
    "OrdersFunction", "orders", "arn:aws:lambda:us-east-1:123456789012:function:orders", None, None
)


def test_pairs_are_for_all_functions_and_the_last_value_wins() -> None:
    assert read_overrides(["A=1", "B=x=y", "A=2", "EMPTY="]).of(ORDERS) == {"A": "2", "B": "x=y", "EMPTY": ""}


def test_a_file_can_have_pairs(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# comment\n\nA=1\nexport B = no\n".replace(" = no", "=' two '") + 'C="three"\n')
    assert read_overrides([str(file)]).of(ORDERS) == {"A": "1", "B": " two ", "C": "three"}


def test_a_file_can_be_flat_json(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text('{"A": "text", "B": 2, "C": true}')
    assert read_overrides([str(file)]).of(ORDERS) == {"A": "text", "B": "2", "C": "true"}


def test_a_file_in_the_format_of_sam_cli_has_variables_by_function(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text('{"Parameters": {"A": "all", "B": "all"}, "OrdersFunction": {"B": "one"}, "Other": {"A": "other"}}')
    assert read_overrides([str(file)]).of(ORDERS) == {"A": "all", "B": "one"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "--env must be NAME=VALUE or a file: {file}: No such file or directory"),
        ("{", "--env {file} is not JSON: "),
        ("A=1\nwhat is this\n", "--env {file}, line 2: must be NAME=VALUE"),
    ],
)
def test_a_file_in_another_format_is_refused(tmp_path: Path, content: str | None, text: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as refusal:
        read_overrides([str(file)])
    assert str(refusal.value).startswith(text.format(file=file))
