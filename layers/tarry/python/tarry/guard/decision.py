"""Whether a consumer is suspended, probed or resumed: decided from its metrics, its mapping, and the guard's own note.

A consumer is suspended when the service that it calls is down: its mapping is disabled, so its messages stay in the
queue and keep their attempts. A probe enables the mapping with two invocations at once for a minute. If the messages of
the probe succeed, the consumer is resumed in steps, up to the setting that the mapping had before.

`decide` makes no request. If a fact is missing, or another person has changed the mapping, it decides for what the
consumer does without a guard.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = 60.0
PROBE = 2 * MINUTE  # Lambda takes up to a minute to enable a mapping
SMALLEST_CONCURRENCY = 2  # the smallest MaximumConcurrency that Lambda accepts
STEPS = (10,)
"""The concurrency of each step between a probe and the former setting."""


class Limits(NamedTuple):
    """When a consumer is suspended and resumed. Times are in seconds."""

    runs: int = 20
    """A consumer is suspended only if this many runs have ended in the window."""
    failing: float = 0.8
    """It is suspended if at least this share of them failed, and resumed while no more than the rest fail."""
    failed_before: float = 0.2
    """It is suspended only if a smaller share failed in the hour before: otherwise it is not an outage that begins."""
    window: float = 2 * MINUTE
    before: float = 60 * MINUTE
    probe_every: float = 5 * MINUTE
    rarest: float = 15 * MINUTE
    """Each probe that used an attempt of more messages than half of those that wait doubles the time to the next one,
    up to this."""
    longest: float = 6 * 60 * MINUTE
    """It is resumed after this time, whatever its metrics say."""
    lag: float = 5 * MINUTE
    """Metrics that are not there after this time are taken as missing."""


class Minute(NamedTuple):
    """The runs of a consumer that ended in a minute: how many, and how many in an outcome that an outage has."""

    begins: float
    ended: int
    failed: int


class Setting(NamedTuple):
    """What the guard changes of a mapping."""

    is_enabled: bool
    maximum: int | None
    """Its MaximumConcurrency; None if it has none."""

    def __str__(self) -> str:
        maximum = "no MaximumConcurrency" if self.maximum is None else f"MaximumConcurrency {self.maximum}"
        return f"{'enabled' if self.is_enabled else 'disabled'} with {maximum}"


Phase = Literal["suspended", "probing", "judging", "resuming", "restoring"]
PHASES = get_args(Phase)


@dataclass(frozen=True)
class Note:
    """What the guard keeps at a mapping that it has changed, as a tag."""

    phase: Phase
    since: float
    """When the consumer was suspended first."""
    at: float
    """When this phase began."""
    former: int | None
    """The mapping's MaximumConcurrency before it was suspended."""
    setting: Setting
    """What the guard sets in this phase."""
    before: Setting
    """What the mapping had when this was written."""
    is_set: bool = False
    """Whether Lambda has confirmed the setting."""
    step: int = 0
    """Of the resumption, an index of `STEPS`; before it, how often the time between probes was doubled."""
    ended: int = 0
    failed: int = 0
    """Of the runs that ended before the consumer was suspended."""

    @property
    def reason(self) -> str:
        """Why the consumer was suspended."""
        return f"{self.failed / max(1, self.ended):.0%} of {self.ended:,} runs failed"

    def next_probe(self, limits: Limits) -> float:
        """Return when a suspended consumer is probed."""
        return self.at + min(limits.probe_every * (1 << self.step), limits.rarest)

    def __str__(self) -> str:
        since, probe = (time.strftime("%H:%M", time.gmtime(at)) for at in (self.since, self.next_probe(Limits())))
        what = {"suspended": f"next probe {probe}", "probing": "a probe runs", "judging": "a probe is judged"}
        return f"suspended since {since} UTC: {self.reason}; {what.get(self.phase, f'resuming, now {self.setting}')}"

    def text(self) -> str:
        """Return the note as the value of a tag: at most 256 characters of those that Lambda allows."""
        values = (
            self.phase, f"{self.since:.0f}", f"{self.at:.0f}", _concurrency(self.former), _setting(self.setting),
            _setting(self.before), "set" if self.is_set else "asked",
            *map(str, (self.step, self.ended, self.failed)),
        )  # fmt: skip
        return " ".join(values)

    @classmethod
    def read(cls, text: str) -> Note:
        """Read a tag's value. Raises `ValueError` if it is not the text of a note."""
        phase, since, at, former, setting, before, is_set, *counts = text.split(" ")
        if phase not in PHASES or is_set not in ("set", "asked"):
            raise ValueError(f"not a note of the guard: {text!r}")
        times = float(since), float(at)
        settings = _read_setting(setting), _read_setting(before)
        step, ended, failed = map(int, counts)
        maximum = _read_concurrency(former)
        return cls(cast("Phase", phase), *times, maximum, *settings, is_set == "set", step, ended, failed)


class Seen(NamedTuple):
    """The facts about a consumer at one look."""

    now: float
    state: str
    """The state of the mapping, such as ``Enabled`` or ``Disabling``."""
    maximum: int | None
    note: Note | None
    minutes: Sequence[Minute]
    """Those with metrics, oldest first."""
    expires_in: float | None = None
    """The seconds until the queue's oldest message expires; None if it is not known."""
    waiting: int | None = None
    """The messages that are ready in the queue; None if it is not known."""


class Act(NamedTuple):
    """What to do: write ``note`` (None: remove it), then give the mapping the note's setting."""

    note: Note | None
    why: str
    is_told: bool = True
    """Whether the log and the audit have it; False for a step of the guard's own."""


def decide(seen: Seen, limits: Limits) -> Act | None:
    """Return what to do with a consumer; None for nothing."""
    note = seen.note
    if seen.state not in ("Enabled", "Disabled"):
        return None  # Lambda is changing the mapping
    has = Setting(seen.state == "Enabled", seen.maximum)
    if note is None:
        return _suspended(seen, has, limits) if has.is_enabled else None
    if has != note.setting:
        if has == note.before and not note.is_set:
            return Act(note, "the last request to Lambda had no answer", is_told=False)
        return Act(None, f"the mapping was changed by another: it is {has}, not {note.setting}")
    if note.phase == "restoring":
        return Act(None, "the mapping has its former setting again", is_told=False)
    if (why := _must_resume(seen, note, limits)) is not None:
        return _next(seen, note, "restoring", why)
    return _of_phase(seen, note, limits)


def _suspended(seen: Seen, has: Setting, limits: Limits) -> Act | None:
    """Return the act that suspends a consumer whose runs fail since less than the window."""
    start = seen.now - limits.window - MINUTE  # of the last minutes whose metrics can be complete
    ended, failed = _sum(seen.minutes, start, seen.now)
    ended_before, failed_before = _sum(seen.minutes, start - limits.before, start)
    if ended < limits.runs or failed < limits.failing * ended or failed_before >= limits.failed_before * ended_before:
        return None
    setting = has._replace(is_enabled=False)
    note = Note("suspended", seen.now, seen.now, has.maximum, setting, has, ended=ended, failed=failed)
    return Act(note, note.reason)


def _of_phase(seen: Seen, note: Note, limits: Limits) -> Act | None:
    since = seen.now - note.at
    if note.phase == "suspended":
        is_due = seen.now >= note.next_probe(limits)
        return _next(seen, note, "probing", "a probe begins", step=note.step) if is_due else None
    if note.phase == "probing":
        ended_why = "the probe has ended"
        return _next(seen, note, "judging", ended_why, step=note.step, is_told=False) if since >= PROBE else None
    began = note.at - PROBE if note.phase == "judging" else note.at
    ended, failed = _sum(seen.minutes, began, seen.now)
    if note.phase == "resuming" and since < limits.window + MINUTE and ended < limits.runs:
        return None
    if not ended and since < limits.lag:
        return None
    share = f"{failed:,} of {ended:,} runs failed"
    if ended and failed > (1 - limits.failing) * ended:
        uses_too_many = seen.waiting is not None and failed > seen.waiting / 2
        return _next(seen, note, "suspended", share, step=note.step + 1 if uses_too_many else 0)
    step = 0 if note.phase == "judging" else note.step + 1
    if not ended or step >= len(STEPS) or (note.former is not None and note.former <= STEPS[step]):
        return _next(seen, note, "restoring", share if ended else "no metrics tell how its runs end")
    return _next(seen, note, "resuming", share, step=step)


def _must_resume(seen: Seen, note: Note, limits: Limits) -> str | None:
    if seen.now - note.since >= limits.longest:
        return f"it was suspended for {limits.longest / 3600:g} hours, the longest time"
    if seen.expires_in is not None and seen.expires_in < 60 * MINUTE:
        return f"the oldest message of its queue expires in {seen.expires_in / 60:.0f} minutes"
    return None


def _next(seen: Seen, note: Note, phase: Phase, why: str, *, step: int = 0, is_told: bool = True) -> Act:
    """Return the act that begins a phase."""
    maximum = {
        "suspended": note.setting.maximum,
        "probing": SMALLEST_CONCURRENCY,
        "judging": SMALLEST_CONCURRENCY,
        "resuming": STEPS[step] if step < len(STEPS) else note.former,
        "restoring": note.former,
    }[phase]
    setting = Setting(phase not in ("suspended", "judging"), maximum)
    begun = replace(note, phase=phase, at=seen.now, setting=setting, before=note.setting, is_set=False, step=step)
    return Act(begun, why, is_told)


def _sum(minutes: Sequence[Minute], start: float, end: float) -> tuple[int, int]:
    """Return how many runs ended and failed in the minutes that begin from ``start`` on, before ``end``."""
    within = [each for each in minutes if start <= each.begins < end]
    return sum(each.ended for each in within), sum(each.failed for each in within)


def _concurrency(maximum: int | None) -> str:
    return "none" if maximum is None else str(maximum)


def _read_concurrency(text: str) -> int | None:
    return None if text == "none" else int(text)


def _setting(setting: Setting) -> str:
    return f"{'enabled' if setting.is_enabled else 'disabled'}:{_concurrency(setting.maximum)}"


def _read_setting(text: str) -> Setting:
    state, maximum = text.split(":")
    return Setting(state == "enabled", _read_concurrency(maximum))
