"""Measuring contenders in turns, so that other load on the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import count

ROUNDS = 15
ROUND_SECONDS = 0.02
"""The CPU time of one contender in one round, at least one call."""

Call = Callable[[], object]


def in_turns(calls: Mapping[str, Call], seconds: float, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the CPU seconds of a call in each round, by contender.

    CPU time counts all threads of the process, and no time in which the machine did something else. After ``seconds``
    no further round begins; three rounds are made in any case, or as many as ``rounds`` allows.
    """
    repeats, times = {}, dict[str, list[float]]()
    for name, call in calls.items():
        call()  # this one loads what is loaded once
        took = cpu_seconds(call)
        repeats[name] = max(1, int(ROUND_SECONDS / max(took, 1e-7)))
        times[name] = []
    ends_at = time.monotonic() + seconds
    names = list(calls)
    for number in count():
        if number >= rounds or (number >= min(3, rounds) and time.monotonic() > ends_at):
            return times
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(cpu_seconds(calls[name], repeats[name]) / repeats[name])
    raise AssertionError


def cpu_seconds(call: Call, times: int = 1) -> float:
    """Return the CPU time of the process during a number of calls."""
    began = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - began


def ratio(times: Mapping[str, list[float]], of: str, to: str) -> float:
    """Return the median of the ratios of two contenders, each within one round."""
    return statistics.median(a / b for a, b in zip(times[of], times[to], strict=True))
