"""Groups of dead letters that have the same error, fingerprint, type, reason or origin; causes over several queues."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any, Literal

from tarry.failed.queue_names import queue_name
from tarry.failed.text import minute, seconds_between, when
from tarry.record.attribute import FailureRecord
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.selection import Selection

GroupBy = Literal["fingerprint", "error", "type", "queue", "reason"]

FIELDS = {"queue": "origin", "error": "message"}
"""The fields of conditions, where they have other names than the grouping."""


class Group(Value):
    """Dead letters that have the same value. Made by `groups`."""

    by: GroupBy
    value: str | None
    """The value that they share; None for dead letters without one, such as those that SQS moved itself."""
    count: int
    """The number of dead letters, or of those in the sample."""
    first: str | None
    """When the first was dead-lettered, in UTC."""
    last: str | None
    example: str
    """The id of the last one."""
    failure: FailureRecord | None
    """The reason, type, message and fingerprint of the example; None if it has no failure record."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions for `select` that all of the group meet, and no others."""
        if self.by == "error" and self.failure is not None:
            return tuple(f"{name} = {as_value(getattr(self.failure, name))}" for name in ("type", "message"))
        return (f"{FIELDS.get(self.by, self.by)} = {as_value(self.value)}",)

    @property
    def per_minute(self) -> float | None:
        """The number of dead letters a minute between the first and the last; None if they are not a minute apart."""
        seconds = seconds_between(self.first, self.last)
        return self.count * 60 / seconds if seconds is not None and seconds >= 60 else None


class GroupCounts:
    """The groups of the dead letters that were received so far. Made by `counting`."""

    def __init__(self, by: GroupBy) -> None:
        self.by: GroupBy = by
        self._counted: dict[str | None, Group] = {}
        self._lock = threading.Lock()

    def add(self, dead_letter: DeadLetterMessage) -> None:
        value, at = _value(dead_letter, self.by), when(dead_letter)
        with self._lock:  # a dead letter is added by the thread that has received it
            group = self._counted.get(value)
            if group is None:
                self._counted[value] = Group(self.by, value, 1, at, at, dead_letter.id, dead_letter.failure)
                return
            first = min(filter(None, (group.first, at)), default=None)
            last = max(filter(None, (group.last, at)), default=None)
            is_latest = at is not None and at == last
            example = (dead_letter.id, dead_letter.failure) if is_latest else (group.example, group.failure)
            self._counted[value] = Group(self.by, value, group.count + 1, first, last, *example)

    def largest_first(self) -> list[Group]:
        found = [each._changed(failure=each.failure and _short(each.failure)) for each in self._counted.values()]
        return sorted(found, key=lambda group: (-group.count, group.value or ""))


def groups(
    inspection: Inspection,
    by: GroupBy = "fingerprint",
    selection: Selection | None = None,
    *,
    sample: int | None = None,
) -> list[Group]:
    """Receive the selected dead letters, and return their groups, the largest first.

    Their bodies are not kept. If the inspection is stopped, the groups are those of the dead letters received so far.

    Args:
        inspection: The inspection of the queue.
        by: What the dead letters of a group have in common.
        selection: The dead letters to count; by default all.
        sample: Receive at most about this many.

    Raises:
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    found = GroupCounts(by)
    for _ in counting(inspection, found, selection, sample=sample):
        pass
    return found.largest_first()


def counting(
    inspection: Inspection, found: GroupCounts, selection: Selection | None = None, *, sample: int | None = None
) -> Iterator[None]:
    """Receive the selected dead letters into groups, as `groups` does; yield after each round of requests."""
    before = inspection.scanned

    def count(dead_letters: list[DeadLetterMessage]) -> list[None]:
        for each in dead_letters:
            if selection is None or selection.matches(each):
                found.add(each)
        return []

    def goes_on() -> bool:
        return sample is None or inspection.scanned - before < sample

    threads = MAX_PARALLEL if sample is None else max(1, min(MAX_PARALLEL, sample // 100))
    for _ in inspection.in_threads(
        count, threads, MAX_ENTRIES if sample is None else min(MAX_ENTRIES, sample), goes_on
    ):
        yield


def _short(failure: FailureRecord) -> FailureRecord:
    return FailureRecord({name: getattr(failure, name) for name in ("reason", "type", "message", "fingerprint")})


def _value(dead_letter: DeadLetterMessage, by: GroupBy) -> str | None:
    failure = dead_letter.failure
    if by == "queue":
        return queue_name(dead_letter.origin) if dead_letter.origin else None
    if by == "error":
        return None if failure is None else ": ".join(filter(None, [failure.type, failure.message])) or None
    found: str | None = getattr(failure, by, None)
    return found


DATE_LENGTH = len("2026-11-21 ")


def period(group: Group) -> str:
    """Return when the dead letters of a group came, and how often."""
    first, last = minute(group.first), minute(group.last)
    if not first:
        return "time unknown"
    often = group.per_minute
    between = first if first == last else f"{first} to {last[DATE_LENGTH:] if first[:10] == last[:10] else last}"
    return f"{between} UTC" + (f", {often_text(often)}" if often is not None else "")


def often_text(per_minute: float) -> str:
    return f"{per_minute:,.0f} a minute" if per_minute >= 10 else f"{per_minute:.2g} a minute"


def as_value(text: Any) -> str:
    """Return a text as the VALUE of a condition.

    It is quoted if it would be read as JSON, or would change on its way through a terminal or a form: spaces around it,
    line ends, control characters, lone surrogates.
    """
    if text is None:
        return "null"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        if text == text.strip() and text.isprintable():
            return str(text)
    return json.dumps(text)


WORD = re.compile(r"[\w-]+")
DIGITS_OF_IDS = 4
"""A word with this many digits is taken for an id, which differs between messages. An HTTP status has three."""


class Cause(Value):
    """The groups with one error, in one queue or several. Made by `causes`."""

    groups: tuple[tuple[str, Group], ...]
    """Each group with the name of its queue, the largest first."""

    @property
    def count(self) -> int:
        return sum(group.count for _, group in self.groups)

    @property
    def queues(self) -> dict[str, int]:
        """The number of dead letters of each queue, the queue with the largest group first."""
        found: dict[str, int] = {}
        for queue, group in self.groups:
            found[queue] = found.get(queue, 0) + group.count
        return found


def causes(found: Iterable[tuple[str, Iterable[Group]]]) -> list[Cause]:
    """Return the groups of several queues by cause, the largest first.

    A fingerprint has the place of an error, down from the handler, so an error of code that two handlers share has two.
    Groups with the same fingerprint are one cause, and so are those with the same reason, type and text, apart from ids
    in it.

    Args:
        found: The name of each queue, and its groups; all are by the same.
    """
    by_value: dict[str | None, object] = {}
    by_error: dict[object, list[tuple[str, Group]]] = {}
    for queue, groups in found:
        for group in groups:
            by_error.setdefault(by_value.setdefault(group.value, _shown_error(group)), []).append((queue, group))
    found_causes = [Cause(tuple(sorted(each, key=lambda of: -of[1].count))) for each in by_error.values()]
    return sorted(found_causes, key=lambda cause: -cause.count)


def _shown_error(group: Group) -> object:
    failure = group.failure
    if group.by != "fingerprint" or failure is None:
        return group.value
    return failure.reason, failure.type, WORD.sub(_without_id, failure.message or "")


def _without_id(word: re.Match[str]) -> str:
    return "#" if sum(map(str.isdigit, word[0])) >= DIGITS_OF_IDS else word[0]
