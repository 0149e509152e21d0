"""The story of a dead letter from its own failure record: no log is read, so it costs nothing and may have gaps."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from tarry.failed.wording import attempt_of, origin_name
from tarry.message.outcomes import State
from tarry.record.attribute import HISTORY_LENGTH
from tarry.tools.story.events import Story, StoryEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed import DeadLetterMessage

SOURCE = "its failure record"


def story_of_record(dead_letter: DeadLetterMessage, now: float) -> Story | None:
    """Return what the failure record tells about a message; None without a record that has times.

    Args:
        dead_letter: The dead letter.
        now: The time, in epoch seconds.
    """
    events = sorted(_events(dead_letter), key=lambda event: event.at)
    if not any(event.state is State.DEAD_LETTERED for event in events):
        return None
    return Story(dead_letter.id, tuple(events), SOURCE, now, is_whole=False, notes=tuple(_notes(dead_letter)))


def _events(dead_letter: DeadLetterMessage) -> Iterator[StoryEvent]:
    failure, queue = dead_letter.failure, origin_name(dead_letter)
    if (sent := _seconds(dead_letter.sent_at)) is not None:
        yield StoryEvent(sent, State.READY, queue=queue)
    if failure is None:
        return
    failed = _seconds(failure.failed_at)
    for entry in dead_letter.history:
        at = _seconds(entry.get("at"))
        if at is None or (at == failed and entry.get("delay") is None):
            continue  # the last failure, which is the dead letter itself
        delay = entry.get("delay")
        yield StoryEvent(
            at,
            State.WAITING_RETRY,
            queue=queue,
            attempt=attempt_of(entry),
            delay=float(delay) if isinstance(delay, int | float) else None,
            error=str(entry.get("error") or ""),
        )
    if failed is not None:
        yield StoryEvent(
            failed,
            State.DEAD_LETTERED,
            queue=queue,
            sent_to=dead_letter.queue,
            attempt=_last_attempt(dead_letter),
            reason=failure.reason or "",
            error=": ".join(filter(None, (failure.type, failure.message))),
            function=failure.function or "",
            delivery_id=dead_letter.delivery_id,
            request_id=failure.request_id or "",
        )


def _notes(dead_letter: DeadLetterMessage) -> Iterator[str]:
    failure = dead_letter.failure
    known = [attempt_of(entry) for entry in dead_letter.history]
    entries = sum(each is not None and each != before for each, before in zip(known, [None, *known], strict=False))
    missing = 0 if failure is None or failure.attempts is None else failure.attempts - max(1, entries)
    if missing > 0:
        have = "has" if missing == 1 else "have"
        why = "retries in place write none" + f", and it keeps {HISTORY_LENGTH}" * (len(known) >= HISTORY_LENGTH)
        yield f"{missing:,} attempt{'s'[: missing != 1]} {have} no entry in the record: {why}."


def _last_attempt(dead_letter: DeadLetterMessage) -> int | None:
    """Return the number of the last attempt, which begins anew with each redrive as those of the history do."""
    failure, last = dead_letter.failure, dead_letter.history[-1] if dead_letter.history else {}
    is_of_failure = failure is not None and _seconds(last.get("at")) == _seconds(failure.failed_at)
    own = attempt_of(last) if is_of_failure else None
    return own if own is not None or failure is None else failure.attempts


def _seconds(moment: object) -> float | None:
    try:
        return datetime.fromisoformat(str(moment)).timestamp() if moment else None
    except (ValueError, OverflowError):
        return None
