"""Whether a consumer is suspended, probed or resumed: decided from its metrics, its mapping, and the guard's own note.

A consumer is suspended when the service that it calls is down: its mapping is disabled, so its messages stay in the
queue and keep their attempts. A probe enables the mapping with two invocations at once for two minutes. If the messages
of the probe succeed, the consumer is resumed in steps, up to the setting that the mapping had before.

`decide` makes no request. If a fact is missing, or another has changed the mapping, it decides for what the consumer
does without a guard: it runs, or is as the other left it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = 60.0
JITTER = MINUTE / 2  # looks are about a minute apart, and an act that is due before the next one is not put off
PROBE = 2 * MINUTE  # Lambda takes up to a minute to enable a mapping
RESERVE = 60 * MINUTE  # a consumer is resumed this long before its oldest message expires
SMALLEST_CONCURRENCY = 2  # the smallest MaximumConcurrency that Lambda accepts
STEPS = (10,)
"""The MaximumConcurrency of each step between a probe and the former setting."""
OWN_CONCURRENCY = {SMALLEST_CONCURRENCY, *STEPS}


class GuardLimits(NamedTuple):
    """When a consumer is suspended and resumed. Times are in seconds."""

    window: float = 2 * MINUTE
    runs: int = 20
    """A consumer is suspended only if this many runs have ended in the window."""
    failing: float = 0.8
    """It is suspended if at least this share of them failed, and resumed while no more than the rest fail."""
    before: float = 60 * MINUTE
    failed_before: float = 0.2
    """It is suspended only if a smaller share failed in the time before: otherwise it is not an outage that begins.
    Without runs in that time (a new consumer, or one that is idle at night), this cannot be told."""
    more_failures: float = 2
    """It is suspended only if this many times as many runs a minute failed as in the time before. When a load ends, its
    poison messages are left: nearly all runs fail, but no more than before."""
    probe_every: float = 5 * MINUTE
    rarest: float = 15 * MINUTE
    """Each probe that used an attempt of more messages than half of those that wait doubles the time to the next one,
    up to this."""
    longest: float = 6 * 60 * MINUTE
    """It is resumed after this time, whatever its metrics say."""
    lag: float = 5 * MINUTE
    """Metrics that are not there after this time are taken as missing, and so is an answer of Lambda."""


class Minute(NamedTuple):
    """The runs of a consumer that ended in a minute: how many, and how many in an outcome that an outage has."""

    begins: float
    ended: int
    failed: int


class Setting(NamedTuple):
    """The settings of a mapping that the guard changes."""

    is_enabled: bool
    maximum: int | None
    """Its MaximumConcurrency; None if it has none."""

    def __str__(self) -> str:
        maximum = f"MaximumConcurrency {self.maximum or 'unset'}"
        return f"{'enabled' if self.is_enabled else 'disabled'} with {maximum}"


Phase = Literal["suspended", "probing", "judging", "resuming", "resumed", "left"]
PHASES = get_args(Phase)


class Note(NamedTuple):
    """The guard's memory of a mapping that it has changed, as a tag of the mapping. Times are in seconds since 1970."""

    phase: Phase
    since: float
    """When the consumer was suspended first."""
    at: float
    """When this phase began."""
    former: int | None
    """The MaximumConcurrency that is restored: of the mapping before it was suspended, or set by another since."""
    setting: Setting
    """The setting in this phase."""
    before: Setting
    """The setting of the mapping when this was written, and that of this phase once Lambda has confirmed it."""
    doublings: int = 0
    """How often the time between probes was doubled."""
    ended: int = 0
    failed: int = 0
    """Of the runs that ended before the consumer was suspended."""

    @property
    def reason(self) -> str:
        """Why the consumer was suspended."""
        return f"{self.failed / max(1, self.ended):.0%} of {self.ended:,} runs failed"

    def next_probe(self, limits: GuardLimits) -> float:
        """Return when a suspended consumer is probed."""
        return self.at + min(limits.probe_every * (1 << self.doublings), limits.rarest)

    def __str__(self) -> str:
        since, probe = (time.strftime("%H:%M", time.gmtime(at)) for at in (self.since, self.next_probe(GuardLimits())))
        what = {"suspended": f"next probe {probe}", "probing": "a probe runs", "judging": "a probe is judged"}
        return f"suspended since {since} UTC: {self.reason}; {what.get(self.phase, f'resuming, now {self.setting}')}"

    def text(self) -> str:
        """Return the note as the value of a tag, at most 256 characters that Lambda allows; 0 is None or False."""
        flat = (self.since, self.at, self.former, *self.setting, *self.before, self.doublings, self.ended, self.failed)
        return " ".join([self.phase, *(str(int(each or 0)) for each in flat)])

    @classmethod
    def read(cls, text: str) -> Note:
        """Read a tag's value. Raises `ValueError` if it is not the text of a note."""
        phase, *numbers = text.split(" ")
        if phase not in PHASES:
            raise ValueError(f"not a note of the guard: {text!r}")
        since, at, former, enabled, maximum, was_enabled, was_maximum, doublings, ended, failed = map(int, numbers)
        setting, before = Setting(enabled > 0, maximum or None), Setting(was_enabled > 0, was_maximum or None)
        return cls(cast("Phase", phase), since, at, former or None, setting, before, doublings, ended, failed)


class Seen(NamedTuple):
    """The facts about a consumer at one look."""

    now: float
    setting: Setting | None
    """None while Lambda changes it."""
    note: Note | None
    minutes: Sequence[Minute]
    """The minutes with metrics, oldest first."""
    hindrance: str | None = None
    """Why it must not be suspended; a consumer that is suspended is resumed."""
    waiting: int | None = None
    """The messages that are ready in the queue; None if it is not known."""


class Act(NamedTuple):
    """A change: write ``note`` (None: remove it), and give the mapping the note's setting."""

    note: Note | None
    why: str


def unfit(queue: str, consumers: int, *, has_pollers: bool) -> str | None:
    """Return why a consumer of a queue cannot be suspended at all; None if it can."""
    if queue.endswith(".fifo"):
        return "a failed message of a FIFO queue holds up its group anyway; remove it from GUARDED"
    if has_pollers:
        return "with provisioned pollers, it has no MaximumConcurrency for a probe; remove it from GUARDED"
    if consumers > 1:
        return f"its queue has {consumers} consumers, and the others would get the messages; remove it from GUARDED"
    return None


def expiring(seconds: float) -> str | None:
    """Return why a consumer must not be suspended whose oldest message expires in so long; None if it may."""
    return f"the oldest message expires in {seconds / MINUTE:.0f} minutes" if seconds < RESERVE else None


def decide(seen: Seen, limits: GuardLimits) -> Act | None:
    """Return what to do with a consumer; None for nothing."""
    note, has = seen.note, seen.setting
    if has is None:
        return None
    if note is None:
        return _suspended(seen, has, limits) if has.is_enabled else None
    if (of_another := _changed_by_another(seen.now, note, has)) is not None:
        return of_another
    is_over = note.phase in ("resumed", "left")
    since = seen.now - note.at + JITTER
    if is_over and has == note.setting:
        is_due = note.phase == "resumed" or since >= limits.before
        return Act(None, "the mapping has its former setting") if is_due else None
    if not is_over and (why := _must_resume(seen, note, since, limits)) is not None:
        return _next(seen.now, note, has, "resumed", why)
    if has != note.setting or note.before != note.setting:
        return Act(note._replace(before=has), "Lambda has not confirmed the last request")
    return _of_phase(seen, note, since, limits)


def _suspended(seen: Seen, has: Setting, limits: GuardLimits) -> Act | None:
    """Return the act that suspends a consumer whose runs fail since less than the window."""
    start = seen.now - limits.window - MINUTE  # of the last minutes whose metrics can be complete
    ended, failed, minutes = _sum(seen.minutes, start, seen.now)
    ended_before, failed_before, minutes_before = _sum(seen.minutes, start - limits.before, start)
    if ended < limits.runs or failed < limits.failing * ended or failed_before >= limits.failed_before * ended_before:
        return None
    if failed / minutes < limits.more_failures * failed_before / minutes_before:
        return None
    setting = has._replace(is_enabled=False)
    note = Note("suspended", seen.now, seen.now, has.maximum, setting, has, ended=ended, failed=failed)
    return Act(note, note.reason)


def _changed_by_another(now: float, note: Note, has: Setting) -> Act | None:
    """Return the act after a change by a person or a deployment, which stays; None if the guard made all changes.

    If another has enabled or disabled the mapping, the guard leaves it alone for an hour. The MaximumConcurrency of
    another is the one that is restored.
    """
    ours = (note.setting, note.before)
    is_ours = has.maximum in [each.maximum for each in ours]
    former = note.former if is_ours else has.maximum
    if has.is_enabled not in [each.is_enabled for each in ours]:
        left = note._replace(phase="left", at=now, former=former, setting=Setting(has.is_enabled, former))
        why = f"another has {'enabled' if has.is_enabled else 'disabled'} the mapping"
    elif not is_ours:
        left = note._replace(former=former, setting=note.setting._replace(maximum=former))
        why = f"another has set MaximumConcurrency to {former}, which will be restored"
    else:
        return None
    return Act(left._replace(before=has), why)


def _must_resume(seen: Seen, note: Note, since: float, limits: GuardLimits) -> str | None:
    if seen.now - note.since >= limits.longest:
        return f"it was suspended for {limits.longest / 3600:g} hours, the longest time"
    if note.before != note.setting and since >= limits.lag:
        return f"Lambda has not confirmed a request for {limits.lag / MINUTE:g} minutes"
    return seen.hindrance


def _of_phase(seen: Seen, note: Note, since: float, limits: GuardLimits) -> Act | None:
    now, has = seen.now, note.setting
    if note.phase == "suspended":
        why = f"it was suspended for {(now - note.at) / MINUTE:.0f} minutes"
        return _next(now, note, has, "probing", why) if now + JITTER >= note.next_probe(limits) else None
    if note.phase == "probing":
        return _next(now, note, has, "judging", "the probe has ended") if since >= PROBE else None
    ended, failed, _ = _sum(seen.minutes, note.at - PROBE if note.phase == "judging" else note.at, now)
    if note.phase == "resuming" and since < limits.window + MINUTE and ended < limits.runs:
        return None
    if not ended and since < limits.lag:
        return None
    share = f"{failed:,} of {ended:,} runs failed" if ended else "no metrics tell how its runs end"
    if failed > (1 - limits.failing) * ended:
        uses_too_many = seen.waiting is not None and failed > seen.waiting / 2
        again = note._replace(doublings=note.doublings + 1 if uses_too_many else 0)
        return _next(now, again, has, "suspended", share)
    is_last = not ended or _step(note) == note.former
    return _next(now, note, has, "resumed" if is_last else "resuming", share)


def _step(note: Note) -> int | None:
    """Return the MaximumConcurrency after that of a note, which the guard has set: of a step, or the former one."""
    steps = (each for each in STEPS if each > (note.setting.maximum or SMALLEST_CONCURRENCY))
    return next((each for each in steps if note.former is None or each < note.former), note.former)


def _next(now: float, note: Note, has: Setting, phase: Phase, why: str) -> Act:
    """Return the act that begins a phase."""
    others = {"suspended": has.maximum, "resuming": _step(note), "resumed": note.former}
    maximum = others.get(phase, SMALLEST_CONCURRENCY)
    setting = Setting(phase not in ("suspended", "judging"), maximum)
    return Act(note._replace(phase=phase, at=now, setting=setting, before=has), why)


def _sum(minutes: Sequence[Minute], start: float, end: float) -> tuple[int, int, int]:
    """Return the numbers of runs that ended and failed from ``start`` to ``end``, and of minutes that have runs."""
    within = [each for each in minutes if start <= each.begins < end]
    return sum(each.ended for each in within), sum(each.failed for each in within), len(within)
