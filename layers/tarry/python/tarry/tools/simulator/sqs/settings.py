"""The attributes of a queue, validated as SQS does: times, limits, kinds of encryption and deduplication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.simulator.sqs.errors import SqsError
from tarry.tools.simulator.sqs.policies import RedriveAllowPolicy, RedrivePolicy, json_map

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_CHOICES = {
    "SqsManagedSseEnabled": ("true", "false"),
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_ANY_CASE = ("FifoQueue", "ContentBasedDeduplication")
_TEXTS = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")
_FIFO_THROUGHPUT = ("DeduplicationScope", "FifoThroughputLimit")
_FIFO_ONLY = ("FifoQueue", "ContentBasedDeduplication", *_FIFO_THROUGHPUT)

_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}
_FIFO_DEFAULTS = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_NOT_SHOWN = {"KmsDataKeyReusePeriodSeconds": "300"}
"""The default value of an attribute that GetQueueAttributes shows only with another value."""


class QueueSettings:
    """The settings of a queue: ``texts`` as SQS stores them, the other attributes parsed, with times in seconds."""

    def __init__(self, given: Mapping[str, str], *, fifo: bool) -> None:
        self.fifo = fifo
        self.texts = {**_DEFAULTS, **(_FIFO_DEFAULTS if fifo else {})}
        self._apply(given)

    def changed(self, given: Mapping[str, str]) -> QueueSettings:
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
            if (name in _TEXTS and not value) or value == _NOT_SHOWN.get(name):
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
        self.redrive_allow = RedriveAllowPolicy.read(texts.get("RedriveAllowPolicy"))


def unknown_attribute(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")


def _check(name: str, value: str, *, fifo: bool) -> None:
    if name in _FIFO_ONLY and not fifo:
        if name in _FIFO_THROUGHPUT:
            text = f"You can specify the {name} only when FifoQueue is set to true."
            raise SqsError("InvalidAttributeName", text)
        raise unknown_attribute(name)
    if name in _RANGES:
        minimum, maximum = _RANGES[name]
        digits = value.lstrip("0")[:8]  # Python does not read numbers of thousands of digits
        is_valid = value.isascii() and value.isdigit() and minimum <= int(digits or 0) <= maximum
    elif name in _CHOICES:
        is_valid = value in _CHOICES[name]
    elif name in _TEXTS:
        is_valid = name != "Policy" or not value or json_map(value) is not None
    else:
        raise unknown_attribute(name)
    if not is_valid:
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
