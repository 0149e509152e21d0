"""Random scripts against the model of SQS, moto and MiniStack: fails at a difference that is not in `differences.py`.

python -m tests.simulation.referee --seeds 100
python -m tests.simulation.referee --seed 7
"""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.referee.differences import KNOWN, Known
from tests.simulation.referee.implementations import running_all
from tests.simulation.referee.run import STEPS, described, run_seed, shortened


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.referee", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many scripts, with the seeds from 0 on")
    parser.add_argument("--seed", type=int, help="only the script with this seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="the number of requests in a script")
    asked = parser.parse_args()
    seeds = range(asked.seeds) if asked.seed is None else [asked.seed]
    met: Counter[Known] = Counter()
    compared: Counter[str] = Counter()
    steps, began = 0, time.monotonic()
    with running_all() as implementations:
        for seed in seeds:
            result = run_seed(implementations, seed, asked.steps)
            steps += len(result.steps)
            met += result.met
            compared += result.compared
            if result.unknown is not None:
                print(f"Seed {seed}: {result.unknown}\n\nThe shortest script that shows it:")
                print(described(shortened(implementations, result)))
                return 1
    for known in KNOWN:
        print(f"{met[known]:7,}  {', '.join(known.who)}: {known.reason}\n         {known.source}")
    answers = ", ".join(f"{number:,} of {who}" for who, number in compared.items())
    print(f"\n{steps:,} steps, {time.monotonic() - began:.0f} s; answers compared with the model's: {answers}.")
    return _never_met(met) if asked.seed is None and asked.seeds >= 100 else 0


def _never_met(met: Counter[Known]) -> int:
    never = [known for known in KNOWN if not met[known]]
    for known in never:
        print(f"No longer met, to remove from differences.py: {', '.join(known.who)}: {known.reason}")
    return bool(never)


if __name__ == "__main__":
    sys.exit(main())
