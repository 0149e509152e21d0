"""The dead-letter queue of a message."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tarry.sqs.refusals import is_late
from tarry.support.arn import QueueArn, named_queue

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.sqs.queue_facts import QueueFacts


DEAD_LETTER_QUEUE_VARIABLE = "TARRY_DEAD_LETTER_QUEUE_URL"


class NoDeadLetterQueue(Exception):
    """There is no usable dead-letter queue: the message stays in its queue and waits."""

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late
        """Whether only the time to look it up was lacking."""


def dead_letter_queue(delivery: Delivery, named: str | None, facts: QueueFacts) -> QueueArn:
    """Return the dead-letter queue that the failure step names, else the environment, else the redrive policy.

    ``facts``: the facts of the source queue.

    Raises:
        NoDeadLetterQueue: There is none, or it is the message's own queue or the one that it was redriven from.
    """
    source = delivery.source
    named = named or dead_letter_override()
    if named:
        target = named_queue(named, source)
        if not target.name:
            raise NoDeadLetterQueue(f"{named!r} is not an SQS queue: give the dead-letter queue as name, URL or ARN")
    else:
        if facts.error is not None:
            name = source.name or "a queue without a name"
            if is_late(facts.error):
                text = f"there was no time to read the redrive policy of {name} ({facts.error}): give the function a "
                raise NoDeadLetterQueue(f"{text}longer Timeout or more memory", is_late=True)
            raise NoDeadLetterQueue(
                f"the redrive policy of {name} cannot be read ({facts.error}): grant sqs:GetQueueAttributes, or set "
                "TARRY_DEAD_LETTER_QUEUE_URL"
            )
        target = facts.dead_letter or QueueArn("")
    if not target.name:
        raise NoDeadLetterQueue(
            f"{source.name or 'its queue'} has no dead-letter queue: add a RedrivePolicy to it in the template"
        )
    envelope = delivery.envelope
    came_from = envelope.origin if envelope is not None and envelope.is_dead_letter else None
    if target.text in (source.text, came_from):
        whose = "the queue it is in" if target == source else "the queue it was dead-lettered from before"
        raise NoDeadLetterQueue(f"its dead-letter queue {target.name} is {whose}: name another one")
    return target


def dead_letter_override() -> str | None:
    """Return the dead-letter queue from the function's environment, which overrides all redrive policies."""
    return os.environ.get(DEAD_LETTER_QUEUE_VARIABLE) or None
