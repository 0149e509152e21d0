"""Dead letters: which queue a message goes to that has failed for good."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tarry.support.arn import QueueArn, named_queue

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.sqs.queue_facts import QueueFacts


DEAD_LETTER_QUEUE_VARIABLE = "TARRY_DEAD_LETTER_QUEUE_URL"


class NoDeadLetterQueue(Exception):
    """A message has nowhere to go: it stays in its queue and waits."""


def dead_letter_queue(delivery: Delivery, named: str | None, facts: QueueFacts) -> QueueArn:
    """Return the queue a dead letter goes to: the step's, else the environment's, else the redrive policy's.

    ``facts``: of the queue the message came from.

    Raises `NoDeadLetterQueue`, saying what to do, if there is none or it is one the message must not go to.
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
    """The dead-letter queue that the function's environment names, whatever the redrive policies say."""
    return os.environ.get(DEAD_LETTER_QUEUE_VARIABLE) or None
