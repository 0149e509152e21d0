"""The handlers of the campaign: they draw their behaviour from the seed, the message and the number of the run."""

import asyncio
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

from tarry import Batch, BatchError, Consumer, Defer, Discard, Message, Reject, Retry, batch_consumer, consumer, world
from tarry.world import Interrupted
from tests.simulation.scenario import TWELVE_HOURS, Fatal, FatalSubclass, Scenario

PATIENCE_RUNS = 25
"""The number of runs after which the handler succeeds on a message, so that every scenario ends."""
STUBBORN_SECONDS = 0.4
ODD_TEXT = "a text that is hard to send on: \x00 \ud800 \uffff " + "and long " * 200


class Broken(Exception):
    """An ordinary failure."""


@dataclass(frozen=True)
class Act:
    """One run of a handler: it takes ``seconds``, gives a ``verdict``, and ends."""

    end: str = "return"
    verdict: str | None = None
    delay: float = 0
    seconds: float = 0
    is_stubborn: bool = False
    """When it is interrupted, it continues for a while, and ends as if it had not been interrupted."""
    extends: float | None = None
    """The seconds for which it extends the message's visibility when half of its time is over."""


@dataclass(frozen=True)
class Extension:
    """A handler's request for more time: `Message.extend`."""

    message: Message
    seconds: float


CALM = Act()
ENDS = {
    "return": 30, "raise": 20, "fatal": 2, "retry": 6, "reject": 2, "discard": 2, "defer": 4, "caused": 3, "group": 3,
    "mixed group": 2, "exit": 1, "interrupt": 1, "cancelled": 1, "odd text": 2, "no json": 1, "generator": 1,
    "awaitable": 2, "die": 2, "slow": 4, "overtime": 2,
}  # fmt: skip
CRASHING = ("die", "overtime")
VERDICTS = {None: 30, "ack": 10, "retry": 8, "retry in": 8, "reject": 2, "discard": 3, "defer": 4, "fail": 8}
DELAYS = [0, 0.2, 1, 30, 600, 3_600, TWELVE_HOURS - 20, TWELVE_HOURS]


class Behaviour:
    """The handler of a scenario. It counts the runs of each message, across crashes of its process."""

    def __init__(
        self, scenario: Scenario, now: Callable[[], float], tables: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._scenario = scenario
        self._now = now
        self._tables = tables
        self._runs: dict[str, int] = {}
        self._ends_at = now() + scenario.trouble_seconds

    def consumer(self) -> Consumer[Any]:
        """Return the consumer: sync or async, of one message or of a batch."""
        scenario = self._scenario
        decorate: Any = batch_consumer if scenario.takes_batch else consumer
        run = self._batch if scenario.takes_batch else self._message

        def handle(subject: Any) -> Any:
            result: Any = None
            for step in (steps := ResultKeeping(run(subject))):
                take(step)
            if steps.result == "generator":
                result = (each for each in list[Any]())
            elif steps.result == "awaitable":
                result = _returned()
            return result

        async def handle_async(subject: Any) -> Any:
            for step in (steps := ResultKeeping(run(subject))):
                await take_async(step)
            return _returned() if steps.result == "awaitable" else None

        settings = {"name": "handler", "model": scenario.model, **scenario.settings, **self._tables}
        made: Consumer[Any] = decorate(**settings)(handle_async if scenario.is_async else handle)
        return made

    def _act(self, message: Message) -> Act:
        nth = self._runs[message.id] = self._runs.get(message.id, 0) + 1
        temper = message.body.partition('"temper": "')[2].partition('"')[0]
        random = Random(f"{self._scenario.seed} {message.id} {message.attempt} {nth}")
        if nth > PATIENCE_RUNS or temper == "calm":
            return CALM
        return self._without_trouble(TEMPERS[temper](random, self._scenario))

    def _without_trouble(self, act: Act) -> Act:
        """Return the act without crashes and long runs once the time of trouble is over; what hangs, hangs for ever."""
        if self._now() < self._ends_at or act.end == "hang":
            return act
        return CALM if act.end in CRASHING else replace(act, seconds=min(act.seconds, 0.3))

    def _message(self, message: Message) -> Generator[Act | Extension, None, Any]:
        act = self._act(message)
        if act.extends is not None:
            yield (act := replace(act, seconds=act.seconds / 2))
            yield Extension(message, act.extends or 1)
        if act.seconds:
            yield act
        give_verdict(message, act)
        return end(message, act.end, act.delay)

    def _batch(self, batch: Batch) -> Generator[Act, None, Any]:
        random = Random(f"{self._scenario.seed} {len(self._runs)} {sum(self._runs.values())}")
        acts = [self._act(message) for message in batch]
        for message, act in zip(batch, acts, strict=True):
            give_verdict(message, act)
        match random.randrange(12):
            case 0:
                batch.ack_all()
            case 1:
                batch.retry_all(random.choice([None, *DELAYS]))
        ending, index = self._without_trouble(random.choice(acts)), random.randrange(len(batch))
        if ending.seconds:
            yield ending
        if ending.end == "raise" and random.random() < 0.5:
            raise BatchError(index=index) from Broken("the batch broke here")
        return end(batch[index], ending.end, ending.delay)


def take(act: Act | Extension) -> None:
    """Sleep for the seconds of an act, or extend a message."""
    if isinstance(act, Extension):
        return act.message.extend(act.seconds)
    try:
        world.current().clock.sleep(act.seconds)
    except Interrupted:
        if not act.is_stubborn:
            raise
        world.current().clock.sleep(STUBBORN_SECONDS)


async def take_async(act: Act | Extension) -> None:
    if isinstance(act, Extension):
        return await act.message.extend_async(act.seconds)
    try:
        await world.current().clock.asleep(act.seconds)
    except asyncio.CancelledError:
        if not act.is_stubborn:
            raise
        await world.current().clock.asleep(STUBBORN_SECONDS)


class ResultKeeping:
    """An iterator over a generator that keeps the generator's return value."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self.result: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.result = yield from self._generator


def _moody(random: Random, scenario: Scenario) -> Act:
    ending = random.choices(list(ENDS), list(ENDS.values()))[0]
    verdict = random.choices(list(VERDICTS), list(VERDICTS.values()))[0] if random.random() < 0.3 else None
    return _timed(random, scenario, ending, verdict)


def _decisive(random: Random, scenario: Scenario) -> Act:
    verdict = random.choices(list(VERDICTS), list(VERDICTS.values()))[0]
    return _timed(random, scenario, random.choice(["return", "return", "raise"]), verdict)


def _timed(random: Random, scenario: Scenario, ending: str, verdict: str | None) -> Act:
    seconds = 0.0
    if ending in ("slow", "overtime"):
        seconds = scenario.timeout * (random.uniform(0.05, 0.5) if ending == "slow" else random.uniform(1, 2))
    elif random.random() < 0.2:
        seconds = random.uniform(0.01, 0.3)
    is_stubborn = seconds > 1 and random.random() < 0.3
    return Act(ending, verdict, random.choice(DELAYS), seconds, is_stubborn)


def _poison(random: Random, scenario: Scenario) -> Act:
    return Act("die") if scenario.sources[0].receives else Act("raise")


TEMPERS: dict[str, Callable[[Random, Scenario], Act]] = {
    "moody": _moody,
    "decisive": _decisive,
    "failing": lambda random, scenario: Act("raise"),
    "fatal": lambda random, scenario: Act(random.choice(["fatal", "reject", "no json"])),
    "poison": _poison,
    "patient": lambda random, scenario: Act(random.choice(["defer", "retry", "return"]), None, random.choice(DELAYS)),
    "hanging": lambda random, scenario: Act("hang", None, 0, 10 * scenario.timeout),
    "extending": lambda random, scenario: Act(
        random.choice(["return", "raise"]),
        seconds=scenario.timeout * random.uniform(0.1, 0.8),
        extends=scenario.timeout * random.choice([0.1, 0.5, 2, 6]),
    ),
    "slow": lambda random, scenario: Act(
        random.choice(["slow", "raise", "reject"]), None, 0, scenario.timeout * random.choice([0.1, 0.5, 0.8])
    ),
}


def give_verdict(message: Message, act: Act) -> None:
    match act.verdict:
        case "ack":
            message.ack()
        case "retry":
            message.retry()
        case "retry in":
            message.retry(act.delay)
        case "reject":
            message.reject("it does not please")
        case "discard":
            message.discard("not wanted")
        case "defer":
            message.defer(act.delay)
        case "fail":
            message.fail(Broken("said so"))


RAISED: dict[str, Callable[[Message, float], BaseException]] = {
    "raise": lambda message, delay: Broken(f"attempt {message.attempt}"),
    "fatal": lambda message, delay: FatalSubclass("no use"),
    "retry": lambda message, delay: Retry(delay),
    "reject": lambda message, delay: Reject("refused"),
    "discard": lambda message, delay: Discard("needless"),
    "defer": lambda message, delay: Defer(delay),
    "group": lambda message, delay: ExceptionGroup("all signals", [Discard("one"), Retry(delay)]),
    "mixed group": lambda message, delay: ExceptionGroup("not all signals", [Discard("one"), Broken("two")]),
    "exit": lambda message, delay: SystemExit(3),
    "interrupt": lambda message, delay: KeyboardInterrupt(),
    "cancelled": lambda message, delay: asyncio.CancelledError(),
    "odd text": lambda message, delay: Broken(ODD_TEXT),
}


def end(message: Message, how: str, delay: float) -> str:
    if how in RAISED:
        raise RAISED[how](message, delay)
    match how:
        case "caused":
            raise Broken("because") from Retry(delay)
        case "no json":
            Message.json(_NotJson(message))  # type: ignore[arg-type]
        case "die":
            os._exit(1)
    return how


class _NotJson:
    """A message whose body is not JSON."""

    def __init__(self, message: Message) -> None:
        self.id = message.id
        self.body = "{"


async def _returned() -> None:
    await asyncio.sleep(0)


__all__ = ["Behaviour", "Fatal"]
