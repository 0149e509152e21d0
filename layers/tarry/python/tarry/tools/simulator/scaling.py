"""The scaling of an event source mapping: how many invocations run at once."""

INITIAL_CONCURRENCY = 5
ADDED_PER_SECOND = 300 / 60
MAX_CONCURRENCY = 1_250


class Scaling:
    """The concurrency of one mapping: it starts at 5, grows by 300 a minute under load, and drops on function errors.

    AWS documents that errors lower it, but not by how much; here they halve it. A FIFO mapping starts at the maximum,
    since its message groups limit it already.
    """

    def __init__(self, maximum: int | None = None, *, is_fifo: bool = False) -> None:
        self._maximum = min(MAX_CONCURRENCY, maximum or MAX_CONCURRENCY)
        self._start = float(self._maximum if is_fifo else min(INITIAL_CONCURRENCY, self._maximum))
        self._reached = self._start
        self._growing_since: float | None = None

    @property
    def maximum(self) -> int:
        """The most invocations at once."""
        return self._maximum

    def limit(self, now: float) -> int:
        """Return how many invocations may run now."""
        grown = 0.0 if self._growing_since is None else (now - self._growing_since) * ADDED_PER_SECOND
        return int(min(self._maximum, self._reached + grown + 1e-6))

    def more_wanted(self, now: float) -> float | None:
        """Start growing, since the limit is reached; return when it will rise, or None at the maximum."""
        limit = self.limit(now)
        if limit >= self._maximum:
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
