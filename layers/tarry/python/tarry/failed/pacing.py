"""The pace of a retry: a number of messages a second, and a limit for those that come back."""

from __future__ import annotations

import math
import re
import threading
from typing import TYPE_CHECKING

from tarry import world
from tarry.errors import ConfigurationError, TarryError
from tarry.failed.periods import SECONDS
from tarry.sqs.limits import MAX_ENTRIES
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_SECONDS = 0.5
"""The longest sleep, so that a signal ends a wait soon."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def parse_rate(text: str) -> float:
    """Return messages a second, from ``20``, ``20/s``, ``100/m`` or ``500/h``.

    Raises:
        ConfigurationError: it is not a rate, or 0.
    """
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) if found else 0.0
    if found is None or number == 0:
        raise ConfigurationError(f"--rate must be a number of messages above 0, such as 20/s, 100/m or 500/h: {text!r}")
    return number / SECONDS[found[2] or "s"]


def parse_share(text: str) -> float:
    """Return a share from 0 to 1, from ``5%``.

    Raises:
        ConfigurationError: it is not a percentage, or above 100.
    """
    found = _SHARE.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise ConfigurationError(f"--max-return must be a percentage from 0% to 100%, such as 5%: {text!r}")
    return float(found[1]) / 100


class Limits(Value):
    """The limits of a retry.

    Args:
        rate: Messages a second at most; None for no limit.
        max_return: The share of the retried messages, 0 to 1, that may come back to the dead-letter queue while the
            others are retried; None for no limit.
    """

    rate: float | None = None
    max_return: float | None = None

    def __init__(self, rate: float | None = None, max_return: float | None = None) -> None:
        if rate is not None and not rate > 0:
            raise ConfigurationError(f"rate must be above 0 messages a second, got {rate!r}")
        if max_return is not None and not 0 <= max_return <= 1:
            raise ConfigurationError(f"max_return must be a share from 0 to 1, got {max_return!r}")
        self._freeze(rate=rate, max_return=max_return)

    @property
    def size(self) -> int:
        """How many dead letters to receive at once: about a second's, ten at most."""
        return MAX_ENTRIES if self.rate is None else max(1, min(MAX_ENTRIES, int(self.rate)))

    def allows(self, returned: int, retried: int) -> bool:
        """Whether to go on although messages have come back."""
        return self.max_return is None or returned <= self.max_return * retried


class TooManyReturned(TarryError):
    """More retried messages were dead-lettered again than allowed: ``returned`` of ``retried``."""

    def __init__(self, returned: int, retried: int, queue: str) -> None:
        self.returned = returned
        self.retried = retried
        share = f" ({returned / retried:.1%})" if retried else ""
        super().__init__(
            f"{returned:,} of {retried:,} retried messages{share} came back to {queue}, more than --max-return allows: "
            "no others were retried; their failure records have the new errors"
        )


class Pace:
    """The times at which messages may be sent or deleted, shared by the threads of an operation.

    Args:
        rate: Messages a second; None for no limit.
        stop: Called during a wait; if it returns True, the wait ends.
    """

    def __init__(self, rate: float | None, stop: Callable[[], bool]) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = world.current().clock
        self._lock = threading.Lock()
        self._next = self._clock.monotonic()

    def wait(self, count: int, most: float = math.inf) -> bool:
        """Wait until ``count`` messages may be sent; return False if the wait was stopped.

        Args:
            count: The number of messages.
            most: The seconds that the wait may take; if it would take longer, it does not begin.
        """
        if self._rate is None:
            return True
        with self._lock:
            now = self._clock.monotonic()
            at = max(self._next, now)
            if at - now > most:
                return False
            self._next = at + count / self._rate
        while (left := at - self._clock.monotonic()) > 0:
            if self._stop():
                return False
            self._clock.sleep(min(left, STEP_SECONDS))
        return True
