"""The timelines and stories of the messages of a running cloud, read from its history."""

import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from tarry.failed.text import coarse, one_line
from tarry.message.outcomes import State
from tarry.tools.local.cloud import LocalCloud
from tarry.tools.local.show.timeline import (
    LogLine,
    LogReader,
    MessageTimeline,
    RecursiveLoops,
    chosen,
    report_text,
    timeline_of,
)
from tarry.tools.local.stories import find_story
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.events import ENDS, Story
from tarry.tools.template.model import with_foreign_queues
from tarry.tools.testing.deliveries import LEFT
from tarry.tools.testing.recorded_history import ProjectedHistory
from tarry.tools.testing.report import story_of
from tarry.tools.testing.timeline import Timeline, without_copies


@dataclass(frozen=True)
class QueueRow:
    """A queue and its numbers of messages. ``oldest_seconds`` is the age of its oldest message."""

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


@dataclass
class FunctionRow:
    """A function: its processes, the busy ones among them, its invocations so far."""

    name: str
    environments: int = 0
    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""
    """The last invocation, in a few words."""
    problem: str = ""
    """``old code`` or ``not running`` while the saved code cannot be imported."""

    @property
    def is_empty(self) -> bool:
        return not (self.busy or self.problem)


@dataclass(frozen=True)
class Scene:
    """Everything that a screen shows. ``now`` is epoch seconds; ``messages`` and ``lines`` are the latest ones."""

    title: str
    now: float
    queues: Sequence[QueueRow] = ()
    functions: Sequence[FunctionRow] = ()
    messages: Sequence[MessageTimeline] = ()
    lines: Sequence[LogLine] = ()
    ended: dict[str, int] = field(default_factory=dict)
    """The number of messages that have ended in each state."""

    @property
    def latest_errors(self) -> dict[str, str]:
        """Why the latest message came to each dead-letter queue, by its name."""
        targets, found = {row.name: row.dead_letter_queue for row in self.queues}, dict[str, str]()
        for message in self.messages:  # the latest first
            if message.state == State.DEAD_LETTERED and (target := targets.get(message.queue)):
                found.setdefault(target, one_line(message.why))
        return found


class View(ABC):
    """The display of a running cloud. Steps and lines are also in its scene."""

    def step(self, message: MessageTimeline) -> None:  # noqa: B027 a frame of the scene shows it
        """Show that a message has moved to another state."""

    def say(self, line: LogLine) -> None:  # noqa: B027
        """Show a log line of a function or of the cloud."""

    @abstractmethod
    def showing(self, scene: Callable[[], Scene]) -> AbstractAsyncContextManager[None]:
        """Show the current ``scene`` until the context ends."""


MOST_SETTLED = 500
"""The number of settled messages that are kept after they have left all queues."""
OF_RECEIVES = ("received", "visibility_changed")
MOST_RECEIVES = 10
"""The number of receives and changes of its visibility that are kept of a message, up to twice as many."""
SOURCE = "tarry local"
"""The source of a story."""
MOST_STEPS = 200
"""The number of steps of one message that are kept: it may fail every few seconds for four days."""


class Board:
    """The timelines of all messages, read from a history event by event.

    ``on_step`` is called with a timeline after each step. ``consumed`` are the queues that feed a function.
    ``forgetful``: settled messages that are in no queue any more are forgotten after a while, and then merely counted.
    """

    def __init__(
        self,
        consumed: Collection[str],
        on_step: Callable[[MessageTimeline], None] = lambda message: None,
        *,
        forgetful: bool,
    ) -> None:
        self.number: int | None = None
        """The place in the event file of the message that is being sent."""
        self.numbers: dict[str, int] = {}
        self.consumed = consumed
        self._on_step = on_step
        self._forgetful = forgetful
        self._history = ProjectedHistory(self._stepped, by_deliveries=True)
        self._settled: OrderedDict[str, Timeline] = OrderedDict()
        """The messages that may be forgotten, the oldest first."""
        self._states: dict[str, str] = {}
        """The last state of each message that has ended, and is not forgotten."""
        self._forgotten: Counter[str] = Counter()
        self._removed: set[str] = set()
        """The forgotten dead letters, by stable id: they may be restored, and end again."""

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        self._history.take(event)
        if not self._forgetful:
            return
        if event.what in OF_RECEIVES and (copy := self._history.copies.get(event.fields["delivery_id"])) is not None:
            if len(copy.events) > 2 * MOST_RECEIVES:  # dead letters are inspected again and again, without a step
                copy.forget_receives(MOST_RECEIVES)
        elif event.what in LEFT:  # without a step, as with a dead letter that is removed
            timeline = self._history.find(event.fields["delivery_id"])
            if timeline is not None:
                self._forget(timeline)

    @property
    def ended(self) -> Counter[str]:
        """The number of messages whose last state is each of these; a retried dead letter counts once."""
        return self._forgotten + Counter(self._states.values())

    @property
    def messages(self) -> list[MessageTimeline]:
        """All messages that are not forgotten: by their places in the event file, then in the order of sending."""
        messages = [self._shown(timeline) for timeline in self._history.timelines.values() if timeline.transitions]
        return sorted(messages, key=lambda message: message.number or len(self.numbers) + 1)

    @property
    def is_settled(self) -> bool:
        return all(message.is_settled or message.lost for message in self.messages)

    def is_hopeless(self, until: float, stuck: Collection[str]) -> bool:
        """Whether all unsettled messages wait beyond ``until``, or are among the ``stuck`` ones, by delivery id."""
        waiting = (message for message in self.messages if not (message.is_settled or message.lost))
        return all(
            (message.due is not None and message.due > until) or message.delivery_id in stuck for message in waiting
        )

    def find(self, message_id: str) -> MessageTimeline | None:
        """Return a message by its stable id, or by the id of one of its deliveries."""
        timeline = self._history.find(message_id)
        return self._shown(timeline) if timeline is not None and timeline.transitions else None

    def body(self, message_id: str) -> str | None:
        """Return the body as last sent, of a message by its stable id, or by the id of one of its deliveries."""
        timeline = self._history.find(message_id)
        return None if timeline is None else timeline.latest_body

    def stories(self, now: float, most: int) -> list[Story]:
        """Return the stories of the messages with the latest events, in the order of those."""
        return [story_of(timeline, SOURCE, now) for timeline in self._by_latest_step()[-most:]]

    def stories_of(self, wanted: str, now: float) -> list[Story]:
        """Return the stories of the messages that have an id, or a delivery id, that begins with ``wanted``."""
        ids = (each for known in (self._history.timelines, self._history.copies) for each in known)
        found = (self._history.find(each) for each in ids if each.startswith(wanted))
        timelines = {each.id: each for each in found if each is not None and each.transitions}
        return [story_of(timeline, SOURCE, now) for timeline in timelines.values()]

    def latest(self, most: int) -> list[MessageTimeline]:
        """Return the messages with the latest steps, the latest first; half of them are messages in trouble."""
        return [self._shown(timeline) for timeline in chosen(self._by_latest_step()[::-1], most)]

    def _by_latest_step(self) -> list[Timeline]:
        timelines = [timeline for timeline in self._history.timelines.values() if timeline.transitions]
        return sorted(timelines, key=lambda timeline: timeline.transitions[-1].at)

    def _shown(self, timeline: Timeline) -> MessageTimeline:
        return timeline_of(
            timeline.id, [*without_copies(timeline.transitions)], self.numbers.get(timeline.id), self.consumed
        )

    def _stepped(self, timeline: Timeline) -> None:
        if timeline.id in self._removed:
            self._removed.remove(timeline.id)
            self._forgotten["DEAD_LETTERED"] -= 1
        if self.number is not None and len(timeline.transitions) == 1:
            self.numbers[timeline.id] = self.number
        if timeline.state in ENDS:  # tarry's log line may come after the end was concluded without it
            self._states[timeline.id] = self._shown(timeline).state
        else:
            self._states.pop(timeline.id, None)  # it may be retried from a dead-letter queue
        if self._forgetful:
            self._history.shorten(timeline, MOST_STEPS)
            self._forget(timeline)
        if timeline.id not in self.numbers or len(timeline.transitions) > 1:
            self._on_step(self._shown(timeline))

    def _forget(self, timeline: Timeline) -> None:
        """Forget the oldest settled message if this one makes them too many."""
        if timeline.state not in ENDS or timeline.is_in_a_queue:
            self._settled.pop(timeline.id, None)
            return
        self._settled[timeline.id] = timeline
        self._settled.move_to_end(timeline.id)
        if len(self._settled) > MOST_SETTLED:
            _, oldest = self._settled.popitem(last=False)
            if oldest.is_in_a_queue:  # restored without a step, from an archive
                return
            self._history.forget(oldest)
            self._forgotten[state := self._states.pop(oldest.id, oldest.state)] += 1
            if state == "DEAD_LETTERED":
                self._removed.add(oldest.id)
            self.numbers.pop(oldest.id, None)


MOST_MESSAGES = 100
MOST_LINES = 500
NOT_RUN = "not run here"


class Outlook:
    """The view of one running cloud: a listener to its history, from start to end.

    The console beside it uses it on its event loop, once ``cloud`` is set.
    """

    cloud: LocalCloud

    def __init__(self, board: Board, view: View, *, verbose: bool) -> None:
        self.board = board
        self.lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        """The latest log lines."""
        self.loops = RecursiveLoops()
        self.is_over = False
        """Set when the cloud is asked to end: the log lines of its processes about that are not shown."""
        self._functions: dict[str, FunctionRow] = {}
        self._view = view
        self._log = LogReader(verbose=verbose)
        self._began = time.time()

    @property
    def is_idle(self) -> bool:
        """Whether no invocation is under way."""
        return not any(row.busy for row in self._functions.values())

    def on_event(self, event: HistoryEvent) -> None:
        """Take the next event."""
        if self.is_over:
            return
        match event.what:
            case "reloaded":
                self.board.consumed = event.fields["queues"]
            case "invoked":
                row = self._row(event.fields["function"])
                row.invoked += 1
                row.busy += 1
            case "report":
                row = self._row(event.fields["function"])
                row.busy -= 1
                row.failed += event.fields["kind"] != "returned"
                row.last = report_text(event.fields)
            case "throttled":
                self._row(event.fields["function"]).throttled += 1
        self.loops.take(event)
        self.board.take(event)
        for line in self._log.lines(event):
            self.lines.append(line)
            self._view.say(line)

    def scene(self) -> Scene:
        """Return the queues, functions, messages and log lines of now."""
        cloud = self.cloud
        title = f"tarry local  {cloud.plan.template.path}  SQS {cloud.url}"
        functions = []
        for name, function in cloud.functions.items():
            problem = "" if function.limit is None else "old code" if function.limit else "not running"
            functions.append(replace(self._row(name), environments=len(function.environments), problem=problem))
        consumers = dict.fromkeys(mapping.function for mapping in cloud.plan.template.mappings)
        return Scene(
            title=f"{title}  {coarse(time.time() - self._began)}",
            now=cloud.scheduler.now,
            queues=_queue_rows(cloud),
            functions=[
                *functions,
                *(FunctionRow(name, last=NOT_RUN) for name in consumers if name not in cloud.functions),
            ],
            messages=self.board.latest(MOST_MESSAGES),
            lines=list(self.lines),
            ended=dict(self.board.ended),
        )

    def story(self, message_id: str) -> Story | None:
        """Return the story of a message, None if it is unknown or was forgotten. Raises the errors of `find_story`."""
        return find_story(self.board.stories_of(message_id, self.cloud.scheduler.now), message_id)

    def _row(self, function: str) -> FunctionRow:
        return self._functions.setdefault(function, FunctionRow(function))


def _queue_rows(cloud: LocalCloud) -> list[QueueRow]:
    """Return a row for each queue; a dead-letter queue is part of the row of its source queue."""
    depths, now = cloud.sqs.depths(), cloud.scheduler.now
    queues = with_foreign_queues(cloud.plan.template).values()
    rows, dead_letters = [], {queue.dead_letters for queue in queues}
    for queue in queues:
        depth, dead = depths.get(queue.name), depths.get(queue.dead_letters or "")
        if depth is not None and queue.name not in dead_letters:
            oldest = None if depth.oldest is None else max(0.0, now - depth.oldest)
            count = sum(dead[:3]) if dead else 0
            rows.append(QueueRow(queue.name, *depth[:3], oldest, queue.dead_letters, count))
    return rows
