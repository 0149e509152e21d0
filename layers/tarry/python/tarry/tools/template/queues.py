"""The queues of a template, and their creation at an SQS."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tarry.support.values import queue_arn
from tarry.tools.template.model import (
    ACCOUNT,
    DEFAULT_VISIBILITY_SECONDS,
    Template,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
)

FIFO = {"FifoQueue": "true"}


def with_foreign_queues(template: Template) -> dict[str, TemplateQueue]:
    """Return the queues of the template by name, with default attributes for those it names only by ARN.

    Their visibility timeout is not known: see `unknown_visibility`.
    """
    named = [mapping.queue for mapping in template.mappings]
    named += [queue_arn(queue.dead_letter_arn).name for queue in template.queues.values() if queue.dead_letter_arn]
    arn = f"arn:aws:sqs:{template.region}:{ACCOUNT}:"
    foreign = {name: TemplateQueue(name, arn + name, attributes=_foreign(name, template)) for name in named}
    return foreign | dict(template.queues)


def _foreign(name: str, template: Template) -> dict[str, str]:
    visibility = unknown_visibility(name, template.mappings, template.functions)
    return visibility | (FIFO if name.endswith(".fifo") else {})


def unknown_visibility(
    queue: str, mappings: Iterable[TemplateMapping], functions: Mapping[str, TemplateFunction]
) -> dict[str, str]:
    """Return the visibility timeout of a queue for which it is not known; empty for SQS's default.

    It is at least as long as the longest timeout of its functions: AWS has accepted the mappings.
    """
    found = (functions.get(each.function) for each in mappings if each.queue == queue)
    longest = max((function.timeout_seconds for function in found if function is not None), default=0)
    return {"VisibilityTimeout": str(longest)} if longest > DEFAULT_VISIBILITY_SECONDS else {}


def dead_letter_cycles(queues: Mapping[str, TemplateQueue]) -> list[tuple[str, ...]]:
    """Return the cycles of dead-letter queues by name, each once, from the queue that comes first in the template."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for name, queue in queues.items():
        seen, target = [name], queue.dead_letter_arn
        while target is not None and (dead := queue_arn(target).name) not in seen:
            seen.append(dead)
            target = queues[dead].dead_letter_arn if dead in queues else None
        if target is not None and dead == name:
            found.setdefault(frozenset(seen), tuple(seen))
    return list(found.values())


def make_queues(sqs: Any, queues: Iterable[TemplateQueue]) -> dict[str, str]:
    """Create the queues, then set their redrive policies; return their URLs by name. Idempotent."""
    queues = list(queues)
    urls = {
        queue.name: sqs.create_queue(QueueName=queue.name, Attributes=dict(queue.attributes))["QueueUrl"]
        for queue in queues
    }
    for queue in queues:
        if queue.dead_letter_arn:
            target = queue_arn(queue.arn).sibling(queue_arn(queue.dead_letter_arn).name)
            policy = {"deadLetterTargetArn": str(target), "maxReceiveCount": queue.max_receive_count}
            sqs.set_queue_attributes(QueueUrl=urls[queue.name], Attributes={"RedrivePolicy": json.dumps(policy)})
    return urls
