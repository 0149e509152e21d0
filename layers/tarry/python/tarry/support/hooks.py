"""Calling the user's hooks so that none of them makes the answer late (SPEC I7); worker threads, for these and others.

A hook that still runs when its time is over counts as one that raised: it is interrupted, or abandoned where its thread
cannot be interrupted. Workers are kept between invocations: starting one takes longer than most requests' own work.
"""

from __future__ import annotations

import math
import threading
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from tarry import world
from tarry.support.guards import exit_if_forked, generation, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tarry.world import World

T = TypeVar("T")

RECHECK_SECONDS = 0.05  # while no hook runs
MAX_THREADS = 20  # the most hooks that run in threads of their own at once, abandoned ones included


class HookTimeout(TimeoutError):
    """A hook of the user's did not end in the time that was left for it; it counts as one that raised."""

    was_called = True


class HookInterrupted(BaseException):
    """Raised in a hook whose time is over; not an `Exception`, so that it also ends a loop that retries after any."""


def call(what: str, hook: Callable[..., T], *arguments: object) -> T:
    """Call a hook of the user's in the time that is left, less what settling the messages takes.

    A child process that the hook forks ends here. Outside of an invocation, and within another hook, it is only called.

    Raises:
        HookTimeout: The hook did not end in time, or there was none left for it. The text begins with ``what``.
    """
    limit = world.hook_limit.get()
    if limit is None:
        return hook(*arguments)
    here, began_in = world.current(), generation()
    began = here.clock.monotonic()
    if (most := limit.hook_seconds(began)) <= 0:  # before any other look at the clock: each costs time on a slow CPU
        raise _not_called(what, "no time was left. Give the function a longer Timeout")
    token = world.hook_limit.set(None)
    try:
        return _bounded(what, here, most, partial(hook, *arguments))
    except BaseException as error:
        exit_if_forked(began_in, error)
        raise
    finally:
        world.hook_limit.reset(token)
        exit_if_forked(began_in, None)
        seconds = here.clock.monotonic() - began
        limit.in_hooks += seconds
        here.in_hooks += seconds


def _bounded(what: str, here: World, seconds: float, hook: Callable[[], T]) -> T:
    if seconds == math.inf:
        return hook()
    running = Running(here.clock.monotonic, seconds, HookInterrupted)
    interruption = here.threads.interrupt(seconds, running.fire)
    if interruption is None:
        return _in_thread(what, here, seconds, hook)
    try:
        result = running.run(hook)
    except BaseException:
        if running.interrupted is None:
            raise
    finally:
        interruption.cancel()
    if running.interrupted is None:
        return result
    raise _too_slow(what, seconds).with_traceback(traceback_of(running.interrupted)) from None


def _too_slow(what: str, seconds: float) -> HookTimeout:
    return HookTimeout(
        f"{what} still ran after {seconds:.1f} s, when the messages had to be settled. Make it faster, or give the "
        "function a longer Timeout"
    )


def _not_called(what: str, why: str) -> HookTimeout:
    error = HookTimeout(f"{what} was not called: {why}")
    error.was_called = False
    return error


class Running:
    """Code of the user's that runs in this thread until it is interrupted, after ``seconds``, with ``error``."""

    interrupted: BaseException | None = None  # the interruption, which the code may have caught
    _is_running = False

    def __init__(self, monotonic: Callable[[], float], seconds: float, error: Callable[[], BaseException]) -> None:
        self._monotonic = monotonic
        self._ends_at = monotonic() + seconds
        self._error = error

    def run(self, hook: Callable[[], T]) -> T:
        try:
            self._is_running = True
            return hook()
        finally:
            self._is_running = False

    def fire(self, _: FrameType | None) -> BaseException | float:
        """Return the error to raise in the code, or the seconds to the next call. Implements `tarry.world.Fire`."""
        if not self._is_running:
            return RECHECK_SECONDS
        if (left := self._ends_at - self._monotonic()) > 0:
            return left
        self.interrupted = self._error()
        return self.interrupted


class WorkerPool:
    """The worker threads of a world for one purpose; when nothing refers to the pool any more, they end."""

    def __init__(self, world: World) -> None:
        self.threads = world.threads
        self._idle: list[Worker] = []
        """Changed by single operations only: a forked child would wait for a lock that another thread has."""

    def __del__(self) -> None:
        if isinstance(self.threads, world.RealThreads):  # a simulation ends its own, at a time that its seed decides
            for worker in self._idle:
                worker.give(None)

    def take(self) -> Worker:
        """Return an idle worker or a new one. Raises `RuntimeError` if the process may have no more threads."""
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                return Worker(self)
            if worker.began_in == generation():  # a forked child has none of its parent's threads
                return worker

    def put_back(self, worker: Worker) -> None:
        self._idle.append(worker)

    def start(self, work: Callable[[], object]) -> None:
        """Call ``work``, which must not raise, in a worker and a copy of the current context. See `take`."""
        self.take().give(partial(copy_context().run, work))


class Worker:
    """A thread that runs one job after the other."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = ref(pool)
        self.began_in = generation()
        self._called = pool.threads.event()
        self._work: Callable[[], object] | None = None
        self.ident: int | None = None
        Context().run(pool.threads.start, self._serve)  # in an empty context, not that of an invocation

    def give(self, work: Callable[[], object] | None) -> None:
        """Have the thread call ``work``, which must not raise; without any, the thread ends."""
        self._work = work
        self._called.set()

    def _serve(self) -> None:
        self.ident = threading.get_ident()
        while True:
            self._called.wait()
            self._called.clear()
            work, self._work = self._work, None
            if work is None:
                return
            work()
            del work  # frees the message as well
            if (pool := self._pool()) is None:
                return
            pool.put_back(self)
            del pool  # a thread that waits keeps no pool


class HookWorkers(WorkerPool):
    """The workers that run hooks for threads that cannot be interrupted: all but the main thread."""

    def __init__(self, here: World) -> None:
        super().__init__(here)
        self.running = set[object]()


def _in_thread(what: str, here: World, seconds: float, hook: Callable[[], T]) -> T:
    """Call a hook in a worker, and abandon it when its time is over."""
    pool, ended = here.keep(HookWorkers), here.threads.event()
    if len(pool.running) >= MAX_THREADS:
        raise _not_called(what, f"{MAX_THREADS} hooks still run that were too slow before")
    results, errors, began_in = list[T](), list[BaseException](), generation()

    def work() -> None:
        try:
            results.append(hook())
        except BaseException as error:  # noqa: BLE001 raised below, in the caller
            errors.append(error)
        exit_if_forked(began_in, errors[0] if errors else None)
        pool.running.discard(ended)
        ended.set()

    pool.running.add(ended)
    try:
        pool.start(work)
    except RuntimeError:  # the process may have no more threads
        work()
    if not ended.wait(min(seconds, world.LONGEST_TIMER_SECONDS)):
        raise _too_slow(what, seconds)
    if errors:
        raise errors.pop()
    return results[0]
