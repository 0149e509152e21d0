"""The redrive policy and the redrive allow policy of a queue, and the JSON that policies are written in."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tarry.support.values import queue_arn
from tarry.tools.simulator.sqs.errors import invalid

MAX_RECEIVES = 1000
MAX_SOURCES = 10


@dataclass(frozen=True)
class RedrivePolicy:
    """The redrive policy: after ``max_receive_count`` receives the next one moves the message to ``target``."""

    text: str
    target: str
    """The ARN of the dead-letter queue."""
    max_receive_count: int

    @classmethod
    def read(cls, text: str | None) -> RedrivePolicy | None:
        """Parse the attribute; None if it is not set. Raises `SqsError` if it is invalid."""
        if not text:
            return None
        policy = _object(text, "RedrivePolicy")
        for name in ("maxReceiveCount", "deadLetterTargetArn"):
            if policy.get(name) in (None, ""):
                raise invalid(text, "RedrivePolicy", f"Redrive policy does not contain mandatory attribute: {name}.")
        target, count = str(policy["deadLetterTargetArn"]), _whole_number(policy["maxReceiveCount"])
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
    """The redrive allow policy: the queues that may have this one as their dead-letter queue."""

    sources: tuple[str, ...] | None
    """The ARNs of these queues; None for all queues."""

    @classmethod
    def read(cls, text: str | None) -> RedriveAllowPolicy:
        """Parse the attribute; all queues are allowed if it is not set. Raises `SqsError` if it is invalid."""
        if not text:
            return cls(None)
        policy = _object(text, "RedriveAllowPolicy")
        permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
        if permission not in ("allowAll", "denyAll", "byQueue"):
            raise invalid(text, "RedriveAllowPolicy", "Invalid value for redrivePermission.")
        if permission != "byQueue":
            if sources is not None:
                reason = "sourceQueueArns may be given only if redrivePermission is byQueue."
                raise invalid(text, "RedriveAllowPolicy", reason)
            return cls(None if permission == "allowAll" else ())
        if not isinstance(sources, list) or not 1 <= len(sources) <= MAX_SOURCES:
            raise invalid(text, "RedriveAllowPolicy", f"sourceQueueArns must name 1 to {MAX_SOURCES} queues.")
        return cls(tuple(map(str, sources)))

    def allows(self, source: str) -> bool:
        return self.sources is None or source in self.sources


def _object(text: str, parameter: str) -> dict[str, object]:
    policy = json_map(text)
    if policy is None:
        raise invalid(text, parameter, f"{parameter} is not a valid JSON map.")
    return policy


def json_map(text: str) -> dict[str, object] | None:
    """Parse a JSON map; None for any other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _whole_number(value: object) -> int | None:
    """Return a whole number, or a text with one, as int; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value.lstrip("0")[:10] or 0)  # more digits are out of every range, and int() refuses thousands
    return value if isinstance(value, int) and not isinstance(value, bool) else None
