"""Queue ARNs, and the queues that a name, URL or ARN stands for."""

from __future__ import annotations

from functools import cached_property, lru_cache

from tarry.support.value import Value


class QueueArn(Value):
    """The ARN of an SQS queue and its parts. A missing or invalid ARN has no name; tarry makes no request about it."""

    text: str

    @cached_property
    def account(self) -> str:
        return _account_and_name(self.text)[0]

    @cached_property
    def name(self) -> str:
        return _account_and_name(self.text)[1]

    @cached_property
    def is_fifo(self) -> bool:
        """Whether the queue is FIFO, from its name: since 2025, messages of standard queues can have a group id."""
        return self.text.endswith(".fifo")

    def sibling(self, name: str, account: str | None = None) -> QueueArn:
        """Return the queue ``name`` in the same partition and region, by default in the same account."""
        parts = self.text.split(":")
        if not self.name:  # the source is unknown: only a URL has an account
            return QueueArn(f"arn:aws:sqs::{account}:{name}" if account else "")
        return QueueArn(":".join([*parts[:4], account or parts[4], name]))

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=256)
def _account_and_name(text: str) -> tuple[str, str]:
    parts = text.split(":")
    return (parts[4], parts[5]) if len(parts) == 6 and parts[2] == "sqs" else ("", "")


@lru_cache(maxsize=256)
def _made_once(text: str) -> QueueArn:
    return QueueArn(text)


def queue_arn(text: object) -> QueueArn:
    """Return the `QueueArn` for the ``eventSourceARN`` of an event, which may be of any type."""
    return _made_once(text if isinstance(text, str) else "")


def named_queue(name: str, beside: QueueArn) -> QueueArn:
    """Return the ARN of a queue given as ARN, URL or name; a name is taken to be in the account of ``beside``."""
    if name.startswith("arn:"):
        return queue_arn(name)
    if "/" not in name:
        return beside.sibling(name)
    from urllib.parse import urlsplit

    parts = urlsplit(name).path.strip("/").split("/")
    return beside.sibling(parts[-1], account=parts[-2] if len(parts) > 1 else None)
