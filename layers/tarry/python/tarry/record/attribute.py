"""The `Tarry` attribute, which carries a message's id, attempts and failures from copy to copy.

What it says of a delivery: which attempt it is, and whether it is due.
"""

from __future__ import annotations

import json

from tarry.support.values import END_OF_TIME, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ATTRIBUTE = "Tarry"
VERSION = 1
HISTORY_LENGTH = 10
ERROR_IN_HISTORY_CHARACTERS = 300
MAX_COUNT = 1_000
MAX_NOTE_LENGTH = 256
MAX_TOTAL = 1_000_000  # attempts of a message over all its redrives
MAX_DUE_AHEAD_SECONDS = 366 * 86_400


class UnreadableRecord(ValueError):
    """A `Tarry` attribute that cannot be read, or belongs to another message. tarry treats it as absent."""


NOT_TEXT = frozenset({"attempts", "attempts_at_most", "crashes", "history", "first_failed_at", "failed_at", "extra"})


class FailureRecord(Value):
    """The failure of a message when it was last sent on. A missing key is None."""

    reason: str | None
    attempts: int | None
    attempts_at_most: bool
    """Whether the number of attempts may be too high: without an attempt store, SQS counts receives, not runs."""
    crashes: int | None
    """The number of deliveries that left no trace; None without an attempt store."""
    type: str | None
    message: str | None
    said: str | None
    """The text of ``raise Reject("text") from error``."""
    traceback: str | None
    fingerprint: str | None
    first_failed_at: str | None
    failed_at: str | None
    function: str | None
    request_id: str | None
    extra: Mapping[str, Any] | None
    """The dict that `DeadLetter`'s ``enrich`` returned."""
    history: tuple[Mapping[str, Any], ...]
    """The first failure and the last nine: ``attempt``, ``at``, ``error``, and ``delay``, the seconds until the next
    attempt."""

    def __init__(
        self, fields: Mapping[str, Any], history: tuple[Mapping[str, Any], ...] = (), extra: object = None
    ) -> None:
        texts = {name: _text(fields, name) for name in self._names if name not in NOT_TEXT}
        times = {name: _moment(fields, name) for name in ("first_failed_at", "failed_at")}
        counts = {
            name: None if fields.get(name) is None else _whole(f"failure.{name}", fields[name], MAX_TOTAL)
            for name in ("attempts", "crashes")
        }
        at_most = fields.get("attempts_at_most") is True
        added = extra if isinstance(extra, dict) else None
        self._freeze(**texts, **times, **counts, attempts_at_most=at_most, history=history, extra=added)


class Envelope(Value):
    """A `Tarry` attribute, read and checked."""

    id: str
    origin: str | None
    sent: str | None
    edited: str | None
    """When the body or the attributes were last changed, by `tarry failed retry --edit` or a failure step."""
    carried: int
    due: float | None
    hops: int
    steps: Mapping[str, int]
    notes: Mapping[str, str]
    failure: FailureRecord | None
    fields: Mapping[str, Any]
    """The JSON object as it was read, with keys that a later version of tarry may have added."""

    @property
    def is_dead_letter(self) -> bool:
        return is_dead_letter({"failure": self.failure, "hops": self.hops})

    def __init__(self, record: Mapping[str, Any], now: float) -> None:
        message_id = _text(record, "id")
        if not message_id:
            raise UnreadableRecord("it has no id")
        history = record.get("history", [])
        failure = record.get("failure")
        steps, notes = record.get("steps", {}), record.get("notes", {})
        kinds = (("history", history, list), ("failure", failure, dict), ("steps", steps, dict), ("notes", notes, dict))
        for name, value, kind in kinds:
            if value is not None and not isinstance(value, kind):
                raise UnreadableRecord(f"{name} is {value!r:.50}, which has the wrong type")
        self._freeze(
            id=message_id,
            origin=_text(record, "origin"),
            sent=_moment(record, "sent"),
            edited=_moment(record, "edited"),
            carried=_whole("carried", record.get("carried", 0)),
            due=_due(record.get("due"), now),
            hops=_whole("hops", record.get("hops", 0)),
            steps={name: _whole(f"steps.{name}", count) for name, count in (steps or {}).items()},
            notes={name: _note(name, text) for name, text in (notes or {}).items()},
            failure=None if failure is None else FailureRecord(failure, history_of(history), record.get("extra")),
            fields=record,
        )


def read_envelope(attribute: Mapping[str, Any], body: str, now: float) -> Envelope:
    """Return the envelope in a `Tarry` attribute as the event has it; raise `UnreadableRecord`."""
    record = _parse(attribute)
    if record is None:
        raise UnreadableRecord("it is not a JSON object with v and sum")
    if type(record["v"]) is not int or record["v"] != VERSION:
        raise UnreadableRecord(f"its version is {record['v']!r:.20}, and this tarry reads version {VERSION}")
    if record["sum"] != body_sum(body):
        raise UnreadableRecord("its sum is that of another body")
    return Envelope(record, now)


def is_dead_letter(record: Mapping[str, Any]) -> bool:
    """Return whether an attribute is that of a dead letter: a waiting copy with a failure counts its hops."""
    return record.get("failure") is not None and not record.get("hops")


def is_ours(attribute: Mapping[str, Any] | None) -> bool:
    """Return whether tarry wrote an attribute named `Tarry`, readable or not; a user may have one of that name."""
    return attribute is not None and _parse(attribute) is not None


def _parse(attribute: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        record = json.loads(attribute["stringValue"])
    except (KeyError, TypeError, ValueError, RecursionError):  # in a hand-made event, an attribute may be any JSON
        return None
    return record if isinstance(record, dict) and "v" in record and "sum" in record else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableRecord(f"{name} is {value!r:.50}, not a text")
    return value


def _moment(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a time with an offset; None if it is invalid, which must not make the attribute unreadable."""
    from datetime import datetime

    text = _text(fields, name)
    try:
        moment = datetime.fromisoformat(text or "")
        is_one = moment.utcoffset() is not None and 0 <= moment.timestamp() < END_OF_TIME
    except (ValueError, OverflowError):
        return None
    return text if is_one else None


def _note(name: str, text: object) -> str:
    if not isinstance(text, str) or len(text) > MAX_NOTE_LENGTH:
        raise UnreadableRecord(f"notes.{name} is {text!r:.50}, not a text of at most {MAX_NOTE_LENGTH} characters")
    return text


def _whole(name: str, value: object, maximum: int = MAX_COUNT) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise UnreadableRecord(f"{name} is {value!r:.50}, not a whole number from 0 to {maximum}")
    return value


def history_of(history: object) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of a history, the first and the last nine, without values of a wrong type."""
    kinds: dict[str, type] = {"attempt": int, "at": str, "error": str, "delay": int}
    entries: list[Mapping[str, Any]] = (
        [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    )
    return tuple(
        {name: entry[name] for name, kind in kinds.items() if type(entry.get(name)) is kind}
        for entry in _first_and_last(entries)
    )


def _first_and_last(history: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [*history[:1], *history[1:][-(HISTORY_LENGTH - 1) :]]


def _due(value: object, now: float) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= now + MAX_DUE_AHEAD_SECONDS:  # type: ignore[operator]
        raise UnreadableRecord(f"due is {value!r:.50}, not a time within the next 366 days")
    return float(value)  # type: ignore[arg-type]


def body_sum(body: str) -> str:
    """Return the checksum that ties a `Tarry` attribute to its body: copied to another message, it is not valid."""
    import hashlib

    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def timestamp(epoch_seconds: float) -> str:
    """Return a time in ISO 8601, in UTC, to the millisecond: ``2026-01-01T00:00:00.000Z``."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z"


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def dump(record: Mapping[str, Any]) -> str:
    """Return a `Tarry` attribute as compact JSON in ASCII; raise TypeError or ValueError if JSON has no such value."""
    return _encode(record)


ESSENTIAL = ("v", "sum", "id", "origin", "sent", "edited", "carried", "due", "hops", "steps", "notes")
FAILURE_KEYS = ("failure", "history", "extra")  # the others: failure record, history, the dict of ``enrich``


def next_history(
    earlier: tuple[Mapping[str, Any], ...], attempt: int, failed_at: str, error: str | None, delay: int | None = None
) -> list[Mapping[str, Any]]:
    """Return the history with this failure: the first entry and the last nine."""
    text = error and error[:ERROR_IN_HISTORY_CHARACTERS]
    entry = {"attempt": attempt, "at": failed_at, "error": text, "delay": delay}
    return _first_and_last([*earlier, {name: value for name, value in entry.items() if value is not None}])


def attempt_number(
    receives: int,
    envelope: Envelope | None,
    stored: Mapping[str, Any] | None = None,
    *,
    due: float | None = None,
    first_received_at: float | None = None,
    behind: bool,
    untraced: bool,
) -> tuple[int, bool]:
    """Return the number of this run of the handler, from 1, and whether it may be higher than the number of runs.

    ``stored`` is what an attempt store has about this delivery id, empty if it has nothing; the number is then exact.
    ``untraced``: the store did not take this run, so earlier deliveries that it does not know may have been runs too.
    Without a store (None) it is an upper bound, since SQS counts receives, not runs. ``behind``: whether, on FIFO, the
    message is behind another message of its group in this batch. It has then never run, however often it was received:
    each time, the message before it stopped the group.
    """
    carried, is_bound = 0, False
    if envelope is not None and (carried := envelope.carried):  # without a failure, counted receives ended in deferrals
        is_bound = envelope.failure is None or envelope.failure.attempts_at_most
    if stored is not None:
        crashed = crashes(receives, stored) if untraced else 0
        return carried + _before(receives, stored, "runs") + crashed + 1, is_bound or crashed > 0
    if behind:
        return carried + 1, is_bound
    if due is not None and first_received_at is not None and first_received_at < due:
        receives -= 1  # the first receive only kept the message invisible until its due time
    return max(1, carried + receives), is_bound or receives > 1


def crashes(receives: int, stored: Mapping[str, Any]) -> int:
    """Return how many earlier deliveries left no trace in the store: the process died, or Lambda did not start it."""
    return receives - 1 - _before(receives, stored, "deliveries")


def _before(receives: int, stored: Mapping[str, Any], name: str) -> int:
    """Return how many deliveries before this one a set of the record has; other numbers cannot be deliveries."""
    return sum(1 <= number < receives for number in stored.get(name, ()))
