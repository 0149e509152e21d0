"""The mixes of the campaign: slow CPUs, answers, tables and hooks, failure steps of the user's, handlers that hang."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tarry import DeadLetter, DropMessage, Failure, Fixed, LogOptions, Outcome, RetryInPlace, SendAgain, world
from tarry.support.values import MAX_DELAY_SECONDS
from tarry.testing import Fault
from tarry.tools.simulator.functions import current_call
from tests.simulation.scenario import BACKOFFS, HOUR, TWELVE_HOURS, Scenario, SourceSettings, Tables, on_slow_cpus

Mix = Callable[[Scenario, Random], Scenario]


def mixed(scenario: Scenario, names: Sequence[str] | None = None) -> Scenario:
    """Return the scenario with the mixes of these names; with those that its seed draws, if no names are given."""
    drawn = Random(f"{scenario.seed} mixes")
    if names is None:
        names = drawn.sample(list(MIXES), drawn.choice([0, 0, 0, 1, 1, 1, 1, 2, 2, 3]))
    for name in names:
        scenario = MIXES[name](scenario, Random(f"{scenario.seed} {name}"))
    return _bounded(replace(scenario, mixes=tuple(names)))


DOUBLING = frozenset({"duplicate", "garbled", "lost_answer", "hang", "late", "crash_after"})
"""Faults after which a message may be there twice. A long delay is a chain of copies, each of which they may double."""
MOST_DOUBLES = 60


def _bounded(scenario: Scenario) -> Scenario:
    """Return the scenario without faults and a realism that double messages for ever.

    Where a queue keeps messages for an hour or less, a delay of 12 hours is a chain of 48 copies or more, since each of
    them waits in SQS for 15 minutes at most. If SQS delivered a tenth of them twice, there would be a hundred times as
    many after each attempt (seed 8052); so it delivers one of a chain twice.
    """
    faults = tuple(
        replace(fault, times=MOST_DOUBLES) if fault.times is None and fault.kind in DOUBLING else fault
        for fault in scenario.faults
    )
    shortest = min(source.retention for source in scenario.sources)
    copies = TWELVE_HOURS / min(shortest, MAX_DELAY_SECONDS) if shortest <= HOUR else 1
    duplicate = min(scenario.realism.duplicate, 1 / copies)
    return replace(scenario, faults=faults, realism=replace(scenario.realism, duplicate=duplicate))


# how slow the environment is


def _slow_answers(scenario: Scenario, random: Random) -> Scenario:
    """SQS takes long to answer."""
    seconds, chance = random.choice([0.3, 1, 3, 4.5]), random.choice([0.3, 1])
    slow = Fault("late", times=None, chance=chance, seconds=seconds, maybe=True)
    return replace(scenario, faults=(*scenario.faults[:1], slow))


def _repeated_requests(scenario: Scenario, random: Random) -> Scenario:
    """Answers are lost, and the client's repetition of the request is refused."""
    operation = random.choice(["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
    lost, refused = random.choice(["lost_answer", "hang", "late"]), random.choice(["throttle", "denied", "unavailable"])
    faults = (
        Fault(lost, operation, times=None, chance=0.4, seconds=6, maybe=True),
        Fault(refused, operation, times=None, chance=0.5, maybe=True),
    )
    return replace(scenario, faults=faults)


def _slow_tables(scenario: Scenario, random: Random) -> Scenario:
    """The idempotency table or the attempt store is slow, and sometimes fails."""
    mood = random.choice(["slow", "slow", "busy", "stalls once", "throttled", "lost answers", "down"])
    seconds = random.choice([0.005, 0.1, 0.5, 1.2])
    store = random.choice([None, None, "well", "slow", "mixed"])
    records = None if store and random.random() < 0.5 else (mood, seconds)
    return replace(scenario, tables=Tables(records, store))


# the user's own code


MOST_ATTEMPTS = 100
MOST_SECONDS = 86_400
"""On a standard queue a step could keep a message for ever, since each copy renews its life (SPEC C10)."""
MOST_SECONDS_UNDECODABLE = 3_600
"""No handler ever succeeds on an undecodable message. SQS delivers up to a tenth of its copies twice, and each deferral
sends another copy for each delivery: after a day of deferrals there would be a million (seed 3327)."""


@dataclass(frozen=True)
class OwnStep:
    """A failure step of the user that does the same at each of the first `MOST_ATTEMPTS` attempts, for a day."""

    kind: str
    seconds: float

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Any:  # noqa: C901 a list
        sent_at, now = failure.message.sent_at, world.current().clock.time()
        is_copied = failure.reason == "undecodable" and not failure.queue.endswith(".fifo")
        most_seconds = MOST_SECONDS_UNDECODABLE if is_copied else MOST_SECONDS
        if failure.attempt > MOST_ATTEMPTS or (sent_at and now - sent_at.timestamp() > most_seconds):
            return next_step(failure)
        match self.kind:
            case "retries late":
                return Outcome.retry(40_000)
            case "defers":
                return Outcome.defer(600)
            case "is unhandled":
                return Outcome.unhandled()
            case "raises":
                raise RuntimeError("a step that fails")
            case "recurses":
                return self.handle(failure, next_step)
            case "exits":
                raise SystemExit(3)
            case "hangs":
                world.current().clock.sleep(self.seconds)
            case "resends" if int(failure.note("own")) < 4:
                return Outcome.resend(note={"own": int(failure.note("own")) + 1})
            case "resends late":
                return Outcome.resend(delay=50_000)
            case "retries too late":
                return Outcome.retry(50_000)
            case "wraps" if failure.reason == "error":
                return RetryInPlace().handle(failure, next_step)
            case "answers rubbish":
                return "rubbish"
        return next_step(failure)


OWN_STEPS = [
    "retries late", "defers", "is unhandled", "raises", "recurses", "exits", "hangs", "resends", "resends late",
    "retries too late", "wraps", "answers rubbish",
]  # fmt: skip


def _own_steps(scenario: Scenario, random: Random) -> Scenario:
    """A failure step of the user's always does the same, or the list does not retry in place."""
    lists = {source.name: _list(scenario, source, random) for source in scenario.sources}
    settings = {**scenario.settings, "on_failure": lists}
    if not all(RetryInPlace() in steps for steps in lists.values()):
        settings = {name: value for name, value in settings.items() if name not in ("max_attempts", "backoff")}
    return replace(scenario, settings=settings)


def _list(scenario: Scenario, source: SourceSettings, random: Random) -> list[Any]:
    own = OwnStep(random.choice(OWN_STEPS), random.choice([0.3, 0.9, 5]) * scenario.timeout)
    last: list[Any] = random.choice([[], [DeadLetter()], [DeadLetter()], [DropMessage()]])
    if random.random() < 0.2:  # what happens to a retry that a handler asks for
        again = SendAgain(f"mixed {source.name}", delay=None if source.is_fifo else 10, breaks_order=True)
        return random.choice([[DropMessage()], [DeadLetter()], [again, DeadLetter()]])
    return [own, *random.choice([[], [RetryInPlace()]]), *last]


class Hook:
    """A hook of the user that takes ``seconds`` at some of its calls, and then returns ``result``, or raises."""

    def __init__(self, seed: int, seconds: float, ending: str = "") -> None:
        self._seed = seed
        self._seconds = seconds
        self._ending = ending

    def __repr__(self) -> str:
        return f"Hook({self._seconds:g} s{self._ending and f', {self._ending}'})"

    def call(self, chance: str, result: Any) -> Any:
        if current_call() is None or Random(f"{self._seed} {chance}").random() < 0.5:
            return result  # a consumer that is made asks its backoff for the longest delay
        world.current().clock.sleep(self._seconds)
        match self._ending:
            case "raises":
                raise RuntimeError("a hook that fails")
            case "exits":
                raise SystemExit(3)
            case "rubbish":
                return self
        return result

    def enrich(self, failure: Failure) -> Any:
        return self.call(failure.message.id, {"seen": failure.attempt})

    def redact_record(self, record: dict[str, Any]) -> Any:
        return self.call(str(record.get("id")), record)

    def redact_fields(self, fields: dict[str, Any]) -> Any:
        if "state" in fields:  # the checkers read these lines
            return fields
        return self.call(str(fields.get("message_id")), fields)

    def retry_when(self, failure: Failure) -> Any:
        return self.call(failure.message.id, None)

    def queue(self, failure: Failure) -> Any:
        return self.call(failure.message.id, None)

    def delay(self, attempt: int, rng: Random | None = None) -> Any:
        return self.call(str(attempt), 5.0)

    def on_outcome(self, message: Any, outcome: Any) -> Any:
        return self.call(message.id, None)


def _slow_hooks(scenario: Scenario, random: Random) -> Scenario:
    """Some hooks of the user's are slow or hang."""
    seconds = random.choice([0.3, 0.9, 5]) * scenario.timeout
    hook = Hook(scenario.seed, seconds, random.choice(["", "", "", "raises", "exits", "rubbish"]))
    settings = dict(scenario.settings)
    dead_letter = DeadLetter(enrich=hook.enrich, redact=hook.redact_record)
    retries = [RetryInPlace(), random.choice([dead_letter, DeadLetter(queue=hook.queue)])]
    hooks: dict[str, Any] = {
        "on_failure": retries,
        "retry_when": hook.retry_when,
        "backoff": hook,
        "on_outcome": hook.on_outcome,
        "log": LogOptions(redact=hook.redact_fields),
    }
    chosen = random.sample(list(hooks), random.choice([1, 1, 2]))
    if "backoff" in chosen and "on_failure" not in chosen:
        chosen.append("on_failure")
    # With a dead-letter queue: without one, a message whose hook kills its function comes back until it expires.
    sources = tuple(replace(source, receives=random.choice([3, 5, 15])) for source in scenario.sources)
    return replace(scenario, sources=sources, settings=settings | {name: hooks[name] for name in chosen})


def _hanging_handlers(scenario: Scenario, random: Random) -> Scenario:
    """Handlers wait for something that never answers; the function's timeout is short."""
    timeout = random.choice([2, 3, 6, 30])
    sources = tuple(
        replace(source, visibility=timeout * random.choice([1, 2, 6]), delay=0) for source in scenario.sources
    )
    settings = {name: value for name, value in scenario.settings.items() if name not in ("timeout", "keepalive")}
    settings |= {"on_failure": [RetryInPlace(), DeadLetter()], "max_attempts": random.choice([2, 3])}
    settings["backoff"] = random.choice([*BACKOFFS, Fixed(1)])
    posts = tuple(replace(post, temper=random.choice([post.temper, "hanging"])) for post in scenario.posts)
    batch_size = random.choice([1, 3, min(10, scenario.batch_size)])
    return replace(
        scenario, timeout=timeout, sources=sources, settings=settings, posts=posts, batch_size=batch_size, window=0
    )


def _extended_leases(scenario: Scenario, random: Random) -> Scenario:
    """Handlers extend the visibility of their messages, sometimes for less than they have."""
    posts = tuple(replace(post, temper=random.choice([post.temper, "extending"])) for post in scenario.posts)
    return replace(scenario, posts=posts)


MIXES: dict[str, Mix] = {
    "slow-cpu": on_slow_cpus,
    "slow-answers": _slow_answers,
    "repeated-requests": _repeated_requests,
    "slow-tables": _slow_tables,
    "own-steps": _own_steps,
    "slow-hooks": _slow_hooks,
    "hanging-handlers": _hanging_handlers,
    "extended-leases": _extended_leases,
}
