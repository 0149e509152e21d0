"""The soak: `make soak MESSAGES=100000`."""

import argparse
import logging
import sys
from collections import Counter

from tests.soak.soak import half_of_each_batch, play, stages


def main() -> int:
    """Run the soak and the backlog; return 0 if no rule was broken, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="sent through every kind of consumer")
    parser.add_argument("--backlog", type=int, default=20_000, help="sent with time for half of each batch")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    return int(not all([soak(options.messages, options.seed), backlog(options.backlog, options.seed)]))


def soak(messages: int, seed: int) -> bool:
    """Run all stages and print the result of each."""
    is_good, total, seconds = True, Counter[str](), 0.0
    for stage in stages(messages):
        result = play(stage, seed)
        counts = {"messages": stage.messages, "runs": result.runs.total(), **result.answers}
        total.update(counts)
        seconds += result.seconds
        is_good = is_good and result.is_good
        trouble = "" if result.is_good else f"  {result.unrun} unrun, {result.untimely} untimely, {result.open} open"
        print(f"{stage!s:52} {listed(counts)} in {result.seconds:.1f} s{trouble}", flush=True)
    print(f"{'all':52} {listed(total)} in {seconds:.1f} s", flush=True)
    return is_good


def listed(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def backlog(messages: int, seed: int) -> bool:
    """Run the backlog and print at which deliveries its messages ran."""
    if not messages:
        return True
    _, receives, dead = half_of_each_batch(messages, seed)
    runs = ", ".join(f"{count:,} at delivery {number}" for number, count in sorted(receives.items()))
    print(f"with time for half of each batch: {runs}; {len(dead)} dead", flush=True)
    return not dead


if __name__ == "__main__":
    sys.exit(main())
