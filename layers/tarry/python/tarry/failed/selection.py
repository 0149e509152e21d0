"""Select dead letters: by their ids, by conditions, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import world
from tarry.errors import ConfigurationError
from tarry.failed.conditions import Condition, condition, matches
from tarry.failed.requests import AmbiguousId
from tarry.failed.text import count_of, moment, seconds_of, when
from tarry.record.attribute import timestamp
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import DeadLetterQueue


class Selection(Value):
    """A selection of dead letters. Made by `select`."""

    ids: tuple[str, ...]
    conditions: tuple[Condition, ...]
    everything: bool
    group: str | None = None
    """The fingerprint that they must have."""
    since: float | None = None
    """When they were dead-lettered at the earliest, in epoch seconds."""
    until: float | None = None
    """When they were dead-lettered at the latest, exclusive."""
    before: float | None = None
    """When the user was shown the queue, in epoch seconds: those that came later are new, and left."""
    most: int | None = None
    """The number of dead letters that the user was shown: a limit, since not all say when they came."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no ids and no conditions, and not all are selected."""
        return not (self.ids or self.is_filter or self.everything)

    @property
    def is_filter(self) -> bool:
        """Whether it selects by conditions, a group or a time."""
        return bool(self.conditions) or self.group is not None or self.since is not None or self.until is not None

    def matches(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether the dead letter meets all conditions."""
        failure = dead_letter.failure
        if self.group is not None and (failure is None or failure.fingerprint != self.group):
            return False
        if self.since is not None or self.until is not None:
            at = seconds_of(when(dead_letter))
            if at is None or at < (self.since or 0) or (self.until is not None and at >= self.until):
                return False
        return matches(dead_letter, self.conditions)

    def as_previewed(self, queue: DeadLetterQueue, *, is_shown: bool) -> Selection:
        """Return a selection of what the queue had when SQS counted its messages; ``is_shown``: the user saw how many.

        Ids stay as they are.
        """
        return self if self.ids else self._changed(before=queue.counted_at, most=queue.about if is_shown else None)

    def is_new(self, dead_letter: DeadLetterMessage, chosen: int) -> bool:
        """Whether the dead letter came after the preview; ``chosen`` others were selected before it.

        A failure record says when it came. One without a record is new once as many as were shown are chosen.
        """
        failed_at = seconds_of(dead_letter.failure.failed_at) if dead_letter.failure else None
        if failed_at is None:
            return self.most is not None and chosen >= self.most
        return self.before is not None and failed_at > self.before

    def __str__(self) -> str:
        """Return the conditions as text."""
        texts = [] if self.group is None else [f"fingerprint = {self.group}"]
        texts += [f"dead-lettered since {_short(self.since)}"] if self.since is not None else []
        texts += [f"dead-lettered before {_short(self.until)}"] if self.until is not None else []
        return " and ".join([*texts, *(each.text for each in self.conditions)])


def _short(seconds: float) -> str:
    return timestamp(seconds).replace(".000", "")


def select(
    ids: Iterable[str] = (),
    where: Iterable[str] = (),
    *,
    everything: bool = False,
    group: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Selection:
    """Select dead letters by stable or SQS message ids, by conditions that must all be met, or all of them.

    The beginning of an id selects a dead letter if no other dead letter has an id that begins like that.

    Args:
        ids: Stable or SQS message ids, or their beginnings.
        where: Conditions, such as ``attempts > 3``.
        everything: Select all.
        group: A fingerprint, as `groups` returns it.
        since: When they were dead-lettered at the earliest: a time in ISO 8601 (UTC without an offset), or a duration
            before now, such as ``2h``. For a message without a failure record it is the time when it was sent.
        until: The same, when they were dead-lettered at the latest.

    Raises:
        ConfigurationError: ids are combined with conditions or with ``everything``, an id is empty, or a time cannot
            be read.
        BadFilter: a condition cannot be parsed.
    """
    ids, now = tuple(dict.fromkeys(ids)), world.current().clock.time()
    conditions = tuple(condition(text) for text in where)
    first = None if since is None else moment(since, "--since", now)
    last = None if until is None else moment(until, "--until", now)
    selection = Selection(ids, conditions, everything, group, first, last)
    if ids and (selection.is_filter or everything):
        raise ConfigurationError(
            "ids cannot be combined with --where, --group, --since, --until or --all: give one or the other"
        )
    if "" in ids:
        raise ConfigurationError("an id is empty: give the id of a dead letter, or the beginning of one")
    if first is not None and last is not None and first >= last:
        raise ConfigurationError(f"--since {since} is not before --until {until}: no time is between them")
    return selection


def selection_fields(selection: Selection) -> dict[str, Any]:
    """Return what was selected, for the audit."""
    return {
        "asked_ids": selection.ids,
        "where": [each.text for each in selection.conditions],
        "group": selection.group,
        "since": selection.since and timestamp(selection.since),
        "until": selection.until and timestamp(selection.until),
        "all": selection.everything,
    }


def offered(
    inspection: Inspection, dead_letters: Iterable[DeadLetterMessage], selection: Selection
) -> list[DeadLetterMessage]:
    """Return the selected dead letters whose ids were not yet handled in this inspection, and claim them."""
    chosen = []
    for dead_letter in dead_letters:
        if dead_letter.id in inspection.handled:
            inspection.handled.count_repeated(dead_letter)
        elif inspection.chooses(dead_letter, selection):
            if inspection.handled.claim(dead_letter):
                inspection.leases.choose(dead_letter.delivery_id)
                chosen.append(dead_letter)
            else:  # in another thread, just now
                inspection.handled.count_repeated(dead_letter)
    return chosen


class FoundDeadLetter(NamedTuple):
    """A dead letter that was found by its id, and the inspection in which it is in flight."""

    dead_letter: DeadLetterMessage
    inspection: Inspection


def by_ids(inspection: Inspection, ids: Iterable[str]) -> dict[str, DeadLetterMessage]:
    """Find dead letters of one queue by id; see `found_by_ids`."""
    return {name: found.dead_letter for name, found in found_by_ids([inspection], ids).items()}


def found_by_ids(inspections: Iterable[Inspection], ids: Iterable[str]) -> dict[str, FoundDeadLetter]:
    """Find dead letters by id, or by the beginning of an id. They stay in flight; all others are released.

    The search ends when each id is the whole id of a dead letter, so that no other one can change the result. The
    beginning of an id takes the whole search: only then it is certain that no other dead letter has an id that begins
    like that. Raises `AmbiguousId`.
    """
    matches: dict[str, dict[str, FoundDeadLetter]] = {name: {} for name in ids}
    whole: set[str] = set()
    searched: list[Inspection] = []
    for inspection in inspections:
        searched.append(inspection)
        for dead_letters in inspection.polls():
            for each in dead_letters:
                _match(FoundDeadLetter(each, inspection), matches, whole)
            if len(whole) == len(matches):
                break
        kept = {found.dead_letter.delivery_id for by_id in matches.values() for found in by_id.values()}
        for other in searched:
            other.release(keep=kept)
        if len(whole) == len(matches):
            break
    for name, by_id in matches.items():
        if len(by_id) > 1:
            raise AmbiguousId(name, tuple(by_id))
    return {name: found for name, by_id in matches.items() for found in by_id.values()}


def _match(found: FoundDeadLetter, matches: dict[str, dict[str, FoundDeadLetter]], whole: set[str]) -> None:
    """Note a dead letter at each name that is its id, or begins one; the first with that id replaces all others."""
    own_ids = found.dead_letter.id, found.dead_letter.delivery_id
    for name, by_id in matches.items():
        if name in whole:
            continue
        if name in own_ids:
            whole.add(name)
            by_id.clear()
        if any(each.startswith(name) for each in own_ids):
            by_id.setdefault(found.dead_letter.id, found)


def not_found(inspection: Inspection) -> str:
    return f"not found in {inspection.queue.name}: {scanned(inspection)}"


def scanned(inspection: Inspection) -> str:
    """Return the progress as text: dead letters received, of about how many."""
    return f"scanned {inspection.scanned:,} of about {max(inspection.queue.about, inspection.scanned):,}"


def lost_leases(inspection: Inspection) -> str:
    """Return sentences about dead letters that did not stay in flight until the end; empty if all did."""
    times = "once" if inspection.leases.lost == 1 else f"{inspection.leases.lost:,} times"
    texts = []
    if inspection.leases.lost:
        texts.append(
            f"Visibility timeouts ended before they could be extended ({times}); other consumers could receive these "
            "dead letters meanwhile."
        )
    if inspection.is_outrun:
        texts.append("They became visible again faster than all could be received, so some may be missing.")
    return " ".join([*texts, "Use a longer --keepalive."]) if texts else ""


def newer(inspection: Inspection) -> str:
    """Return a sentence about dead letters that came after the preview of a selection; empty if none did."""
    count = inspection.newer
    left = "is left" if count == 1 else "are left"
    return f"{count_of(count)} came after the command began, or after the preview, and {left}." if count else ""


MAX_SHOWN = 50


class Shown(Value):
    """The dead letters to show, and the ids that were not found."""

    dead_letters: tuple[DeadLetterMessage, ...]
    missing: tuple[str, ...] = ()


def show(inspection: Inspection, selection: Selection, most: int = MAX_SHOWN) -> Shown:
    """Return the selected dead letters: in the order of the ids, otherwise at most ``most``, oldest first.

    Without conditions, receive no more than ``most``; with conditions, receive until ``most`` match or no more come.
    """
    if selection.ids:
        found = by_ids(inspection, selection.ids)
        dead_letters = dict.fromkeys(each for each in (found.get(name) for name in selection.ids) if each is not None)
        return Shown(tuple(dead_letters), tuple(name for name in selection.ids if name not in found))
    chosen: list[DeadLetterMessage] = []
    for polled in inspection.polls() if selection.is_filter else inspection.polls(total=most):
        chosen += [dead_letter for dead_letter in polled if selection.matches(dead_letter)]
        if len(chosen) >= most:
            break
    return Shown(tuple(sorted(chosen[:most], key=lambda each: (when(each) or "", each.delivery_id))))
