"""A message's story as a value: its events in order, and the sentence that sums them up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tarry.failed.text import brief, coarse, duration
from tarry.failed.usage import UsageError
from tarry.message.outcomes import State

ENDS = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED})
"""States after which nothing more happens to a message, unless a dead letter is retried or redriven."""
WAITS = frozenset({State.READY, State.WAITING_RETRY, State.DEFERRED, State.RESENT})
"""States in which a message is to be delivered again."""
WAITS_ON = frozenset({"not_due", "in_progress"})
"""The reasons of a message in state DEFERRED that its handler did not defer."""
FAILURES = frozenset({State.WAITING_RETRY, State.DEAD_LETTERED})

WORDS: Mapping[str, str] = {
    State.IN_FLIGHT: "in flight",
    State.WAITING_RETRY: "waiting for a retry",
    State.DEAD_LETTERED: "dead-lettered",
}
"""The states whose names are not words."""


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One event of a message.

    ``state`` is None for a log line that changes no state, and for an inferred event about which state is unknown.
    """

    at: float
    """Epoch seconds."""
    state: State | None
    delivery_id: str = ""
    origin: str = ""
    """The queue that the message was in."""
    attempt: int | None = None
    """From 1; None if no handler ran."""
    delay: float | None = None
    """Seconds until the message is visible again."""
    text: str = ""
    """A description of the event, beside reason and error."""
    reason: str = ""
    error: str = ""
    sent_to: str = ""
    """The queue that it was sent or moved to: a dead-letter queue, or the queue of a copy."""
    max_attempts: int | None = None
    event: str = ""
    """The name of tarry's log event, if there is a line of tarry."""
    consumer: str = ""
    function: str = ""
    request_id: str = ""
    """Of the invocation that had the message then, or before."""
    is_seen: bool = True
    """Whether the source tells it; otherwise it is inferred."""
    line: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The fields of the line of tarry's log that tells it; empty if none does."""

    @property
    def explanation(self) -> str:
        """Why the message is in its state, as far as known, and what else a person should know."""
        return self._because(self.reason, self.error, self.text)

    @property
    def why(self) -> str:
        """Why the message is in its state, as far as known, in short."""
        if not self.line:
            return self.explanation
        reason = str(self.line.get("not_sent") or self.reason)
        could_not_wait = reason == "expiring" and not self.error
        return self._because(reason, str(self.line.get("text") or "") if could_not_wait else self.error)

    def _because(self, reason: str, *more: str) -> str:
        texts = [each for each in more if each]
        if reason == "error":
            reason = "" if texts or self.state is not State.WAITING_RETRY else "the handler asked for it"
        return ": ".join(filter(None, [reason, *texts]))

    @property
    def queue(self) -> str:
        """The queue that it is in, or was in last; of a message that is sent on as a copy, that of the original."""
        return (self.state is State.DEAD_LETTERED and self.sent_to) or self.origin

    @property
    def place(self) -> str:
        """The queue that the message, or its copy, is in afterwards."""
        return self.sent_to or self.origin

    @property
    def due(self) -> float | None:
        """When it is visible again, in epoch seconds, while it waits."""
        return self.at + (self.delay or 0) if self.state in WAITS else None

    def words(self, before: "StoryEvent | None") -> str:
        """Return the event in words, without its reason; ``before`` is the event before it."""
        if self.state is None:
            return self.event
        parts = [f"in {self.queue}"] if self.queue and (before is None or before.place != self.queue) else []
        if self.attempt is not None and not self._continues(before):
            parts.append(f"attempt {self.attempt}" + (f" of {self.max_attempts}" if self.max_attempts else ""))
        if self.delay is not None and self.state not in ENDS:
            word = "visible in" if self.state is State.READY else "for"
            parts.append(f"{word} {duration(self.delay)}" if self.delay else "at once")
        if self.sent_to and self.state is not State.DEAD_LETTERED:
            parts.append("as a copy" if self.sent_to == self.origin else f"as a copy in {self.sent_to}")
        return ", ".join(parts)

    def _continues(self, before: "StoryEvent | None") -> bool:
        """Whether the event ends an attempt whose begin is the event before it, or the copy that was sent."""
        if before is None:
            return False
        is_copy = before.state is State.READY and before.origin == self.sent_to
        return is_copy or (before.state is State.IN_FLIGHT and before.attempt == self.attempt)


@dataclass(frozen=True)
class Story:
    """The story of one message.

    ``source`` names where it comes from. ``is_whole``: every transition is in it; otherwise only those that a log line
    tells. ``now`` is the time until which it goes, in epoch seconds. ``notes`` are sentences about what may be missing.
    """

    id: str
    events: tuple[StoryEvent, ...]
    source: str
    now: float
    is_whole: bool = True
    notes: tuple[str, ...] = ()

    def listed(self, most: int) -> Iterator[tuple[StoryEvent, StoryEvent | None, int]]:
        """Yield the first and the last events, each with the one before it and the number left out between them."""
        first, left_out = most // 2, max(0, len(self.events) - most)
        for place, (event, before) in enumerate(zip(self.events, [None, *self.events], strict=False)):
            if not left_out or place < first:
                yield event, before, 0
            elif place >= first + left_out:
                yield event, before, left_out if place == first + left_out else 0

    @property
    def began(self) -> float:
        return self.events[0].at

    @property
    def last(self) -> StoryEvent:
        """The last event that was seen and has a state."""
        found = [event for event in self.events if event.state is not None and event.is_seen]
        return found[-1] if found else self.events[-1]

    @property
    def queues(self) -> list[str]:
        """The queues it was in, in their order."""
        places = (place for event in self.events for place in (event.origin, event.sent_to))
        return list(dict.fromkeys(place for place in places if place))

    @property
    def summary(self) -> str:
        """The story in one or two sentences: the state now, the attempts, the time, the first failure."""
        return " ".join([f"{self._now_in_words()}.", *self._first_failure(), *self._redrives()])

    def as_json(self) -> dict[str, Any]:
        """Return the story as JSON."""
        return {
            "id": self.id,
            "source": self.source,
            "summary": self.summary,
            "is_whole": self.is_whole,
            "now": moment(self.now),
            "events": [_event_as_json(event) for event in self.events],
            "notes": list(self.notes),
        }

    def _now_in_words(self) -> str:
        last = self.last
        count = next((event.attempt for event in reversed(self.events) if event.attempt), 0)  # of its last life
        word = "unknown" if last.state is None else WORDS.get(last.state, last.state.lower())
        is_over = last.state in ENDS
        at_least = "" if self.is_whole or is_over else "at least "
        counted = f"{at_least}{count} attempt{'s'[: count != 1]}{self._deferrals()}"
        attempts = f" after {counted}" if count else ""
        if last.state is State.DEFERRED:  # a deferral ends no attempt
            attempts = f" at attempt {last.attempt}" if last.attempt else ""
        if is_over:
            took = f" in {coarse(last.at - self.began)}" if last.at - self.began >= 1 else ""
            return f"{word}{attempts}{took}".capitalize()
        if last.due is not None and last.due > self.now:
            when = f"due in {coarse(last.due - self.now)}, at {stamp(last.due)} UTC"
            return f"{word.capitalize()}{attempts}, {when}"
        if self.is_whole:
            return f"{word}{attempts}".capitalize()
        if last.due is None:
            which = f" at attempt {last.attempt}" if last.attempt else ""
            return f"Last seen {word}{which}, at {stamp(last.at)} UTC; no line since (a success writes none)"
        due = f"it was due at {stamp(last.due)} UTC"
        return f"Last seen {word}{attempts}; no line since {due} (a success writes none)"

    def _deferrals(self) -> str:
        """The deferrals in words, which cost no attempt; empty if there are none."""
        deferred = (event for event in self.events if event.state is State.DEFERRED)
        count = sum(event.reason not in WAITS_ON for event in deferred)
        return f" and {count} deferral{'s'[: count != 1]}" if count else ""

    def _first_failure(self) -> list[str]:
        found = next((each for each in self.events if each.state in FAILURES and (each.error or each.text)), None)
        if found is None:
            return []
        return [f"First failure {stamp(found.at)} UTC: {brief(found.error or found.text)}."]

    def _redrives(self) -> list[str]:
        count = sum(event.state is State.DEAD_LETTERED for event in self.events)
        if count == 1 and self.last.state is not State.DEAD_LETTERED:
            return ["Dead-lettered once before."]
        return [f"Dead-lettered {count} times."] if count > 1 else []


_NAMES = (
    "at", "state", "queue", "sent_to", "attempt", "max_attempts", "delay", "reason", "error", "text", "event",
    "consumer", "function", "delivery_id", "request_id", "is_seen",
)  # fmt: skip
"""The values of an event in JSON, where ``queue`` is its ``origin``."""


def _event_as_json(event: StoryEvent) -> dict[str, Any]:
    values = {name: getattr(event, "origin" if name == "queue" else name) for name in _NAMES}
    found = {name: value for name, value in values.items() if value not in (None, "") or name == "state"}
    return {**found, "at": moment(event.at), **({} if event.delay is None else {"delay": round(event.delay)})}


def story_from(found: Mapping[str, Any]) -> Story:
    """Return the story of its JSON form. Raises `UsageError` if it is not a story."""
    try:
        events = tuple(map(_event_from, found["events"]))
        if not events:
            raise ValueError("no events")
        notes: Sequence[str] = found["notes"]
        return Story(
            str(found["id"]), events, str(found["source"]), _seconds(found["now"]), bool(found["is_whole"]), (*notes,)
        )
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"this is not the story of a message: {error!r}") from error


def _event_from(found: Mapping[str, Any]) -> StoryEvent:
    state = State(found["state"]) if found["state"] is not None else None
    rest = {"origin" if name == "queue" else name: value for name, value in found.items() if name in _NAMES}
    return StoryEvent(**{**rest, "at": _seconds(found["at"]), "state": state})


def moment(at: float) -> str:
    """Return a time as RFC 3339 in UTC, with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def stamp(at: float) -> str:
    """Return the time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
