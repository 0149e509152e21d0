"""The queues of a template, and their creation at an SQS."""

import json
from collections.abc import Iterable
from typing import Any

from tarry.support.arn import queue_arn
from tarry.template.model import ACCOUNT, Template, TemplateQueue

FIFO = {"FifoQueue": "true"}


def with_foreign_queues(template: Template) -> dict[str, TemplateQueue]:
    """Return the queues of the template by name, with default attributes for those it names only by ARN."""
    named = [mapping.queue for mapping in template.mappings]
    named += [queue_arn(queue.dead_letter_arn).name for queue in template.queues.values() if queue.dead_letter_arn]
    arn = f"arn:aws:sqs:{template.region}:{ACCOUNT}:"
    foreign = {
        name: TemplateQueue(name, arn + name, attributes=FIFO if name.endswith(".fifo") else {}) for name in named
    }
    return foreign | dict(template.queues)


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
