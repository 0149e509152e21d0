"""What there is to see of a running cloud, read from its history: messages, functions, queues."""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from tarry.local.cloud import Cloud
from tarry.local.show.log import LogLine, LogReader, report_text
from tarry.local.show.timeline import FINAL, ORDINARY, MessageTimeline, timeline_of
from tarry.simulator.history import HistoryEvent
from tarry.template.queues import with_foreign_queues
from tarry.testing.history import ProjectedHistory
from tarry.testing.timeline import Timeline, Transition
from tarry.tooling.queues import queue_name
from tarry.tooling.text import coarse


@dataclass
class Tally:
    """One function's."""

    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""


class Tallies:
    """By the functions' names."""

    def __init__(self) -> None:
        self.by_function: dict[str, Tally] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no invocation is under way."""
        return not any(tally.busy for tally in self.by_function.values())

    def take(self, event: HistoryEvent) -> None:
        """Something has happened."""
        if event.what not in ("invoked", "report", "throttled"):
            return
        tally = self.by_function.setdefault(event.fields["function"], Tally())
        match event.what:
            case "invoked":
                tally.invoked += 1
                tally.busy += 1
            case "report":
                tally.busy -= 1
                tally.failed += event.fields["kind"] != "returned"
                tally.last = report_text(event.fields)
            case "throttled":
                tally.throttled += 1


@dataclass(frozen=True)
class QueueRow:
    """A queue, and what it holds. ``oldest_seconds`` is the age of its oldest message."""

    name: str
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_seconds: float | None = None
    dead_letter_queue: str | None = None
    dead: int = 0
    """Messages in the dead-letter queue."""

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.in_flight or self.delayed or self.dead)


@dataclass(frozen=True)
class FunctionRow:
    """A function: its processes, how many of them work, its invocations so far."""

    name: str
    environments: int = 0
    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""
    """The last invocation, in a few words."""

    @property
    def is_empty(self) -> bool:
        return not self.busy


@dataclass(frozen=True)
class Scene:
    """All of it. ``now`` is epoch seconds; ``stories`` and ``lines`` are the latest, as many as fit at the most."""

    title: str
    now: float
    queues: Sequence[QueueRow] = ()
    functions: Sequence[FunctionRow] = ()
    stories: Sequence[MessageTimeline] = ()
    lines: Sequence[LogLine] = ()
    ended: dict[str, int] = field(default_factory=dict)
    """How many messages have ended in which state."""


class View(Protocol):
    """What a cloud shows itself on."""

    @property
    def lines(self) -> Collection[LogLine]:
        """What was said last, where it is not shown at once."""

    def step(self, story: MessageTimeline) -> None:
        """A message has moved to another state."""

    def say(self, line: LogLine) -> None:
        """A function, or the cloud, has something to say."""

    def showing(self, scene: Callable[[], Scene]) -> AbstractAsyncContextManager[None]:
        """Show what ``scene`` says for as long as the context lasts."""


MOST_SETTLED = 500
"""Stories of settled messages that are kept."""
MOST_RECENT = 200
MOST_STEPS = 200
"""Of one story: a message that fails every few seconds for four days has more to tell than anybody reads."""


class Board:
    """The timelines of all messages, read from a history event by event.

    ``on_step`` is called with a timeline after each step. ``consumed`` are the queues that feed a function.
    ``forgetful``: settled messages are forgotten after a while, and then merely counted.
    """

    def __init__(
        self,
        consumed: Collection[str],
        on_step: Callable[[MessageTimeline], None] = lambda story: None,
        *,
        forgetful: bool,
    ) -> None:
        self.ended: Counter[str] = Counter()
        """How many messages have ended in which state."""
        self.number: int | None = None
        """The place in the event file of what is sent now."""
        self.numbers: dict[str, int] = {}
        self._consumed = consumed
        self._on_step = on_step
        self._forgetful = forgetful
        self._history = ProjectedHistory(self._stepped, by_deliveries=True)
        self._recent: OrderedDict[str, Timeline] = OrderedDict()
        self._troubled: OrderedDict[str, Timeline] = OrderedDict()
        self._settled: deque[Timeline] = deque()
        self._counted: dict[str, str] = {}

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        self._history.take(event)

    @property
    def stories(self) -> list[MessageTimeline]:
        """Those that are not forgotten: by their places in the event file, then as they came."""
        stories = [self._shown(timeline) for timeline in self._history.timelines.values() if timeline.transitions]
        return sorted(stories, key=lambda story: story.number or len(self.numbers) + 1)

    @property
    def is_settled(self) -> bool:
        return all(story.is_settled or story.lost for story in self.stories)

    def is_hopeless(self, until: float) -> bool:
        """Whether nothing more can happen before ``until``: all that has not settled waits longer."""
        waiting = (story for story in self.stories if not (story.is_settled or story.lost))
        return all(story.due is not None and story.due > until for story in waiting)

    def find(self, message_id: str) -> MessageTimeline | None:
        """By the stable id, or that of any delivery."""
        timeline = self._history.find(message_id)
        return self._shown(timeline) if timeline is not None and timeline.transitions else None

    def latest(self, most: int) -> list[MessageTimeline]:
        """Those that went on last, the last first. Half of the places are kept for what did not simply go well."""
        troubled = list(islice(reversed(self._troubled.values()), most // 2))
        others = (timeline for timeline in reversed(self._recent.values()) if timeline not in troubled)
        shown = [*troubled, *islice(others, most - len(troubled))]
        shown.sort(key=lambda timeline: timeline.transitions[-1].at, reverse=True)
        return [self._shown(timeline) for timeline in shown]

    def _shown(self, timeline: Timeline) -> MessageTimeline:
        return timeline_of(timeline.id, timeline.transitions, self.numbers.get(timeline.id), self._consumed)

    def _stepped(self, timeline: Timeline) -> None:
        last = timeline.transitions[-1]
        if self.number is not None and len(timeline.transitions) == 1:
            self.numbers[timeline.id] = self.number
        self._count(timeline, last)
        _put(self._recent, timeline)
        if last.state in ORDINARY:
            self._troubled.pop(timeline.id, None)
        else:
            _put(self._troubled, timeline)
        if self._forgetful:
            self._forget(timeline, last)
        if timeline.id not in self.numbers or len(timeline.transitions) > 1:
            self._on_step(self._shown(timeline))

    def _count(self, timeline: Timeline, last: Transition) -> None:
        """Each end of a message once: tarry's word on it may come after what has already been concluded."""
        if last.state in FINAL:
            state = self._shown(timeline).state
            if timeline.id in self._counted:
                self.ended[self._counted[timeline.id]] -= 1
            self._counted[timeline.id] = state
            self.ended[state] += 1
        else:
            self._counted.pop(timeline.id, None)  # redriven: it ends a second time

    def _forget(self, timeline: Timeline, last: Transition) -> None:
        self._history.shorten(timeline, MOST_STEPS)
        if last.state in FINAL:
            self._settled.append(timeline)
        if len(self._settled) > MOST_SETTLED:
            oldest = self._settled.popleft()
            if oldest.transitions[-1].state in FINAL and oldest not in self._settled:
                self._history.forget(oldest)
                for known in (self._recent, self._troubled, self._counted, self.numbers):
                    known.pop(oldest.id, None)


def _put(kept: OrderedDict[str, Timeline], timeline: Timeline) -> None:
    kept[timeline.id] = timeline
    kept.move_to_end(timeline.id)
    if len(kept) > MOST_RECENT:
        kept.popitem(last=False)


MOST_STORIES = 100


class Outlook:
    """Hears the history of one cloud, from its beginning to its end."""

    def __init__(self, board: Board, view: View, *, verbose: bool) -> None:
        self.board = board
        self.tallies = Tallies()
        self.is_over = False
        """Set when the cloud is told to end: what its processes say of that is nobody's concern."""
        self._view = view
        self._log = LogReader(verbose=verbose)
        self._began = time.time()

    def hear(self, event: HistoryEvent) -> None:
        """Something has happened."""
        if self.is_over:
            return
        self.tallies.take(event)
        self.board.take(event)
        for line in self._log.lines(event):
            self._view.say(line)

    def scene(self, cloud: Cloud) -> Callable[[], Scene]:
        """What there is to see at each moment."""
        title = f"tarry local  {cloud.plan.template.path}  SQS {cloud.url}"
        return lambda: Scene(
            title=f"{title}  {coarse(time.time() - self._began)}",
            now=cloud.timeline.now,
            queues=_queue_rows(cloud),
            functions=[
                _function_row(name, len(function.environments), self.tallies.by_function.get(name) or Tally())
                for name, function in cloud.functions.items()
            ],
            stories=self.board.latest(MOST_STORIES),
            lines=list(self._view.lines),
            ended=dict(self.board.ended),
        )


def _queue_rows(cloud: Cloud) -> list[QueueRow]:
    """Dead-letter queues stand with the queues whose they are."""
    depths, now = cloud.sqs.depths(), cloud.timeline.now
    rows, dead_letters = [], set()
    for queue in with_foreign_queues(cloud.plan.template).values():
        target = queue_name(queue.dead_letter_arn) if queue.dead_letter_arn else None
        depth = depths.get(queue.name)
        dead = depths.get(target) if target else None
        if target:
            dead_letters.add(target)
        if depth is not None:
            oldest = None if depth.oldest is None else max(0.0, now - depth.oldest)
            count = sum(dead[:3]) if dead else 0
            rows.append(QueueRow(queue.name, *depth[:3], oldest, target, count))
    return [row for row in rows if row.name not in dead_letters]


def _function_row(name: str, environments: int, tally: Tally) -> FunctionRow:
    return FunctionRow(name, environments, tally.busy, tally.invoked, tally.failed, tally.throttled, tally.last)
