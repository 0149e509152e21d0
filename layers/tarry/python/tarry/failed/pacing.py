"""The pace of a retry: messages a second, a limit for those that come back, and canaries, which are retried first."""

from __future__ import annotations

import math
import re
import threading
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.errors import ConfigurationError, TarryError
from tarry.failed.text import SECONDS, seconds_between
from tarry.sqs.client import MAX_PARALLEL
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.support.values import MAX_VISIBILITY_SECONDS, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import Routes

STEP_SECONDS = 0.5
"""The longest sleep, so that a signal ends a wait soon."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def parse_rate(text: str) -> float:
    """Return messages a second, from ``20``, ``20/s``, ``100/m`` or ``500/h``. Raises `ConfigurationError`."""
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) if found else 0.0
    if found is None or number == 0:
        raise ConfigurationError(f"--rate must be a number of messages above 0, such as 20/s, 100/m or 500/h: {text!r}")
    return number / SECONDS[found[2] or "s"]


def parse_share(text: str) -> float:
    """Return a share from 0 to 1, from ``5%``. Raises `ConfigurationError`."""
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


WAIT_SECONDS = 5
"""The wait of a poll while the canaries are watched; a signal ends the watch after it."""


class CanaryReturned(TarryError):
    """Messages that were retried first were dead-lettered again. ``ids`` has their ids, ``sent`` how many were sent."""

    def __init__(self, ids: Collection[str], sent: int, queue: str) -> None:
        self.ids = tuple(ids)
        self.sent = sent
        super().__init__(
            f"{len(ids)} of {sent} canaries came back to {queue}: no others were retried; "
            f"the failure record of {self.ids[0]} has the new error"
        )


class Canary(Value):
    """How many dead letters to retry first, and how long to watch them.

    Args:
        number: The number of dead letters, from 1.
        within: The seconds to watch; by default the longest time from first failure to dead letter among them, plus
            the visibility timeout of their queue.
        watching: Called with the seconds left and the seconds in all, before each poll.
    """

    number: int
    within: float | None
    watching: Callable[[float, float], None]

    def __init__(
        self,
        number: int,
        within: float | None = None,
        watching: Callable[[float, float], None] = lambda left, total: None,
    ) -> None:
        if number < 1:
            raise ConfigurationError(f"the number of canaries must be 1 or more, got {number!r}")
        if within is not None and not 0 < within < MAX_VISIBILITY_SECONDS:
            raise ConfigurationError(f"--within must be more than 0 s and less than 12 h, got {within:g} s")
        self._freeze(number=number, within=within, watching=watching)


class RetrySettings(Value):
    """How many dead letters are retried first, and the limits of a retry, as a user gives them."""

    canary: int | None
    within: float | None
    limits: Limits

    def __init__(
        self,
        canary: int | None = None,
        within: float | None = None,
        rate: str | None = None,
        max_return: str | None = None,
    ) -> None:
        """Parse and check the settings. Raises `ConfigurationError`."""
        if canary is not None:
            Canary(canary, within)  # raises before the queues are asked
        share = None if max_return is None else parse_share(max_return)
        self._freeze(canary=canary, within=within, limits=Limits(None if rate is None else parse_rate(rate), share))

    def watched(self, watching: Callable[[float, float], None]) -> Canary | None:
        """Return the canaries to send first; None if there are none."""
        return None if self.canary is None else Canary(self.canary, self.within, watching)

    def fields(self) -> dict[str, Any]:
        limits = self.limits
        return {"canary": self.canary, "within": self.within, "rate": limits.rate, "max_return": limits.max_return}


def check_can_watch(inspection: Inspection) -> None:
    """Check that a message that comes back to the queue can be seen. Raises `ConfigurationError`."""
    queue, most = inspection.queue, inspection.most_in_flight
    instead = "use --rate with --max-return instead"
    if queue.arn.is_fifo:
        raise ConfigurationError(
            f"a canary that came back to {queue} could not be seen: on FIFO it is behind the others of its message "
            f"group; {instead}"
        )
    if queue.about > most:
        raise ConfigurationError(
            f"a canary that came back to {queue} could not be seen among about {queue.about:,} dead letters, since "
            f"at most {most:,} can be in flight; {instead}"
        )


def seconds_to_return(inspection: Inspection, dead_letters: Iterable[DeadLetterMessage], routes: Routes) -> float:
    """Return how long it can take until retried messages are in the dead-letter queue again.

    It is the longest time from first failure to dead letter, plus the visibility timeout of their queue. For one that
    SQS moved, it is the visibility timeout for each receive that the redrive policy allows. Raises
    `ConfigurationError`.
    """
    longest = 0.0
    for dead_letter in dead_letters:
        facts, failure = inspection.lookups.source(routes.target(dead_letter)), dead_letter.failure
        timeout = inspection.lookups.visibility_timeout(routes.target(dead_letter))
        took = seconds_between(failure.first_failed_at, failure.failed_at) if failure else None
        if took is None:
            took = timeout * (facts.max_receive_count or 1) if failure is None else 0
        longest = max(longest, took + timeout)
    if longest >= MAX_VISIBILITY_SECONDS:
        raise ConfigurationError(
            f"these dead letters were retried for {longest / 3600:.0f} h, and canaries can be watched for less than "
            "12 h: say for how long (--within 30m)"
        )
    return longest


def watch(inspection: Inspection, ids: Collection[str], seconds: float, canary: Canary) -> list[str]:
    """Watch for ``seconds`` whether messages come back; return the ids of the first that do, or none.

    All other dead letters are received and stay in flight. Stops early if the inspection is stopped. Raises
    `ConfigurationError`.
    """
    clock = world.current().clock
    ends_at = clock.monotonic() + seconds
    returned: list[str] = []

    def those_back(dead_letters: list[DeadLetterMessage]) -> list[str]:
        return [each.id for each in dead_letters if each.id in ids and inspection.handled.is_returned(each)]

    def watching() -> bool:
        left = ends_at - clock.monotonic()
        canary.watching(max(0.0, left), seconds)
        return left > 0

    def goes_on() -> bool:
        return watching() or not inspection.leases.lost

    for found in inspection.in_threads(those_back, MAX_PARALLEL, goes_on=goes_on):  # all that are in the queue already
        returned += found
    while not returned and not inspection.is_stopped and watching():
        wait = max(1, min(WAIT_SECONDS, int(ends_at - clock.monotonic())))
        returned += those_back(inspection.poll(wait=wait, goes_on=watching))
    if inspection.leases.lost and not returned and not inspection.is_stopped:  # a canary may be behind some of them
        ends_at = clock.monotonic() + inspection.leases.seconds()  # then those that it received first are visible again
        for found in inspection.in_threads(those_back, MAX_PARALLEL, goes_on=watching):
            returned += found
        if (inspection.is_outrun or clock.monotonic() >= ends_at) and not returned and not inspection.is_stopped:
            raise ConfigurationError(
                f"whether canaries came back to {inspection.queue} could not be seen: the other dead letters became "
                "visible again faster than they could be received, so none of them were retried; use a longer "
                "--keepalive, or --rate with --max-return"
            )
    return list(dict.fromkeys(returned))
