"""The settings of an event source mapping, with the limits that Lambda enforces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarry.tools.simulator.errors import InvalidParameterValue
from tarry.tools.simulator.filters import Filters

MAX_BATCH = 10_000
MAX_FIFO_BATCH = 10
MAX_UNWINDOWED_BATCH = 10
MAX_WINDOW_SECONDS = 300
MIN_CONCURRENCY, MAX_CONCURRENCY = 2, 1_000


@dataclass(frozen=True)
class MappingSettings:
    """The settings of an event source mapping, as in a template.

    Raises:
        InvalidParameterValue: Lambda would refuse the mapping.
    """

    queue_arn: str
    function: str
    batch_size: int = 10
    window_seconds: float = 0
    reports_failures: bool = False
    """``ReportBatchItemFailures``; without it any response means that the whole batch succeeded."""
    maximum_concurrency: int | None = None
    qualifier: str = ""
    """The alias or version of the function."""
    filters: Sequence[str | Mapping[str, Any]] = ()
    queue_visibility_seconds: float = 30
    """The queue's ``VisibilityTimeout``."""
    function_timeout_seconds: float = 3

    def __post_init__(self) -> None:
        max_batch_size = MAX_FIFO_BATCH if self.is_fifo else MAX_BATCH
        if not 1 <= self.batch_size <= max_batch_size:
            raise InvalidParameterValue(f"batch size must be between 1 and {max_batch_size}, got {self.batch_size}")
        if not 0 <= self.window_seconds <= MAX_WINDOW_SECONDS:
            raise InvalidParameterValue(
                f"maximum batching window must be between 0 and {MAX_WINDOW_SECONDS} seconds, got {self.window_seconds}"
            )
        if self.is_fifo and self.window_seconds:
            raise InvalidParameterValue("a batching window is not supported for FIFO queues")
        if self.batch_size > MAX_UNWINDOWED_BATCH and not self.window_seconds:
            raise InvalidParameterValue(
                "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10"
            )
        concurrency = self.maximum_concurrency
        if concurrency is not None and not MIN_CONCURRENCY <= concurrency <= MAX_CONCURRENCY:
            raise InvalidParameterValue(
                f"maximum concurrency must be between {MIN_CONCURRENCY} and {MAX_CONCURRENCY}, got {concurrency}"
            )
        if self.queue_visibility_seconds < self.function_timeout_seconds:
            raise InvalidParameterValue(
                f"Invalid request provided: Queue visibility timeout: {self.queue_visibility_seconds:g} seconds is "
                f"less than Function timeout: {self.function_timeout_seconds:g} seconds"
            )
        Filters(self.filters)

    @property
    def warnings(self) -> list[str]:
        """The points that AWS may treat differently, each as the end of a sentence about the mapping."""
        return Filters(self.filters).warnings

    @property
    def visibility_timeout_seconds(self) -> float:
        """The visibility timeout of received messages: that of the queue, unless window and function take longer."""
        longest = self.window_seconds + self.function_timeout_seconds
        if self.window_seconds and longest > self.queue_visibility_seconds:
            return longest + 30
        return self.queue_visibility_seconds

    @property
    def is_fifo(self) -> bool:
        return self.queue_arn.endswith(".fifo")
