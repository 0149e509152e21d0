"""The list of public names: a change of one is made knowingly."""

from difflib import unified_diff

from tests.public import FILE, lines


def test_the_public_names_are_those_of_the_list() -> None:
    """Programs elsewhere are written against them (DESIGN 3). The changelog says what is new, or replaces a name."""
    changed = unified_diff(FILE.read_text().splitlines(), list(lines()), "listed", "now", n=0, lineterm="")
    assert not list(changed), "python -m tests.public lists these changes, if they are meant"
