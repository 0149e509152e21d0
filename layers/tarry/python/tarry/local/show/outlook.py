"""What is seen of a cloud: everything that its history tells goes from here to where it is shown or counted."""

import time
from collections.abc import Callable

from tarry.local.cloud import Cloud
from tarry.local.show.board import Board
from tarry.local.show.log import Log
from tarry.local.show.scene import FunctionRow, QueueRow, Scene
from tarry.local.show.screen import View
from tarry.local.show.tally import Tallies, Tally
from tarry.simulator.history import Event
from tarry.template.queues import with_foreign_queues
from tarry.tooling.queues import queue_name
from tarry.tooling.text import coarse

MOST_STORIES = 100


class Outlook:
    """Hears the history of one cloud, from its beginning to its end."""

    def __init__(self, board: Board, view: View, *, verbose: bool) -> None:
        self.board = board
        self.tallies = Tallies()
        self.is_over = False
        """Set when the cloud is told to end: what its processes say of that is nobody's concern."""
        self._view = view
        self._log = Log(verbose=verbose)
        self._began = time.time()

    def hear(self, event: Event) -> None:
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
    rows, letters = [], set()
    for queue in with_foreign_queues(cloud.plan.template).values():
        target = queue_name(queue.dead_letter_arn) if queue.dead_letter_arn else None
        depth = depths.get(queue.name)
        dead = depths.get(target) if target else None
        if target:
            letters.add(target)
        if depth is not None:
            oldest = None if depth.oldest is None else max(0.0, now - depth.oldest)
            count = sum(dead[:3]) if dead else 0
            rows.append(QueueRow(queue.name, *depth[:3], oldest, target, count))
    return [row for row in rows if row.name not in letters]


def _function_row(name: str, environments: int, tally: Tally) -> FunctionRow:
    return FunctionRow(name, environments, tally.busy, tally.invoked, tally.failed, tally.throttled, tally.last)
