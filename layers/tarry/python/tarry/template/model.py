"""What a template says, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tarry.support.arn import queue_arn

ACCOUNT = "123456789012"
"""The account a template is read for: no real one, and moto's own."""

DEFAULT_VISIBILITY_SECONDS = 30
DEFAULT_TIMEOUT_SECONDS = 3
DEFAULT_MEMORY_MB = 128
DEFAULT_BATCH_SIZE = 10
DEFAULT_MAX_RECEIVE_COUNT = 10


class TemplateError(Exception):
    """The template cannot be read, or does not say what is needed: one line that says where and what."""


@dataclass(frozen=True)
class TemplateQueue:
    """An SQS queue. ``attributes`` is what ``CreateQueue`` takes but for the redrive policy, which stands apart.

    ``max_receive_count`` means nothing without a ``dead_letter_arn``.
    """

    name: str
    arn: str
    logical_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    dead_letter_arn: str | None = None
    max_receive_count: int = DEFAULT_MAX_RECEIVE_COUNT

    @property
    def is_fifo(self) -> bool:
        return queue_arn(self.arn).is_fifo

    @property
    def deduplicates_by_content(self) -> bool:
        return self.attributes.get("ContentBasedDeduplication") == "true"

    @property
    def visibility_timeout_seconds(self) -> int:
        return int(self.attributes.get("VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS))


@dataclass(frozen=True)
class TemplateFunction:
    """A Lambda function. ``environment`` may still hold intrinsics that only an endpoint can answer (a table's name).

    ``code`` is the directory of its ``CodeUri``, None where the code is not on this machine.
    """

    logical_id: str
    name: str
    arn: str
    code: Path | None
    handler: str | None
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    memory_mb: int = DEFAULT_MEMORY_MB
    reserved_concurrency: int | None = None
    recursive_loop: Literal["Allow", "Terminate"] = "Terminate"
    """Whether Lambda stops it when it keeps sending to a queue that feeds it."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Of its environment what nobody can answer, by name, with the reason: to run it, these must be given a value."""
    layers: tuple[Path, ...] = ()
    """The directories of those of its layers that are on this machine. What a later one holds goes before the rest."""


@dataclass(frozen=True)
class TemplateMapping:
    """What feeds a function from a queue."""

    logical_id: str
    queue_arn: str
    function: str
    """The function's name."""
    batch_size: int = DEFAULT_BATCH_SIZE
    window_seconds: int = 0
    reports_failures: bool = False
    """Whether ``ReportBatchItemFailures`` is set; without it Lambda deletes what the function reports as failed."""
    maximum_concurrency: int | None = None
    filters: tuple[str, ...] = ()
    """The patterns of its ``FilterCriteria``, as JSON; Lambda deletes what matches none of them."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return queue_arn(self.queue_arn).name


@dataclass(frozen=True)
class Template:
    """A template read for one region, all in the account `ACCOUNT`. Queues and functions are by name."""

    path: Path
    region: str
    queues: Mapping[str, TemplateQueue]
    functions: Mapping[str, TemplateFunction]
    mappings: tuple[TemplateMapping, ...]
    backing: Mapping[str, Mapping[str, Any]]
    """The tables, buckets, topics and keys, by logical id, as CloudFormation takes them."""
