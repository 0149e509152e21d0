"""Select dead letters: by their ids, by conditions, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import world
from tarry.errors import ConfigurationError
from tarry.failed.conditions import Condition, condition, matches
from tarry.failed.requests import AmbiguousId
from tarry.failed.text import is_between, moment, seconds_of, when
from tarry.record.attribute import timestamp
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import DeadLetterQueue


class Selection(Value):
    """A selection of dead letters. Made by `select`."""

    ids: tuple[str, ...]
    conditions: tuple[Condition, ...]
    everything: bool
    group: str | None
    """The fingerprint that they must have."""
    since: float | None
    """When they were dead-lettered at the earliest, in epoch seconds."""
    until: float | None
    """When they were dead-lettered at the latest, exclusive."""
    before: float | None
    """When the user was shown the queue, in epoch seconds: those that came later are new, and left."""
    most: int | None
    """The number of dead letters that the user was shown: a limit, since not all say when they came."""

    def __init__(
        self,
        ids: tuple[str, ...],
        conditions: tuple[Condition, ...],
        everything: bool,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> None:
        self._freeze(
            ids=ids,
            conditions=conditions,
            everything=everything,
            group=group,
            since=since,
            until=until,
            before=None,
            most=None,
        )

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
        return is_between(dead_letter, self.since, self.until) and matches(dead_letter, self.conditions)

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
    selection = Selection(
        ids,
        conditions,
        everything,
        group,
        None if since is None else moment(since, "--since", now),
        None if until is None else moment(until, "--until", now),
    )
    if ids and (selection.is_filter or everything):
        raise ConfigurationError(
            "ids cannot be combined with --where, --group, --since, --until or --all: give one or the other"
        )
    if "" in ids:
        raise ConfigurationError("an id is empty: give the id of a dead letter, or the beginning of one")
    if selection.since is not None and selection.until is not None and selection.since >= selection.until:
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

    The search ends when all ids are found. The beginning of an id takes the whole search: only then it is certain that
    no other dead letter has an id that begins like that. Raises `AmbiguousId`.
    """
    matches = _Matches(ids)
    searched: list[Inspection] = []
    for inspection in inspections:
        searched.append(inspection)
        for dead_letters in inspection.polls():
            for dead_letter in dead_letters:
                matches.add(FoundDeadLetter(dead_letter, inspection))
            if matches.has_all:
                break
        _release_others(searched, matches.candidates())
        if matches.has_all:
            break
    found = matches.chosen()
    _release_others(searched, found.values())
    return found


class _Matches:
    """The dead letters whose ids are, or begin with, the ids that are searched for."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._whole: dict[str, FoundDeadLetter] = {}
        self._beginning: dict[str, dict[str, FoundDeadLetter]] = {name: {} for name in ids}

    @property
    def has_all(self) -> bool:
        """Whether each id is the whole id of a dead letter, so that no other one can change the result."""
        return len(self._whole) == len(self._beginning)

    def add(self, found: FoundDeadLetter) -> None:
        dead_letter = found.dead_letter
        for own_id in (dead_letter.id, dead_letter.delivery_id):
            if own_id in self._beginning:
                self._whole.setdefault(own_id, found)
            for name, by_id in self._beginning.items():
                if own_id.startswith(name):
                    by_id.setdefault(dead_letter.id, found)

    def candidates(self) -> Iterator[FoundDeadLetter]:
        yield from self._whole.values()
        for by_id in self._beginning.values():
            yield from by_id.values()

    def chosen(self) -> dict[str, FoundDeadLetter]:
        """Return the dead letter of each id, in the order of the ids. Raises `AmbiguousId`."""
        found: dict[str, FoundDeadLetter] = {}
        for name, by_id in self._beginning.items():
            if name in self._whole:
                found[name] = self._whole[name]
            elif len(by_id) > 1:
                raise AmbiguousId(name, tuple(by_id))
            elif by_id:
                found[name] = next(iter(by_id.values()))
        return found


def _release_others(inspections: Iterable[Inspection], keep: Iterable[FoundDeadLetter]) -> None:
    kept = {found.dead_letter.delivery_id for found in keep}
    for inspection in inspections:
        inspection.release(keep=kept)


def not_found(inspection: Inspection) -> str:
    """Return the error for an id that was not found."""
    return f"not found in {inspection.queue.name}: {scanned(inspection)}"


def scanned(inspection: Inspection) -> str:
    """Return the progress as text: dead letters received, of about how many."""
    return f"scanned {inspection.scanned:,} of about {max(inspection.queue.about, inspection.scanned):,}"


MAX_SHOWN = 50


class Shown(Value):
    """The dead letters to show, and the ids that were not found."""

    dead_letters: tuple[DeadLetterMessage, ...]
    missing: tuple[str, ...]

    def __init__(self, dead_letters: tuple[DeadLetterMessage, ...], missing: tuple[str, ...] = ()) -> None:
        self._freeze(dead_letters=dead_letters, missing=missing)


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
    return Shown(tuple(sorted(chosen[:most], key=_age)))


def _age(dead_letter: DeadLetterMessage) -> tuple[str, str]:
    return when(dead_letter) or "", dead_letter.delivery_id
