"""The attributes of a queue, validated as SQS does: times, limits, kinds of encryption and deduplication."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tarry.support.values import queue_arn
from tarry.tools.simulator.sqs.errors import SqsError, invalid

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
    def read(cls, text: str | None) -> "RedrivePolicy | None":
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


def allowed_sources(text: str | None) -> tuple[str, ...] | None:
    """Return the ARNs that a redrive allow policy names; None for all queues, also if the attribute is not set.

    Raises `SqsError` if it is invalid.
    """
    if not text:
        return None
    policy = _object(text, "RedriveAllowPolicy")
    permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise invalid(text, "RedriveAllowPolicy", "Invalid value for redrivePermission.")
    if permission != "byQueue":
        if sources is not None:
            reason = "sourceQueueArns may be given only if redrivePermission is byQueue."
            raise invalid(text, "RedriveAllowPolicy", reason)
        return None if permission == "allowAll" else ()
    if not isinstance(sources, list) or not 1 <= len(sources) <= MAX_SOURCES:
        raise invalid(text, "RedriveAllowPolicy", f"sourceQueueArns must name 1 to {MAX_SOURCES} queues.")
    return tuple(map(str, sources))


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


_BOOLEANS = ("true", "false")
_ATTRIBUTES: dict[str, tuple[str | None, range | tuple[str, ...] | None]] = {
    "DelaySeconds": ("0", range(901)),
    "MaximumMessageSize": ("1048576", range(1_024, 1_048_577)),
    "MessageRetentionPeriod": ("345600", range(60, 1_209_601)),
    "ReceiveMessageWaitTimeSeconds": ("0", range(21)),
    "SqsManagedSseEnabled": ("true", _BOOLEANS),
    "VisibilityTimeout": ("30", range(43_201)),
    "KmsDataKeyReusePeriodSeconds": (None, range(60, 86_401)),
    **dict.fromkeys(("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId"), (None, None)),
    "FifoQueue": ("true", _BOOLEANS),
    "ContentBasedDeduplication": ("false", _BOOLEANS),
    "DeduplicationScope": ("queue", ("queue", "messageGroup")),
    "FifoThroughputLimit": ("perQueue", ("perQueue", "perMessageGroupId")),
}
"""The default and the values of each attribute that can be set; None for no default, and for any text."""
_ANY_CASE = ("FifoQueue", "ContentBasedDeduplication")
_FIFO_THROUGHPUT = ("DeduplicationScope", "FifoThroughputLimit")
_FIFO_ONLY = (*_ANY_CASE, *_FIFO_THROUGHPUT)
_NOT_SHOWN = {"KmsDataKeyReusePeriodSeconds": "300"}
"""The default value of an attribute that GetQueueAttributes shows only with another value."""


class QueueSettings:
    """The settings of a queue: ``texts`` as SQS stores them, the other attributes parsed, with times in seconds."""

    def __init__(self, given: Mapping[str, str], *, fifo: bool) -> None:
        self.fifo = fifo
        self.texts = {
            name: text for name, (text, _) in _ATTRIBUTES.items() if text and (fifo or name not in _FIFO_ONLY)
        }
        self._apply(given)

    def changed(self, given: Mapping[str, str]) -> "QueueSettings":
        """Return a copy with attributes replaced. Raises `SqsError`, as the constructor does, for an invalid one."""
        if "FifoQueue" in given and (not self.fifo or given["FifoQueue"].lower() != "true"):
            if not self.fifo:
                raise unknown_attribute("FifoQueue")
            text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
            raise SqsError("InvalidAttributeValue", text)
        settings = QueueSettings({}, fifo=self.fifo)
        settings.texts = dict(self.texts)
        settings._apply(given)
        return settings

    def difference(self, given: Mapping[str, str]) -> str | None:
        """Return the name of the first attribute whose value differs from the given one; None if all agree."""
        wanted = QueueSettings(given, fifo=self.fifo).texts
        return next((name for name in given if self.texts.get(name) != wanted.get(name)), None)

    def _apply(self, given: Mapping[str, str]) -> None:
        for name, text in given.items():
            value = text.lower() if name in _ANY_CASE else text
            _check(name, value, fifo=self.fifo)
            if (not value and _ATTRIBUTES[name][1] is None) or value == _NOT_SHOWN.get(name):
                self.texts.pop(name, None)
            else:
                self.texts[name] = value
        self._choose_encryption(given)
        self._check_throughput()
        self._parse()

    def _choose_encryption(self, given: Mapping[str, str]) -> None:
        """Keep one of the two kinds of encryption: a key of KMS turns that of SQS off, and its removal on again."""
        if "KmsMasterKeyId" not in given:
            return
        if given["KmsMasterKeyId"] and given.get("SqsManagedSseEnabled") == "true":
            text = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or "
            raise SqsError("InvalidAttributeName", f"{text}SQS SSE.")
        if "SqsManagedSseEnabled" not in given:
            self.texts["SqsManagedSseEnabled"] = "false" if given["KmsMasterKeyId"] else "true"

    def _check_throughput(self) -> None:
        limit, scope = self.texts.get("FifoThroughputLimit"), self.texts.get("DeduplicationScope")
        if limit == "perMessageGroupId" and scope != "messageGroup":
            text = "The value perMessageGroupId is allowed only when the value for DeduplicationScope is messageGroup."
            raise SqsError(
                "InvalidAttributeValue", f"Invalid value for the parameter FifoThroughputLimit. Reason: {text}"
            )

    def _parse(self) -> None:
        texts = self.texts
        self.delay = int(texts["DelaySeconds"])
        self.maximum_bytes = int(texts["MaximumMessageSize"])
        self.retention = int(texts["MessageRetentionPeriod"])
        self.wait = int(texts["ReceiveMessageWaitTimeSeconds"])
        self.visibility = int(texts["VisibilityTimeout"])
        self.content_based_deduplication = texts.get("ContentBasedDeduplication") == "true"
        self.deduplicates_by_group = texts.get("DeduplicationScope") == "messageGroup"
        self.redrive = RedrivePolicy.read(texts.get("RedrivePolicy"))
        self.allowed_sources = allowed_sources(texts.get("RedriveAllowPolicy"))


def unknown_attribute(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")


def _check(name: str, value: str, *, fifo: bool) -> None:
    if name in _FIFO_ONLY and not fifo:
        if name in _FIFO_THROUGHPUT:
            text = f"You can specify the {name} only when FifoQueue is set to true."
            raise SqsError("InvalidAttributeName", text)
        raise unknown_attribute(name)
    if name not in _ATTRIBUTES:
        raise unknown_attribute(name)
    allowed = _ATTRIBUTES[name][1]
    if isinstance(allowed, range):
        digits = value.lstrip("0")[:8]  # Python does not read numbers of thousands of digits
        is_valid = value.isascii() and value.isdigit() and int(digits or 0) in allowed
    elif allowed is not None:
        is_valid = value in allowed
    else:
        is_valid = name != "Policy" or not value or json_map(value) is not None
    if not is_valid:
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
