"""Virtual time, and what a `World` takes of it: a clock, threads, event loops, and a guard against real time."""

import asyncio
import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.simulator.actors import PATIENCE_SECONDS, Actor, Actors
from tarry.simulator.errors import RealSleep
from tarry.simulator.flag import Flag
from tarry.simulator.loop import VirtualLoop
from tarry.simulator.marshalling import exit_status
from tarry.simulator.stack import caller_of, stack_of
from tarry.simulator.timeline import START, Timeline
from tarry.world import INTERRUPT_AGAIN_SECONDS

if TYPE_CHECKING:
    from tarry.world import Fire

_PLACES: list[tuple[Any, str]] = [
    (time, "sleep"),
    (os, "_exit"),
    (asyncio, "new_event_loop"),
    (asyncio.events, "new_event_loop"),  # where asyncio.run takes it from
]
_REAL = [getattr(module, name) for module, name in _PLACES]


class Guard:
    """While it is entered, an actor's `time.sleep` ends the simulation, its `os._exit` its process alone, and its event
    loops are virtual. Other threads find all as it was; what a test has put in these places itself stays there.
    """

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._own = [self._sleep, self._exit, self._new_event_loop, self._new_event_loop]

    def __enter__(self) -> None:
        for (module, name), real, own in zip(_PLACES, _REAL, self._own, strict=True):
            if getattr(module, name) is real:
                setattr(module, name, own)

    def __exit__(self, *_: object) -> None:
        for (module, name), real, own in zip(_PLACES, _REAL, self._own, strict=True):
            if getattr(module, name) is own:
                setattr(module, name, real)

    def _in_actor(self) -> bool:
        running = self._actors.running
        return running is not None and running.ident == get_ident()

    def _sleep(self, seconds: float) -> Any:
        if seconds <= 0 or not self._in_actor():
            return _REAL[0](seconds)
        caller = sys._getframe(1)
        return self._actors.fail(
            RealSleep(
                f"{caller_of(caller)} calls time.sleep({seconds!r}), which takes real time, while time is virtual "
                "here: let it call tarry.world.current().clock.sleep, or replace it in the test. It was called here:\n"
                + stack_of(caller)
            )
        )

    def _exit(self, status: int) -> Any:
        running = self._actors.running
        if running is None or not self._in_actor():
            return _REAL[1](status)
        running.process.die(exit_status(status))

    def _new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self._actors) if self._in_actor() else _REAL[2]()


SHORTEST_WAIT_SECONDS = 0.001


class VirtualClock:
    """The timeline's clock. `tarry.world.Clock`."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._timeline = actors.timeline
        self._began = actors.timeline.now

    def time(self) -> float:
        return self._timeline.now

    def monotonic(self) -> float:
        return self._timeline.now - self._began

    def sleep(self, seconds: float) -> None:
        """An actor hands over until then; outside of any, all that is to happen until then happens."""
        self._actors.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Other tasks run on; on an event loop that is not virtual nothing else does meanwhile."""
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            await asyncio.sleep(seconds)
        else:
            self.sleep(seconds)


class SimulatedThreads:
    """Threads that run one at a time. `tarry.world.Threads`."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors

    def start(self, work: Callable[[], None]) -> Actor:
        return self._actors.start(work)

    def event(self) -> Flag:
        return Flag(self._actors)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self._actors)

    def interrupt(self, seconds: float, fire: "Fire") -> "VirtualAlarm | None":
        """Any actor can be, where it waits; what runs outside of them cannot."""
        actor = self._actors.current()
        return None if actor is None else VirtualAlarm(self._actors.timeline, actor, seconds, fire)


class VirtualAlarm:
    """An interruption of an actor. `tarry.world.Interruption`."""

    def __init__(self, timeline: Timeline, actor: Actor, seconds: float, fire: "Fire") -> None:
        self._timeline = timeline
        self._actor = actor
        self._fire = fire
        self._timer = timeline.after(max(0.0, seconds), self._ring)

    def renew(self) -> None:
        """Nobody else can have it."""

    def cancel(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        if not self._actor.is_alive():
            return
        answer = self._fire(sys._current_frames().get(self._actor.ident or 0))
        if isinstance(answer, BaseException):
            self._timer = self._timeline.after(INTERRUPT_AGAIN_SECONDS, self._ring)
            self._actor.interrupt(answer)
        else:
            self._timer = self._timeline.after(max(answer, SHORTEST_WAIT_SECONDS), self._ring)


class Stage:
    """A timeline with its actors. `close` it in the end, or the threads of its actors stay."""

    def __init__(self, start: float = START, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.timeline = Timeline(start)
        self.actors = Actors(self.timeline, patience_seconds)
        self.actors.around = Guard(self.actors)
        self.clock = VirtualClock(self.actors)
        self.threads = SimulatedThreads(self.actors)

    def close(self) -> None:
        """End all actors."""
        self.actors.close()
