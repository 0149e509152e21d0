"""Seeds that crash or hang the process that judges them."""

import os
import threading

from tests.simulation.workers import judge_each


def judge(seed: int) -> tuple[int, str]:
    if seed == 3:
        os._exit(1)
    if seed == 12:
        threading.Event().wait()
    return seed, "judged"


def lost(seed: int) -> tuple[int, str]:
    return seed, "lost"


def test_only_a_seed_that_crashes_or_hangs_its_process_is_lost() -> None:
    verdicts = dict(judge_each(range(25), judge, lost, processes=2, seed_seconds=2))
    assert [seed for seed, verdict in verdicts.items() if verdict == "lost"] == [3, 12]
    assert sorted(verdicts) == list(range(25))
