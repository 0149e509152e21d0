"""Functions that run under another Python here than on Lambda."""

import pytest

from tarry.tools.check.rules.code import other_python

REMEDY = "To run them under 3.13 here too, install tarry under Python 3.13."


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, []),
        ({"A": (3, 11)}, []),
        (
            {"A": (3, 13), "B": (3, 13)},
            [f"Functions run under Python 3.11 here; the template says python3.13. {REMEDY}"],
        ),
        (
            {"A": (3, 13), "B": (3, 11)},
            [f"A runs under Python 3.11 here; the template says python3.13. {REMEDY}"],
        ),
        (
            {"A": (3, 8)},
            [
                "Functions run under Python 3.11 here; the template says python3.8. "
                "tarry needs Python 3.11 or later: update the Runtime."
            ],
        ),
        (
            {"A": (3, 13), "B": (3, 12), "C": (3, 13)},
            [
                "Functions run under Python 3.11 here; the template says python3.12 (B) and python3.13 (A, C). "
                "To run a function under its own version, install tarry under that version."
            ],
        ),
    ],
)
def test_all_functions_under_another_python_are_one_warning(
    versions: dict[str, tuple[int, int]], expected: list[str]
) -> None:
    assert [each.text for each in other_python(versions, (3, 11))] == expected
