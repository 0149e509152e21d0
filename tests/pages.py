"""The pages of the documentation as values: headings, links and code blocks, each with its line."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from textwrap import dedent

ROOT = Path(__file__).parents[1]

_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (.*?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A code block; `line` is the page's line of its first line of code."""

    line: int
    language: str
    text: str
    comment: str
    """The text of the HTML comment on the line before the block."""

    @property
    def file(self) -> str | None:
        """The file that the block's first line, or the comment before it, names."""
        comment = re.fullmatch(r"file: (\S+)", self.comment)
        named = comment or re.match(r"# ([\w./-]+\.\w+)$", self.text, re.MULTILINE)
        return named[1] if named else None

    @property
    def runs(self) -> bool:
        return not self.comment.startswith(("not run: ", "shown in "))

    @property
    def shown_in(self) -> str | None:
        """The file of which the block is an excerpt."""
        return self.comment.removeprefix("shown in ") if self.comment.startswith("shown in ") else None

    def commands(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each command of a shell block as a list of arguments, with the line of the page it starts on."""
        joined = self.text.replace("\\\n", "\0")
        number = self.line
        for line in joined.splitlines():
            lexer = shlex.shlex(line.replace("\0", " "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            for arguments in _split_at_operators(list(lexer)):
                yield number, arguments
            number += 1 + line.count("\0")


def _split_at_operators(tokens: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for token in [*tokens, ";"]:
        if not set(token) <= set("();<>|&"):
            if command or not re.match(r"\w+=", token):  # variables may stand before a command
                command.append(token)
        elif command:
            yield command
            command = []


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(PurePosixPath(self.path.relative_to(ROOT)))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        found = []
        for match in _FENCED.finditer(self.text):
            before = self.text[: match.start()]
            comment = _COMMENT.search(before)
            line = before.count("\n") + 2
            found.append(Block(line, match["language"], dedent(match["text"]), comment[1] if comment else ""))
        return found

    @property
    def prose(self) -> str:
        """The text with its code blocks blanked; each line keeps its number."""
        return _FENCED.sub(lambda match: "\n" * match[0].count("\n"), self.text)

    def links(self) -> Iterator[tuple[int, str]]:
        """Yield the links to files and headings of this repository, each with its line."""
        prose = re.sub(r"`[^`]*`", lambda code: "\n" * code[0].count("\n"), self.prose)
        for match in re.finditer(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", prose, re.MULTILINE):
            link = match[1] or match[2]
            if not re.match(r"\w+:", link):
                yield prose[: match.start()].count("\n") + 1, link

    def broken(self, link: str) -> str | None:
        """Return what is wrong with a link of this page; None if it is correct."""
        target, _, anchor = link.partition("#")
        path = (self.path.parent / target).resolve() if target else self.path
        if not path.exists():
            return "there is no such file"
        if anchor and path.suffix == ".md" and anchor not in _anchors(path):
            return f"{Page(path).name} has no such heading"
        return None


@cache
def _anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", Page(path).prose, re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = first = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while anchor in anchors:
            number += 1
            anchor = f"{first}-{number}"
        anchors.add(anchor)
    return anchors


PAGES = [Page(path) for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]]
