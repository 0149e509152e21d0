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


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# comment\n\nA=1\nexport B=' two '\nC=\"three\"\n", {"A": "1", "B": " two ", "C": "three"}),
        ('{"A": "text", "B": 2, "C": true}', {"A": "text", "B": "2", "C": "true"}),
        (  # as for the SAM CLI
            '{"Parameters": {"A": "all", "B": "all"}, "OrdersFunction": {"B": "one"}, "Other": {"A": "other"}}',
            {"A": "all", "B": "one"},
        ),
    ],
)
def test_a_file_has_pairs_or_json(tmp_path: Path, content: str, expected: dict[str, str]) -> None:
    file = tmp_path / ("env.json" if content.startswith("{") else ".env")
    file.write_text(content)
    assert read_overrides([str(file)]).of(ORDERS) == expected


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
