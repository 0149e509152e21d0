"""Which attributes a receive asks for: SQS tells no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.simulator.sqs.message import StoredMessage

SYSTEM_ATTRIBUTES = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)


class RequestedAttributes:
    """What one ReceiveMessage asks for. Raises `SqsError` for a system attribute that there is not."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        # AttributeNames is the old name; both together ask for both.
        asked = [*(request.get("MessageSystemAttributeNames") or ()), *(request.get("AttributeNames") or ())]
        for name in asked:
            if name != "All" and name not in SYSTEM_ATTRIBUTES:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        self._system: Sequence[str] = SYSTEM_ATTRIBUTES if "All" in asked else asked
        self._user: Sequence[str] = request.get("MessageAttributeNames") or ()
        self._all_of_user = "All" in self._user or ".*" in self._user

    def system(self, message: StoredMessage) -> dict[str, str]:
        if not self._system:
            return {}
        told = message.system_attributes()
        return told if self._system is SYSTEM_ATTRIBUTES else {n: v for n, v in told.items() if n in self._system}

    def user(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        if self._all_of_user:
            return dict(attributes)
        return {name: value for name, value in attributes.items() if any(_is_asked(name, a) for a in self._user)}


def _is_asked(name: str, asked: str) -> bool:
    """Whether ``asked`` is the name, or its beginning followed by ``.*``."""
    return name.startswith(asked[:-2]) if asked.endswith(".*") else name == asked
