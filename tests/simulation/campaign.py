"""The campaign: scenario after scenario in the sandbox, each judged by every checker.

python -m tests.simulation.campaign --seeds 20000
python -m tests.simulation.campaign --seed 123
"""

import argparse
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from tarry.envelope.attribute import body_sum
from tarry.sqs.outgoing import Entry, pack
from tarry.testing import Report, Sandbox
from tarry.testing.checkers import check
from tarry.testing.history import RecordedHistory
from tests.simulation import sometimes
from tests.simulation.behaviour import Behaviour
from tests.simulation.scenario import Post, Scenario, draw
from tests.simulation.workers import SEED_SECONDS, judge_each, with_limit

PROCESSES = 2
MOST_RUNS = 6


@dataclass(frozen=True)
class Verdict:
    """What came of a seed. ``text`` tells what is wrong; it is empty where nothing is."""

    seed: int
    text: str
    met: Counter[str] = field(default_factory=Counter)


def play(scenario: Scenario) -> Report:
    """Plays a scenario to its end."""
    sandbox = Sandbox(seed=scenario.seed, realism=scenario.realism)
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
    """Lets everything happen; waits of 12 hours, eight attempts and copies with as many may take months."""
    for _ in range(MOST_RUNS):
        report = sandbox.run(check=False)
        if report.settled:
            break
    return report


def redrive(sandbox: Sandbox, scenario: Scenario) -> None:
    """Moves all dead letters back."""
    for source in scenario.sources:
        if source.receives and sandbox.messages(source.letters):
            sandbox.redrive(source.letters, to=source.name)


def set_up(sandbox: Sandbox, scenario: Scenario) -> None:
    handler = Behaviour(scenario, lambda: sandbox.now).consumer()
    for source in scenario.sources:
        letters = source.letters if source.receives else None
        if letters and letters not in sandbox.sqs.queues():
            sandbox.queue(letters, retention=14 * 86_400, maximum_message_size=source.letter_bytes)
        sandbox.queue(
            source.name,
            dead_letter=letters,
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


def judge(seed: int) -> Verdict:
    """Plays a seed and says what is wrong."""
    scenario = draw(seed)
    try:
        report = play(scenario)
        past = RecordedHistory(report.events, settled=report.settled)
        if check(past):
            report.check()  # says it with the messages' stories
        if not report.settled:
            raise AssertionError("it did not come to rest")
    except Exception as error:  # noqa: BLE001 whatever it is, it is what came of this seed
        name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return Verdict(seed, _bad(seed, f"{name}{error}"))
    return Verdict(seed, "", sometimes.count(past))


def _bad(seed: int, text: str) -> str:
    told = f"seed {seed}: {text}\n  to see it again: make simulate SEED={seed}"
    return told.encode("utf-8", "backslashreplace").decode()


def campaign(seeds: Sequence[int], processes: int = PROCESSES) -> Iterator[Verdict]:
    """The verdicts on all seeds, as they come."""
    return judge_each(seeds, judge_quietly, lost, processes)


def judge_quietly(seed: int) -> Verdict:
    _be_quiet()
    return judge(seed)


def lost(seed: int) -> Verdict:
    """On a seed that took its process with it, or had to be ended."""
    text = f"its process ended, or did not within {SEED_SECONDS:g} s (stderr may say where it stood)"
    return Verdict(seed, _bad(seed, text))


def digest(seed: int) -> str:
    """A fingerprint of the whole history of a seed."""
    _be_quiet()
    report = play(draw(seed))
    return sha256("\n".join(map(repr, report.events)).encode("utf-8", "backslashreplace")).hexdigest()


def _be_quiet() -> None:
    """The log is heard by the sandbox; nobody has to read it."""
    logging.getLogger("tarry").propagate = False
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # where a process died


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1000", help="how many, or FROM:TO")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument(
        "--digest", type=int, nargs="+", metavar="SEED", help="print the fingerprints of these histories"
    )
    options = parser.parse_args()
    if options.digest:
        for seed in options.digest:
            print(seed, digest(seed))
        return 0
    if options.seed is not None:
        return _show(options.seed)
    first, _, last = options.seeds.rpartition(":")
    seeds = range(int(first or 0), int(last))
    began, bad, met = time.monotonic(), [], Counter[str]()
    for done, verdict in enumerate(campaign(seeds), 1):
        met.update(verdict.met)
        if verdict.text:
            bad.append(verdict)
            print(verdict.text, flush=True)
        if done % 1_000 == 0:
            print(f"{done} seeds, {len(bad)} bad, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for situation in sometimes.SITUATIONS:
        print(f"{met[situation]:8} {situation}")
    print(f"{len(seeds)} seeds, {len(bad)} bad, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def _show(seed: int) -> int:
    print(draw(seed), flush=True)
    with_limit(SEED_SECONDS)
    verdict = judge(seed)
    print(verdict.text or f"seed {seed}: all well")
    return 1 if verdict.text else 0


if __name__ == "__main__":
    sys.exit(main())
