"""The connection of a command to the SQS that its options select."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.cli.errors import libraries, refuse
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
        from tarry.tooling.errors import UsageError
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
