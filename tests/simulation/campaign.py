"""The campaign: runs one scenario after another in the sandbox and applies every checker to each.

python -m tests.simulation.campaign --seeds 20000
python -m tests.simulation.campaign --seed 123
python -m tests.simulation.campaign --seeds 300 --mix own-steps,slow-cpu
"""

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

from tarry.record.attribute import body_sum
from tarry.sqs.outgoing import Entry, pack
from tarry.testing import Report, Sandbox
from tarry.tools.testing.faults import Parts
from tarry.tools.testing.report import RuleBroken
from tarry.tools.testing.shrinking import rule_to_shrink, shrink
from tests.simulation import situations
from tests.simulation.behaviour import Behaviour
from tests.simulation.mixes import MIXES, mixed
from tests.simulation.rules import judged
from tests.simulation.scenario import Post, Scenario, Tables, draw, with_parts
from tests.simulation.workers import SEED_SECONDS, judge_each, with_limit

PROCESSES = os.cpu_count() or 1
MAX_RUNS = 6
PLAIN = "plain"


@dataclass(frozen=True)
class SeedResult:
    """The result of a seed. ``text`` describes the defect; it is empty if there is none."""

    seed: int
    text: str
    met: Counter[str] = field(default_factory=Counter)


def play(scenario: Scenario, parts: Parts | None = None) -> Report:
    """Run a scenario, or some parts of it, to its end."""
    parts = parts or Parts()
    scenario = with_parts(scenario, parts)
    sandbox = Sandbox(seed=scenario.seed, realism=scenario.realism)
    sandbox.faults.parts = parts
    try:
        set_up(sandbox, scenario)
        sandbox.run(for_=scenario.trouble_seconds, check=False)
        sandbox.faults.clear()
        report = settle(sandbox)
        if scenario.redrives and report.settled:
            redrive(sandbox, scenario)
            report = settle(sandbox)
        return report
    finally:
        sandbox.close()


def settle(sandbox: Sandbox) -> Report:
    """Run until all messages have settled: eight attempts with delays of 12 hours, and those of copies, take months."""
    for _ in range(MAX_RUNS):
        report = sandbox.run(check=False)
        if report.settled:
            break
    return report


def redrive(sandbox: Sandbox, scenario: Scenario) -> None:
    """Redrive all dead letters to their sources."""
    for source in scenario.sources:
        if source.receives and sandbox.messages(source.dead_letter_queue):
            sandbox.redrive(source.dead_letter_queue, to=source.name)


def set_up(sandbox: Sandbox, scenario: Scenario) -> None:
    handler = Behaviour(scenario, lambda: sandbox.now, tables(scenario)).consumer()
    for source in scenario.sources:
        dead_letter_queue = source.dead_letter_queue if source.receives else None
        if dead_letter_queue and dead_letter_queue not in sandbox.sqs.queues():
            sandbox.queue(dead_letter_queue, retention=14 * 86_400, maximum_message_size=source.dead_letter_bytes)
        sandbox.queue(
            source.name,
            dead_letter=dead_letter_queue,
            max_receive_count=source.receives or 1,
            visibility_timeout=source.visibility,
            retention=source.retention,
            delay=source.delay,
            maximum_message_size=source.bytes,
        )
        sandbox.connect(
            handler,
            source.name,
            batch_size=scenario.batch_size,
            window=scenario.window,
            timeout=scenario.timeout,
            max_concurrency=scenario.max_concurrency,
            recursive_loop=scenario.recursive_loop,
        )
    for fault in scenario.faults:
        sandbox.faults.add(fault)
    for post in scenario.posts:
        sandbox._simulation.scheduler.after(post.at, partial(_send, sandbox, post))


def tables(scenario: Scenario) -> dict[str, Any]:
    """Return the settings of a consumer with the tables of a scenario, which are empty."""
    settings: dict[str, Any] = {}
    if scenario.tables != Tables():
        from tests.simulation.failing_tables import FailingRecords, FailingStore

        if scenario.tables.records:
            settings["idempotency"] = FailingRecords(scenario.seed, *scenario.tables.records)
        if scenario.tables.store:
            settings["attempts"] = FailingStore(scenario.seed, scenario.tables.store)
    return settings


def _send(sandbox: Sandbox, post: Post) -> None:
    kinds = ["text", 7, b"bytes"]
    attributes = {f"attribute-{number}": kinds[number % 3] for number in range(post.attributes)}
    match post.oddity:
        case "own record":
            attributes["Tarry"] = "the name of our owl"
        case "stolen record":
            attributes["Tarry"] = json.dumps({"v": 1, "sum": body_sum("another"), "id": "another", "carried": 3})
    entry = Entry(post.body, post.delay, attributes or None, post.group)
    parameters = pack(entry, sandbox.world, fifo=post.group is not None and post.queue.endswith(".fifo")).parameters
    if post.oddity == "traced":
        header = {"DataType": "String", "StringValue": f"Root=1-5759e988-{post.key:024x}"}
        parameters["MessageSystemAttributes"] = {"AWSTraceHeader": header}
    sandbox.sqs.call("SendMessage", {"QueueUrl": sandbox.sqs.url(post.queue), **parameters})


def judge(seed: int, mixes: Sequence[str] | None = ()) -> SeedResult:
    """Run a seed with these mixes (None: those that it draws), and return its result."""
    scenario = mixed(draw(seed), mixes)
    try:
        report = play(scenario)
        judged(report).check()  # raises with the timelines of the messages
        if not report.settled:
            raise AssertionError("the messages did not settle")
    except RuleBroken as error:
        return SeedResult(seed, _bad(seed, f"{error}\n\n{smallest_case(scenario, error)}", mixes))
    except Exception as error:  # noqa: BLE001 any error is a result of the seed
        name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return SeedResult(seed, _bad(seed, f"{name}{error}", mixes))
    return SeedResult(seed, "", situations.count(report.history))


def smallest_case(scenario: Scenario, error: RuleBroken) -> str:
    """Return the smallest case of a scenario that breaks a rule, as text."""

    def run(parts: Parts) -> RuleBroken | None:
        try:
            judged(play(scenario, parts)).check()
        except RuleBroken as broken:
            return broken
        except Exception:  # noqa: BLE001 another defect than the one to shrink
            return None
        return None

    rule = rule_to_shrink(error)
    shrunk = shrink(rule, run) if rule is not None else None
    return "it broke no rule when it ran again" if shrunk is None else f"{shrunk}\n\n{shrunk.parts}"


def _bad(seed: int, text: str, mixes: Sequence[str] | None) -> str:
    named = "" if mixes is None else f" MIX={','.join(mixes) or PLAIN}"
    report = f"seed {seed}: {text}\n  to reproduce it: make simulate SEED={seed}{named}"
    return report.encode("utf-8", "backslashreplace").decode()


def campaign(
    seeds: Sequence[int], mixes: Sequence[str] | None = (), processes: int = PROCESSES
) -> Iterator[SeedResult]:
    """Yield the results of all seeds as they are ready."""
    return judge_each(seeds, partial(judge_quietly, mixes=mixes), partial(lost, mixes=mixes), processes)


def judge_quietly(seed: int, mixes: Sequence[str] | None = ()) -> SeedResult:
    be_quiet()
    return judge(seed, mixes)


def lost(seed: int, mixes: Sequence[str] | None) -> SeedResult:
    """Return the result of a seed whose process crashed or was ended."""
    text = f"its process crashed, or hung for {SEED_SECONDS:g} s (stderr may show the stacks of its threads)"
    return SeedResult(seed, _bad(seed, text, mixes))


def digest(seed: int) -> str:
    """Return a fingerprint of the whole history of a seed."""
    be_quiet()
    report = play(mixed(draw(seed)))
    return sha256("\n".join(map(repr, report.events)).encode("utf-8", "backslashreplace")).hexdigest()


def be_quiet() -> None:
    """Print no log lines, which the sandbox reads, and no complaints of asyncio: a simulated crash leaves its tasks."""
    logging.getLogger("tarry").propagate = False
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # after the crash of a process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1000", help="the number of seeds, or FROM:TO")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--digest", type=int, nargs="+", metavar="SEED", help="print the fingerprints of these histories"
    )
    parser.add_argument(
        "--mix", help=f"a list of {', '.join(MIXES)}, or {PLAIN} for none of them; by default each seed draws its own"
    )
    options = parser.parse_args()
    mixes = None if options.mix is None else [name for name in options.mix.split(",") if name != PLAIN]
    if options.digest:
        for seed in options.digest:
            print(seed, digest(seed))
        return 0
    if options.seed is not None:
        return _show(options.seed, mixes)
    first, _, last = options.seeds.rpartition(":")
    seeds = range(int(first or 0), int(last))
    began, bad, met = time.monotonic(), [], Counter[str]()
    for done, result in enumerate(campaign(seeds, mixes), 1):
        met.update(result.met)
        if result.text:
            bad.append(result)
            print(result.text, flush=True)
        if done % 1_000 == 0:
            print(f"{done} seeds, {len(bad)} bad, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for situation in situations.SITUATIONS:
        print(f"{met[situation]:8} {situation}")
    print(f"{len(seeds)} seeds, {len(bad)} bad, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def _show(seed: int, mixes: Sequence[str] | None) -> int:
    print(mixed(draw(seed), mixes), flush=True)
    with_limit(SEED_SECONDS)
    result = judge(seed, mixes)
    print(result.text or f"seed {seed}: no defect")
    return 1 if result.text else 0


if __name__ == "__main__":
    sys.exit(main())
