"""Slow functions: `make slow`. What becomes of a message whose handler hangs, by timeout and share of a core."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from tarry.tools.check.rules.mappings import QUARTER_MB, smallest_timeout
from tests.acceptance.runtime import ROOT, link_packages
from tests.slow.hanging import WAYS, Case, Ending, memory_mb, play
from tests.slow.share import prefer, shares

TIMEOUTS = 2, 3, 6, 30
SHARES = {"1": 1.0, "0.29": 0.29, "1/4": 1 / 4, "1/14": 1 / 14}
"""0.29 is the smallest function that loads boto3 when a message has failed (513 MB)."""
STARTS = "cold", "warm", "crashed"
OF_CRASHED = "sync", "batch"
"""The ways to run that are played after a crash, which is about the start of the process."""
AT_ONCE = {1.0: 2, 0.29: 4, 1 / 4: 4, 1 / 14: 8}
"""The number of functions that run at once, by their share of a core."""
LONG_SECONDS, LONG_AT_ONCE, APART_SECONDS = 10, 30, 1
"""Functions with a longer timeout mostly wait: more of them run at once, but begin apart from each other."""
TRIES = 3
"""A run on a machine that was too busy is repeated."""


def main() -> int:
    """Play all cases and print a line for each: ``-`` for one that fails below the smallest timeout, else ``FAIL``."""
    parser = argparse.ArgumentParser(prog="python -m tests.slow", description=__doc__)
    parser.add_argument("--timeouts", type=int, nargs="*", default=TIMEOUTS)
    parser.add_argument("--shares", nargs="*", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--starts", nargs="*", default=STARTS, choices=STARTS)
    parser.add_argument("--log", action="store_true", help="print the log of each function")
    options = parser.parse_args()
    prefer(2)
    cases = [
        Case(timeout, SHARES[share], way, start)
        for timeout, share, way, start in product(options.timeouts, options.shares, options.ways, options.starts)
        if start != "crashed" or (SHARES[share] < 1 and way in OF_CRASHED)
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, shares() as limits:
        link_packages(lambda_ := Path(folder), "boto3", "awslambdaric")
        shutil.copytree(ROOT / "layers" / "tarry" / "python", lambda_ / "python")  # it may change meanwhile
        endings: dict[Case, Ending] = {}
        for of_group, at_once, apart in groups(cases):

            def run(place: int, case: Case, at_once: int = at_once, apart: float = apart) -> None:
                time.sleep(place % at_once * apart)
                for _ in range(TRIES):
                    endings[case] = play(case, lambda_, limits)
                    if not endings[case].is_busy:
                        return

            with ThreadPoolExecutor(at_once) as threads:
                list(threads.map(run, *zip(*enumerate(of_group), strict=True)))
        for case in cases:
            ending = endings[case]
            verdict = "ok  " if ending.is_good else "FAIL" if is_promised(case) else "-   "
            print(f"{verdict}  {case}  {ending}", flush=True)
            if options.log:
                print(ending.log)
    good = sum(each.is_good for each in endings.values())
    print(f"{good} of {len(cases)} are dead-lettered with their record, in {time.monotonic() - began:.0f} s")
    return int(not all(ending.is_good for case, ending in endings.items() if is_promised(case)))


def is_promised(case: Case) -> bool:
    """Return whether the timeout is at least the smallest one of docs/guides/timeouts.md."""
    if case.start == "crashed" or case.share == SHARES["0.29"]:
        return case.timeout >= (6 if memory_mb(case.share) >= QUARTER_MB else 10)
    return case.timeout >= smallest_timeout(memory_mb(case.share))


def groups(cases: Sequence[Case]) -> Iterator[tuple[list[Case], int, float]]:
    """Yield the cases that run together, how many at once, and the seconds between their starts."""
    for share, at_once in AT_ONCE.items():
        if short := [case for case in cases if case.share == share and case.timeout <= LONG_SECONDS]:
            yield short, at_once, 0
    if long := [case for case in cases if case.timeout > LONG_SECONDS]:
        yield long, LONG_AT_ONCE, APART_SECONDS


if __name__ == "__main__":
    sys.exit(main())
