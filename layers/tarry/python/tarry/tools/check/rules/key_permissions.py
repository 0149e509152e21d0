"""Permissions on the KMS key of a queue that the role of its function lacks."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding

NO_KEY_PERMISSION = "E9023"


def key_permissions(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Find a function whose role allows no use of the key that encrypts its queue."""
    function = mapping.function
    if queue.key is None or function is None or function.permissions is None:
        return
    if function.permissions.allow_somewhere("kms:Decrypt"):
        return
    text = (
        f"{function.name} lacks kms:Decrypt for {queue.key}, the key of {queue.title}: Lambda cannot receive its "
        "messages. Add to its permissions, the second action for dead letters:"
    )
    statement = "{Effect: Allow, Action: [kms:Decrypt, kms:GenerateDataKey], Resource: "
    yield Finding(NO_KEY_PERMISSION, (function.name,), text, f"{statement}!GetAtt {queue.key}.Arn}}", at=function.at)
