"""The settings of an event source mapping, with Lambda's limits: its filters, and how it scales."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tarry.tools.simulator.patterns import (
    Branch,
    CompiledPattern,
    PatternError,
    compile_pattern,
    fields_of,
    matches,
    parse,
)
from tarry.tools.template import TemplateMapping

BODY = "body"
MAX_FILTERS, DEFAULT_FILTERS = 10, 5
MAX_PATTERN_CHARACTERS = 4_096
RECORD_KEYS = frozenset(
    "messageId receiptHandle body attributes messageAttributes md5OfBody md5OfMessageAttributes eventSource "
    "eventSourceARN awsRegion".split()
)


class InvalidParameterValue(ValueError):
    """Lambda refuses an event source mapping with ``InvalidParameterValueException``."""


class Filters:
    """The filters of one mapping: patterns as dicts or as JSON texts. Without any, everything matches.

    Raises `InvalidParameterValue` if Lambda would refuse a pattern, or their number.
    """

    def __init__(self, patterns: Iterable[str | Mapping[str, Any]] = ()) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]
        if len(self._patterns) > MAX_FILTERS:
            raise _invalid(f"{len(self._patterns)} filters exceed the limit of {MAX_FILTERS}")

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, record: Mapping[str, Any]) -> bool:
        """Return whether the message with this event record goes to the function."""
        if not self._patterns:
            return True
        document = _document(record[BODY])
        fields = fields_of({**record, BODY: record[BODY] if document is None else document})
        return any(
            _suits_body(branch, is_json=document is not None) and matches(branch, fields)
            for pattern in self._patterns
            for branch in pattern.branches
        )

    @property
    def warnings(self) -> list[str]:
        """The points that AWS may treat differently, each as the end of a sentence about the mapping."""
        found = []
        if operators := sorted(set().union(*(pattern.unlisted for pattern in self._patterns))):
            found.append(
                f"its filters use {', '.join(operators)}, which Lambda does not list for filters; evaluated as in "
                "EventBridge, but Lambda may refuse the mapping"
            )
        keys = {path.partition(".")[0] for pattern in self._patterns for branch in pattern.branches for path in branch}
        if names := sorted(keys - RECORD_KEYS):
            found.append(f"its filters name {', '.join(names)}, which no SQS record has: no message has a value for it")
        if names := sorted((keys & RECORD_KEYS) - {BODY}):
            text = "Lambda documents only body for SQS, and may match nothing else"
            found.append(f"its filters name {', '.join(names)}; {text}")
        if (count := len(self._patterns)) > DEFAULT_FILTERS:
            found.append(f"it has {count} filters; Lambda allows {DEFAULT_FILTERS} unless your quota is higher")
        return found


def _suits_body(branch: Branch, *, is_json: bool) -> bool:
    """Return whether the rules on the body are for its format: text or JSON. Rules for one never match the other."""
    if is_json:
        return BODY not in branch
    return not any(path.startswith(f"{BODY}.") for path in branch)


def _document(body: str) -> Any:
    """Parse a body that is a JSON object or list; None for any other text."""
    if not body.lstrip().startswith(("{", "[")):
        return None
    try:
        return parse(body)
    except ValueError:
        return None


def _compiled(given: str | Mapping[str, Any]) -> CompiledPattern:
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        pattern = parse(text)
    except (TypeError, ValueError) as error:
        raise _invalid(f"{given!r:.80} is not JSON") from error
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise _invalid(f"a pattern has {len(text):,} characters, and at most {MAX_PATTERN_CHARACTERS:,} are allowed")
    if pattern == {}:
        return CompiledPattern([{}], frozenset())
    try:
        return compile_pattern(pattern)
    except PatternError as error:
        raise _invalid(str(error)) from error


def _invalid(why: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Invalid filter pattern definition. ({why})")


INITIAL_CONCURRENCY = 5
ADDED_PER_SECOND = 300 / 60
MOST_POLLERS = 1_250


class Scaling:
    """The concurrency of one mapping: it starts at 5, grows by 300 a minute under load, and drops on function errors.

    AWS documents that errors lower it, but not by how much; here they halve it. A FIFO mapping starts at the maximum,
    since its message groups limit it already.
    """

    def __init__(self, maximum: int | None = None, *, is_fifo: bool = False) -> None:
        self.maximum = min(MOST_POLLERS, maximum or MOST_POLLERS)
        """The most invocations at once."""
        self._start = self._reached = float(MOST_POLLERS if is_fifo else INITIAL_CONCURRENCY)
        self._growing_since: float | None = None

    def change(self, maximum: int | None, now: float) -> None:
        """Set another maximum. Invocations above it run to their end."""
        self._reached, self._growing_since = max(float(self.limit(now)), self._start), None
        self.maximum = min(MOST_POLLERS, maximum or MOST_POLLERS)

    def limit(self, now: float) -> int:
        """Return how many invocations may run now."""
        grown = 0.0 if self._growing_since is None else (now - self._growing_since) * ADDED_PER_SECOND
        return int(min(self.maximum, self._reached + grown + 1e-6))  # a sum of floats may be slightly below

    def more_wanted(self, now: float) -> float | None:
        """Start growing, since the limit is reached; return when it will rise, or None at the maximum."""
        limit = self.limit(now)
        if limit >= self.maximum:
            return None
        if self._growing_since is None:
            self._growing_since = now
        return self._growing_since + (limit + 1 - self._reached) / ADDED_PER_SECOND

    def enough(self, now: float, running: int) -> None:
        """Stop growing, since no messages wait; with no invocation running, return to the initial concurrency."""
        self._reached, self._growing_since = float(self.limit(now)), None
        if not running:
            self._reached = min(self._reached, self._start)

    def failed(self, now: float, running: int) -> None:
        """Halve the concurrency after a function error with ``running`` invocations."""
        self._reached, self._growing_since = max(1.0, min(self.limit(now), running) / 2), None


MAX_BATCH = 10_000
MAX_FIFO_BATCH = 10
MAX_UNWINDOWED_BATCH = 10
MAX_WINDOW_SECONDS = 300
MIN_CONCURRENCY, MAX_CONCURRENCY = 2, 1_000


@dataclass(frozen=True)
class MappingSettings:
    """An event source mapping with the settings of its queue and its function that matter to it.

    Raises `InvalidParameterValue` if Lambda would refuse the mapping.
    """

    mapping: TemplateMapping
    queue_visibility_seconds: float = 30
    """The queue's ``VisibilityTimeout``."""
    function_timeout_seconds: float = 3

    def __post_init__(self) -> None:
        batch_size, window = self.mapping.batch_size, self.mapping.window_seconds
        max_batch_size = MAX_FIFO_BATCH if self.mapping.is_fifo else MAX_BATCH
        if not 1 <= batch_size <= max_batch_size:
            raise InvalidParameterValue(f"batch size must be between 1 and {max_batch_size}, got {batch_size}")
        if not 0 <= window <= MAX_WINDOW_SECONDS:
            raise InvalidParameterValue(
                f"maximum batching window must be between 0 and {MAX_WINDOW_SECONDS} seconds, got {window}"
            )
        if self.mapping.is_fifo and window:
            raise InvalidParameterValue("a batching window is not supported for FIFO queues")
        if batch_size > MAX_UNWINDOWED_BATCH and not window:
            raise InvalidParameterValue(
                "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10"
            )
        concurrency = self.mapping.maximum_concurrency
        if concurrency is not None and not MIN_CONCURRENCY <= concurrency <= MAX_CONCURRENCY:
            raise InvalidParameterValue(
                f"maximum concurrency must be between {MIN_CONCURRENCY} and {MAX_CONCURRENCY}, got {concurrency}"
            )
        if self.queue_visibility_seconds < self.function_timeout_seconds:
            raise InvalidParameterValue(
                f"Invalid request provided: Queue visibility timeout: {self.queue_visibility_seconds:g} seconds is "
                f"less than Function timeout: {self.function_timeout_seconds:g} seconds"
            )
        Filters(self.mapping.filters)

    @property
    def visibility_timeout_seconds(self) -> float:
        """The visibility timeout of received messages: that of the queue, unless window and function take longer."""
        longest = self.mapping.window_seconds + self.function_timeout_seconds
        if self.mapping.window_seconds and longest > self.queue_visibility_seconds:
            return longest + 30
        return self.queue_visibility_seconds
