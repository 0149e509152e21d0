"""Waits and clocks of Python's standard library that pass virtual time in an actor, for code that does not know of it.

A handler's own ``time.sleep``, its waits with a timeout (``threading``, ``queue``, ``concurrent.futures``), and the
backoff of AWS's SDK then take no real time, and count towards the timeout of the function.
"""

import queue
import threading
import time
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from tarry.tools.simulator.simulation import Actors

LONGEST_SECONDS = 10 * 365 * 86_400.0
"""Longer sleeps, and values that are not numbers, are left to the real ``time.sleep``, which refuses them."""
REAL_SECONDS = 1.0
"""How long a wait with a timeout waits in real time, if a thread of the function could end it."""

NANOSECONDS = 1_000_000_000

_sleep, _time, _monotonic = time.sleep, time.time, time.monotonic
_wait, _join, _start = threading.Condition.wait, threading.Thread.join, threading.Thread.start


@contextmanager
def passing_time(actors: Actors) -> Iterator[None]:
    """Patch the standard library within the context; modules imported there may take the functions by name.

    Outside of actors, everything is as before. Threads that an actor starts wait in real time.
    """
    waits = _Waits(actors)
    patches: list[tuple[Any, str, Any]] = [
        (time, "sleep", waits.sleep),
        (time, "time", waits.time),
        (time, "time_ns", lambda: int(waits.time() * NANOSECONDS)),
        (time, "monotonic", waits.monotonic),
        (time, "monotonic_ns", lambda: int(waits.monotonic() * NANOSECONDS)),
        (time, "perf_counter", waits.monotonic),
        (time, "perf_counter_ns", lambda: int(waits.monotonic() * NANOSECONDS)),
        (threading, "_time", waits.monotonic),
        (queue, "time", waits.monotonic),
        # functions, since these become methods of the class, and bound methods would not
        (threading.Condition, "wait", lambda condition, timeout=None: waits.wait(condition, timeout)),
        (threading.Thread, "join", lambda thread, timeout=None: waits.join(thread, timeout)),
        (threading.Thread, "start", lambda thread: waits.start(thread)),  # noqa: PLW0108
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, own in patches:
            setattr(owner, name, own)
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


class _Waits:
    """The functions, for the actors of one simulation."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._scheduler = actors.scheduler
        self._began, self._skips_from = _monotonic(), actors.scheduler.now
        self._threads: WeakSet[threading.Thread] = WeakSet()
        """The threads that actors have started, and those that these have started."""

    # clocks, which go on while a handler computes: it may divide by the time that it took, or wait in a loop

    def time(self) -> float:
        return self._scheduler.now + _monotonic() - self._began if self._actors.is_here else _time()

    def monotonic(self) -> float:
        skipped = self._scheduler.now - self._skips_from if self._actors.is_here else 0.0
        return _monotonic() + skipped

    # waits

    def sleep(self, seconds: Any) -> None:
        if self._actors.is_here and isinstance(seconds, int | float) and 0 < seconds < LONGEST_SECONDS:
            self._actors.sleep(seconds)
        else:
            _sleep(seconds)

    def wait(self, condition: Any, timeout: float | None = None) -> bool:
        if timeout is None or timeout <= 0 or not self._actors.is_here:
            return _wait(condition, timeout)
        if any(thread.is_alive() for thread in self._threads) and _wait(condition, min(timeout, REAL_SECONDS)):
            return True
        waiter = allocate_lock()
        waiter.acquire()
        condition._waiters.append(waiter)
        saved = condition._release_save()
        try:
            self._actors.sleep(min(timeout, LONGEST_SECONDS))
        finally:
            condition._acquire_restore(saved)
        is_notified = waiter.acquire(blocking=False)
        if not is_notified:
            condition._waiters.remove(waiter)
        return is_notified

    def join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is None or timeout <= 0 or not self._actors.is_here:
            return _join(thread, timeout)
        _join(thread, min(timeout, REAL_SECONDS))  # what it computes takes real time
        if thread.is_alive():
            self._actors.sleep(min(timeout, LONGEST_SECONDS))
        return None

    def start(self, thread: threading.Thread) -> None:
        if self._actors.is_here or threading.current_thread() in self._threads:
            self._threads.add(thread)
        _start(thread)
