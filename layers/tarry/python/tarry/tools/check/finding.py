"""The findings of rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class At(NamedTuple):
    """A place in a template: a resource, and the keys below it. ``keys`` may go on where the template ends."""

    resource: str
    keys: tuple[str, ...] = ()

    def below(self, *keys: str) -> "At":
        """Return a place below this one."""
        return At(self.resource, (*self.keys, *keys))


class SafeChange(NamedTuple):
    """A part of the one safe answer to a finding: the place of a property, and its value as YAML that is JSON too."""

    at: At
    value: str


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
    at: At | None = None
    """The place in the template, if it is of a resource there."""
    changes: tuple[SafeChange, ...] = ()
    """The one safe answer: the changes that, made together, leave neither this finding nor another in its place."""

    @property
    def is_error(self) -> bool:
        """Whether messages are certainly lost, or AWS refuses the template."""
        return self.rule.startswith("E")


def subject(functions: Sequence[str], one: str, several: str) -> str:
    """Return the functions with the verb for one or for several of them."""
    return f"{listed(functions)} {one if len(functions) == 1 else several}"


def listed(names: Iterable[str]) -> str:
    """Return the names as an English list: ``a, b and c``."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last
