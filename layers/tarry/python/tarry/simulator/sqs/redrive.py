"""Which dead-letter queue a queue has, and which queues may use it as theirs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tarry.simulator.sqs.errors import invalid
from tarry.support.arn import queue_arn

MAX_RECEIVES = 1000
MAX_SOURCES = 10


@dataclass(frozen=True)
class RedrivePolicy:
    """To which queue a message goes at the receive after ``max_receive_count`` ones."""

    text: str
    target: str
    """The ARN of the dead-letter queue."""
    max_receive_count: int

    @classmethod
    def read(cls, text: str | None) -> RedrivePolicy | None:
        """The policy; None if there is none. Raises `SqsError` if it is wrong."""
        if not text:
            return None
        policy = _object(text, "RedrivePolicy")
        for name in ("deadLetterTargetArn", "maxReceiveCount"):
            if policy.get(name) in (None, ""):
                raise invalid(text, "RedrivePolicy", f"Redrive policy does not contain mandatory attribute: {name}.")
        target, count = str(policy["deadLetterTargetArn"]), _whole(policy["maxReceiveCount"])
        if not queue_arn(target).name:
            raise invalid(text, "RedrivePolicy", "Invalid value for deadLetterTargetArn.")
        if count is None or not 1 <= count <= MAX_RECEIVES:
            reason = f"valid values are from 1 to {MAX_RECEIVES} both inclusive."
            raise invalid(
                text, "RedrivePolicy", f"Invalid value for maxReceiveCount: {policy['maxReceiveCount']}, {reason}"
            )
        return cls(text, target, count)


@dataclass(frozen=True)
class RedriveAllowPolicy:
    """Which queues may name this one as their dead-letter queue; ``sources`` None allows all."""

    sources: tuple[str, ...] | None

    @classmethod
    def read(cls, text: str | None) -> RedriveAllowPolicy:
        """The policy; where there is none, all are allowed. Raises `SqsError` if it is wrong."""
        if not text:
            return cls(None)
        policy = _object(text, "RedriveAllowPolicy")
        permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
        if permission not in ("allowAll", "denyAll", "byQueue"):
            raise invalid(text, "RedriveAllowPolicy", "Invalid value for redrivePermission.")
        if permission != "byQueue":
            return cls(None if permission == "allowAll" else ())
        if not isinstance(sources, list) or not 1 <= len(sources) <= MAX_SOURCES:
            raise invalid(text, "RedriveAllowPolicy", f"sourceQueueArns must name 1 to {MAX_SOURCES} queues.")
        return cls(tuple(map(str, sources)))

    def allows(self, source: str) -> bool:
        return self.sources is None or source in self.sources


def _object(text: str, parameter: str) -> dict[str, object]:
    try:
        policy = json.loads(text)
    except ValueError:
        policy = None
    if not isinstance(policy, dict):
        raise invalid(text, parameter, f"{parameter} is not a valid JSON map.")
    return policy


def _whole(value: object) -> int | None:
    """SQS takes the count as a number and as text."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None
