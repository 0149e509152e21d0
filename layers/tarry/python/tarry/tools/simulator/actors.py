"""Actors: threads of which only one runs at a time, while the scheduler's thread waits for it; and their processes.

An actor runs until it waits (for a time or a `VirtualEvent`) or ends; then it hands control back to the scheduler,
which resumes it in one of its actions. So a run does not depend on how the operating system schedules threads. The
actors of a process are frozen, thawed and killed together.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType

    from tarry.tools.simulator.scheduler import Timer
    from tarry.tools.simulator.simulation import Actors

    Work = Callable[[], None]


class SimulationError(Exception):
    """The simulation cannot continue. `Scheduler.run` raises it, even if the handler catches every exception."""


class Blocked(SimulationError):
    """An actor blocked in a real wait or an endless loop for seconds of real time."""


_TARRY = str(Path(__file__).parents[2])
_DEBUGGERS = frozenset({"bdb", "pdb", "pydevd"})
MAX_FRAMES = 12


def in_debugger(frame: FrameType | None) -> bool:
    """Return whether a frame runs under a debugger."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def stack_of(frame: FrameType) -> str:
    """Format the stack of a frame, innermost call last, without the outermost frames that belong to tarry."""
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=MAX_FRAMES)
    lines.reverse()
    while len(lines) > 1 and (lines[0].filename.startswith(_TARRY) or lines[0].filename.endswith("threading.py")):
        del lines[0]
    return "".join(lines.format()).rstrip()


def caller_of(frame: FrameType) -> str:
    """Return a frame's location as ``file:line in function()``."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}()"


class Killed(BaseException):
    """The actor's process was killed. Raised wherever the actor would wait, to end the actor."""


@dataclass(eq=False)
class Process:
    """A simulated process, whose threads are actors.

    ``on_death`` is called with the reason if an actor ends the process from within. ``around`` makes a context manager
    that is entered while one of the actors runs, for example to set environment variables.
    """

    actors: Actors
    on_death: Callable[[str], None] = lambda why: None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    killed: bool = False
    frozen: bool = False
    threads: dict[Actor, None] = field(default_factory=dict)
    _when_thawed: list[Work] = field(default_factory=list)

    def freeze(self) -> None:
        """Suspend all actors until `thaw`, even if their waits end."""
        self.frozen = True

    def thaw(self) -> None:
        """Let the actors run again, in the order in which their waits ended."""
        self.frozen = False
        works, self._when_thawed = self._when_thawed, []
        for work in works:
            self.actors.scheduler.after(0, work)

    def when_thawed(self, work: Work) -> None:
        """Let the scheduler call ``work`` once the process is thawed; never if it is not."""
        self._when_thawed.append(work)

    def kill(self) -> None:
        """End all actors: their waits raise `Killed`. If an actor of the process calls this, its next wait raises."""
        if self.killed:
            return
        self.killed = True
        for actor in list(self.threads):
            if self.actors.running is None:
                actor.unwind()
            else:
                self.actors.scheduler.after(0, actor.unwind)

    def die(self, why: str) -> NoReturn:
        """End the process at once. Called by one of its actors."""
        if not self.killed:
            self.kill()
            self.actors.scheduler.after(0, partial(self.on_death, why))
        raise Killed

    def resume(self, wait: PendingWait) -> None:
        """Resume the actor of a wait, once the process is not frozen; do nothing if this wait has ended."""
        if self.frozen:
            self.when_thawed(partial(self.resume, wait))
        else:
            wait.actor.resume(wait)


@dataclass(eq=False, slots=True)
class PendingWait:
    """One wait of an actor. ``occurred``: the event was set during the wait."""

    actor: Actor
    occurred: bool = False


class VirtualEvent:
    """The `tarry.world.Event` of a simulation."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._set = False
        self._pending: list[PendingWait] = []
        self._timers: list[Timer] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._actors.current()  # raises for a thread that is not an actor
        self._set = True
        while self._timers:
            self._timers.pop().cancel()
        pending, self._pending = self._pending, []
        for wait in pending:
            wait.occurred = True
            self._actors.scheduler.after(0, partial(wait.actor.process.resume, wait))

    def prevent(self, timer: Timer) -> None:
        """Cancel a timer when the event is set, or now if it is set."""
        if self._set:
            timer.cancel()
        else:
            self._timers.append(timer)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, at most ``timeout`` virtual seconds; return whether it is set.

        Outside of actors this runs the scheduler. Raises `WaitsForEver` if called outside of actors and without a
        timeout, and no action is left that could set it.
        """
        actor, scheduler = self._actors.current(), self._actors.scheduler
        until = None if timeout is None else scheduler.now + max(0.0, timeout)
        if actor is None:
            return self._run_scheduler(until)
        actor.check()
        if self._set or (until is not None and scheduler.skip_to(until)):
            return self._set
        wait = PendingWait(actor)
        self._pending.append(wait)
        timer = None if until is None else scheduler.at(until, partial(actor.process.resume, wait))
        try:
            actor.wait(wait)
        finally:
            if timer is not None:
                timer.cancel()
            if not wait.occurred:
                self._pending.remove(wait)
        return wait.occurred

    def _run_scheduler(self, until: float | None) -> bool:
        if self._set:
            return True
        self._actors.run_until(self.is_set, until)
        if until is not None and not self.is_set():
            self._actors.run_until(until)
        return self.is_set()


PATIENCE_SECONDS = 5.0
"""The real seconds that an actor may run without waiting or advancing virtual time."""
MAX_CATCHES_OF_KILLED = 100
"""How often a killed actor may catch `Killed` before its thread is suspended for good."""


class Actor:
    """A `tarry.world.Thread` that runs only while the scheduler waits for it."""

    def __init__(self, actors: Actors, work: Work, process: Process) -> None:
        self.process = process
        self.ended = VirtualEvent(actors)
        self.ident: int | None = None
        self.native_id: int | None = None
        self._actors = actors
        self._work = work
        self._context = copy_context()
        self._go, self._back = allocate_lock(), allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._wait: PendingWait | None = None
        self._error: BaseException | None = None
        self._catches_left = MAX_CATCHES_OF_KILLED
        process.threads[self] = None

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)

    # in the scheduler's thread

    def begin(self) -> None:
        """Run in a thread, and wait until it hands control back."""
        if self.is_alive():
            idle = self._actors.idle
            thread = idle.pop() if idle else ActorThread()
            self._hand_over(partial(thread.run, self))

    def resume(self, wait: PendingWait) -> None:
        """Resume the actor if it is still in this wait."""
        if self._wait is wait:
            self._wait = None
            self._hand_over(self._go.release)

    def unwind(self) -> None:
        """Resume the actor so that it ends; its process was killed."""
        if self.ident is None:
            self._end()
        elif self.is_alive():
            self._wait = None
            self._hand_over(self._go.release)

    def interrupt(self, error: BaseException) -> None:
        """Resume the actor with an exception in its wait."""
        if self._wait is not None and not self.process.frozen:
            self._wait, self._error = None, error
            self._hand_over(self._go.release)

    def _hand_over(self, go: Work) -> None:
        actors = self._actors
        actors.running = self
        try:
            with actors.around, self.process.around():
                go()
                seen, worked = actors.scheduler.now, math.inf
                while not self._back.acquire(timeout=actors.patience_seconds):
                    is_runnable, used = usage(self.native_id)
                    is_excused = seen != actors.scheduler.now or actors.is_excused()
                    if is_excused or worked == math.inf:
                        seen, worked = actors.scheduler.now, used
                    # Added up over the checks: on a busy machine, an endless loop gets little of a core in each.
                    is_starved = is_runnable and used - worked < actors.patience_seconds / 2
                    if not is_excused and not is_starved:
                        if self._back.acquire(blocking=False):
                            break  # the whole process stood still, and the actor has gone on since
                        self._check_progress()
        except BaseException:  # the actor did not hand control back: give up on its thread
            actors.running = None
            actors.abandoned.add(self.ident)
            self._end()
            actors.scheduler.after(0, self.process.kill)
            raise
        finally:
            actors.running = None

    def _check_progress(self) -> None:
        frame = sys._current_frames().get(self.ident or 0)
        if frame is None or in_debugger(frame):
            return
        patience_seconds = self._actors.patience_seconds
        raise Blocked(
            f"no progress in {patience_seconds:g} s of real time, while time is virtual: a real sleep, another call "
            f"that blocks, or an endless loop. The stack:\n{stack_of(frame)}"
        )

    # in the actor's own thread

    def wait(self, wait: PendingWait) -> None:
        """Hand control to the scheduler until it resumes this wait."""
        self.check()
        self._wait = wait
        self._back.release()
        self._go.acquire()
        self.check()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def check(self) -> None:
        """Raise `Killed` if the process was killed."""
        if not self.process.killed:
            return
        self._catches_left -= 1
        if self._catches_left < 0:
            self._end()
            self._back.release()
            while True:  # the thread keeps catching `Killed`: block it until the test process exits
                self._go.acquire()
        raise Killed

    def main(self, thread: ActorThread) -> None:
        """Run to the end."""
        self.ident, self.native_id = get_ident(), threading.get_native_id()
        ended_well = False
        try:
            self._context.run(self._work)
            ended_well = self.is_alive() and not self.process.killed
        except (Killed, SystemExit):  # a thread that exits just ends
            pass
        except BaseException as error:  # noqa: BLE001 raised by `Scheduler.run`
            self._actors.scheduler.fail(error)
        if not ended_well:
            thread.end()  # what a killed actor leaves behind in its thread, such as an event loop, ends with it
        if self.is_alive():
            self._end()
            if ended_well:
                self._actors.idle.append(thread)
            self._back.release()
        else:
            self._actors.abandoned.discard(self.ident)

    def _end(self) -> None:
        if self.is_alive():
            del self.process.threads[self]
            del self._actors.alive[self]
            self.ended.set()


class ActorThread:
    """A thread that runs one actor after the other: to start a thread takes longer than most actors run."""

    def __init__(self) -> None:
        self._actor: Actor | None = None
        self._wake = allocate_lock()
        self._thread: threading.Thread | None = None

    def run(self, actor: Actor) -> None:
        """Run an actor; the thread has none."""
        self._actor = actor
        if self._thread is None:
            self._wake.acquire()
            self._thread = threading.Thread(target=self._run, name="actor", daemon=True)
            self._thread.start()
        else:
            self._wake.release()

    def end(self) -> None:
        """Let the thread end; it has no actor."""
        self._wake.release()

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, at most ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (actor := self._actor) is not None:
            self._actor = None
            actor.main(self)
            del actor  # and all that it refers to
            self._wake.acquire()


def usage(native_id: int | None) -> tuple[bool, float]:
    """Return whether a thread is runnable or waits for a disk, and how many seconds of CPU time it has used.

    On systems without ``/proc`` both are unknown: False and 0. A thread that is runnable, but uses hardly any CPU time,
    waits for a core of a busy machine.
    """
    try:
        with open(f"/proc/self/task/{native_id}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False, 0.0
    return fields[0] in ("R", "D"), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
