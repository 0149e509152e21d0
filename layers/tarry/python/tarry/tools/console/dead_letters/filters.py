"""The filter of a list: whether a condition parses, and what can be typed next."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from tarry import failed
from tarry.failed import BadFilter, condition
from tarry.failed.conditions import FIELDS, document
from tarry.failed.groups import as_value
from tarry.failed.usage import UsageError
from tarry.failed.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from multidict import MultiMapping

    from tarry.failed import DeadLetterMessage, Selection
    from tarry.tools.console.dead_letters.snapshots import Snapshot

MAX_IDS = 1_000
"""The most dead letters to choose one by one: SQS has no look-up by id, so each is searched for in the whole queue."""


class Choice(NamedTuple):
    """The chosen dead letters of one queue. Ids exclude conditions."""

    ids: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    everything: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.ids or self.where or self.everything)

    def selection(self, until: str | None = None) -> Selection:
        """Return the selection, without dead letters that came after ``until``, a scan. Raises `BadFilter`."""
        if self.ids:
            return failed.select(self.ids)
        return failed.select(where=self.where, everything=self.everything and not self.where, until=until)

    @property
    def query(self) -> str:
        """The choice as the query of an address."""
        fields = [("id", each) for each in self.ids] or [("where", each) for each in self.where]
        return urlencode(fields or ([("all", "1")] if self.everything else []))

    def words(self, count: int, queue: str) -> str:
        """Return what is chosen, as text."""
        if self.ids:
            return f"{count_of(count)} of {queue} that you selected"
        if self.where:
            return f"{count_of(count)} of {queue} where {' and '.join(self.where)}"
        return f"all {count_of(count)} of {queue}"

    def options(self, until: str | None) -> list[str]:
        """Return the options of `tarry failed` that choose the same."""
        if self.ids:
            return list(self.ids)
        chosen = [part for each in self.where for part in ("--where", each)] or ["--all"]
        return chosen + (["--until", until] if until else [])


def choice_of(query: MultiMapping[str]) -> Choice:
    """Return the choice in the query of an address or in a form. Raises `UsageError`."""
    ids = tuple(dict.fromkeys(filter(None, query.getall("id", []))))
    where = tuple(dict.fromkeys(text for each in query.getall("where", []) if (text := each.strip())))
    if len(ids) > MAX_IDS:
        raise UsageError(
            f"{len(ids):,} dead letters are selected one by one, and {MAX_IDS:,} is the most: use a filter instead"
        )
    return Choice(ids, () if ids else where, everything=not ids and bool(query.get("all")))


def command(verb: str, queue: str, options: Sequence[str]) -> str:
    """Return the command of `tarry failed` that does the same."""
    return shlex.join(["tarry", "failed", verb, "--queue", queue, *options])


SAMPLE = 200
"""The dead letters whose bodies and attributes are read for the names of their fields."""
MAX_SUGGESTIONS = 12
MAX_DEPTH = 3
MAX_VALUE_CHARACTERS = 120
IN_BODIES = ("body", "attributes", "extra")
OPERATORS = {
    "=": "is",
    "!=": "is not",
    "~": "matches the regular expression",
    ">": "more, or later",
    "<": "less, or earlier",
    ">=": "at least",
    "<=": "at most",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_FIELD = re.compile(r"\s*([\w.\[\]\"-]*)\Z")
_OPERATOR = re.compile(r"\s*([\w.\[\]\"-]+)\s+\Z")
_VALUE = re.compile(r"\s*([\w.\[\]\"-]+)\s*(=|!=)\s*(.*)\Z", re.DOTALL)


class Suggestion(NamedTuple):
    """A text that can take the place of what was typed."""

    text: str
    about: str
    is_complete: bool
    """Whether it is a condition."""


def problem_of(text: str, *, shows_bodies: bool) -> BadFilter | None:
    """Return why a condition cannot be used; None if it can, or if nothing was typed."""
    if not text.strip():
        return None
    try:
        parsed = condition(text)
    except BadFilter as error:
        return error
    if parsed.needs_body and not shows_bodies:
        return BadFilter(
            text, 1, "this console shows no bodies (--no-bodies): a condition can use other fields, and no functions"
        )
    return None


def suggestions(text: str, snapshot: Snapshot, *, shows_bodies: bool) -> list[Suggestion]:
    """Return what can be typed next: fields, operators, or values of the dead letters, the most frequent first."""
    if found := _VALUE.match(text):
        field, operator, typed = found.groups()
        is_shown = problem_of(f"{field} = 1", shows_bodies=shows_bodies) is None
        return _values(snapshot, field, operator, typed) if is_shown else []
    if found := _OPERATOR.match(text):
        return [Suggestion(f"{found[1]} {each} ", about, False) for each, about in OPERATORS.items()]
    if (found := _FIELD.match(text)) is None:
        return []
    typed = found[1].lower()
    names = dict.fromkeys((each for each in FIELDS if shows_bodies or each not in IN_BODIES), "")
    if shows_bodies and "." in typed:
        names |= _paths(snapshot.some(SAMPLE))
    fitting = [each for each in names if each.lower().startswith(typed)] or [each for each in names if typed in each]
    return [Suggestion(f"{each} ", names[each], False) for each in fitting[:MAX_SUGGESTIONS]]


def _values(snapshot: Snapshot, field: str, operator: str, typed: str) -> list[Suggestion]:
    read = condition(f"{field} = 1")
    dead_letters: Iterable[DeadLetterMessage] = snapshot.some(SAMPLE) if read.needs_body else snapshot.parts()
    counts = Counter(
        text for each in dead_letters if (text := _value_of(read.field, each)) and typed.lower() in text.lower()
    )
    more = " or more" if read.needs_body else ""
    return [
        Suggestion(f"{field} {operator} {value}", f"{count:,}{more}", True)
        for value, count in counts.most_common(MAX_SUGGESTIONS)
        if len(value) <= MAX_VALUE_CHARACTERS
    ]


def _value_of(field: str, dead_letter: DeadLetterMessage) -> str | None:
    """Return the value of a field, as a condition has it; None for a list, an object, or no value."""
    first, *rest = field.split(".")
    found: Any = document(dead_letter).get(first) if first in IN_BODIES else getattr(dead_letter.failure, first, None)
    if first == "origin":
        found = (dead_letter.origin or "").rpartition(":")[2] or None
    for each in rest:
        found = found.get(each.strip('"')) if isinstance(found, dict) else None
    if found is None or isinstance(found, (dict, list)):
        return None
    return as_value(found) if isinstance(found, str) else json.dumps(found)


def _paths(dead_letters: Iterable[DeadLetterMessage]) -> dict[str, str]:
    """Return the names of fields within bodies and attributes, and in how many of the sample each is."""
    found = [document(each) for each in dead_letters]
    counts = Counter(path for each in found for name in IN_BODIES for path in _names(each.get(name), name, MAX_DEPTH))
    return {path: f"in {count:,} of {len(found):,}" for path, count in counts.most_common()}


def _names(value: Any, path: str, depth: int) -> Iterator[str]:
    for name, inner in value.items() if isinstance(value, dict) and depth else ():
        inner_path = f"{path}.{name if _NAME.fullmatch(name) else json.dumps(name)}"
        yield inner_path
        yield from _names(inner, inner_path, depth - 1)
