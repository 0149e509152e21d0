"""How much of an invocation's time there is for running messages, and how much is kept for settling them."""

from __future__ import annotations

import math

MARGIN_SECONDS = 1.0
"""Kept for what is still to settle when the last message has run."""
LOADING_SECONDS = 2.0
"""Kept besides while boto3 is not loaded: on a small function that takes as long."""
MARGIN_SHARE = 1 / 3
"""Of the time that an invocation began with: more is never kept."""
RELEASE_SHARE = 1 / 3
"""Of the time left, for releasing messages that were not started: in a batch of 10,000 that takes long."""
TOO_LATE_SECONDS = 0.2
"""An invocation that begins with less could not even settle a message: it touches none."""
LOOK_SECONDS = 0.001
"""Messages that take less than this together run without a look at the time between them."""


class Deadline:
    """The times until which messages may start and run. It reads no clock: `Clock.monotonic` times are handed in.

    The time that a message needs is taken to be its timeout, or the longest that one has taken in this invocation.
    """

    def __init__(self, ends_at: float, began_with: float, is_loaded: bool, timeout: float | None = None) -> None:
        self.ends_at = ends_at
        """When Lambda kills the process; infinite if it never does."""
        wanted = MARGIN_SECONDS if is_loaded else MARGIN_SECONDS + LOADING_SECONDS
        share = began_with * MARGIN_SHARE
        self.margin = share if share < wanted else wanted  # noqa: FURB136 a call costs
        """Kept for settling."""
        self.owed = 0.0
        """Seconds kept besides, for settling the messages that have failed so far."""
        self.timeout = timeout
        self.is_timeout_cut = timeout is not None and timeout > began_with - self.margin
        """Whether an invocation never has as much time as the timeout: a message starts all the same, and has the time
        that is left."""
        self._longest = 0.0
        self.looked_at = -math.inf
        """When it was last looked: within a millisecond of when the message that runs was started."""
        self.look_at = math.inf if ends_at == math.inf and timeout is None else -math.inf
        """When to `look` again, at the earliest."""

    @property
    def interrupt_at(self) -> float:
        """When what still runs is to end, so that there is time to settle it."""
        return self.ends_at - self.margin

    def look(self, now: float, waiting: int = 0) -> bool:
        """Look at the time between two messages; return whether the next one may start. The first one always may.

        ``waiting``: as for `may_start`.
        """
        since, self.looked_at = self.looked_at, now
        self.look_at = now + LOOK_SECONDS
        if since == -math.inf:
            return True
        self.took(now - since)
        return self.may_start(now, waiting)

    def resume(self, now: float) -> None:
        """Do not count the time since the last look as a message's."""
        self.looked_at = now
        self.look_at = now + LOOK_SECONDS

    def took(self, seconds: float) -> None:
        """Note how many seconds a message has taken."""
        self._longest = max(self._longest, seconds)

    def may_start(self, now: float, waiting: int = 0) -> bool:
        """Whether there is time for a message and for ``waiting`` others, to which it gives way if time is short.

        The others are taken to need as much as the longest message so far, not their timeout: with that, hardly any
        message would start before them.
        """
        one = self._longest if self.timeout is None or self.is_timeout_cut else self.timeout
        return self.ends_at - now >= self.margin + self.owed + one + self._longest * waiting

    def release_until(self, now: float) -> float:
        """When to stop releasing messages one by one: most of the time left is for settling."""
        return now + (self.ends_at - now) * RELEASE_SHARE

    def due(self, started_at: float) -> float:
        """When the time of a message that started at ``started_at`` is up."""
        interrupt_at = self.ends_at - self.margin
        return interrupt_at if self.timeout is None else min(interrupt_at, started_at + self.timeout)

    def timed_out(self, started_at: float, now: float) -> TimeoutError:
        """The error of a handler whose time is up: after how many seconds, and what to set."""
        if self.timeout is not None and started_at + self.timeout <= self.interrupt_at:
            text = f"the handler took longer than its timeout of {self.timeout:g} s: raise timeout=, or make it faster"
        else:
            text = (
                f"the handler was still running after {now - started_at:.1f} s, {max(0.0, self.ends_at - now):.1f} s "
                "before the function's own timeout: give the function a longer Timeout, or the handler a timeout="
            )
        return TimeoutError(text)


def out_of_time(batch_size: int, left: int) -> str:
    """The log text for ``left`` messages of a batch that were not started."""
    fits = batch_size - left
    return (
        f"{left} of {batch_size} messages were not started, because there was no time left. They are released. A "
        f"BatchSize of {fits} would have fitted; or give the function a longer Timeout."
    )


def too_late(began_with: float) -> str:
    """The log text for an invocation that begins with too little time to settle a message."""
    return (
        f"The invocation began with {max(0.0, began_with):.2f} s left, which is not enough to settle a message. No "
        "message was run; all are reported as failed. Give the function a longer Timeout."
    )


def timeout_cut(timeout: float) -> str:
    """The log text for a ``timeout=`` that is longer than an invocation has for its messages."""
    return (
        f"timeout={timeout:g} is longer than an invocation of this function has for its messages, so it is cut. Give "
        f"the function a Timeout of at least {math.ceil(timeout + MARGIN_SECONDS + LOADING_SECONDS)} s."
    )
