"""The deadline of an invocation: how much of its time is for running messages, and how much for settling them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.world import seconds_to_load

if TYPE_CHECKING:
    from tarry.world import World

MARGIN_SECONDS = 1.0
"""The time kept for the settlement after the last message has run, or more if requests are slow in this process."""
REQUESTS = 4
"""The requests for which there must be time: two look-ups, then a send with its delete."""
MARGIN_SHARE = 1 / 3
"""The largest share of the invocation's time that is kept."""
RELEASE_SHARE = 1 / 3
"""The share of the time left for releasing messages that were not started, possibly thousands."""
LAST_SECONDS = 0.5
"""The part of the margin, at most half of it, in which claims and stopped runs may end."""
MINIMUM_SECONDS = 0.2
"""The least time with which an invocation runs messages; with less it could not settle one."""
ANSWER_SECONDS = 0.5
"""The time in which no hook runs: it is kept for the response; less in a short invocation."""
ANSWER_SHARE = 0.05
"""The largest share of the invocation's time in which no hook runs."""
LATE_HOOK_SHARE = 0.1
"""The share of the time left for a hook that is called when the time for hooks is over."""
HOOKLESS_SHARE = 1 / 4
"""The part of the time kept for settling that such hooks leave, however many of them hang."""
CHECK_SECONDS = 0.001
"""The interval of reading the clock between messages: shorter messages run without reading it."""


class Deadline:
    """The times until which messages may start and run. Callers pass the time in (`Clock.monotonic`).

    The time that a message needs is assumed to be its timeout, or else the longest that one took in this invocation.
    """

    def __init__(
        self, ends_at: float, began_with: float, wanted: float = MARGIN_SECONDS, timeout: float | None = None
    ) -> None:
        self.ends_at = ends_at
        """When Lambda kills the process; infinite if it never does."""
        self.owed = 0.0
        """The seconds kept in addition for settling the messages that have failed so far."""
        self.ending = self.most_ending = 0.0
        """The seconds kept in addition for ending the claims on messages that run (`tarry.idempotency`), and the most
        that they may become."""
        self.timeout = timeout
        self._longest = 0.0
        self._began_with = began_with
        self.keep(wanted)
        self.checked_at = -math.inf
        """When the time was last checked, at most a millisecond before the running message started."""
        self.check_at = math.inf if ends_at == math.inf and timeout is None else -math.inf
        """When to call `check` next, at the earliest."""

    def keep(self, wanted: float) -> None:
        """Keep ``wanted`` seconds (`reserve`) for settling."""
        share = self._began_with * MARGIN_SHARE
        self.margin = share if share < wanted else wanted  # noqa: FURB136 a call of min() costs time
        """The seconds kept for settling: fewer than wanted in a short invocation."""
        self.is_timeout_cut = self.timeout is not None and self.timeout > self._began_with - self.margin
        """Whether the timeout exceeds the time of an invocation: messages start anyway, with the time left."""

    in_hooks = 0.0
    """The seconds that the user's hooks have taken."""
    hook_share = 1.0
    """The largest share of the time left for one hook: less than 1 if async handlers wait for it."""

    @property
    def interrupt_at(self) -> float:
        """When running messages must end, so that there is time to settle them."""
        return self.ends_at - self.margin - self.ending

    @property
    def last_moment(self) -> float:
        """When claims and runs that were stopped must have ended."""
        return self.interrupt_at + min(LAST_SECONDS, self.margin / 2)

    def check(self, now: float, waiting: int = 0) -> bool:
        """Check the time between two messages; return whether the next one may start. The first one always may.

        ``waiting``: as for `may_start`.
        """
        since, self.checked_at = self.checked_at, now
        self.check_at = now + CHECK_SECONDS
        if since == -math.inf:
            return True
        self.took(now - since)
        return self.may_start(now, waiting)

    def resume(self, now: float) -> None:
        """Do not count the time since the last check as that of a message."""
        self.checked_at = now
        self.check_at = now + CHECK_SECONDS

    def took(self, seconds: float) -> None:
        """Note how many seconds a message has taken."""
        self._longest = max(self._longest, seconds)

    def may_start(self, now: float, waiting: int = 0) -> bool:
        """Return whether there is time for a message and ``waiting`` others, which take precedence if time is short.

        The others are assumed to need as much as the longest message so far, not their timeout: otherwise hardly any
        message would start before them.
        """
        one = self._longest if self.timeout is None or self.is_timeout_cut else self.timeout
        return self.ends_at - now >= self.margin + self.ending + self.owed + one + self._longest * waiting

    def release_until(self, now: float) -> float:
        """Return when to stop releasing messages: most of the time left is for settling."""
        return now + (self.ends_at - now) * RELEASE_SHARE

    def hook_seconds(self, now: float) -> float:
        """Return for how many seconds a hook of the user's may run: the time left, less what settling takes.

        A hook that is called later, as `DeadLetter`'s are, has a share of the time left: settling must go on after it.
        """
        left = self.ends_at - now - min(ANSWER_SECONDS, self._began_with * ANSWER_SHARE)
        kept = self.margin + self.ending + self.owed
        return max((left - kept) * self.hook_share, (left - kept * HOOKLESS_SHARE) * LATE_HOOK_SHARE)

    def settled(self) -> None:
        """Keep no more time for settling: all messages are settled."""
        self.margin = self.ending = self.owed = 0.0

    def due(self, started_at: float) -> float:
        """Return when a message that started at ``started_at`` must end."""
        interrupt_at = self.ends_at - self.margin - self.ending
        return interrupt_at if self.timeout is None else min(interrupt_at, started_at + self.timeout)

    def first_due(self, started_at: float) -> float:
        """Return the earliest that `due` may become: the time for ending claims grows while messages are claimed."""
        return min(self.due(started_at), self.interrupt_at - self.most_ending)

    def timed_out(self, started_at: float, now: float) -> TimeoutError:
        """Return the error of a handler that exceeded its time; the text says after how long, and what to set."""
        if self.timeout is not None and started_at + self.timeout <= self.interrupt_at:
            text = f"the handler took longer than its timeout of {self.timeout:g} s: raise timeout=, or make it faster"
        else:
            text = (
                f"the handler was still running after {now - started_at:.1f} s, {max(0.0, self.ends_at - now):.1f} s "
                "before the function's own timeout: give the function a longer Timeout, or the handler a timeout="
            )
        return TimeoutError(text)


def reserve(world: World) -> float:
    """Return the seconds to keep for settling, as loading boto3 and requests are known to cost in this process."""
    seconds = REQUESTS * world.request_seconds
    wanted = seconds if seconds > MARGIN_SECONDS else MARGIN_SECONDS  # noqa: FURB136 as above
    is_loaded = world.loading_seconds is not None or world.client_factory is not None
    return wanted if is_loaded else wanted + seconds_to_load()


def out_of_time(batch_size: int, left: int) -> str:
    """Return the log text for ``left`` messages of a batch that were not started."""
    fits = batch_size - left
    return (
        f"{left} of {batch_size} messages were not started, because there was no time left. They return to the queue. "
        f"A BatchSize of {fits} would have fitted; or give the function a longer Timeout."
    )


def too_little_time(began_with: float) -> str:
    """Return the log text for an invocation that begins with too little time to settle a message."""
    return (
        f"The invocation began with {max(0.0, began_with):.2f} s left, which is not enough to settle a message. No "
        "message was run; all are reported as failed. Give the function a longer Timeout."
    )


def timeout_cut(timeout: float, margin: float) -> str:
    """Return the log text for a ``timeout=`` that is longer than an invocation has for its messages."""
    return (
        f"timeout={timeout:g} is longer than an invocation of this function has for its messages, so it is cut. Give "
        f"the function a Timeout of at least {math.ceil(timeout + margin)} s."
    )
