"""Worker threads that are kept between invocations: to start a thread takes longer than most requests' own work."""

from __future__ import annotations

import threading
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING

from tarry.support.guards import generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.world import World


class WorkerPool:
    """The worker threads of a process for one purpose."""

    def __init__(self, world: World) -> None:
        self.threads = world.threads
        self._idle: list[Worker] = []
        """Changed by single operations only: a forked child would wait for a lock that another thread has."""

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
        """Put an idle worker back into the pool."""
        self._idle.append(worker)

    def start(self, work: Callable[[], object]) -> None:
        """Call ``work``, which must not raise, in a worker and a copy of the current context. See `take`."""
        self.take().give(partial(copy_context().run, work))


class Worker:
    """A thread that runs one job after the other."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.began_in = generation()
        self._called = pool.threads.event()
        self._work: Callable[[], object] | None = None
        self.ident: int | None = None
        Context().run(pool.threads.start, self._serve)  # in an empty context, not that of an invocation

    def give(self, work: Callable[[], object]) -> None:
        """Have the thread call ``work``, which must not raise."""
        self._work = work
        self._called.set()

    def _serve(self) -> None:
        self.ident = threading.get_ident()
        while True:
            self._called.wait()
            self._called.clear()
            work, self._work = self._work, None
            if work is not None:
                work()
            del work  # frees the message as well
            self._pool.put_back(self)
