"""The project's language: identifiers and texts use the terms of docs/glossary.md, one term for one thing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [
    path
    for room in ("layers", "functions", "tests", "benchmarks", "release")
    for path in sorted((ROOT / room).rglob("*.py"))
]
PACKAGE = [path for path in CODE if path.is_relative_to(ROOT / "layers")]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]

REPLACED = {
    "letter": "dead letter",
    "suspect": "redelivered",
    "lane": "group queue",
    "crew": "worker pool",
    "shift": "worker",
    "life": "copy, delivery or history",
    "said": "verdict",
    "unsaid": "without a verdict",
    "told": "logged, or the name of the data",
    "hide": "make invisible",
    "hidden": "invisible",
    "nobody": "no consumer, no caller ...",
    "somebody": "another consumer ...",
    "away": "sent, settled",
    "past": "history",
}
"""Words that names must not contain, and the term to use."""

FORMS = {form: word for word in REPLACED for form in (word, f"{word}s")} | {"lives": "life"}
"""The replaced word of each of its forms."""
CONTRACT = {
    "unsaid",  # batch_consumer(unsaid=...)
    "said",  # FailureRecord.said
}
"""Public names, which stay; the names of tests may contain them."""


def words_of(name: str) -> list[str]:
    """The lower-case words of an identifier in snake case or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@cache
def replaced_word(name: str) -> str | None:
    """The first word of a name that has been replaced; None if there is none."""
    if name in CONTRACT:
        return None
    may_stay = CONTRACT if name.startswith("test_") else set[str]()
    words = words_of(re.sub("dead_?letter", "", name, flags=re.IGNORECASE))
    return next((FORMS[word] for word in words if word in FORMS and word not in may_stay), None)


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


TEXT = re.compile(r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#.*')
"""A string or a comment of Python."""


def files_with(pattern: str, files: list[Path]) -> list[Path]:
    """The files in which the pattern occurs: parsing all files takes seconds."""
    regex = re.compile(pattern)
    return [path for path in files if regex.search(text_of(path))]


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that a module defines, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The docstrings of a module, its classes, functions and attributes, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value, node.lineno


def at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("letters_of", "letter"), ("OtherLives", "life"), ("dead_letter_queue", None), ("DeadLetterPast", "past"),
        ("said", None), ("was_said", "said"), ("test_said_is_trimmed", None),
    ],
)  # fmt: skip
def test_a_replaced_word_is_found_in_a_name(name: str, word: str | None) -> None:
    assert replaced_word(name) == word


def test_no_name_uses_a_word_that_the_glossary_replaces() -> None:
    found = [f"{path.relative_to(ROOT)}: use {REPLACED[word]}" for path in CODE if (word := replaced_word(path.stem))]
    found += [
        f"{at(path, line)}: {name}: use {REPLACED[word]}"
        for path in CODE
        if any(map(replaced_word, set(re.findall(r"\w+", TEXT.sub("", text_of(path))))))
        for name, line in defined_names(tree_of(path))
        if (word := replaced_word(name))
    ]
    assert not found, "\n".join(["names with words that docs/glossary.md replaces:", *found])


def test_a_docstring_begins_with_a_noun_phrase_or_an_imperative() -> None:
    pronoun = r"(What|Nothing|Nobody|Those|These|Who|Which|Whatever) "
    found = [
        f"{at(path, line)}: {text.splitlines()[0]}"
        for path in files_with(f"[\"']{pronoun}", CODE)
        for text, line in docstrings(tree_of(path))
        if re.match(pronoun, text)
    ]
    assert not found, "\n".join(["docstrings that begin with a pronoun:", *found])


def test_a_class_of_the_package_has_a_name_of_its_own() -> None:
    count = Counter(name for path in PACKAGE for name in re.findall(r"\bclass (\w+)", text_of(path)))
    several = "|".join(name for name, number in count.items() if number > 1)
    places: dict[str, list[str]] = {}
    for path in files_with(rf"\bclass ({several})\b", PACKAGE):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(at(path, node.lineno))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, f"classes with the same name: {twice}"


FOREIGN = re.compile(r"\b(nobody|somebody|suspects?|(?<!dead )(?<!dead-)(?<!dead_)letters?)\b", re.IGNORECASE)
"""Words that texts must not contain. Letters are dead letters."""
ALPHABETIC = re.compile(
    r"\b(ASCII|any|lower-case|upper-case|capital|of) letters?\b|\bletters?(,| and| or) digits", re.IGNORECASE
)


def test_pages_use_the_terms_of_the_glossary() -> None:
    found = [f"{path.relative_to(ROOT)}: {words}" for path in PAGES if (words := foreign_words(path.read_text()))]
    assert not found, "\n".join(found)


def test_docstrings_of_the_package_use_the_terms_of_the_glossary() -> None:
    found = [
        f"{at(path, line)}: {words}"
        for path in files_with(f"(?i){FOREIGN.pattern}", PACKAGE)
        for text, line in docstrings(tree_of(path))
        if (words := foreign_words(text))
    ]
    assert not found, "\n".join(found)


def foreign_words(text: str) -> list[str]:
    without_code = re.sub(r"```.*?```|`[^`]*`|\[[^]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    in_one_line = " ".join(without_code.split())
    return FOREIGN.findall(ALPHABETIC.sub("", in_one_line))
