"""Leave out of a copy of the package what Lambda does not use: whole parts, and docstrings, comments and type imports.

    python3 strip.py DIRECTORY [PART ...]

The parts that are named stay. The builds of the layer and of redrive and guard run this file as a script, without
tarry. Each statement stays on its line, so that the line numbers in a traceback are those of the repository.
"""

from __future__ import annotations

import ast
import io
import shutil
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

OLDEST_PYTHON = (3, 11)
NOT_DEPLOYED = ("cli", "failed", "guard", "lint", "testing", "tools")
"""The parts of the package that no consumer needs."""


class Cut(NamedTuple):
    """A range of a file to replace; lines count from 1, and columns are bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int
    replacement: str = ""


def stripped(source: str) -> str:
    """Return the source without docstrings, comments and the blocks of ``if TYPE_CHECKING``."""
    lines = [line.encode() for line in source.split("\n")]
    for cut in sorted({*_statements(source), *_comments(source)}, reverse=True):
        first, last = cut.line - 1, cut.end_line - 1
        rest = lines[last][cut.end_column :]
        lines[first : last + 1] = [lines[first][: cut.column] + cut.replacement.encode(), *[b""] * (last - first)]
        lines[last] += rest
    return b"\n".join(line.rstrip() for line in lines).decode()


def _statements(source: str) -> list[Cut]:
    cuts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            cuts.append(_cut(node.body[0], node.body[-1], "pass"))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts = [each for each in node.body if _is_text(each)]
            only_texts = len(texts) == len(node.body) and not isinstance(node, ast.Module)
            cuts += [_cut(each, each, "pass" if only_texts and each is texts[0] else "") for each in texts]
    return cuts


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _cut(first: ast.stmt, last: ast.stmt, replacement: str) -> Cut:
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    return Cut(first.lineno, first.col_offset, last.end_lineno, last.end_col_offset, replacement)


def _comments(source: str) -> list[Cut]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = ((token, token.start[0]) for token in tokens if token.type == tokenize.COMMENT)
    return [
        Cut(number, len(token.line[: token.start[1]].encode()), number, len(token.line.rstrip("\n").encode()))
        for token, number in found
    ]


def main(directory: str, *kept: str) -> None:
    for part in set(NOT_DEPLOYED).difference(kept):
        shutil.rmtree(Path(directory, part))
    for cache in sorted(Path(directory).rglob("__pycache__")):
        shutil.rmtree(cache)
    if sys.version_info < OLDEST_PYTHON:
        sys.stdout.write(f"python3 is {sys.version.split()[0]}: the tarry layer keeps its docstrings and comments\n")
        return
    for file in sorted(Path(directory).rglob("*.py")):
        file.write_bytes(stripped(file.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
