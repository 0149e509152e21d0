"""Seeds judged in processes of their own, so that one that never ends, or takes its process down, is a bad seed."""

import faulthandler
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

CHUNK = 10
"""Seeds a worker is given at once."""
SEED_SECONDS = 300.0
"""Real time for one seed. Most need some hundredths of a second, a few some seconds; the rest is for a busy machine."""

Verdict = TypeVar("Verdict")
Judge = Callable[[int], Verdict]


@dataclass
class _Worker(Generic[Verdict]):
    process: BaseProcess
    pipe: Connection
    seeds: deque[int] = field(default_factory=deque)
    """What it has still to judge, the one at hand first."""


def judge_each(
    seeds: Sequence[int],
    judge: Judge[Verdict],
    lost: Judge[Verdict],
    processes: int,
    seed_seconds: float = SEED_SECONDS,
) -> Iterator[Verdict]:
    """The verdicts on all seeds, as they come. ``lost`` gives that on a seed whose process did not survive it.

    A seed that takes longer than ``seed_seconds`` ends its process, which writes where it stood to stderr.
    """
    left = deque(seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK))
    workers = [_start(judge, seed_seconds) for _ in range(min(processes, len(left)))]
    try:
        while left or any(worker.seeds for worker in workers):
            for worker in workers:
                if not worker.seeds and left:
                    worker.seeds.extend(left.popleft())
                    worker.pipe.send(list(worker.seeds))
            busy = {worker.pipe: worker for worker in workers if worker.seeds}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                seed = worker.seeds.popleft()
                try:
                    yield worker.pipe.recv()
                except EOFError:
                    yield lost(seed)
                    workers[workers.index(worker)] = _restarted(worker, judge, seed_seconds)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _start(judge: Judge[Verdict], seed_seconds: float) -> _Worker[Verdict]:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs, judge, seed_seconds), daemon=True)
    process.start()
    theirs.close()  # or the end of the process would not be seen
    return _Worker(process, ours)


def _restarted(worker: _Worker[Verdict], judge: Judge[Verdict], seed_seconds: float) -> _Worker[Verdict]:
    another = _start(judge, seed_seconds)
    another.seeds = worker.seeds
    another.pipe.send(list(another.seeds))
    return another


def _work(pipe: Connection, judge: Judge[Verdict], seed_seconds: float) -> None:
    os.nice(10)  # virtual time does not mind; tests beside it that hold to real time do
    while True:
        for seed in pipe.recv():
            with_limit(seed_seconds)
            verdict = judge(seed)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(verdict)


def with_limit(seconds: float) -> None:
    """From now on, the process ends after so long, and says where its threads stood."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
