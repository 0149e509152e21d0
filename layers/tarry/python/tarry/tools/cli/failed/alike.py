"""One decision for all dead letters that failed in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tarry import failed
from tarry.failed.result import Result
from tarry.failed.selection import FoundDeadLetter
from tarry.failed.text import printable
from tarry.failed.wording import count_of
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.limits import MAX_ENTRIES
from tarry.tools.cli.failed.prompts import KEYS, ask, confirms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed import DeadLetterMessage, Inspection
    from tarry.tools.cli.failed.retrying import RetryMethod
    from tarry.tools.cli.failed.session import CommandSession

GROUP_KEYS = "rdsb"


class Alike:
    """The dead letters of a queue by how they failed, and what the user decided on them."""

    def __init__(self, run: CommandSession, inspection: Inspection, method: RetryMethod) -> None:
        self._run = run
        self._inspection = inspection
        self._method = method
        self._decided: set[str] = set()
        self._skipped: set[str | None] = set()

    def decided(self, dead_letter: DeadLetterMessage) -> None:
        """Remember that the user has decided on this dead letter by itself."""
        self._decided.add(dead_letter.delivery_id)

    def is_decided(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether the user was asked about this dead letter."""
        return dead_letter.delivery_id in self._decided

    def is_skipped(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether the user skips all that failed like it."""
        return fingerprint(dead_letter) in self._skipped

    def ask(self, dead_letter: DeadLetterMessage) -> str | None:
        """Show how many failed like this one, and ask what to do with all of them; return the key, or None to go back.

        All others are released before the question.
        """
        console, inspection = self._run.guidance, self._inspection

        def like_it(dead_letters: list[DeadLetterMessage]) -> list[int]:
            return [1 for each in dead_letters if self._is_like(each, dead_letter)]

        count = 1 + sum(sum(found) for found in inspection.in_threads(like_it, MAX_PARALLEL))
        inspection.begin_again(keep={dead_letter.delivery_id})
        same = fingerprint(dead_letter)
        how = f"the fingerprint {same}" if same else "no failure record"
        console.print(Text(printable(f"{count_of(count)} with {how} in {inspection.queue}"), "bold"), soft_wrap=True)
        keys = GROUP_KEYS.replace("r", "") if dead_letter.is_undecodable else GROUP_KEYS
        question = "All of them: " + "  ".join(f"[{key}]{KEYS[key][1:]}" for key in keys) + " "
        key = ask(console, self._run.stopping, question, keys)
        if key == "d" and not confirms(console, self._run.stopping, f"Permanently delete {count_of(count)}?"):
            return None
        return None if key == "b" else key

    def carry_out(self, key: str, dead_letter: DeadLetterMessage) -> Iterator[Result]:
        """Do the same with this dead letter and all that failed like it."""
        if key == "s":
            self._skipped.add(fingerprint(dead_letter))
            yield Result(dead_letter.id, "skipped", dead_letter=dead_letter)
            return
        yield from self._do(key, [dead_letter])
        size = MAX_ENTRIES if key == "d" else self._method.at_once
        for dead_letters in self._inspection.polls(size):
            if chosen := [each for each in dead_letters if self._is_like(each, dead_letter)]:
                yield from self._do(key, chosen)
        self._inspection.begin_again()

    def _do(self, key: str, dead_letters: list[DeadLetterMessage]) -> list[Result]:
        if key == "d":
            return failed.remove_dead_letters(self._inspection, dead_letters, self._run.archived())
        return self._method.each([FoundDeadLetter(each, self._inspection) for each in dead_letters])

    def _is_like(self, dead_letter: DeadLetterMessage, other: DeadLetterMessage) -> bool:
        is_same = fingerprint(dead_letter) == fingerprint(other)
        return is_same and not self.is_decided(dead_letter) and dead_letter.id not in self._inspection.handled


def fingerprint(dead_letter: DeadLetterMessage) -> str | None:
    """Return the fingerprint of the error; None if there is none."""
    return dead_letter.failure.fingerprint if dead_letter.failure else None
