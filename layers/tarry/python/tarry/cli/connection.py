"""The connection of a command to the SQS that its options select."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.cli.errors import libraries, refuse
from tarry.tooling.errors import UsageError
from tarry.tooling.logical_ids import DEFAULT_TEMPLATE, names_resource, stack_queues
from tarry.tooling.queues import existing_queues, queue_name

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def sqs_at(command: str, endpoint_url: str | None, *, aws: bool, queue: str = "") -> Iterator[Any]:
    """Yield a boto3 client for the SQS that the options select; ``queue`` is the queue that the user named.

    An error within the context becomes one line on stderr, with exit code 2 for wrong input, 1 for an error of SQS.
    """
    with libraries(command, "local"):
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.exceptions import ConnectionError as NotConnected

        from tarry.local.aws.client import endpoint_of, sqs_client
        from tarry.local.instances import instance_here
        from tarry.sqs.refusals import error_code, is_no_queue
    from tarry.errors import SendError

    if aws and endpoint_url:
        refuse("--aws and --endpoint-url cannot be combined: give one of them")
    client: Any = None
    try:
        client = sqs_client(endpoint_of(endpoint_url, os.environ, aws=aws, running=instance_here))
        yield client
    except NotConnected as error:
        refuse(
            f"no SQS answers at {place(client)}: start tarry local, or give its address (--endpoint-url URL) if it "
            f"runs another template on another port, or --aws ({error})",
            1,
        )
    except ClientError as error:
        if is_no_queue(error_code(error)):
            existing = _queues(client, queue)
            refuse(f"queue {queue!r} does not exist at {place(client)}{existing}")
        refuse(f"SQS at {place(client)}: {error}", 1)
    except (BotoCoreError, SendError) as error:
        refuse(str(error), 1)
    except (UsageError, ValueError, TypeError) as error:
        refuse(str(error))


def queue_at(client: Any, queue: str, stack: str | None) -> str:
    """Return a queue as its SQS knows it: a logical id, of a stack or of the template here, becomes a name.

    Raises:
        UsageError: the stack has no such queue.
    """
    if stack is not None:
        queues = queues_of_stack(client, stack)
        found = queue_name(queues.get(queue, queue))
        if found not in map(queue_name, queues.values()):
            raise UsageError(f"stack {stack} has no queue {queue!r}{existing_queues(queue, sorted(queues))}")
        return found
    if place_is_aws(client) or not names_resource(DEFAULT_TEMPLATE, queue):
        return queue
    from tarry.template import TemplateError, read_template

    try:
        template = read_template(DEFAULT_TEMPLATE, lenient=True)
    except TemplateError:
        return queue
    return next((each.name for each in template.queues.values() if each.logical_id == queue), queue)


def queues_of_stack(client: Any, stack: str) -> dict[str, str]:
    """Return the URLs of the queues of a deployed stack, by logical id.

    Raises:
        UsageError: the SQS is that of `tarry local`.
    """
    from tarry.local.aws.client import client_at, endpoint_of
    from tarry.local.instances import instance_here

    if place(client) in (endpoint_of(None, {}), endpoint_of(None, {}, running=instance_here)):
        raise UsageError(f"tarry local has no stacks: add --aws for the stack {stack} on AWS")
    return stack_queues(client_at(None if place_is_aws(client) else place(client), "cloudformation"), stack)


def place_is_aws(client: Any) -> bool:
    """Whether a client is for AWS."""
    from tarry.local.aws.client import is_aws

    return is_aws(place(client))


def place(client: Any) -> str:
    """Return the endpoint URL of a client."""
    url: str = client.meta.endpoint_url
    return url


def _queues(client: Any, wanted: str) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        urls = client.list_queues(MaxResults=20).get("QueueUrls") or []
    except (BotoCoreError, ClientError):
        return "; its queues cannot be listed"
    return existing_queues(wanted, sorted(map(queue_name, urls))) or "; it has no queues"
