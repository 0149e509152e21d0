"""A story as text, for a terminal of 80 columns."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from textwrap import wrap
from typing import NamedTuple

from tarry.failed.text import brief, coarse, one_line, printable
from tarry.message.outcomes import State
from tarry.tools.story.events import Story, StoryEvent, stamp

WIDTH = 80
LEAST_WIDTH = 60
STATE_WIDTH = 15
MOST_EVENTS = 60
"""The most events that are shown; a message may fail every few seconds for days."""
NO_LINE = "(no line)"


STYLES: Mapping[str, str] = {
    State.READY: "dim",
    State.IN_FLIGHT: "cyan",
    State.WAITING_RETRY: "yellow",
    State.COMMITTED: "green",
    State.DEAD_LETTERED: "red",
    State.DISCARDED: "magenta",
    State.DEFERRED: "blue",
    State.RESENT: "blue",
}
"""The styles of states on a terminal."""


class StoryLine(NamedTuple):
    """A line of text; from ``begin`` to ``end`` it has the name of a state."""

    text: str
    state: State | None = None
    begin: int = 0
    end: int = 0
    is_quiet: bool = False


def draw(story: Story, width: int = WIDTH) -> str:
    """Return the story as text."""
    return "".join(f"{line.text}\n" for line in lines_of(story, width))


def lines_of(story: Story, width: int = WIDTH) -> Iterator[StoryLine]:
    """Yield the lines: a title, a line or more for each event, a summary."""
    width = max(LEAST_WIDTH, width)
    yield StoryLine(f"message {printable(story.id)}")
    yield from _wrapped(f"{' -> '.join(story.queues)}, from {story.source}", width, is_quiet=True)
    since_width = max(len(since_text(event, story)) for event in story.events)
    day = None
    for event, before, left_out in story.listed(MOST_EVENTS):
        if left_out:
            yield StoryLine(f"... {left_out:,} events left out; --json has all", is_quiet=True)
        today = datetime.fromtimestamp(event.at, UTC).date()
        if today != day:
            yield StoryLine(f"\n{today} (UTC)", is_quiet=True)
            day = today
        yield from _event_lines(event, before, f"{since_text(event, story):>{since_width}}", width)
    yield StoryLine("")
    yield from _wrapped(story.summary, width)
    last = next((event for event in reversed(story.events) if event.request_id and event.error), None)
    if last is not None:
        of = f" of {last.function}" if last.function else ""
        yield from _wrapped(f"Last failure: request id {last.request_id}{of}", width, is_quiet=True)
    for text in story.notes:
        yield from _wrapped(f"Note: {text}", width, is_quiet=True)


def since_text(event: StoryEvent, story: Story) -> str:
    """Return the time since the begin of the story."""
    seconds = event.at - story.began
    return f"+{seconds:.1f} s" if 0 < seconds < 10 else f"+{coarse(seconds)}" if seconds else "0 s"


def state_text(event: StoryEvent) -> str:
    """Return the state of an event; in brackets if it is inferred."""
    if event.state is None:
        return "" if event.is_seen else NO_LINE
    return str(event.state) if event.is_seen else f"({event.state})"


def why_text(event: StoryEvent) -> str:
    """Return why the message is in its state, on one line, without what follows the first line of an error."""
    return brief(event.explanation) if event.error else one_line(event.explanation)


def _event_lines(event: StoryEvent, before: StoryEvent | None, since: str, width: int) -> Iterator[StoryLine]:
    state = state_text(event)
    begins = f"{stamp(event.at)}  {since}  "
    indent = len(begins) + STATE_WIDTH + 1
    texts = [
        line
        for part in (event.words(before), why_text(event))
        for line in wrap(printable(part), width - indent) or ([""] if part else [])
    ] or [""]
    begin = len(begins)
    first = f"{begins}{state:<{STATE_WIDTH}} {texts[0]}".rstrip()
    yield StoryLine(first, event.state, begin, begin + len(state), is_quiet=not event.is_seen)
    for text in texts[1:]:
        yield StoryLine(" " * indent + text, is_quiet=not event.is_seen)


def _wrapped(text: str, width: int, *, is_quiet: bool = False) -> Iterator[StoryLine]:
    for line in wrap(printable(text), width):
        yield StoryLine(line, is_quiet=is_quiet)
