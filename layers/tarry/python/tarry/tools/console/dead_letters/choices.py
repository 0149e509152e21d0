"""The choice of a user on a page: some dead letters by id, those that conditions match, or all."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from tarry import failed
from tarry.failed.usage import UsageError
from tarry.failed.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multidict import MultiMapping

    from tarry.failed import Selection

MAX_IDS = 1_000
"""The most dead letters to choose one by one: SQS has no look-up by id, so each is searched for in the whole queue."""


class Choice(NamedTuple):
    """The chosen dead letters of one queue. Ids exclude conditions."""

    ids: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    everything: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is chosen."""
        return not (self.ids or self.where or self.everything)

    def selection(self, until: str | None = None) -> Selection:
        """Return the selection for `tarry.failed`. ``until`` leaves out dead letters that came after a scan.

        Raises:
            BadFilter: a condition cannot be parsed.
        """
        if self.ids:
            return failed.select(self.ids)
        return failed.select(where=self.where, everything=self.everything and not self.where, until=until)

    @property
    def query(self) -> str:
        """The choice as the query of an address."""
        fields = [("id", each) for each in self.ids] or [("where", each) for each in self.where]
        return urlencode(fields or ([("all", "1")] if self.everything else []))

    def without(self, condition: str) -> Choice:
        """Return the choice without a condition."""
        return self._replace(where=tuple(each for each in self.where if each != condition))

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
    """Return the choice in the query of an address or in a form.

    Raises:
        UsageError: too many ids.
    """
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
