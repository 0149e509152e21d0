"""Sync handlers beside each other: the threads that run them.

The threads are kept between invocations, and with them what a handler keeps for each thread, as a connection. One that
is left behind, since its handler does not end, is none of the crew's until it does.
"""

from __future__ import annotations

import math
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from tarry.execution.timeouts import standing
from tarry.support.forks import generation, leave_if_forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tarry.execution.jobs import Job
    from tarry.world import World


class Crew:
    """The threads of a process."""

    def __init__(self, world: World) -> None:
        self.threads = world.threads
        self.lock = threading.Lock()
        self.lost = 0
        """How many run what was left behind."""
        self._idle: list[Member] = []

    def member(self) -> Member:
        """One that has nothing to do. Raises `RuntimeError` if the process may have no more threads."""
        with self.lock:
            if self._idle:
                return self._idle.pop()
        return Member(self)

    def is_idle(self, member: Member) -> None:
        """A member has nothing to do any more."""
        with self.lock:
            self._idle.append(member)


class Member:
    """One thread, which runs one job after the other."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._called = crew.threads.event()
        self._work: Callable[[], None] | None = None
        self.ident: int | None = None
        Context().run(crew.threads.start, self._serve)  # of no invocation's context

    def give(self, work: Callable[[], None]) -> None:
        """Something to do, which raises nothing."""
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
            del work  # and with it the message
            self._crew.is_idle(self)


class Shift:
    """What the crew does in one invocation. `tarry.execution.jobs.Workers`."""

    def __init__(self, crew: Crew, run: Callable[[Job], None]) -> None:
        self._crew = crew
        self._run = run
        self._some_ended = crew.threads.event()
        self._ended: list[Job] = []
        self._began_in = generation()

    @property
    def lost(self) -> int:
        """Places that are taken by what was left behind, in this invocation or an earlier one."""
        return self._crew.lost

    def start(self, job: Job) -> None:
        context, began_in = copy_context(), self._began_in

        def work() -> None:
            try:
                context.run(self._run, job)
            except BaseException as error:  # noqa: BLE001 whatever it is, it is this message's failure
                job.raised = error
            leave_if_forked(began_in, job.raised)
            self._over(job)

        try:
            job.handle = self._crew.member()
        except RuntimeError:  # the process may have no more threads: it runs here, and the others wait
            return work()
        job.handle.give(work)

    async def ended(self, seconds: float) -> list[Job]:
        if not self._ended and seconds > 0:
            self._some_ended.wait(None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX))
        self._some_ended.clear()
        with self._crew.lock:
            ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job) -> None:
        """A thread cannot be told anything."""
        self.leave(job)

    def leave(self, job: Job) -> None:
        with self._crew.lock:
            if job.has_ended or job.is_left:
                return
            job.is_left = True
            self._crew.lost += 1
        if job.error is not None:
            job.error.__traceback__ = standing(job.handle.ident)

    def wake(self) -> None:
        self._some_ended.set()

    def is_blocked_by(self, frame: FrameType | None) -> bool:
        return False

    def _over(self, job: Job) -> None:
        with self._crew.lock:
            job.has_ended = True
            if job.is_left:
                self._crew.lost -= 1
            else:
                self._ended.append(job)
        self._some_ended.set()
