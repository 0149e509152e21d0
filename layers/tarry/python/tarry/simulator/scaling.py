"""How many invocations a mapping lets run at once."""

STARTS_WITH = 5
ADDED_A_SECOND = 300 / 60
MOST = 1_250


class Scaling:
    """The concurrency of one mapping: from 5 it grows by 300 a minute while more is wanted; function errors lower it.

    That errors lower it is documented, not how far: here they halve it. A FIFO mapping does not begin low, since its
    groups bound it already.
    """

    def __init__(self, maximum: int | None = None, *, is_fifo: bool = False) -> None:
        self._most = min(MOST, maximum or MOST)
        self._start = float(self._most if is_fifo else min(STARTS_WITH, self._most))
        self._reached = self._start
        self._growing_since: float | None = None

    def limit(self, now: float) -> int:
        """How many may run now."""
        grown = 0.0 if self._growing_since is None else (now - self._growing_since) * ADDED_A_SECOND
        return int(min(self._most, self._reached + grown + 1e-6))

    def more_wanted(self, now: float) -> float | None:
        """As many run as may: when one more may; None if there are as many as there will ever be."""
        limit = self.limit(now)
        if limit >= self._most:
            return None
        if self._growing_since is None:
            self._growing_since = now
        return self._growing_since + (limit + 1 - self._reached) / ADDED_A_SECOND

    def enough(self, now: float, running: int) -> None:
        """Nothing is waiting: it grows no further, and with nothing running it is back where it began."""
        self._reached, self._growing_since = float(self.limit(now)), None
        if not running:
            self._reached = min(self._reached, self._start)

    def failed(self, now: float, running: int) -> None:
        """The function failed as a whole, while so many ran."""
        self._reached, self._growing_since = max(1.0, min(self.limit(now), running) / 2), None
