"""A queue during an outage: a model of the queue, its event source mapping and the policy, message by message.

It is lighter than the sandbox, where a message takes dozens of times as long, so that millions of messages take
seconds, and is tested against it; a closed form would have no spread. Of the sandbox it uses the scaling of the
mapping. It leaves out the time of requests, the settling of short delays before the end of a batch, and the order of
redelivered messages in a batch. Receive counts are those of the timeline: no process crashes, no batch is throttled.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from tarry.failed.text import duration
from tarry.guard.decision import MINUTE, GuardLimits, Minute, Note, Seen, Setting, decide, expiring
from tarry.support.values import MAX_DELAY_SECONDS, MOMENT_SECONDS
from tarry.tools.plan.timeline import WAITS, PlannedAttempt, PolicyTimeline
from tarry.tools.simulator.mapping_settings import Scaling

MILLION = 1_000_000
REQUEST_PRICE = 0.40 / MILLION
"""Dollars for a request to a standard queue, in us-east-1."""
INVOCATION_PRICE = 0.20 / MILLION
GB_SECOND_PRICE = 0.0000166667
"""For x86_64; arm64 costs a fifth less."""


@dataclass(frozen=True)
class Load:
    """The load of a queue: ``rate`` messages a second, at random times.

    From 0 to ``outage`` seconds, a share ``failing`` of the messages that arrive fails at each attempt.
    ``handler_time`` is that of one run, in seconds.
    """

    rate: float
    failing: float
    outage: float
    handler_time: float


@dataclass(frozen=True)
class Consuming:
    """How a queue feeds a function: the settings of the mapping and the function."""

    batch_size: int = 10
    window: float = 0
    maximum_concurrency: int | None = None
    memory_mb: int = 128
    per_invocation: int = 1
    """How many messages of a batch run at once."""

    @property
    def invocations(self) -> int:
        """How many invocations run at once at most."""
        return Scaling(self.maximum_concurrency).maximum

    def messages_per_second(self, handler_time: float) -> float:
        """Return how many messages the function can run in a second."""
        return self.invocations * min(self.per_invocation, self.batch_size) / handler_time


class LoadSample(NamedTuple):
    """The numbers of messages at a time."""

    at: float
    waiting: float
    """Messages that wait for a retry."""
    ready: float
    """Messages that wait for a free invocation."""
    dead: float


@dataclass
class LoadRun:
    """The numbers of one run."""

    seed: int
    scale: int = 1
    """How many messages each simulated message stands for."""
    messages: int = 0
    failed: int = 0
    """The messages that failed at least once."""
    runs: int = 0
    """The runs of the handler."""
    drained_at: float | None = None
    """When no message of the outage was left, and none was ready; None if that did not happen."""
    ended_at: float = 0
    waiting_at_end: int = 0
    """The messages that waited when the outage ended."""
    peak_waiting: int = 0
    peak_ready: int = 0
    peak_in_flight: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """The messages that did not succeed, by how they ended: ``dead_letter``, ``drop``, ``sent_on``, ``stays``."""
    first_end_at: float | None = None
    requests: int = 0
    """The requests to SQS."""
    invocations: int = 0
    busy_seconds: float = 0
    samples: list[LoadSample] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)
    """When the guard began each of its phases; the last is an empty text."""

    @property
    def dead(self) -> int:
        return self.ends["dead_letter"]


class Spread(NamedTuple):
    """The mean of the runs, and the lowest and highest."""

    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class LoadResult:
    """The runs of a load, one for each seed."""

    load: Load
    consuming: Consuming
    runs: Sequence[LoadRun]
    is_guarded: bool = False

    def of(self, value: Callable[[LoadRun], float]) -> Spread:
        """Return a number of all runs."""
        found = [value(run) for run in self.runs]
        return Spread(fmean(found), min(found), max(found))

    @property
    def drained(self) -> Spread | None:
        """When the queue was drained; None if it was not in every run."""
        is_drained = all(run.drained_at is not None for run in self.runs)
        return self.of(lambda run: run.drained_at or 0.0) if is_drained else None

    def suspensions(self) -> str:
        """Return when the guard suspended and resumed the consumer in the first run."""
        phases = self.runs[0].phases
        if not phases:
            return "the consumer is never suspended"
        probes = sum(phase == "probing" for _, phase in phases)
        resumed = next((f"resumed after {duration(at)}" for at, phase in phases if phase == "resumed"), "not resumed")
        return f"suspended after {duration(phases[0][0])}, {probes} probe{'s'[: probes != 1]}, {resumed}"


def dollars_of(result: LoadResult) -> dict[str, float]:
    """Return the mean costs of the requests to SQS, of the invocations and of their time, without a free part."""
    gigabytes = result.consuming.memory_mb / 1024
    return {
        "requests": result.of(lambda run: run.requests).mean * REQUEST_PRICE,
        "invocations": result.of(lambda run: run.invocations).mean * INVOCATION_PRICE,
        "compute": result.of(lambda run: run.busy_seconds).mean * gigabytes * GB_SECOND_PRICE,
    }


SEEDS = 5
MANY_MESSAGES = 100_000
"""A run of more messages is scaled down: each simulated message stands for several."""
MOST_MESSAGES = 300_000
"""The most simulated messages of a run."""
LONGEST = 3
"""A run that is not drained ends after so many times the outage and the longest retry."""
CHANGE_SECONDS = 30
"""How long Lambda takes to change a mapping: up to a minute."""
PER_REQUEST = 10
"""Messages of a request to SQS."""
MOST_SAMPLES = 480


def longest_recovery(load: Load, timeline: PolicyTimeline) -> float:
    """Return when the last message of the outage is tried again at the latest, if it need not wait in the queue."""
    begun = (each for each in timeline.attempts if each.begins.earliest <= load.outage)
    return load.outage + max(each.local_wait.latest + each.wait.latest for each in begun)


def scale_of(load: Load, timeline: PolicyTimeline, consuming: Consuming) -> int:
    """Return how many messages each simulated message stands for: 1, or more for a high load or a long outage."""
    expected = load.rate * longest_recovery(load, timeline)
    return max(1, min(ceil(expected / MANY_MESSAGES), consuming.invocations))


def simulate(
    load: Load,
    timeline: PolicyTimeline,
    consuming: Consuming,
    seed: int,
    progress: Callable[[float], None] = lambda seconds: None,
    *,
    guard: GuardLimits | None = None,
) -> LoadRun:
    """Run a load through the model until the queue is drained; ``progress`` is called with the virtual seconds.

    With the limits of a ``guard``, it suspends and resumes the consumer, which had no failures before.
    """
    return _Model(load, timeline, consuming, seed, guard).run(progress)


@dataclass(eq=False, slots=True)
class _LoadMessage:
    is_affected: bool
    stage: int = 0
    """The attempts that have failed: an index of the timeline's."""


class _Model:
    def __init__(
        self, load: Load, timeline: PolicyTimeline, consuming: Consuming, seed: int, guard: GuardLimits | None
    ) -> None:
        self._scale = scale_of(load, timeline, consuming)
        self._load = load
        self._rate = load.rate / self._scale
        self._window = consuming.window * self._scale
        self._attempts = timeline.attempts
        self._consuming = consuming
        self._random = Random(f"tarry plan {seed}")
        self._scaling = Scaling(consuming.maximum_concurrency)
        self._has_grown = False
        self._ready: deque[_LoadMessage] = deque()
        self._gathering: list[_LoadMessage] = []
        self._window_number = 0
        self._running = 0
        self._running_messages = 0
        self._in_place = 0
        self._delayed = 0
        self._open = 0
        """The messages that have failed and not ended."""
        self._has_room_event = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self.now = 0.0
        self._run = LoadRun(seed, self._scale)
        self._sample_every = max(load.outage / 120, 0.001)
        self._next_sample = 0.0
        expected = longest_recovery(load, timeline)
        is_enough = load.rate < consuming.messages_per_second(load.handler_time)
        self._guard, self._retention = guard, timeline.queue.retention_seconds
        if guard is not None:
            expected += guard.probe_every + guard.lag
        self._horizon = expected * (LONGEST if is_enough else 1)
        self._setting: Setting | None = Setting(True, consuming.maximum_concurrency)
        """Of the mapping; None while Lambda changes it."""
        self._is_polled = True
        self._note: Note | None = None
        before = range(-ceil(guard.before / MINUTE), 0) if guard else ()
        self._counts = {each: [ceil(load.rate * MINUTE), 0] for each in before}
        """How many runs ended and failed, by minute."""

    def run(self, progress: Callable[[float], None]) -> LoadRun:
        load, run = self._load, self._run
        self._at(load.outage, self._outage_ends)
        self._at(self._random.expovariate(self._rate), self._arrives)
        if self._guard is not None:
            self._at(MINUTE, self._look, self._guard)
        while run.messages < MOST_MESSAGES and self.now <= self._horizon:
            self.now, _, action, arguments = heappop(self._events)
            if self.now >= self._next_sample:
                self._sample()
                progress(self.now)
            action(*arguments)
            if run.drained_at is None and self.now >= load.outage and not self._open and not self._ready:
                run.drained_at = self.now
            if run.drained_at is not None and self._note is None:
                break
        run.ended_at = self.now
        run.samples.append(self._sample_at(self.now))
        return run if self._scale == 1 else _multiplied(run)

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heappush(self._events, (when, self._order, action, arguments))

    def _outage_ends(self) -> None:
        self._run.waiting_at_end = self._in_place + self._delayed

    # the queue

    def _arrives(self) -> None:
        load = self._load
        self._run.messages += 1
        is_affected = self.now < load.outage and self._random.random() < load.failing
        self._ready.append(_LoadMessage(is_affected))
        self._dispatch()
        self._at(self.now + self._random.expovariate(self._rate), self._arrives)

    def _returns(self, message: _LoadMessage, is_in_place: bool) -> None:
        if is_in_place:
            self._in_place -= 1
        else:
            self._delayed -= 1
        self._ready.append(message)
        self._dispatch()

    def _is_received_early(self, message: _LoadMessage, due: float) -> None:
        """Receive a copy after its longest `DelaySeconds`; the consumer lets it wait in place."""
        self._delayed -= 1
        self._in_place += 1
        self._run.requests += 2  # the receive, and the change of its visibility
        self._run.invocations += 1
        self._at(due, self._returns, message, True)

    # the mapping

    def _dispatch(self) -> None:
        ready, size, window = self._ready, self._consuming.batch_size, self._window
        while self._is_polled and ready and (self._gathering or self._has_room()):
            batch = self._gathering
            is_new = not batch
            received = min(len(ready), size - len(batch))
            batch += [ready.popleft() for _ in range(received)]
            self._run.requests += ceil(received / PER_REQUEST)
            if not window or len(batch) >= size:
                self._invoke()
            elif is_new:
                self._at(self.now + window, self._window_ends, self._window_number)
        self._run.peak_ready = max(self._run.peak_ready, len(ready))
        if self._has_grown and not ready:
            self._scaling.enough(self.now, self._running)
            self._has_grown = self._running > 0

    def _has_room(self) -> bool:
        if self._running < max(1, self._scaling.limit(self.now) // self._scale):
            return True
        self._has_grown = True
        when = self._scaling.more_wanted(self.now)
        if when is not None and not self._has_room_event:
            self._has_room_event = True
            self._at(when, self._has_more_room)
        return False

    def _has_more_room(self) -> None:
        self._has_room_event = False
        self._dispatch()

    def _window_ends(self, number: int) -> None:
        if number == self._window_number and self._gathering:
            self._invoke()
            self._dispatch()

    def _invoke(self) -> None:
        """Run the gathered batch: its messages one after another, or several at once."""
        batch, self._gathering = self._gathering, []
        self._window_number += 1
        load, run, at_once = self._load, self._run, self._consuming.per_invocation
        failed: dict[_LoadMessage, float] = {}
        local_time = 0.0
        for place, message in enumerate(batch):
            begins = self.now + place // at_once * load.handler_time
            if message.is_affected and begins < load.outage:
                stage = self._stage(message)
                failed[message] = begins + load.handler_time
                again = (stage.runs - 1) * load.handler_time + self._between(stage.local_wait)
                local_time = max(local_time, again)
                run.runs += stage.runs - 1
        seconds = ceil(len(batch) / at_once) * load.handler_time + local_time
        run.runs += len(batch)
        run.invocations += 1
        run.busy_seconds += seconds
        self._running += 1
        self._running_messages += len(batch)
        self._note_in_flight()
        # A simulated invocation stands for several: if fewer may run, it takes as much longer.
        slower = max(1, self._scale / self._scaling.limit(self.now))
        self._at(self.now + seconds * slower, self._ended, batch, failed)

    def _stage(self, message: _LoadMessage) -> PlannedAttempt:
        return self._attempts[min(message.stage, len(self._attempts) - 1)]

    def _between(self, bounds: tuple[float, float]) -> float:
        earliest, latest = bounds
        return latest if earliest == latest else self._random.uniform(earliest, latest)

    def _ended(self, batch: list[_LoadMessage], failed: dict[_LoadMessage, float]) -> None:
        self._running -= 1
        self._running_messages -= len(batch)
        if len(failed) < len(batch):
            self._run.requests += ceil((len(batch) - len(failed)) / PER_REQUEST)
        self._open -= sum(message.stage > 0 and message not in failed for message in batch)
        if self._guard is not None:
            counts = self._counts.setdefault(int(self.now // MINUTE), [0, 0])
            counts[0] += self._scale * len(batch)
            counts[1] += self._scale * sum(self._stage(message).follows != "drop" for message in failed)
        if failed:
            self._settle(failed)
        self._dispatch()

    def _settle(self, failed: dict[_LoadMessage, float]) -> None:
        run, copies, in_place = self._run, 0, 0
        for message, failed_at in failed.items():
            stage = self._stage(message)
            if not message.stage:
                run.failed += 1
                self._open += 1
            message.stage += 1
            copies += stage.follows in SENDS
            if stage.follows not in WAITS:
                run.ends[stage.follows] += 1
                run.first_end_at = self.now if run.first_end_at is None else run.first_end_at
                self._open -= 1
                continue
            due = self.now + max(0, ceil(failed_at + self._between(stage.wait) - self.now - MOMENT_SECONDS))
            if stage.follows != "copy":
                in_place += 1
                self._in_place += 1
                self._at(due, self._returns, message, True)
            else:
                self._delayed += 1
                early = self.now + MAX_DELAY_SECONDS
                if due > early:
                    self._at(early, self._is_received_early, message, due)
                else:
                    self._at(due, self._returns, message, False)
        # changes of visibility, and the sends of copies with the deletes of their originals
        run.requests += ceil(in_place / PER_REQUEST) + 2 * ceil(copies / PER_REQUEST)
        run.peak_waiting = max(run.peak_waiting, self._in_place + self._delayed)
        self._note_in_flight()

    def _note_in_flight(self) -> None:
        in_flight = self._in_place + self._running_messages
        self._run.peak_in_flight = max(self._run.peak_in_flight, in_flight)

    # the guard

    def _look(self, limits: GuardLimits) -> None:
        """Let the guard look, as it does each minute, at metrics that are a minute old."""
        self._at(self.now + MINUTE, self._look, limits)
        minutes = [Minute(at * MINUTE, *of) for at, of in self._counts.items() if (at + 2) * MINUTE <= self.now]
        hindrance = expiring(self._retention - (self.now - self._note.since)) if self._note else None
        waiting = len(self._ready) * self._scale
        act = decide(Seen(self.now, self._setting, self._note, minutes, hindrance, waiting), limits)
        if act is None:
            return
        self._run.phases.append((self.now, act.note.phase if act.note else ""))
        self._note = act.note and act.note._replace(before=act.note.setting)
        if self._note is not None:
            self._setting = None
            self._at(self.now + CHANGE_SECONDS, self._is_changed, self._note.setting)

    def _is_changed(self, setting: Setting) -> None:
        self._setting, self._is_polled = setting, setting.is_enabled
        self._scaling = Scaling(setting.maximum)
        self._dispatch()

    # samples

    def _sample(self) -> None:
        while self._next_sample <= self.now:
            samples = self._run.samples
            samples.append(self._sample_at(self._next_sample))
            if len(samples) > MOST_SAMPLES:
                del samples[1::2]
                self._sample_every *= 2
            self._next_sample += self._sample_every

    def _sample_at(self, at: float) -> LoadSample:
        return LoadSample(at, self._in_place + self._delayed, len(self._ready), self._run.dead)


def _multiplied(run: LoadRun) -> LoadRun:
    """Return a run with the numbers of all messages, not only of those simulated."""
    scale = run.scale
    numbers = {name: getattr(run, name) * scale for name in COUNTED}
    return replace(
        run,
        **numbers,
        ends=Counter({name: number * scale for name, number in run.ends.items()}),
        samples=[LoadSample(each.at, *(number * scale for number in each[1:])) for each in run.samples],
    )


COUNTED = (
    *("messages", "failed", "runs", "waiting_at_end", "peak_waiting", "peak_ready", "peak_in_flight"),
    *("requests", "invocations", "busy_seconds"),
)
SENDS = frozenset({"copy", "dead_letter", "sent_on"})
"""The outcomes of an attempt that send a message to a queue."""
