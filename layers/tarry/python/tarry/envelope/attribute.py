"""The `Tarry` attribute, which travels with a message: what earlier deliveries learned of it.

JSON in ASCII, so that SQS can refuse no character of it. This module reads it, writes it and fits it into the room
there is; `docs/reference/tarry-attribute.md` describes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry.delay import END_OF_TIME
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTRIBUTE = "Tarry"
VERSION = 1
HISTORY_LENGTH = 10
ERROR_IN_HISTORY_CHARACTERS = 300
MAX_COUNT = 1_000
MAX_NOTE_LENGTH = 256
MAX_TOTAL = 1_000_000  # attempts over all lives of a message that was redriven again and again
MAX_DUE_AHEAD_SECONDS = 366 * 86_400


class UnreadableRecord(ValueError):
    """A `Tarry` attribute that is not a record of this message. It is treated as absent."""


NOT_TEXT = frozenset({"attempts", "history", "first_failed_at", "failed_at", "extra"})


class FailureRecord(Value):
    """Why a message failed when it was last sent on, as its record says it. What the record lacks is None."""

    reason: str | None
    attempts: int | None
    type: str | None
    message: str | None
    said: str | None
    """The text of the verdict that was raised from the error: ``raise Reject("text") from error``."""
    traceback: str | None
    fingerprint: str | None
    first_failed_at: str | None
    failed_at: str | None
    function: str | None
    request_id: str | None
    extra: Mapping[str, Any] | None
    """What `DeadLetter`'s ``enrich`` added to the record of the dead letter."""
    history: tuple[Mapping[str, Any], ...]
    """The failures that are recorded, the first and the last nine: ``attempt``, ``at``, ``error``, and ``delay``, the
    seconds of the wait that followed."""

    def __init__(
        self, fields: Mapping[str, Any], history: tuple[Mapping[str, Any], ...] = (), extra: object = None
    ) -> None:
        texts = {name: _text(fields, name) for name in self._names if name not in NOT_TEXT}
        times = {name: _moment(fields, name) for name in ("first_failed_at", "failed_at")}
        attempts = fields.get("attempts")
        attempts = None if attempts is None else _whole("failure.attempts", attempts, MAX_TOTAL)
        added = extra if isinstance(extra, dict) else None
        self._freeze(**texts, **times, attempts=attempts, history=history, extra=added)


class Envelope(Value):
    """A `Tarry` attribute that was read."""

    id: str
    origin: str | None
    sent: str | None
    edited: str | None
    """When its body or attributes were last changed, by `tarry failed retry --edit` or a failure step."""
    carried: int
    due: float | None
    hops: int
    steps: Mapping[str, int]
    notes: Mapping[str, str]
    failure: FailureRecord | None
    told: Mapping[str, Any]
    """The record itself, which may hold more: a later version wrote it."""

    @property
    def is_dead_letter(self) -> bool:
        """Whether it is the record of a dead letter (`is_dead_letter`)."""
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
            failure=None if failure is None else FailureRecord(failure, _entries(history), record.get("extra")),
            told=record,
        )


def read_envelope(attribute: Mapping[str, Any], body: str, now: float) -> Envelope:
    """The record in a message's `Tarry` attribute, as the event has it.

    Raises `UnreadableRecord` if it is not ours, damaged, out of range, or was copied from another message.
    """
    record = _parse(attribute)
    if record is None:
        raise UnreadableRecord("it is not a JSON object with v and sum")
    if type(record["v"]) is not int or record["v"] != VERSION:
        raise UnreadableRecord(f"its version is {record['v']!r:.20}, and this tarry reads version {VERSION}")
    if record["sum"] != body_sum(body):
        raise UnreadableRecord("its sum is that of another body")
    return Envelope(record, now)


def is_dead_letter(record: Mapping[str, Any]) -> bool:
    """Whether a record is that of a dead letter: it tells of a failure, and the message was not sent again since.

    A copy that waits may tell of an earlier failure too; what makes it a copy is that it counts its hops.
    """
    return record.get("failure") is not None and not record.get("hops")


def is_ours(attribute: Mapping[str, Any] | None) -> bool:
    """Whether an attribute of our name is one that tarry wrote, readable or not, and not a user's own."""
    return attribute is not None and _parse(attribute) is not None


def _parse(attribute: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        record = json.loads(attribute["stringValue"])
    except (KeyError, TypeError, ValueError, RecursionError):  # an attribute may be any JSON in a hand-made event
        return None
    return record if isinstance(record, dict) and "v" in record and "sum" in record else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableRecord(f"{name} is {value!r:.50}, not a text")
    return value


def _moment(fields: Mapping[str, Any], name: str) -> str | None:
    """A time in UTC, None if it is none: what says when is no reason to forget who."""
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


def _entries(history: object) -> tuple[Mapping[str, Any], ...]:
    entries = history if isinstance(history, list) else []
    return tuple(_first_and_last([_entry(entry) for entry in entries if isinstance(entry, dict)]))


def _entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of an entry, as far as it is what it should be."""
    kinds: dict[str, type] = {"attempt": int, "at": str, "error": str, "delay": int}
    return {name: entry[name] for name, kind in kinds.items() if type(entry.get(name)) is kind}


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
    """What ties a record to its message: a record copied to another message must not speak for it."""
    import hashlib

    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def timestamp(epoch_seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond: ``2026-01-01T00:00:00.000Z``."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dump(record: Mapping[str, Any]) -> str:
    """The record as it is sent: compact JSON, ASCII only.

    Raises `TypeError` or `ValueError` for what JSON cannot hold (a hook may have put it there).
    """
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


ESSENTIAL = ("v", "sum", "id", "origin", "sent", "edited", "carried", "due", "hops", "steps", "notes")
TOLD = ("failure", "history", "extra")
"""The rest of a record: why the message failed."""


def next_history(
    earlier: tuple[Mapping[str, Any], ...], attempt: int, failed_at: str, error: str | None, delay: int | None = None
) -> list[Mapping[str, Any]]:
    """The history with this failure: the first, and the last nine."""
    entry = {
        "attempt": attempt,
        "at": failed_at,
        "error": error and error[:ERROR_IN_HISTORY_CHARACTERS],
        "delay": delay,
    }
    return _first_and_last([*earlier, {name: value for name, value in entry.items() if value is not None}])
