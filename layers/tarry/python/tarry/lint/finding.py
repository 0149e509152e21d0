"""The findings of rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """A mistake in a template or in the code of its functions.

    ``text`` is one line: the problem and the remedy. ``snippet`` is what to add to the template, as one line of YAML.
    """

    rule: str
    functions: tuple[str, ...]
    """The logical ids of the functions it is about."""
    text: str
    snippet: str = ""
    file: Path | None = None
    line: int | None = None


def subject(functions: Sequence[str], one: str, several: str) -> str:
    """Return the functions with the verb for one or for several of them."""
    return f"{listed(functions)} {one if len(functions) == 1 else several}"


def listed(names: Iterable[str]) -> str:
    """Return the names as an English list: ``a, b and c``."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last
