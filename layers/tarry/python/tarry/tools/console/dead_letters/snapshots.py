"""Snapshots: the dead letters of each queue as the last scan has found them, in bounded memory.

A dead letter is kept in two parts. The first, without body, attributes, traceback and history, is always there: groups,
lists and most conditions need no more. The second is all of it, compressed, and is dropped if there are too many.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from aiohttp import web

from tarry.failed import DeadLetterMessage, DeadLetterQueue, Group
from tarry.failed.conditions import matches
from tarry.failed.dead_letters import dead_letter_of
from tarry.failed.groups import GroupBy, GroupCounts
from tarry.failed.selection import Selection
from tarry.failed.text import seconds_of, when
from tarry.record.attribute import timestamp

MAX_PACKED_BYTES = 256 * 1024 * 1024
"""The memory for whole dead letters, compressed, of all snapshots together."""


T = TypeVar("T")

MAX_GONE = 200_000
"""The most dead letters to remember that have left a queue."""
MOST_MADE = 12
"""The groupings and selections of a snapshot whose results are kept, for the pages of a list."""
LARGE_BYTES = 32 * 1024
NO_RECORD: Mapping[str, Any] = {"body": "", "attributes": {}, "messageAttributes": {}}


class Matching(NamedTuple):
    """The dead letters of a snapshot that a selection matches, the newest first."""

    dead_letters: list[DeadLetterMessage]
    """Without body and attributes."""
    not_compared: int
    """The number of those that a condition could not compare because their bodies were dropped."""


class SeenSelection(Selection):
    """A selection without dead letters that a scan has not found, so that none is chosen unseen."""

    seen: frozenset[str] = frozenset()
    """The delivery ids of those that it has found."""

    def __init__(self, selection: Selection, seen: frozenset[str]) -> None:
        self._freeze(**selection.__dict__, seen=seen)

    def is_new(self, dead_letter: DeadLetterMessage, chosen: int) -> bool:
        """Whether the scan has not found the dead letter."""
        return dead_letter.delivery_id not in self.seen


class Snapshot:
    """The dead letters that one scan has found. All methods can be called from any thread."""

    def __init__(self, queue: DeadLetterQueue, began_at: float, memory: Snapshots) -> None:
        self.queue = queue
        self.began_at = began_at
        self.ended_at: float | None = None
        self.is_complete = False
        """Whether the scan has received all dead letters, as far as SQS tells."""
        self.dropped = 0
        """The number of dead letters whose body, attributes and traceback are not in memory."""
        self.size = 0
        """The memory that the whole dead letters take, in bytes."""
        self._memory = memory
        self.gone: dict[str, str] = {}
        """The stable ids of those that have left the queue since the scan or an earlier one, by their delivery ids."""
        self._parts: dict[str, DeadLetterMessage] = {}
        self._packed: dict[str, bytes] = {}
        self._texts: dict[str, str] = {}
        self._large: set[str] = set()
        self._lock = threading.Lock()
        self._made: dict[object, object] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, dead_letter: DeadLetterMessage) -> None:
        """Add a dead letter, whole if there is room."""
        record = json.dumps({**dead_letter.record, "receiptHandle": ""}, separators=(",", ":")).encode("ascii")
        packed = zlib.compress(record, 1)
        part = self._part(dead_letter)
        has_room = self._memory.has_room(len(packed), self)
        with self._lock:
            self._parts[dead_letter.delivery_id] = part
            if has_room:
                self.size += len(packed)
                self._packed[dead_letter.delivery_id] = packed
                if len(record) > LARGE_BYTES:
                    self._large.add(dead_letter.delivery_id)
            else:
                self.dropped += 1

    def end(self, now: float, *, is_complete: bool) -> None:
        """End the scan: sort, the newest first."""
        with self._lock:
            newest_first = sorted(self._parts.values(), key=lambda each: (when(each) or "", each.delivery_id))[::-1]
            self._parts = {each.delivery_id: each for each in newest_first}
            self.ended_at, self.is_complete, self._texts = now, is_complete, {}

    def forget(self, delivery_ids: Iterable[str]) -> None:
        """Remove dead letters that are no longer in the queue."""
        with self._lock:
            for each in delivery_ids:
                part = self._parts.pop(each, None)
                if part is not None and len(self.gone) < MAX_GONE:
                    self.gone[each] = part.id
                self.size -= len(self._packed.pop(each, b""))
            self._made = {}

    def drop(self) -> None:
        """Drop all whole dead letters."""
        with self._lock:
            self.dropped += len(self._packed)
            self._packed, self.size = {}, 0

    def _part(self, dead_letter: DeadLetterMessage) -> DeadLetterMessage:
        """Return the part that is always kept. Texts that many have in common are kept once."""
        failure = dead_letter.failure
        if failure is not None:
            names = ("reason", "type", "message", "said", "fingerprint", "function")
            texts = {name: self._shared(getattr(failure, name)) for name in names}
            failure = failure._changed(**texts, traceback=None, extra=None, history=())
        return dead_letter._changed(
            queue=self.queue.name,
            origin=self._shared(dead_letter.origin),
            body="",
            attributes={},
            failure=failure,
            history=(),
            record=NO_RECORD,
            _envelope={},
        )

    def _shared(self, text: str | None) -> str | None:
        # Not sys.intern: Python 3.12.0 to 3.12.3 keep its texts for ever.
        return None if text is None else self._texts.setdefault(text, text)

    @property
    def until(self) -> str:
        """The time after the newest dead letter: those that come later are not selected."""
        newest = next(iter(self.parts()), None)
        at = None if newest is None else seconds_of(when(newest))
        return timestamp(max(self.ended_at or self.began_at, (at or 0.0) + 0.001))

    @property
    def scan(self) -> str:
        return repr(self.began_at)

    def seen(self, selection: Selection) -> Selection:
        """Return a selection without dead letters that this scan has not found; ids stay as they are."""
        if selection.ids:
            return selection
        with self._lock:
            return SeenSelection(selection, frozenset(self._parts))

    def part(self, delivery_id: str) -> DeadLetterMessage | None:
        """Return a dead letter without body and attributes."""
        return self._parts.get(delivery_id)

    def whole(self, delivery_id: str) -> DeadLetterMessage | None:
        """Return a whole dead letter; None if it is unknown, or its body was dropped."""
        packed = self._packed.get(delivery_id)
        if packed is None:
            return None
        return dead_letter_of(json.loads(zlib.decompress(packed)), self.queue.arn, self.began_at)

    def find(self, id: str) -> str | None:
        """Return the delivery id of a dead letter with this delivery id or stable id."""
        with self._lock:
            if id in self._parts:
                return id
            return next((each.delivery_id for each in self._parts.values() if each.id == id), None)

    def some(self, most: int) -> Iterator[DeadLetterMessage]:
        """Return some whole dead letters, none of them large."""
        with self._lock:
            small = (each for each in self._packed if each not in self._large)
            ids = list(islice(small, most))
        return (whole for each in ids if (whole := self.whole(each)) is not None)

    def parts(self) -> list[DeadLetterMessage]:
        """Return all dead letters without bodies and attributes, the newest first."""
        with self._lock:
            return list(self._parts.values())

    def matching(self, selection: Selection) -> Matching:
        return self._once((selection.ids, str(selection)), lambda parts: self._found(selection, parts))

    def groups(self, by: GroupBy) -> list[Group]:
        return self._once(by, lambda parts: _grouped(by, parts))

    def _once(self, key: object, make: Callable[[list[DeadLetterMessage]], T]) -> T:
        """Return what was made of the dead letters, once for all pages of a list; without the lock: it takes long."""
        with self._lock:
            if (known := self._made.get(key)) is not None:
                return cast("T", known)
            before, parts = self._made, [*self._parts.values()]
        found = make(parts)
        with self._lock:
            if before is self._made:  # otherwise some were removed in the meantime
                while len(before) >= MOST_MADE:
                    before.pop(next(iter(before)))
                before[key] = found
        return found

    def _found(self, selection: Selection, parts: list[DeadLetterMessage]) -> Matching:
        if selection.ids:
            wanted = set(selection.ids)
            return Matching([each for each in parts if each.delivery_id in wanted or each.id in wanted], 0)
        plain = selection._changed(conditions=tuple(each for each in selection.conditions if not each.needs_body))
        others = [each for each in selection.conditions if each.needs_body]
        found, not_compared = [], 0
        for part in parts:
            if not plain.matches(part):
                continue
            if others:
                whole = self.whole(part.delivery_id)
                not_compared += whole is None
                if whole is None or not matches(whole, others):
                    continue
            found.append(part)
        return Matching(found, not_compared)


def _grouped(by: GroupBy, dead_letters: Iterable[DeadLetterMessage]) -> list[Group]:
    counts = GroupCounts(by)
    for each in dead_letters:
        counts.add(each)
    return counts.largest_first()


class Snapshots:
    """The last snapshot of each queue. They share memory: if it is used up, the oldest other drops its bodies first."""

    def __init__(self, most: int = MAX_PACKED_BYTES) -> None:
        self._by_queue: dict[str, Snapshot] = {}
        self._most = most
        self._users: list[Snapshot] = []

    def begin(self, queue: DeadLetterQueue, now: float) -> Snapshot:
        """Return an empty snapshot for a scan. Pages show the one before until `put`."""
        snapshot = Snapshot(queue, now, self)
        self._users.append(snapshot)
        return snapshot

    def put(self, snapshot: Snapshot) -> None:
        """Show this snapshot, and drop the one before of the same queue."""
        before = self._by_queue.pop(snapshot.queue.name, None)
        self._by_queue[snapshot.queue.name] = snapshot
        if before is not None:
            snapshot.gone = before.gone
            self.discard(before)

    def discard(self, snapshot: Snapshot) -> None:
        """Drop the bodies of a snapshot: of one that is not shown, or to make room for others."""
        if snapshot in self._users:
            self._users.remove(snapshot)
        snapshot.drop()

    def has_room(self, size: int, taker: Snapshot) -> bool:
        """Return whether ``size`` more bytes fit in memory, after dropping the bodies of other snapshots if needed."""
        while sum(each.size for each in self._users) + size > self._most:
            others = [each for each in self._users if each is not taker]
            if not others:
                return False
            self.discard(others[0])
        return True

    def of(self, queue: str) -> Snapshot | None:
        return self._by_queue.get(queue)

    def find(self, id: str) -> tuple[DeadLetterMessage | None, bool]:
        """Return a dead letter by its delivery id or stable id, from the newest snapshot, and whether it is whole."""
        for snapshot in reversed([*self._by_queue.values()]):
            if (delivery_id := snapshot.find(id)) is not None:
                whole = snapshot.whole(delivery_id)
                return whole or snapshot.part(delivery_id), whole is not None
        return None, False

    def gone(self, delivery_id: str) -> str | None:
        """Return the stable id of a dead letter that has left its queue since it was scanned; None for any other."""
        return next((found for each in self._by_queue.values() if (found := each.gone.get(delivery_id))), None)

    def ids(self) -> frozenset[str]:
        return frozenset(each.id for snapshot in [*self._by_queue.values()] for each in snapshot.parts())


SNAPSHOTS = web.AppKey("snapshots", Snapshots)
