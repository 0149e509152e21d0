"""Makes at an endpoint what the template names, and says where its functions find it."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tarry.arn import queue_arn
from tarry.local.errors import UsageError
from tarry.local.server import Endpoint
from tarry.template import Function, Intrinsics, Queue, Template
from tarry.template.intrinsics import references
from tarry.template.model import ACCOUNT

STACK_NAME = "tarry-local"
FIFO = {"FifoQueue": "true"}


def with_foreign_queues(template: Template) -> dict[str, Queue]:
    """The template's queues, and with SQS's defaults those that it names by ARN alone, by name."""
    named = [mapping.queue for mapping in template.mappings]
    named += [queue_arn(queue.dead_letter_arn).name for queue in template.queues.values() if queue.dead_letter_arn]
    arn = f"arn:aws:sqs:{template.region}:{ACCOUNT}:"
    foreign = {name: Queue(name, arn + name, attributes=FIFO if name.endswith(".fifo") else {}) for name in named}
    return foreign | dict(template.queues)


def make_queues(sqs: Any, queues: Iterable[Queue]) -> dict[str, str]:
    """Create the queues, all of them before any redrive policy that names one; doing it twice does nothing more.

    Returns:
        Their URLs by name.
    """
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


def make_environments(
    endpoint: Endpoint, template: Template, functions: Collection[Function], urls: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Make the tables, buckets and topics, and fill in each function's environment, by the function's name.

    The template's values become outputs of a stack that holds only those, so that the endpoint's CloudFormation says
    what a table is called.

    Raises:
        UsageError: a value refers to something that is not made here.
    """
    queues = {queue.logical_id: urls[queue.name] for queue in template.queues.values() if queue.logical_id}

    def fill(value: Any, where: str) -> Any:
        attributes = {f"{name}.QueueUrl": url for name, url in queues.items()}
        pending = frozenset(reference.name for reference in references(value))
        filled = Intrinsics(queues, attributes, pending=pending).resolve(value, where)
        for reference in references(filled):
            if reference.name not in template.backing:
                raise UsageError(f"{where}: {reference} cannot be resolved: tarry local makes no {reference.name}")
        return filled

    resources = {name: fill(resource, name) for name, resource in template.backing.items()}
    values = {
        (function.name, name): fill(value, f"{function.logical_id}.Environment.Variables.{name}")
        for function in functions
        for name, value in function.environment.items()
    }
    outputs = {key: value for key, value in values.items() if references(value)}
    made = _make_stack(endpoint, resources, list(outputs.values())) if resources else []
    values.update(zip(outputs, made, strict=True))
    return {
        function.name: {name: str(value) for (owner, name), value in values.items() if owner == function.name}
        for function in functions
    }


def _make_stack(endpoint: Endpoint, resources: Mapping[str, Any], values: list[Any]) -> list[str]:
    """The values, as CloudFormation resolves them once the resources are there."""
    cloudformation = endpoint.client("cloudformation")
    outputs = {f"Value{number}": {"Value": value} for number, value in enumerate(values)}
    body = json.dumps({"Resources": resources, "Outputs": outputs})
    try:
        cloudformation.create_stack(StackName=STACK_NAME, TemplateBody=body)
        stack = cloudformation.describe_stacks(StackName=STACK_NAME)["Stacks"][0]
    except (BotoCoreError, ClientError) as error:
        raise UsageError(f"moto cannot make one of {', '.join(resources)}: {error}") from error
    found = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    return [found[name] for name in outputs]
