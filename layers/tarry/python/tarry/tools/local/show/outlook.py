"""The listener to a running cloud: it shows each event, and makes the scene of the moment."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tarry.failed.queue_names import queue_name
from tarry.failed.text import coarse
from tarry.tools.local.cloud import LocalCloud
from tarry.tools.local.functions.host import ProcessFunction
from tarry.tools.local.loops import RecursiveLoops
from tarry.tools.local.show.board import Board
from tarry.tools.local.show.log import LogReader, report_text
from tarry.tools.local.show.scene import FunctionRow, QueueRow, Scene, View
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.template.queues import with_foreign_queues

MOST_MESSAGES = 100
NOT_RUN = "not run here"


class Outlook:
    """A listener to the history of one cloud, from start to end."""

    def __init__(self, board: Board, view: View, *, verbose: bool) -> None:
        self.board = board
        self.tallies = Tallies()
        self.loops = RecursiveLoops()
        self.is_over = False
        """Set when the cloud is asked to end: the log lines of its processes about that are not shown."""
        self._view = view
        self._log = LogReader(verbose=verbose)
        self._began = time.time()

    def on_event(self, event: HistoryEvent) -> None:
        """Take the next event."""
        if self.is_over:
            return
        if event.what == "reloaded":
            self.board.consumed = event.fields["queues"]
        self.tallies.take(event)
        self.loops.take(event)
        self.board.take(event)
        for line in self._log.lines(event):
            self._view.say(line)

    def scene(self, cloud: LocalCloud) -> Callable[[], Scene]:
        """Return a function that returns the current scene."""
        title = f"tarry local  {cloud.plan.template.path}  SQS {cloud.url}"
        return lambda: Scene(
            title=f"{title}  {coarse(time.time() - self._began)}",
            now=cloud.scheduler.now,
            queues=_queue_rows(cloud),
            functions=[
                _function_row(name, function, self.tallies.by_function.get(name) or Tally())
                for name, function in cloud.functions.items()
            ]
            + [FunctionRow(name, last=NOT_RUN) for name in _not_run(cloud)],
            messages=self.board.latest(MOST_MESSAGES),
            lines=list(self._view.lines),
            ended=dict(self.board.ended),
        )


@dataclass
class Tally:
    """The counts of one function."""

    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""


class Tallies:
    """The counts of all functions, by name."""

    def __init__(self) -> None:
        self.by_function: dict[str, Tally] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no invocation is under way."""
        return not any(tally.busy for tally in self.by_function.values())

    def take(self, event: HistoryEvent) -> None:
        """Count the next event."""
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


def _queue_rows(cloud: LocalCloud) -> list[QueueRow]:
    """Return a row for each queue; a dead-letter queue is part of the row of its source queue."""
    depths, now = cloud.sqs.depths(), cloud.scheduler.now
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


def _not_run(cloud: LocalCloud) -> list[str]:
    """Return the functions that consume a queue at AWS, but do not run here."""
    names = (mapping.function for mapping in cloud.plan.template.mappings)
    return [name for name in dict.fromkeys(names) if name not in cloud.functions]


def _function_row(name: str, function: ProcessFunction, tally: Tally) -> FunctionRow:
    problem = "" if function.limit is None else "old code" if function.limit else "not running"
    counts = len(function.environments), tally.busy, tally.invoked, tally.failed, tally.throttled
    return FunctionRow(name, *counts, tally.last, problem)
