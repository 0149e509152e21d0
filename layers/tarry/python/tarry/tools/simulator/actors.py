"""Actors: threads of which only one runs at a time, while the scheduler's thread waits for it.

An actor runs until it waits (for a time or a `VirtualEvent`) or ends; then it hands control back to the scheduler,
which resumes it in one of its actions. So a run does not depend on how the operating system schedules threads.
"""

import math
import os
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tarry.tools.simulator.errors import Blocked, ForeignThread, SimulationError, WaitsForEver
from tarry.tools.simulator.process import Killed, PendingWait, Process, VirtualEvent
from tarry.tools.simulator.scheduler import Scheduler

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


Work = Callable[[], None]

PATIENCE_SECONDS = 5.0
"""The real seconds that an actor may run without waiting or advancing virtual time."""
MAX_CATCHES_OF_KILLED = 100
"""How often a killed actor may catch `Killed` before its thread is suspended for good."""


class Actor:
    """A `tarry.world.Thread` that runs only while the scheduler waits for it."""

    def __init__(self, actors: "Actors", work: Work, process: Process) -> None:
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
        process.add(self)

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
                    is_starved = is_runnable and used - worked < actors.patience_seconds / 2
                    if seen == actors.scheduler.now and not is_starved and not actors.is_excused():
                        if self._back.acquire(blocking=False):
                            break  # the whole process stood still, and the actor has gone on since
                        self._check_progress()
                    seen, worked = actors.scheduler.now, used
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
        raise Blocked(_blocked(frame, self._actors.patience_seconds))

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

    def main(self, thread: "ActorThread") -> None:
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
            self.process.remove(self)
            self._actors.forget(self)
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


class Actors:
    """All actors of a scheduler."""

    def __init__(self, scheduler: Scheduler, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.scheduler = scheduler
        self.patience_seconds = patience_seconds
        self.running: Actor | None = None
        """The actor that runs; None while the scheduler itself runs."""
        self.around: AbstractContextManager[object] = nullcontext()
        """A context manager that is entered while an actor runs."""
        self.is_excused: Callable[[], bool] = lambda: False
        """Whether the actor that runs waits for something that may take long in real time, such as an import."""
        self.abandoned: set[int | None] = set()
        """The ids of threads whose actors blocked for too long; if such a thread continues, it ends with `Killed`."""
        self.idle: list[ActorThread] = []
        """The threads whose actors have ended well."""
        self._alive: dict[Actor, None] = {}

    def start(self, work: Work, process: Process | None = None) -> Actor:
        """Start an actor that runs ``work`` in a copy of the current context, after the actions that are due already.

        Args:
            work: The code to run.
            process: The process that the actor belongs to; by default that of the current actor, or a new one outside
                of actors.

        Raises:
            Killed: The process of the current actor was killed.
        """
        actor = self._made(work, self._current_process() if process is None else process)
        self.scheduler.after(0, actor.begin)
        return actor

    def start_unless(self, event: VirtualEvent, seconds: float, work: Work) -> None:
        """Start an actor in ``seconds``, unless the event is set by then; until then, it takes no thread.

        Raises:
            Killed: The process of the current actor was killed.
        """
        process, context = self._current_process(), copy_context()

        def begin() -> None:
            if not process.killed:
                context.run(self._made, work, process).begin()

        event.prevent(self.scheduler.after(seconds, begin))

    def _made(self, work: Work, process: Process) -> Actor:
        actor = Actor(self, work, process)
        self._alive[actor] = None
        return actor

    def _current_process(self) -> Process:
        """Return the process of the current actor; a new one outside of actors. Raises `Killed` if it was killed."""
        current = self.current()
        if current is None:
            return Process(self)
        if current.process.killed:
            raise Killed
        return current.process

    def current(self) -> Actor | None:
        """Return the actor whose code calls this; None outside of actors.

        Raises:
            ForeignThread: The simulator did not start the calling thread. `Scheduler.run` raises the error too.
        """
        here = get_ident()
        if self.running is not None:
            if self.running.ident == here:
                return self.running
        elif not self.scheduler.running or self.scheduler.thread == here:
            return None
        if here in self.abandoned:
            raise Killed
        error = ForeignThread(
            f"the thread {threading.current_thread().name!r} was not started by the simulator, so it cannot wait in "
            "virtual time: start it with tarry.world.current().threads, or use asyncio"
        )
        self.scheduler.fail(error)
        raise error

    @property
    def unwinding(self) -> bool:
        """Whether the actor that runs was killed, so that its output no longer counts."""
        return self.running is not None and self.running.process.killed

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time; outside of actors, run the scheduler for ``seconds``."""
        actor, when = self.current(), self.scheduler.now + max(0.0, seconds)
        if actor is None:
            self.run_until(when)
            return
        actor.check()
        if not self.scheduler.skip_to(when):
            wait = PendingWait(actor)
            timer = self.scheduler.at(when, partial(actor.process.resume, wait))
            try:
                actor.wait(wait)
            finally:
                timer.cancel()  # the wait of a killed actor ends early

    def crash(self, why: str = "signal: killed") -> NoReturn:
        """End the process of the current actor at once."""
        actor = self.current()
        if actor is None:
            raise RuntimeError("only an actor can crash")
        actor.process.die(why)

    def close(self) -> None:
        """End all actors."""
        for actor in list(self._alive):
            actor.process.kill()
            actor.unwind()
        idle, self.idle = self.idle, []
        for thread in idle:
            thread.end()
        for thread in idle:
            thread.join(self.patience_seconds)

    def forget(self, actor: Actor) -> None:
        del self._alive[actor]

    def fail(self, error: SimulationError) -> NoReturn:
        """End the simulation with an error. Called by an actor, which cannot prevent it by catching the error."""
        if self.running is not None:
            self.running.process.kill()
        self.scheduler.fail(error)
        raise Killed

    def run_until(self, until: float | Callable[[], bool], limit: float | None = None) -> None:
        """Run the scheduler to a time or until a condition is true. Called outside of actors.

        Raises:
            WaitsForEver: No action is left before that, and there is no limit.
        """
        if self.scheduler.running:
            raise RuntimeError("an action of the scheduler cannot wait; only an actor, or the caller of run, can")
        if limit is not None:
            self.scheduler.run(until, limit)
        elif self.scheduler.run(until) == "idle":
            raise WaitsForEver("this waits for an event, but nothing is scheduled that could set it")


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


def _blocked(frame: FrameType, patience_seconds: float) -> str:
    return (
        f"no progress in {patience_seconds:g} s of real time, while time is virtual: a real sleep, another call that "
        f"blocks, or an endless loop. The stack:\n{stack_of(frame)}"
    )
