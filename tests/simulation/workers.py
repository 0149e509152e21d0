"""Judging seeds in worker processes, so that a seed that hangs or crashes its process counts as a bad seed."""

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
"""The number of seeds sent to a worker at once."""
SEED_SECONDS = 300.0
"""The limit of real time for one seed. Most take hundredths of a second, a few take seconds."""

Judgement = TypeVar("Judgement")
Judge = Callable[[int], Judgement]


@dataclass
class _Worker(Generic[Judgement]):
    process: BaseProcess
    pipe: Connection
    seeds: deque[int] = field(default_factory=deque)
    """The seeds that the worker has yet to judge, the current one first."""


def judge_each(
    seeds: Sequence[int],
    judge: Judge[Judgement],
    lost: Judge[Judgement],
    processes: int,
    seed_seconds: float = SEED_SECONDS,
) -> Iterator[Judgement]:
    """Yield the judgements of all seeds as they are made; ``lost`` makes that of a seed whose process crashed or hung.

    If a seed takes longer than ``seed_seconds``, its process writes the stacks of its threads to stderr and ends.
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


def _start(judge: Judge[Judgement], seed_seconds: float) -> _Worker[Judgement]:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs, judge, seed_seconds), daemon=True)
    process.start()
    theirs.close()  # otherwise the end of the process would go unnoticed
    return _Worker(process, ours)


def _restarted(worker: _Worker[Judgement], judge: Judge[Judgement], seed_seconds: float) -> _Worker[Judgement]:
    another = _start(judge, seed_seconds)
    another.seeds = worker.seeds
    another.pipe.send(list(another.seeds))
    return another


def _work(pipe: Connection, judge: Judge[Judgement], seed_seconds: float) -> None:
    os.nice(10)  # leaves the CPU to concurrent tests that depend on real time
    while True:
        for seed in pipe.recv():
            with_limit(seed_seconds)
            judgement = judge(seed)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(judgement)


def with_limit(seconds: float) -> None:
    """End the process after ``seconds`` from now, with the stacks of its threads on stderr."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
