"""A story as SVG: a row for each queue, the states as coloured spans, the attempts, and the events as a list."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

from tarry.failed.text import brief
from tarry.message.outcomes import State
from tarry.tools.story import svg
from tarry.tools.story.events import ENDS, Story, StoryEvent, stamp
from tarry.tools.story.svg import MARGIN, NORMAL, RADIUS, WIDTH, TimeScale
from tarry.tools.story.text import since_text, state_text, why_text

LEFT, RIGHT = 200, 912
"""The ends of the time axis."""
TOP, ROW, LINE = 98, 44, 20
"""The place of the first row; the heights of a row, and of a line of the list."""
MOST_EVENTS = 40
"""The most events in the list; the rows have all."""
SINCE, STATE, WORDS = 92, 180, 296
"""The places of the columns of the list, after the time."""
FINAL = ENDS | {State.RESENT}


def picture(story: Story) -> str:
    """Return the picture as SVG. It follows the light or dark mode of its viewer."""
    return _Picture(story).svg()


class _Picture:
    def __init__(self, story: Story) -> None:
        self._story = story
        self._rows = {queue: TOP + ROW * place + ROW // 2 for place, queue in enumerate(story.queues or [""])}
        self._scale = TimeScale([event.at for event in story.events] + [self._ended], LEFT, RIGHT)
        self._bottom = TOP + ROW * len(self._rows)

    @property
    def _ended(self) -> float:
        """The end of the last span: until a waiting message is due, but not after the story was read."""
        story = self._story
        last = story.events[-1]
        if last.state in ENDS or last.state is None:
            return last.at
        return max(last.at, story.now if last.due is None else min(last.due, story.now))

    def svg(self) -> str:
        story = self._story
        listed = [*self._list(self._bottom + 60)]
        legend_y = self._bottom + 60 + LINE * len(listed) + 14
        parts = [*self._title(), *self._frame(), *self._spans(), *self._moves(), *self._marks(), *listed]
        parts += self._legend(legend_y)
        return svg.picture(f"message {story.id}: {story.summary}", parts, WIDTH, legend_y + 24)

    def _y(self, queue: str) -> int:
        return self._rows.get(queue, next(iter(self._rows.values())))

    def _title(self) -> Iterator[str]:
        story = self._story
        width = WIDTH - 2 * MARGIN
        yield svg.group(story.id, svg.text_at(MARGIN, 34, svg.fit(f"message {story.id}", width, 16), "title"))
        yield svg.group(story.summary, svg.text_at(MARGIN, 56, svg.fit(story.summary, width, NORMAL)))
        notes = " ".join([f"From {story.source}.", *story.notes])
        yield svg.group(notes, svg.text_at(MARGIN, 76, svg.fit(notes, width, 12), "quiet"))

    def _frame(self) -> Iterator[str]:
        for queue, y in self._rows.items():
            yield svg.group(queue, svg.text_at(MARGIN, y + 4, svg.fit(queue, LEFT - MARGIN - 24, NORMAL)))
        yield from self._scale.grid(self._story.began, TOP - 4, self._bottom)

    def _steps(self) -> list[StoryEvent]:
        """The events that change the state."""
        return [event for event in self._story.events if event.state is not None]

    def _spans(self) -> Iterator[str]:
        for event, begin, end in self._scale.visible(self._steps(), self._ended, lambda event: event.state in FINAL):
            yield svg.span_at(self._words(event), event.state, begin, end, self._y(event.place), event.delay)

    def _moves(self) -> Iterator[str]:
        """Draw a line from queue to queue."""
        steps = self._steps()
        places = [(event, event.origin, event.place) for event in steps]
        places += [(after, before.place, after.origin) for before, after in pairwise(steps)]
        for event, one, other in places:
            if one and other and one != other:
                x = self._scale.x(event.at)
                yield f'<line class="move" x1="{x}" y1="{self._y(one)}" x2="{x}" y2="{self._y(other)}"/>'

    def _marks(self) -> Iterator[str]:
        last_x, attempt = -float(WIDTH), None
        for event in self._steps():
            x = self._scale.x(event.at)
            if event.state in ENDS:
                y = self._y(event.place)
                shape = f'<rect class="{event.state}" x="{x + RADIUS:g}" y="{y - 6}" width="12" height="12" rx="2"/>'
                yield svg.group(self._words(event), shape)
            begins = event.state is State.IN_FLIGHT or event.attempt != attempt
            if not begins or event.attempt is None or event.state is State.READY:
                continue
            attempt = event.attempt
            yield svg.attempt_at(self._words(event), x, self._y(event.origin), attempt, last_x)
            last_x = x if x - last_x >= 2 * RADIUS else last_x

    def _list(self, y: int) -> Iterator[str]:
        for event, before, left_out in self._story.listed(MOST_EVENTS):
            if left_out:
                yield svg.text_at(MARGIN, y, f"{left_out:,} events are left out here", "quiet")
                y += LINE
            yield from self._line(event, before, y)
            y += LINE

    def _line(self, event: StoryEvent, before: StoryEvent | None, y: int) -> Iterator[str]:
        colour = event.state if event.state in ENDS else ""
        words = ": ".join(filter(None, (event.words(before), why_text(event))))
        texts = [
            svg.text_at(MARGIN, y, stamp(event.at), "quiet"),
            svg.text_at(SINCE, y, since_text(event, self._story), "quiet"),
            svg.text_at(STATE, y, state_text(event), f"state small {colour}".strip()),
            svg.text_at(WORDS, y, svg.fit(words, WIDTH - MARGIN - WORDS, 12), "words" if event.is_seen else "quiet"),
        ]
        yield svg.group(self._words(event), *texts)

    def _legend(self, y: int) -> Iterator[str]:
        steps = self._steps()
        yield from svg.legend({event.state for event in steps}, y, attempts=any(event.attempt for event in steps))
        day = datetime.fromtimestamp(self._story.began, UTC).date()
        yield svg.text_at(WIDTH - MARGIN, y + 4, f"times in UTC, from {day}", "quiet end")

    def _words(self, event: StoryEvent) -> str:
        """An event in words, to be read while the pointer is over it."""
        ids = ", ".join(
            f"{name} {value}"
            for name, value in (("delivery", event.delivery_id), ("request", event.request_id), ("in", event.function))
            if value
        )
        first = f"{stamp(event.at)} UTC  {state_text(event)}  {event.words(None)}".rstrip()
        return "\n".join(filter(None, (first, brief(event.explanation), ids)))
