"""The queue a message came from, as its ARN says it."""

from __future__ import annotations

from functools import lru_cache

from tarry.support.value import Value


class QueueArn(Value):
    """An SQS queue's ARN, taken apart. A missing or odd ARN gives a queue without a name, of which nothing is asked."""

    text: str

    def _part(self, index: int) -> str:
        parts = self.text.split(":")
        return parts[index] if len(parts) == 6 and parts[2] == "sqs" else ""

    @property
    def account(self) -> str:
        return self._part(4)

    @property
    def name(self) -> str:
        return self._part(5)

    @property
    def is_fifo(self) -> bool:
        """Only the name says it: since 2025 messages of standard queues may carry a group id too."""
        return self.text.endswith(".fifo")

    def sibling(self, name: str, account: str | None = None) -> QueueArn:
        """The queue of another name beside this one: same partition and region, and account unless given."""
        parts = self.text.split(":")
        if not self.name:  # a name alone has no account to be in, a URL has
            return QueueArn(f"arn:aws:sqs::{account}:{name}" if account else "")
        return QueueArn(":".join([*parts[:4], account or parts[4], name]))

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=256)
def _made_once(text: str) -> QueueArn:
    return QueueArn(text)


def queue_arn(text: object) -> QueueArn:
    """The `QueueArn` of what an event has for one, which may be anything."""
    return _made_once(text if isinstance(text, str) else "")


def named_queue(name: str, beside: QueueArn) -> QueueArn:
    """The ARN of a queue given as ARN, URL or name, where a name is one beside the queue ``beside``."""
    if name.startswith("arn:"):
        return queue_arn(name)
    if "/" not in name:
        return beside.sibling(name)
    from urllib.parse import urlsplit

    parts = urlsplit(name).path.strip("/").split("/")
    return beside.sibling(parts[-1], account=parts[-2] if len(parts) > 1 else None)
