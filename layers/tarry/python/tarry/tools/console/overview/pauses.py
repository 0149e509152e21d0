"""The consumers whose event source mapping is disabled, as `tarry pause` does it: Lambda gives them no messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.support.values import queue_arn

if TYPE_CHECKING:
    from collections.abc import Mapping

PAUSED_STATES = frozenset({"Disabled", "Disabling"})


def paused_functions(client: Any, account: str | None) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the paused functions by the name of their queue, in one request or a few.

    Args:
        client: A boto3 client of Lambda.
        account: The account id of the queues; None for any.

    Raises:
        botocore.exceptions.ClientError: Lambda refuses the request.
    """
    found: dict[str, tuple[str, ...]] = {}
    for page in client.get_paginator("list_event_source_mappings").paginate():
        for each in page["EventSourceMappings"]:
            queue = queue_arn(each.get("EventSourceArn"))
            if queue.name and each["State"] in PAUSED_STATES and account in (None, queue.account):
                function = str(each["FunctionArn"]).split(":", 6)[6]
                found[queue.name] = (*found.get(queue.name, ()), function)
    return found
