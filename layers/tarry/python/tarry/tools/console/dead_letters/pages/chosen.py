"""The dead letters that a preview is about, and the values that the previews of a retry and of a removal share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.tools.console.access import console_of
from tarry.tools.console.dead_letters.choices import command
from tarry.tools.console.dead_letters.pages.requested import about, chosen, queue_of, scanned, until_of
from tarry.tools.console.dead_letters.pages.rows import SHOWN_IDS, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web
    from multidict import MultiMapping

    from tarry.failed import DeadLetterQueue
    from tarry.tools.console.dead_letters.choices import Choice
    from tarry.tools.console.dead_letters.snapshots import Matching, Snapshot


@dataclass(frozen=True)
class Chosen:
    """The dead letters of a scan that a form chooses."""

    queue: DeadLetterQueue
    snapshot: Snapshot
    choice: Choice
    until: str | None
    """The time until which they are chosen; None if they are chosen by id."""
    matching: Matching

    @property
    def count(self) -> int:
        """The number of them."""
        return len(self.matching.dead_letters)

    def values(self, request: web.Request, verb: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values of a preview. ``verb`` and ``options`` are those of the same command of `tarry failed`."""
        place = console_of(request).place_options
        return {
            **about(request, self.queue),
            "choice": self.choice,
            "until": self.until,
            "words": self.choice.words(self.count, self.queue.name),
            "count": self.count,
            "not_compared": self.matching.not_compared,
            "command": command(verb, self.queue.name, [*self.choice.options(self.until), *options, *place]),
            "examples": [row_of(each) for each in self.matching.dead_letters[:SHOWN_IDS]],
        }


async def chosen_of(request: web.Request, form: MultiMapping[Any]) -> Chosen:
    """Return the dead letters that a form chooses. Raises `Problem`."""
    console, queue = console_of(request), await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    until = until_of(form, snapshot, choice)
    return Chosen(queue, snapshot, choice, until, await console.compute(snapshot.matching, choice.selection(until)))


def status_of(problem: str, changed: str) -> int:
    """Return the status of a preview with a problem, or of one that was shown again because something has changed."""
    return 400 if problem else 409 if changed else 200
