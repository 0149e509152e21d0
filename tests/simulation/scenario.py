"""The scenario of a seed of the campaign: queues, a consumer, messages with their temper, and faults."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tarry import (
    DeadLetter,
    DropMessage,
    Exponential,
    Failure,
    Fixed,
    Linear,
    LocalRetry,
    LogOptions,
    Outcome,
    RetryInPlace,
    Schedule,
    SendAgain,
)
from tarry.testing import Fault, Realism
from tarry.tools.simulator.recursion import RecursiveLoop
from tarry.tools.testing.faults import MESSAGES, Parts

HOUR, DAY = 3_600, 86_400
TWELVE_HOURS = 43_200


class Fatal(Exception):
    """An error that the consumer lists as fatal."""


class FatalSubclass(Fatal):
    """An error that is fatal because its base class is."""


@dataclass(frozen=True)
class Body:
    """The body of a message, for a consumer with a model."""

    key: int
    temper: str
    filler: str


@dataclass(frozen=True)
class RandomStep:
    """A failure step of the user that returns a random outcome."""

    seed: int

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Any:
        random = Random(f"{self.seed} {failure.message.id} {failure.attempt} {failure.note('whim')}")
        match random.randrange(12):
            case 0:
                raise RuntimeError("a step that fails")
            case 1:
                return None
            case 2:
                return Outcome.retry(random.choice([0, 5, 700]))
            case 3:
                return Outcome.discard("on a whim")
            case 4:
                return Outcome.ack()
            case 5 if int(failure.note("whim")) < 3:
                delay = None if failure.queue.endswith(".fifo") else random.choice([None, 0, 30, 2_000])
                note: dict[str, int | str] = {
                    "whim": int(failure.note("whim")) + 1,
                    "mood": random.choice(["", "glum", "x" * 256]),
                }
                changed = {**failure.message.attributes, "mood": "changed"} if random.random() < 0.5 else None
                return Outcome.resend(None, delay, note=note, attributes=changed)
            case 6 if _is_young(failure) and failure.reason != "undecodable":  # otherwise it would defer for ever
                return Outcome.defer(random.choice([1, 60]))
            case 7 if failure.tries < 3:
                return Outcome.again(0.1)
            case 8:
                return Outcome.dead_letter("whimsical")
        return next_step(failure)


def _is_young(failure: Failure) -> bool:
    """Whether a message was sent first less than an hour ago, and has few attempts: a deferral counts as none."""
    sent_at = failure.message.sent_at
    return failure.attempt < 6 and (sent_at is None or failure.failed_at - sent_at.timestamp() < HOUR)


def enrich(failure: Failure) -> dict[str, Any]:
    if failure.attempt % 3 == 0:
        raise RuntimeError("nothing to add")
    return {"seen": failure.attempt}


def redact(record: dict[str, Any]) -> dict[str, Any]:
    if record["failure"]["attempts"] % 3 == 0:
        raise RuntimeError("nothing to redact")
    return {**record, "failure": {**record["failure"], "message": "..."}}


def opinion(failure: Failure) -> Any:
    """Decide ``retry_when``: sometimes differently from the error classes."""
    match (failure.attempt + len(failure.message.body)) % 7:
        case 0:
            raise RuntimeError("no opinion")
        case 1:
            return 3.5
        case 2:
            return failure.attempt < 3
    return None


@dataclass(frozen=True)
class SourceSettings:
    """A source queue of the consumer. ``receives`` is its maxReceiveCount, None without a dead-letter queue."""

    name: str
    visibility: int
    retention: int
    delay: int
    bytes: int
    receives: int | None
    dead_letter_bytes: int

    @property
    def dead_letter_queue(self) -> str:
        """The name of its dead-letter queue."""
        return "dlq.fifo" if self.is_fifo else f"{self.name}-dlq"

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(".fifo")


@dataclass(frozen=True)
class Post:
    """A message: when it is sent (in seconds from the start), to which queue, and how its handler behaves."""

    key: int
    at: float
    queue: str
    temper: str
    group: str | None
    delay: int | None
    attributes: int
    bytes: int
    oddity: str | None = None
    """``spoilt``: the body is not JSON. ``own record``: the user has an attribute named Tarry. ``stolen record``: the
    `Tarry` record of another message. ``traced``: an X-Ray header."""

    @property
    def body(self) -> str:
        if self.oddity == "spoilt":
            return f'{{"key": {self.key}, "temper": "{self.temper}", and no more'
        start = f'{{"key": {self.key}, "temper": "{self.temper}", "filler": "'
        return start + "x" * (self.bytes - len(start) - 2) + '"}'


@dataclass(frozen=True)
class Tables:
    """The tables of the consumer: None where it has none."""

    records: tuple[str, float] | None = None
    """The mood of the idempotency table, and how long each of its requests takes, in seconds."""
    store: str | None = None
    """The mood of the attempt store."""


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed determines."""

    seed: int
    sources: tuple[SourceSettings, ...]
    takes_batch: bool
    is_async: bool
    settings: dict[str, Any]
    batch_size: int
    window: int
    timeout: int
    max_concurrency: int | None
    posts: tuple[Post, ...]
    faults: tuple[Fault, ...]
    trouble_seconds: float
    """The seconds after which there are no more faults, and no handler crashes or is slow."""
    realism: Realism
    redrives: bool
    """Whether the dead letters are redriven once all messages have settled."""
    model: type | None
    tables: Tables = Tables()
    mixes: tuple[str, ...] = ()
    """The names of the mixes that made it harder (`tests.simulation.mixes`)."""
    recursive_loop: RecursiveLoop = "Allow"
    """``Terminate`` needs a dead-letter queue: otherwise a message in a loop would be received until it expires."""

    @property
    def limits(self) -> dict[str, int | None]:
        """The maxReceiveCount of each source queue."""
        return {source.name: source.receives for source in self.sources}


def with_parts(scenario: Scenario, parts: Parts) -> Scenario:
    """Return the scenario with only the parts that are kept; the rest is as plain as possible."""
    posts = [post for post in scenario.posts if parts.keep(MESSAGES, post.key)]
    return replace(
        scenario,
        posts=tuple(_with_parts(post, parts) for post in posts),
        settings={name: value for name, value in scenario.settings.items() if parts.keep("settings", name)},
        realism=parts.realism(scenario.realism),
        redrives=scenario.redrives and parts.keep("redrives"),
        tables=Tables(
            scenario.tables.records if scenario.tables.records and parts.keep("tables", "records") else None,
            scenario.tables.store if scenario.tables.store and parts.keep("tables", "store") else None,
        ),
    )


def _with_parts(post: Post, parts: Parts) -> Post:
    if post.temper != "calm" and not parts.keep("tempers", post.key):
        post = replace(post, temper="calm")
    if post.oddity is not None and not parts.keep("oddities", post.key):
        post = replace(post, oddity=None)
    if post.delay is not None and not parts.keep("delays", post.key):
        post = replace(post, delay=None)
    return post


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed."""
    random = Random(f"scenario {seed}")
    drawn = _draw(seed, random)
    return _stalled(drawn) if random.random() < 0.04 else _with_other_faults(drawn, Random(f"{seed} mix"))


def _with_other_faults(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario, in a quarter of all cases with another kind of trouble than single faults."""
    changes = [_denied, _all_at_once, _delivered_late, on_slow_cpus]
    return random.choice(changes)(scenario, random) if random.random() < 0.25 else scenario


def _denied(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario of a function that lacks one permission, on its own queues or on all queues."""
    operation = random.choice([_SEND, _DELETE, _CHANGE, _CHANGE, "GetQueueAttributes"])
    queues = [None] if random.random() < 0.5 else [source.name for source in scenario.sources]
    denied = tuple(Fault("denied", operation, queue, times=None, maybe=True) for queue in queues)
    return replace(scenario, faults=denied + scenario.faults[:1])


def _all_at_once(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario with many frequent faults."""
    drawn = (random.choice(_FAULTS) for _ in range(6))
    longest = scenario.timeout + 1
    faults = (
        Fault(kind, operation, times=None, chance=0.3, seconds=min(seconds, longest), maybe=True)
        for kind, operation, seconds in drawn
    )
    return replace(scenario, faults=tuple(faults))


def _delivered_late(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario of a slow poller: most of a lease has passed at the delivery, and it ends during the run."""
    seconds = min(source.visibility for source in scenario.sources) * 55 / 60
    slow_poller = Fault("held", times=None, chance=random.choice([0.3, 0.9]), seconds=seconds, maybe=True)
    posts = tuple(replace(post, temper=random.choice([post.temper, "slow"])) for post in scenario.posts)
    return replace(scenario, window=0, batch_size=min(10, scenario.batch_size), posts=posts, faults=(slow_poller,))


def on_slow_cpus(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario with slow CPUs: every computation takes time."""
    seconds = random.choice([0.001, 0.01, 0.05])
    slow = Fault("slow_cpu", times=None, chance=random.choice([0.5, 1]), seconds=seconds, maybe=True)
    return replace(scenario, faults=(slow, *scenario.faults[:1]))


def _stalled(scenario: Scenario) -> Scenario:
    """Return the scenario with so little concurrency and time that leases end while handlers run."""
    return replace(
        scenario,
        timeout=30,
        batch_size=1,
        sources=tuple(replace(source, visibility=30, retention=DAY) for source in scenario.sources),
        posts=tuple(replace(post, temper="slow") for post in scenario.posts),
        faults=(Fault("throttled", times=None, chance=0.75, maybe=True),),
        trouble_seconds=2 * HOUR,
    )


def _draw(seed: int, random: Random) -> Scenario:
    fifo = random.random() < 0.4
    timeout = random.choice([3, 10, 30, 120])
    trouble = random.choice([60, 600, 2 * HOUR, 13 * HOUR])
    takes_batch = random.random() < 0.35
    sources = tuple(_sources(random, timeout, fifo=fifo))
    window = 0 if fifo or random.random() < 0.6 else random.choice([1, 5, 60, 300])
    most = 40 if window else 10
    return Scenario(
        seed=seed,
        sources=sources,
        takes_batch=takes_batch,
        is_async=random.random() < 0.35,
        settings=_settings(random, sources, takes_batch=takes_batch) | _running(Random(f"{seed} running"), takes_batch),
        batch_size=random.choice([1, 3, 10, most]),
        window=window,
        timeout=timeout,
        max_concurrency=random.choice([None, None, 2, 3]),
        posts=tuple(_posts(random, sources, trouble)),
        faults=tuple(draw_faults(random, timeout)),
        trouble_seconds=trouble,
        realism=draw_realism(random),
        redrives=random.random() < 0.15,
        model=Body if random.random() < 0.15 else None,
        recursive_loop="Allow" if any(not source.receives for source in sources) else _loops(Random(f"{seed} loops")),
    )


def _loops(random: Random) -> RecursiveLoop:
    return random.choice(["Allow", "Terminate"])


def _sources(random: Random, timeout: int, *, fifo: bool) -> list[SourceSettings]:
    end = ".fifo" if fifo else ""
    names = [f"work{end}", f"slow{end}"] if random.random() < 0.35 else [f"work{end}"]
    return [_source(random, name, timeout) for name in names]


def _source(random: Random, name: str, timeout: int) -> SourceSettings:
    short = random.random() < 0.1
    return SourceSettings(
        name=name,
        visibility=timeout * random.choice([1, 2, 6]),
        retention=random.choice([300, HOUR, 10 * HOUR]) if short else random.choice([DAY, 4 * DAY, 14 * DAY]),
        delay=random.choice([0, 0, 0, 0, 5, 900]),
        bytes=random.choice([1_024, 4_096, 262_144, 1_048_576, 1_048_576]),
        receives=random.choice([None, 1, 3, 5, 15, 15, 30, 30, 100]),
        dead_letter_bytes=random.choice([1_024, 2_048, 1_048_576, 1_048_576, 1_048_576]),
    )


BACKOFFS = [
    None, Fixed(0), Fixed(1, jitter="full"), Fixed(30), Fixed(20, jitter=0.5),
    Linear(10, 20, maximum=300, jitter="equal"), Exponential(2, 3, maximum=900, jitter="equal"),
    Exponential(60, 10, jitter="full"), Exponential(TWELVE_HOURS, 1), Schedule([1, 5, 60, HOUR]), Schedule.rocketmq(),
]  # fmt: skip
RESEND_DELAYS = [None, 0, 7, 900, 4_000, TWELVE_HOURS, Exponential(5, 1.5, maximum=60)]


def _settings(random: Random, sources: tuple[SourceSettings, ...], *, takes_batch: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"fatal": Fatal}
    lists = [_steps(random, sources, f"again {source.name}", takes_batch=takes_batch) for source in sources]
    if len(sources) > 1 and random.random() < 0.6:
        settings["on_failure"] = {source.name: steps for source, steps in zip(sources, lists, strict=True) if steps}
    elif lists[0] is not None:
        settings["on_failure"] = lists[0]
    by_queue = settings.get("on_failure")
    if random.random() < 0.1:
        settings["retry_when"] = opinion
    if random.random() < 0.1:
        settings["log"] = LogOptions(body=True, redact=lambda fields: fields)
    all_lists = list(by_queue.values()) if isinstance(by_queue, dict) else [by_queue]
    if isinstance(by_queue, dict) or any(not each or RetryInPlace() in each for each in all_lists):
        settings["max_attempts"] = random.choice([1, 2, 3, 3, 5, 8])
        settings["backoff"] = random.choice(BACKOFFS)
    return settings


def _running(random: Random, takes_batch: bool) -> dict[str, Any]:
    """Draw the settings for running handlers, mostly the defaults."""
    settings: dict[str, Any] = {}
    if random.random() < 0.25:
        settings["ack"] = "eager"
    if random.random() < 0.25:
        settings["keepalive"] = random.choice([0.5, 2, 10, 60])
    if random.random() < 0.15:
        settings["isolate"] = False
    if not takes_batch and random.random() < 0.3:
        settings["concurrency"] = random.choice([2, 4, 20])
    if random.random() < 0.15:
        settings["timeout"] = random.choice([0.5, 2, 20])
    return settings


def _steps(random: Random, sources: tuple[SourceSettings, ...], id: str, *, takes_batch: bool) -> list[Any] | None:
    if random.random() < 0.45:
        return None
    fifo = sources[0].is_fifo
    steps: list[Any] = [RetryInPlace()] if random.random() < 0.7 else []
    if random.random() < 0.3 and not takes_batch:
        steps.insert(0, LocalRetry(random.choice([1, 2]), random.choice([0, 0.5, 5])))
    if random.random() < 0.55:
        queue = random.choice([None, sources[-1].name])
        delay = None if fifo else random.choice(RESEND_DELAYS)
        breaks = random.random() < 0.6
        steps.append(SendAgain(id, random.choice([1, 2, 4]), delay, queue=queue, breaks_order=breaks))
    if random.random() < 0.85:
        dead_letter = DeadLetter(enrich=enrich, redact=redact) if random.random() < 0.2 else DeadLetter()
        steps.append(DropMessage() if random.random() < 0.15 else dead_letter)
    if random.random() < 0.12:
        place, ends = random.randrange(len(steps) + 1), steps and isinstance(steps[-1], DeadLetter | DropMessage)
        steps.insert(min(place, len(steps) - bool(ends)), RandomStep(random.randrange(1_000)))
    return steps or None


TEMPERS = {"calm": 4, "moody": 8, "failing": 2, "fatal": 1, "poison": 1, "decisive": 3, "patient": 2, "slow": 2}


def _posts(random: Random, sources: tuple[SourceSettings, ...], trouble: float) -> list[Post]:
    spread = random.choice([0, 30, min(trouble, 1_000)])
    keys = range(random.choice([1, 3, 8, 14, 25, 60] if random.random() < 0.1 else [1, 3, 8, 14, 25]))
    return sorted((_post(random, key, random.choice(sources), spread) for key in keys), key=lambda post: post.at)


def _post(random: Random, key: int, source: SourceSettings, spread: float) -> Post:
    attributes = random.choice([0, 0, 0, 1, 3, 8, 9, 10])
    delay = None
    if not source.is_fifo and random.random() < 0.3:
        delay = random.choice([0, 1, 60, 900] if attributes == 10 else [0, 1, 60, 900, 901, 3_000, TWELVE_HOURS])
    record_bytes = 300 if delay is not None and delay > 900 else ODDITY_BYTES
    max_bytes = source.bytes - 60 * attributes - record_bytes
    return Post(
        key=key,
        at=round(random.uniform(0, spread), 3),
        queue=source.name,
        temper=random.choices(list(TEMPERS), list(TEMPERS.values()))[0],
        group=random.choice("abc") if source.is_fifo else random.choice([None, None, None, "fair"]),
        delay=delay,
        attributes=attributes,
        bytes=min(max_bytes, 4_000) if random.random() < 0.1 else random.choice([70, 100, 200]),
        oddity=_oddity(random, source) if attributes < 9 and not (delay or 0) > 900 else None,
    )


def _oddity(random: Random, source: SourceSettings) -> str | None:
    """Draw an oddity, but no spoilt body without a dead-letter queue: it would stay in the queue for ever."""
    oddity = random.choice(ODDITIES)
    return None if oddity == "spoilt" and not source.receives else oddity


ODDITY_BYTES = 150
"""The maximum size of the attribute of an oddity."""
ODDITIES = [*[None] * 16, "spoilt", "own record", "stolen record", "traced", "traced"]


def draw_faults(random: Random, timeout: int) -> list[Fault]:
    faults = []
    for _ in range(random.choice([0, 1, 2, 3, 5])):
        chance = random.choice([0.03, 0.1, 0.3])
        kind, operation, seconds = random.choice(_FAULTS)
        if kind == "throttled":
            chance = random.choice([0.3, 0.7, 0.95])
        faults.append(Fault(kind, operation, times=None, chance=chance, seconds=min(seconds, timeout + 1), maybe=True))
    return faults


_SEND, _DELETE, _CHANGE = "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"
_FAULTS: list[tuple[str, str | None, float]] = [
    *((kind, None, 0) for kind in ("throttle", "unavailable", "unreachable", "lost_answer", "hang", "partial_failure")),
    *(
        (kind, operation, 0)
        for operation in (_SEND, _DELETE, _CHANGE)
        for kind in ("denied", "lost_answer", "partial_failure", "crash_before", "crash_after")
    ),
    *[("garbled", _SEND, 0)] * 2,
    *(("late", operation, seconds) for operation in (_SEND, _DELETE, _CHANGE) for seconds in (1.0, 4.0, 20.0)),
    *((kind, "GetQueueAttributes", 0) for kind in ("denied", "hang", "throttle", "crash_after")),
    *(("crash", None, seconds) for seconds in (0.0, 0.02, 2.0)),
    ("timeout", None, 0),
    *(("slow", None, seconds) for seconds in (20.0, 119.0)),
    *(("duplicate", None, seconds) for seconds in (0.5, 30.0)),
    ("lost_delete", None, 0),
    *[("throttled", None, 0)] * 2,
]


def draw_realism(random: Random) -> Realism:
    if random.random() < 0.2:
        return Realism()
    return Realism(reorder=True, partial=random.random() < 0.7, duplicate=random.choice([0, 0, 0.02, 0.1]))
