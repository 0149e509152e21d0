"""Where a letter goes back to. What it says of itself is believed only where somebody else says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.errors import NowhereToGo
from tarry.failed.queues import arn_of, is_dead_letter_queue_of
from tarry.support.arn import QueueArn, queue_arn
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.letter import Letter
    from tarry.failed.queues import DeadLetterQueue


class Routes(Value):
    """The ways back from one dead-letter queue. ``known`` are names of queues that are trusted too."""

    __slots__ = ("known", "queue", "to")
    queue: DeadLetterQueue
    to: QueueArn | None
    known: frozenset[str]

    def __init__(self, queue: DeadLetterQueue, to: str | None = None, known: Iterable[str] = ()) -> None:
        target = None if to is None else arn_of(to, queue.arn)
        if target == queue.arn:
            raise NowhereToGo(f"{queue.name} is the dead-letter queue itself: send its letters to another queue")
        self._freeze(queue=queue, to=target, known=frozenset(known))

    def target(self, letter: Letter) -> QueueArn:
        """The queue that the letter goes back to. Raises `NowhereToGo`."""
        if self.to is not None:
            return self.to
        if letter.origin is None:
            raise NowhereToGo(
                f"letter {letter.id} does not say where it came from (it has no record of tarry's): name a queue to "
                "send it to (--to QUEUE)"
            )
        origin, queue = queue_arn(letter.origin), self.queue
        if origin == queue.arn:
            pass
        elif queue.sources is not None and origin in queue.sources:
            return origin
        elif origin.name and origin.name in self.known:
            return queue.arn.sibling(origin.name)  # the one beside it, whatever account and region the letter names
        elif queue.sources is None and origin.name and is_dead_letter_queue_of(queue.arn, origin):
            return origin
        sources = ", ".join(source.name for source in queue.sources or ()) or "none that SQS tells of"
        raise NowhereToGo(
            f"letter {letter.id} says that it came from {letter.origin!r:.200}, which is no source of {queue.name} "
            f"(its sources: {sources}): name a queue to send it to (--to QUEUE)"
        )
