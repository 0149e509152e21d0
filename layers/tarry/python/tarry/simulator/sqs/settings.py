"""The attributes of a queue that its owner sets.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.simulator.sqs.errors import SqsError
from tarry.simulator.sqs.redrive import RedriveAllowPolicy, RedrivePolicy

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
_WORDS = {
    "SqsManagedSseEnabled": ("true", "false"),
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_TEXTS = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")
_OF_FIFO = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")

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


class QueueSettings:
    """A queue's settings: as the texts SQS keeps, and as what they mean. Times are seconds."""

    def __init__(self, given: Mapping[str, str], *, fifo: bool) -> None:
        self.fifo = fifo
        self.texts = {**_DEFAULTS, **(_FIFO_DEFAULTS if fifo else {})}
        self._take(given)

    def changed(self, given: Mapping[str, str]) -> QueueSettings:
        """These settings with others in their place. Raises `SqsError`, as the constructor does, for a wrong one."""
        if "FifoQueue" in given and (not self.fifo or given["FifoQueue"] != "true"):
            if not self.fifo:
                raise unknown_attribute("FifoQueue")
            text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
            raise SqsError("InvalidAttributeValue", text)
        settings = QueueSettings({}, fifo=self.fifo)
        settings.texts = dict(self.texts)
        settings._take(given)
        return settings

    def difference(self, given: Mapping[str, str]) -> str | None:
        """The first attribute that has another value here than what is given."""
        wanted = QueueSettings(given, fifo=self.fifo).texts
        return next((name for name in given if self.texts.get(name) != wanted.get(name)), None)

    def _take(self, given: Mapping[str, str]) -> None:
        for name, value in given.items():
            _check(name, value, fifo=self.fifo)
            if name in _TEXTS and not value:
                self.texts.pop(name, None)
            else:
                self.texts[name] = value
        self._understand()

    def _understand(self) -> None:
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
    if name in _OF_FIFO and not fifo:
        raise unknown_attribute(name)
    if name in _RANGES:
        least, most = _RANGES[name]
        is_right = value.isascii() and value.isdigit() and least <= int(value) <= most
    elif name in _WORDS:
        is_right = value in _WORDS[name]
    elif name in _TEXTS:
        is_right = True
    else:
        raise unknown_attribute(name)
    if not is_right:
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
