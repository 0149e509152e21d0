"""Permissions of a role that its function certainly does not use, and that can lose messages."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding, listed

WIDE_PERMISSIONS = "W9022"
DESTRUCTIVE = {
    "sqs:PurgeQueue": "purge_queue",
    "sqs:DeleteQueue": "delete_queue",
    "sqs:SetQueueAttributes": "set_queue_attributes",
}
"""The actions that lose messages, and the methods of boto3 that need them."""


def wide_permissions(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Find destructive actions that a role allows on a queue, and that the code of the function does not call."""
    function = mapping.function
    if function is None or function.permissions is None or function.calls is None:
        return
    allowed = [
        action
        for action, method in DESTRUCTIVE.items()
        if method not in function.calls and function.permissions.certainly_allow(action, queue.name)
    ]
    if allowed:
        text = (
            f"The role of {function.name} allows {listed(allowed)} on {queue.title}, which its code does not call. "
            "Instead of all actions, allow those that a consumer needs:"
        )
        snippet = "[sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility, sqs:GetQueueAttributes]"
        yield Finding(WIDE_PERMISSIONS, (function.name,), text, f"Action: {snippet}", at=function.at)
