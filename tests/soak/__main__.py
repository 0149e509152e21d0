"""The soak: `make soak MESSAGES=100000`."""

import argparse
import logging
import sys
from collections import Counter

from tests.soak.backlog import half_of_each_batch
from tests.soak.soak import play, stages


def main() -> int:
    """0 if all went well."""
    asked = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    asked.add_argument("--messages", type=int, default=100_000, help="through every kind of consumer")
    asked.add_argument("--backlog", type=int, default=20_000, help="of which there is time for half of each batch")
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    logging.disable(logging.CRITICAL)
    return int(not all([soak(options.messages, options.seed), backlog(options.backlog, options.seed)]))


def soak(messages: int, seed: int) -> bool:
    """Plays them, and tells of each stage."""
    is_good, total, seconds = True, Counter[str](), 0.0
    for stage in stages(messages):
        result = play(stage, seed)
        counts = {"messages": stage.messages, "runs": result.runs.total(), **result.answers}
        total.update(counts)
        seconds += result.seconds
        is_good = is_good and result.is_good
        trouble = "" if result.is_good else f"  {result.unrun} unrun, {result.untimely} untimely, {result.open} open"
        print(f"{stage!s:52} {told(counts)} in {result.seconds:.1f} s{trouble}", flush=True)
    print(f"{'all':52} {told(total)} in {seconds:.1f} s", flush=True)
    return is_good


def told(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def backlog(messages: int, seed: int) -> bool:
    """Plays it, and tells at which deliveries its messages were run."""
    if not messages:
        return True
    played = half_of_each_batch(messages, seed)
    runs = ", ".join(f"{count:,} at delivery {number}" for number, count in sorted(played.receives.items()))
    print(f"with time for half of each batch: {runs}; {len(played.dead)} dead", flush=True)
    return not played.dead


if __name__ == "__main__":
    sys.exit(main())
