"""The story of a message: from `tarry local`, from its failure record, or from a search in logs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.text import brief, one_line, seconds_of
from tarry.failed.usage import UsageError
from tarry.failed.wording import attempt_of, origin_name
from tarry.message.outcomes import State
from tarry.record.attribute import HISTORY_LENGTH
from tarry.tools.common.places import is_aws
from tarry.tools.story.events import Story, StoryEvent, moment
from tarry.tools.story.searching import LEAST_CHARACTERS, places_of, search_logs
from tarry.tools.story.text import since_text, state_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed import DeadLetterMessage
    from tarry.tools.console.access import Console
    from tarry.tools.story.searching import FoundStory

SOURCE = "its failure record"


def story_of_record(dead_letter: DeadLetterMessage, now: float) -> Story | None:
    """Return what the failure record tells about a message; None without a record that has times."""
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
    return seconds_of(str(moment)) if moment else None


MAX_EVENTS = 300
"""The most events of a page; the first and the last ones of more."""
SEARCHED_SECONDS = 14 * 86_400.0
"""SQS keeps no message for longer."""


class EventRow(NamedTuple):
    """An event of a story as a row of a table."""

    at: str
    since: str
    state: str
    words: str
    queue: str
    request_id: str


async def known_story(console: Console, message_id: str, dead_letter: DeadLetterMessage | None) -> Story | None:
    """Return the story that is known without a search in logs: that of `tarry local`, or of the failure record."""
    if console.local is not None:
        found = console.local.story(message_id)
    elif console.place.endpoint is None:
        found = None
    else:
        found = await console.in_thread(_asked, console.place.endpoint, message_id)
    if found is None and dead_letter is not None:
        found = story_of_record(dead_letter, time.time())
    return found


def _asked(endpoint: str, message_id: str) -> Story | None:
    """Ask the `tarry local` at an endpoint; None if there is none."""
    from tarry.tools.local.stories import ask

    if is_aws(endpoint):
        return None
    with suppress(OSError, UnicodeEncodeError):  # another SQS, such as moto; or an id that no address can have
        return ask(endpoint, message_id)
    return None


def searched(console: Console, message_id: str) -> FoundStory:
    """Search for the story in the logs of the stack, since the longest time that SQS keeps a message.

    Raises `UsageError` and `ClientError`.
    """
    if console.stack is None:
        raise UsageError("logs are searched by stack: start tarry console with --stack NAME")
    if len(message_id) < LEAST_CHARACTERS:
        raise UsageError(f"the id {message_id!r} is too short to search logs for it: {LEAST_CHARACTERS} characters")
    place = places_of(console.client, console.account.region, console.stack)
    if not place.groups:
        raise UsageError(f"stack {console.stack} has no function with a log group: no function of it was ever invoked")
    return search_logs(console.client("logs"), place, message_id, time.time() - SEARCHED_SECONDS)


def rows_of(story: Story) -> Iterator[EventRow | int]:
    """Yield the events as rows, the first and the last of many; a number is how many are left out there."""
    left_out = len(story.events) - MAX_EVENTS
    before = None
    for place, event in enumerate(story.events):
        if left_out > 0 and MAX_EVENTS // 2 <= place < MAX_EVENTS // 2 + left_out:
            if place == MAX_EVENTS // 2:
                yield left_out
            before = event
            continue
        why = brief(event.why) if event.error else one_line(event.why)
        words = ": ".join(filter(None, (event.words(before), why)))
        at = moment(event.at).replace("T", " ").replace("Z", "")
        yield EventRow(at, since_text(event, story), state_text(event), words, event.place, event.request_id)
        before = event
