"""The templates of all pages, as text: they keep to the security policy, and can be read without a screen."""

import re
from pathlib import Path

import pytest

from tarry.tools.console import pages

FOLDER = Path(pages.__file__).parent / "templates"
TEMPLATES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.html"))
FORM = re.compile(r"<form\b[^>]*\bmethod=\"post\"[^>]*>(.*?)</form>", re.DOTALL | re.IGNORECASE)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_compiles_and_has_no_script_or_style_that_the_policy_blocks(name: str) -> None:
    pages.environment().get_template(name)
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|<style|<script(?![^>]*\bsrc=)|\son\w+=|javascript:|https?://", text)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_form_that_changes_something_has_the_field_of_the_token(name: str) -> None:
    forms = FORM.findall((FOLDER / name).read_text(encoding="utf-8"))
    assert [each for each in forms if "csrf_field()" not in each] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_head_of_a_table_has_its_scope(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert [each for each in re.findall(r"<th\b[^>]*>", text) if "scope=" not in each] == []
