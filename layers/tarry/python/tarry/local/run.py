"""One run: the records of an event, from their queue through their handlers until every one of them is settled."""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tarry.local.errors import UsageError
from tarry.local.function import LocalFunction
from tarry.local.letters import DeadLetters
from tarry.local.logs import listening
from tarry.local.plan import Note, Plan, Settings
from tarry.local.poller import PAUSE_SECONDS, Poller
from tarry.local.report import Report
from tarry.local.resources import Resources
from tarry.local.samples import Sample
from tarry.local.server import Endpoint, embedded_aws
from tarry.local.story import Board
from tarry.template import Queue
from tarry.template.queues import make_queues, with_foreign_queues

GIVE_UP_SECONDS = 300


def run(plan: Plan, settings: Settings, board: Board, note: Note) -> Report:
    """Run the plan to its end, in real time.

    Raises:
        UsageError: a resource cannot be made, a handler not imported, a message not sent.
    """
    if not plan.samples:
        return Report(expected=settings.expected)
    with embedded_aws(plan.template.region) as endpoint, listening(board.told, note, verbose=settings.verbose):
        stage = _Stage.set(plan, endpoint, board)
        began = time.monotonic()
        until = time.time() + (GIVE_UP_SECONDS if settings.give_up_seconds is None else settings.give_up_seconds)
        with _interruption() as interruption:
            try:
                stage.send(plan.samples, note)
                stage.play(until, interruption)
            except KeyboardInterrupt:
                pass
        stage.check()
        return Report(
            board.stories,
            stage.dead.letters,
            time.monotonic() - began,
            interruption.happened,
            expected=settings.expected,
        )


@dataclass
class _Interruption:
    happened: bool = False


@contextmanager
def _interruption() -> Iterator[_Interruption]:
    """Ctrl-C is remembered, since a consumer takes the exception for a failure of the message at hand."""
    interruption = _Interruption()

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        interruption.happened = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class _Stage:
    """Everything in its place: queues made, handlers imported."""

    sqs: Any
    queues: Mapping[str, Queue]
    urls: Mapping[str, str]
    pollers: list[Poller]
    dead: DeadLetters
    board: Board

    @classmethod
    def set(cls, plan: Plan, endpoint: Endpoint, board: Board) -> "_Stage":
        sqs = endpoint.client("sqs")
        queues = with_foreign_queues(plan.template)
        urls = make_queues(sqs, queues.values())
        functions = {mapping.function: plan.template.functions[mapping.function] for mapping in plan.mappings}
        resources = Resources(plan.template, urls)
        loaded = {name: LocalFunction(each, resources.environment(each)) for name, each in functions.items()}
        pollers = [
            Poller(endpoint, mapping, queues[mapping.queue], loaded[mapping.function], board)
            for mapping in plan.mappings
        ]
        consumed = {mapping.queue for mapping in plan.template.mappings}
        dead = DeadLetters(sqs, {name: url for name, url in urls.items() if name not in consumed})
        return cls(sqs, queues, urls, pollers, dead, board)

    def send(self, samples: Iterable[Sample], note: Note) -> None:
        """Put the records in their queues, in the order of the event."""
        for sample in samples:
            try:
                request = sample.request(self.queues[sample.queue], self.urls[sample.queue])
                message_id = self.sqs.send_message(**request)["MessageId"]
            except (BotoCoreError, ClientError) as error:
                raise UsageError(f"SQS refuses record {sample.number}: {error}") from error
            if self.board.find(message_id):
                note(f"SQS swallows record {sample.number}: its deduplication id was sent before.")
            self.board.sent(message_id, sample.queue, sample.number)

    def play(self, until: float, interruption: _Interruption) -> None:
        """Deliver until all is settled, or nothing more can happen until then."""
        while not (self.board.is_settled or interruption.happened):
            if time.time() > until or self.board.is_hopeless(until):
                return
            delivered = [poller.poll() for poller in self.pollers]
            self.dead.collect(self.board)
            if not any(delivered):
                time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        """Find every message where it is said to be: the dead as letters, those not settled in their queue."""
        self.dead.collect(self.board)
        self.dead.check(self.board)
        unsettled = [story for story in self.board.stories if not (story.is_settled or story.lost)]
        for queue in {story.queue for story in unsettled}:
            waiting = [story for story in unsettled if story.queue == queue]
            missing = max(0, len(waiting) - self._count(queue))
            for story in sorted(waiting, key=lambda each: each.due or 0)[:missing]:
                self.board.lost(story, "no longer in its queue, and in no other")

    def _count(self, queue: str) -> int:
        names = ["", "NotVisible", "Delayed"]
        attributes = [f"ApproximateNumberOfMessages{name}" for name in names]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[queue], AttributeNames=attributes)["Attributes"]
        return sum(int(answer[name]) for name in attributes)
