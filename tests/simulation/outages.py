"""Outages in the sandbox with the shipped template, with and without its guard.

python -m tests.simulation.outages
python -m tests.simulation.outages --kills 1000

The consumer has the queue, the mapping and the function settings of orders; its handler has tarry's default policy and
calls a service that may be down.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from botocore.exceptions import ClientError

from tarry.guard.operations import Clients, guard
from tarry.testing import Realism, Sandbox
from tarry.tools.template import Template, read_template
from tests.simulation.campaign import PROCESSES, SeedResult, be_quiet
from tests.simulation.scenario import draw_faults, draw_realism
from tests.simulation.workers import judge_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tarry.tools.testing.faults import Fault

ROOT = Path(__file__).parents[2]
HANDLER = """
from tarry import consumer

def call(message): ...

@consumer(name="orders")
def handler(message):
    call(message)
"""
MINUTE, HOUR = 60.0, 3600.0
HANDLER_SECONDS = 0.1
CAPACITY = 20 * 10
"""Messages a second: 20 invocations at once, each with ten calls a second."""
BEFORE = 10 * MINUTE
"""The time before the outage."""
TROUBLE = 20 * MINUTE
"""How long SQS and the guard fail after the outage, if they do."""
QUEUE, DEAD_LETTERS = "orders", "orders-dlq"

MappingSetting = tuple[str, int | None, dict[str, str]]
"""The state of a mapping, its MaximumConcurrency and its tags."""
UNTOUCHED: MappingSetting = ("Enabled", 20, {})


class ServiceDown(Exception):
    """The service does not answer."""


class GuardKilled(BaseException):
    """The process of the guard ended, before or after a request took effect."""


@dataclass(frozen=True)
class Outage:
    """An outage, and the load of the queue. Times are in seconds from the beginning."""

    name: str
    rate: float
    is_down: Callable[[float], bool]
    ends: float
    """When it is over for good."""
    poison: int = 0
    """One message in this number always fails; 0 for none."""
    deployment: float | None = None
    """When a deployment changes the mapping."""


def between(minutes: float, name: str, rate: float, **more: Any) -> Outage:
    end = BEFORE + minutes * MINUTE
    return Outage(name, rate, lambda at: BEFORE <= at < end, end, **more)


@dataclass
class Figures:
    """The figures of a run."""

    sent: int = 0
    dead: int = 0
    attempts: int = 0
    in_flight: int = 0
    """The most at once."""
    requests: int = 0
    backlog: int = 0
    """The messages in the queue when the outage ended."""
    worked_off: float | None = None
    """The seconds after the outage until no message from before its end was left."""
    acts: list[tuple[float, str, str]] = field(default_factory=list)
    setting: MappingSetting = UNTOUCHED
    """At the end."""
    violations: list[str] = field(default_factory=list)


def template(folder: Path, *, is_guarded: bool) -> Template:
    """Return the shipped template with orders alone, whose handler is the one above."""
    (folder / "app.py").write_text(HANDLER)
    parameters = {"OutageGuard": "true" if is_guarded else "false", "PlainNames": "true"}
    found = read_template(ROOT / "template.yaml", parameters)
    orders = replace(found.functions["OrdersFunction"], code=folder, all_layers=())
    mappings = tuple(each for each in found.mappings if each.queue == QUEUE)
    return replace(found, functions={**found.functions, "OrdersFunction": orders}, mappings=mappings)


class Run:
    """One run of an outage in a sandbox."""

    def __init__(
        self,
        outage: Outage,
        *,
        is_guarded: bool = True,
        seed: int = 0,
        realism: Realism | None = None,
        keep_history: bool = True,
        kills: float = 0,
    ) -> None:
        self.outage = outage
        self.is_guarded = is_guarded
        self.random = Random(f"outage {outage.name} {seed}")
        self.figures = Figures()
        self.sandbox = Sandbox(seed=seed, realism=realism, keep_history=keep_history)
        self.kills = kills
        """The share of the guard's requests that fail, or end the guard, until `TROUBLE` after the outage."""
        self.killed: Counter[str] = Counter()
        """By request, whether it took effect, and what the mapping's state was."""
        self.faults: Sequence[Fault] = ()
        """Until the same time."""
        self._is_over = False
        self._owed = 0.0

    def play(self) -> Figures:
        """Run the outage, and then until no message is left; return the figures."""
        outage, sandbox, figures = self.outage, self.sandbox, self.figures
        with tempfile.TemporaryDirectory() as folder, sandbox, self._guard_with_faults():
            sandbox.add_template(template(Path(folder), is_guarded=self.is_guarded))
            sandbox.module("OrdersFunction").call = self._call  # type: ignore[attr-defined]
            for fault in self.faults:
                sandbox.faults.add(fault)
            sandbox._simulation.scheduler.after(outage.ends + TROUBLE, sandbox.faults.clear)
            self._count()
            self._every(1.0, self._send)
            self._every(10.0, self._look)
            if outage.deployment is not None:
                sandbox._simulation.scheduler.after(outage.deployment, self._deploy)
            while not self._is_over:
                sandbox.run(lambda: self._is_over, for_=10 * MINUTE, check=False)
            report = sandbox.run(check=False)
            figures.dead = len(sandbox.messages(DEAD_LETTERS))
            figures.setting = self.setting
            if sandbox.history.keeps:
                figures.violations = [str(each) for each in report.violations][:5]
                figures.violations += [] if report.settled else ["it is not settled"]
        return figures

    @property
    def setting(self) -> MappingSetting:
        found = self._mapping
        tags = self.sandbox.mappings.list_tags(Resource=found["EventSourceMappingArn"])["Tags"]
        return found["State"], found.get("ScalingConfig", {}).get("MaximumConcurrency"), tags

    @property
    def _mapping(self) -> Any:
        [found] = self.sandbox.mappings.list_event_source_mappings()["EventSourceMappings"]
        return found

    # the service and its load

    def _call(self, message: Any) -> None:
        self.sandbox.sleep(HANDLER_SECONDS)
        if self.outage.is_down(self.sandbox.elapsed) or str(message.body).startswith("poison"):
            raise ServiceDown

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._is_over:
                action()
                self.sandbox._simulation.scheduler.after(seconds, act)

        act()

    def _send(self) -> None:
        self._owed += self.outage.rate * self.random.uniform(0.5, 1.5)
        for _ in range(int(self._owed)):
            self._owed -= 1
            self.figures.sent += 1
            kind = "poison" if self.outage.poison and self.figures.sent % self.outage.poison == 0 else "order"
            self.sandbox.send(QUEUE, f"{kind} {self.figures.sent}")

    def _look(self) -> None:
        elapsed, figures, depth = self.sandbox.elapsed, self.figures, self.sandbox.sqs.depth(QUEUE)
        figures.in_flight = max(figures.in_flight, depth.in_flight)
        ends = self.outage.ends
        if elapsed < ends:
            figures.backlog = depth.ready + depth.in_flight + depth.delayed
        elif figures.worked_off is None and (depth.oldest or math.inf) > self.sandbox.now - elapsed + ends:
            figures.worked_off = elapsed - ends
        is_calm = not (self.kills or self.faults) or elapsed > ends + TROUBLE + 10 * MINUTE
        self._is_over = (
            is_calm and figures.worked_off is not None and not self.setting[2] and elapsed > ends + 5 * MINUTE
        )

    # what is counted

    def _count(self) -> None:
        sandbox, figures = self.sandbox, self.figures
        answer = sandbox.sqs.answer

        def counted(operation: str, *args: Any, **more: Any) -> Any:
            figures.requests += 1
            return answer(operation, *args, **more)

        def ran(event: Any) -> None:
            figures.attempts += len(event.fields["messages"])

        def acted(event: Any) -> None:
            fields = event.fields
            figures.acts.append((event.at - sandbox._began, fields["phase"], fields["why"]))

        sandbox.sqs.answer = counted  # type: ignore[method-assign]
        sandbox.history.listen(ran, "run_started")
        sandbox.history.listen(acted, "guarded")

    # what happens to the mapping and to the guard

    def _deploy(self) -> None:
        """Change the mapping as CloudFormation does: to the settings of the template, of which Enabled is none."""
        try:
            self.sandbox.mappings.update_event_source_mapping(
                UUID=self._mapping["UUID"], BatchSize=10, ScalingConfig={"MaximumConcurrency": 20}
            )
        except ClientError:  # CloudFormation waits for Lambda
            self.sandbox._simulation.scheduler.after(5, self._deploy)

    @contextmanager
    def _guard_with_faults(self) -> Iterator[None]:
        if not self.kills:
            yield
            return

        def faulty(consumers: Any, namespace: str, limits: Any, clients: Any) -> Iterator[dict[str, Any]]:
            try:
                yield from guard(consumers, namespace, limits, Clients(*(FaultyClient(each, self) for each in clients)))
            except GuardKilled:
                return

        with patch("tarry.tools.testing.guarding.guard", faulty):
            yield


class FaultyClient:
    """A client of the guard, whose requests fail or end the guard, before or after they took effect."""

    def __init__(self, client: Any, run: Run) -> None:
        self._client = client
        self._run = run

    def __getattr__(self, name: str) -> Any:
        request, run = getattr(self._client, name), self._run

        def asked(**parameters: Any) -> Any:
            if run.random.random() >= run.kills or run.sandbox.elapsed > run.outage.ends + TROUBLE:
                return request(**parameters)
            has_effect, is_killed = run.random.random() < 0.5, run.random.random() < 0.5
            run.killed[f"{name} {'after' if has_effect else 'before'} {'killed' if is_killed else 'failed'}"] += 1
            if has_effect:
                request(**parameters)
            if is_killed:
                raise GuardKilled
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, name)

        return asked


def flapping(rate: float) -> Outage:
    """Two minutes up and three down, for an hour."""
    end = BEFORE + HOUR
    return Outage("flapping", rate, lambda at: BEFORE <= at < end and (at - BEFORE) % 300 >= 120, end)


def killed_runs(seeds: Sequence[int], processes: int) -> Iterator[SeedResult]:
    """Run each seed: a guard that is killed and fails, a faulty SQS, an outage of random length, and a deployment."""
    return judge_each(
        seeds, judge_quietly, lambda seed: SeedResult(seed, f"seed {seed}: it crashed or hung\n"), processes
    )


def judge_quietly(seed: int) -> SeedResult:
    be_quiet()
    logging.getLogger("tarry.guard").setLevel(logging.CRITICAL)
    return judge(seed)


def judge(seed: int) -> SeedResult:
    random = Random(f"killed guard {seed}")
    outage = between(random.uniform(1, 20), "killed", random.uniform(0.2, 0.3))
    if random.random() < 0.3:
        outage = replace(outage, deployment=BEFORE + random.uniform(0, 25) * MINUTE)
    run = Run(outage, seed=seed, realism=draw_realism(random), kills=random.choice([0.02, 0.1, 0.4]))
    run.faults = draw_faults(random, timeout=30)
    try:
        figures = run.play()
        problems = [*figures.violations]
        if figures.setting != UNTOUCHED:
            problems.append(f"the mapping has {figures.setting}")
    except Exception as error:  # noqa: BLE001 any error is a result of the seed
        problems = [f"{type(error).__name__}: {error}"]
    return SeedResult(seed, "".join(f"seed {seed}: {each}\n" for each in problems), run.killed)


CASES = {
    "15m": between(15, "15 minutes", 50),
    "3h": between(180, "3 hours", 50),
    "3h-10": between(180, "3 hours", 10),
    "30h": between(1800, "30 hours", 0.2),
    "flapping": flapping(50),
    "poison": Outage("poison, no outage", 50, lambda at: False, HOUR, poison=100),
    "deployment": between(45, "45 minutes, a deployment", 50, deployment=BEFORE + 20 * MINUTE),
}


def row(outage: Outage, *, is_guarded: bool, keep_history: bool, realism: Realism | None) -> str:
    """Return a line of the table."""
    began = time.process_time()
    figures = Run(outage, is_guarded=is_guarded, keep_history=keep_history, realism=realism).play()
    off, allowed = (figures.worked_off or 0) / MINUTE, figures.backlog / (CAPACITY - outage.rate) / MINUTE
    acts = Counter(phase for _, phase, _ in figures.acts)
    seconds = time.process_time() - began
    return (
        f"{outage.name}, {outage.rate:g}/s{', any order' if realism else ''} | {'yes' if is_guarded else 'no'} | "
        f"{figures.sent:,} | {figures.dead:,} | {figures.attempts:,} | {figures.in_flight:,} | {figures.requests:,} | "
        f"{off:.1f} | {allowed:.1f} | {'former' if figures.setting == UNTOUCHED else figures.setting} | "
        f"{', '.join(f'{phase} {count}' for phase, count in acts.items())} | "
        f"{'; '.join(figures.violations) if keep_history else 'not checked'} | {seconds:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--kills", help="instead, run this number of seeds with a guard that is killed, or FROM:TO")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--guarded", action="store_true", help="not without the guard")
    parser.add_argument("--unguarded", action="store_true", help="not with the guard")
    parser.add_argument("--forget", action="store_true", help="keep no history, and check no rules")
    parser.add_argument("--reorder", action="store_true", help="receive the messages of the queue in any order")
    options = parser.parse_args()
    be_quiet()
    if options.kills:
        first, _, last = options.kills.rpartition(":")
        bad, killed = 0, Counter[str]()
        for done, result in enumerate(killed_runs(range(int(first or 0), int(last)), options.processes), 1):
            killed.update(result.met)
            bad += bool(result.text)
            print(result.text, end="", flush=True)
            if done % 100 == 0:
                print(f"{done} seeds, {bad} bad", file=sys.stderr, flush=True)
        print(*(f"{count:7} {name}" for name, count in sorted(killed.items())), sep="\n")
        print(f"{bad} of the seeds {options.kills} are bad")
        return int(bad > 0)
    print(
        "outage | guard | sent | dead letters | attempts | in flight at most | requests | worked off after (min) | "
        "the rate allows (min) | mapping | acts | rules broken | CPU"
    )
    realism = Realism(reorder=True) if options.reorder else None
    for name in options.cases or CASES:
        for is_guarded in (True, False):
            if not (options.unguarded if is_guarded else options.guarded):
                line = row(CASES[name], is_guarded=is_guarded, keep_history=not options.forget, realism=realism)
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
