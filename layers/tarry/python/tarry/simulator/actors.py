"""Actors: threads of which only one runs at any time, and only while the timeline's own thread waits for it.

An actor runs until it waits for something (a time, a `Flag`) or ends, and hands over to the timeline then; the timeline
resumes it as one of its events. So nothing depends on how the operating system schedules threads.
"""

import math
import os
import sys
import threading
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import NoReturn

from tarry.simulator.errors import Blocked, ForeignThread, SimulationError, WaitsForEver
from tarry.simulator.flag import Flag, Ticket
from tarry.simulator.process import Killed, Process
from tarry.simulator.stack import in_debugger, stack_of
from tarry.simulator.timeline import Timeline

Work = Callable[[], None]

PATIENCE_SECONDS = 5.0
"""Real seconds that an actor may run without handing over or at least moving time on."""
LAST_WORDS = 100
"""How often an actor that was killed may catch what ends it, before it is left standing for good."""


class Actor:
    """A thread that runs only while it holds the baton. `tarry.world.Thread`."""

    def __init__(self, actors: "Actors", work: Work, process: Process) -> None:
        self.process = process
        self.ended = Flag(actors)
        self.ident: int | None = None
        self.native_id: int | None = None
        self._actors = actors
        self._work = work
        self._context = copy_context()
        self._go, self._back = allocate_lock(), allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._ticket: Ticket | None = None
        self._error: BaseException | None = None
        self._last_words = LAST_WORDS
        process.add(self)

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)

    # in the timeline's thread

    def begin(self) -> None:
        """Let it run for the first time."""
        if self.is_alive():
            self._hand_over(threading.Thread(target=self._main, name="actor", daemon=True).start)

    def resume(self, ticket: Ticket) -> None:
        """Let it run on, if it waits with this ticket."""
        if self._ticket is ticket:
            self._ticket = None
            self._hand_over(self._go.release)

    def unwind(self) -> None:
        """Let it end, since its process was killed."""
        if self.ident is None:
            self._end()
        elif self.is_alive():
            self._ticket = None
            self._hand_over(self._go.release)

    def interrupt(self, error: BaseException) -> None:
        """Let it run on, with an error where it waits."""
        if self._ticket is not None and not self.process.frozen:
            self._ticket, self._error = None, error
            self._hand_over(self._go.release)

    def _hand_over(self, go: Work) -> None:
        actors = self._actors
        actors.running = self
        try:
            with actors.around, self.process.around():
                go()
                seen, worked = actors.timeline.now, math.inf
                while not self._back.acquire(timeout=actors.patience_seconds):
                    is_runnable, used = usage(self.native_id)
                    is_starved = is_runnable and used - worked < actors.patience_seconds / 2
                    if seen == actors.timeline.now and not is_starved:
                        self._check_progress()
                    seen, worked = actors.timeline.now, used
        except BaseException:  # it did not hand over, and nobody will wait for it again
            actors.running = None
            actors.abandoned.add(self.ident)
            self._end()
            actors.timeline.after(0, self.process.kill)
            raise
        finally:
            actors.running = None

    def _check_progress(self) -> None:
        frame = sys._current_frames().get(self.ident or 0)
        if frame is None or in_debugger(frame):
            return
        raise Blocked(_blocked(frame, self._actors.patience_seconds))

    # in its own thread

    def wait(self, ticket: Ticket) -> None:
        """Hand over until it is resumed with this ticket."""
        self.check()
        self._ticket = ticket
        self._back.release()
        self._go.acquire()
        self.check()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def check(self) -> None:
        """Raise `Killed` if it was."""
        if not self.process.killed:
            return
        self._last_words -= 1
        if self._last_words < 0:
            self._end()
            self._back.release()
            while True:  # it will not end: it stands here as long as the test process lives
                self._go.acquire()
        raise Killed

    def _main(self) -> None:
        self.ident, self.native_id = get_ident(), threading.get_native_id()
        try:
            self._context.run(self._work)
        except (Killed, SystemExit):  # a thread that exits just ends
            pass
        except BaseException as error:  # noqa: BLE001 there is nobody else to take it
            self._actors.timeline.fail(error)
        if self.is_alive():
            self._end()
            self._back.release()
        else:
            self._actors.abandoned.discard(self.ident)

    def _end(self) -> None:
        if self.is_alive():
            self.process.remove(self)
            self._actors.forget(self)
            self.ended.set()


class Actors:
    """All actors of a timeline."""

    def __init__(self, timeline: Timeline, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.timeline = timeline
        self.patience_seconds = patience_seconds
        self.running: Actor | None = None
        """The one that holds the baton; None while the timeline itself runs."""
        self.around: AbstractContextManager[object] = nullcontext()
        """Entered while an actor runs."""
        self.abandoned: set[int | None] = set()
        """Threads of actors that blocked for too long; if they ever go on, they do so past the timeline."""
        self._alive: dict[Actor, None] = {}

    def start(self, work: Work, process: Process | None = None) -> Actor:
        """Let ``work`` begin now, after what is due already, in a copy of the current context.

        It belongs to ``process``, by default to that of the actor that starts it; outside of any, to one of its own.

        Raises:
            Killed: the process of the actor that starts it was killed.
        """
        if process is None:
            current = self.current()
            if current is not None and current.process.killed:
                raise Killed
            process = current.process if current is not None else Process(self)
        actor = Actor(self, work, process)
        self._alive[actor] = None
        self.timeline.after(0, actor.begin)
        return actor

    def current(self) -> Actor | None:
        """The actor whose code calls this; None outside of any.

        Raises:
            ForeignThread: it is a thread that was started past the simulator; the simulation ends with it too.
        """
        here = get_ident()
        if self.running is not None:
            if self.running.ident == here:
                return self.running
        elif not self.timeline.running or self.timeline.thread == here:
            return None
        if here in self.abandoned:
            raise Killed
        error = ForeignThread(
            f"the thread {threading.current_thread().name!r} was started past the simulator and cannot wait in virtual "
            "time: start it by tarry.world.current().threads, or use asyncio"
        )
        self.timeline.fail(error)
        raise error

    @property
    def unwinding(self) -> bool:
        """Whether the code that runs now was killed: what it says counts no more."""
        return self.running is not None and self.running.process.killed

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time; outside of any actor: let everything happen in the meantime."""
        actor, when = self.current(), self.timeline.now + max(0.0, seconds)
        if actor is None:
            self.play_until(when)
            return
        actor.check()
        if not self.timeline.skip_to(when):
            ticket = Ticket(actor)
            timer = self.timeline.at(when, partial(actor.process.resume, ticket))
            try:
                actor.wait(ticket)
            finally:
                timer.cancel()  # of one that was killed

    def crash(self, why: str = "signal: killed") -> NoReturn:
        """Called by an actor: its process dies here and now."""
        actor = self.current()
        if actor is None:
            raise RuntimeError("only an actor can crash")
        actor.process.die(why)

    def close(self) -> None:
        """End all actors."""
        for actor in list(self._alive):
            actor.process.kill()
            actor.unwind()

    def forget(self, actor: Actor) -> None:
        del self._alive[actor]

    def fail(self, error: SimulationError) -> NoReturn:
        """Called by an actor: the simulation ends with this error, whatever it catches."""
        if self.running is not None:
            self.running.process.kill()
        self.timeline.fail(error)
        raise Killed

    def play_until(self, until: float | Callable[[], bool], limit: float | None = None) -> None:
        """Let all that is to happen until then happen; called outside of any actor.

        Raises:
            WaitsForEver: nothing is left to happen before that, and there is no limit.
        """
        if self.timeline.running:
            raise RuntimeError("what happens on the timeline itself cannot wait: only actors can, and who runs it")
        if limit is not None:
            self.timeline.run(until, limit)
        elif self.timeline.run(until) == "idle":
            raise WaitsForEver("nothing is left to happen, and this waits for something")


def usage(native_id: int | None) -> tuple[bool, float]:
    """Return whether a thread computes, or waits for a core or a disk, and how many seconds it has computed.

    False and 0 where that cannot be told. A thread that could run, and hardly does, is one of a busy machine.
    """
    try:
        with open(f"/proc/self/task/{native_id}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False, 0.0
    return fields[0] in ("R", "D"), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _blocked(frame: FrameType, patience_seconds: float) -> str:
    return (
        f"no step in {patience_seconds:g} s of real time, while time is virtual: a real sleep or another call that "
        f"blocks, or a loop without an end. It stands here:\n{stack_of(frame)}"
    )
