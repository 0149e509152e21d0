"""The body of a message as a page shows it: formatted, raw, cut, and with all characters visible."""

import json

import pytest

from tarry.tools.console.message import FIRST_CHARACTERS, FIRST_LINES, FORMATTED, RAW, body_view

DEEP = "[" * 100_000 + "]" * 100_000


def shown(body: str, view: str = FORMATTED, *, all_of_it: bool = True) -> str:
    return "".join(body_view(body, view, all_of_it=all_of_it).blocks)


def test_json_is_formatted_without_changing_a_character_of_its_values() -> None:
    body = '{"a":[1,{"b":"x\\\\\\"y"}],"c":{},"d":[ ],"n":12345678901234567890.10,"n":1e999,"t":"\\u202e {[,:]}"}'
    text = shown(body)
    assert text.splitlines() == [
        "{",
        '  "a": [',
        "    1,",
        "    {",
        '      "b": "x\\\\\\"y"',
        "    }",
        "  ],",
        '  "c": {},',
        '  "d": [],',
        '  "n": 12345678901234567890.10,',
        '  "n": 1e999,',
        '  "t": "\\u202e {[,:]}"',
        "}",
    ]
    plain = json.dumps({"a": [1, 2.5, {"b": [True, None]}], "c": "é"}, indent=2, ensure_ascii=False)
    assert shown(json.dumps(json.loads(plain))) == plain.replace("é", "\\u00e9")
    assert shown(body, RAW) == body


@pytest.mark.parametrize("body", ["text", "12", '"text"', "{'a': 1}", "[1,", "{} {}", "", " "])
def test_other_bodies_are_shown_as_they_are(body: str) -> None:
    view = body_view(body)
    assert (view.view, view.is_json, "".join(view.blocks), view.note) == (RAW, False, body, "")


def test_characters_that_could_deceive_are_shown_as_escapes() -> None:
    view = body_view("a\x1b[2J\u202eb\u2066\u00a0\x00\n\t漢é\ud800")
    assert "".join(view.blocks) == "a\\x1b[2J\\u202eb\\u2066\\xa0\\x00\n\t漢é\\ud800"
    assert view.note == "Control characters and marks of direction are shown as escapes, such as \\u202e."


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (DEEP, "The brackets are nested too deeply to format the body."),
        ("[" * 150 + ",".join("1" * 400_000) + "]" * 150, "The JSON is nested too deeply to format it."),
    ],
)
def test_brackets_nested_too_deeply_are_shown_raw(body: str, note: str) -> None:
    view = body_view(body, all_of_it=True)
    assert (view.view, view.note, "".join(view.blocks)) == (RAW, note, body)


@pytest.mark.parametrize(
    "body", ["x" * 1_048_576, "\n" * 1_048_576, DEEP, f"[{','.join('1' * 500_000)}]", "\u202e" * 300_000]
)
def test_of_a_long_body_a_first_part_is_shown_until_all_is_asked_for(body: str) -> None:
    view = body_view(body)
    assert view.is_cut
    assert view.characters == len(body)
    text = "".join(view.blocks)
    assert text.count("\n") < FIRST_LINES
    assert len(text) <= FIRST_CHARACTERS * len("\\u202e")
    whole = body_view(body, RAW, all_of_it=True)
    assert not whole.is_cut
    assert max(map(len, whole.blocks)) <= FIRST_CHARACTERS
    assert "".join(whole.blocks).replace("\\u202e", "\u202e") == body
