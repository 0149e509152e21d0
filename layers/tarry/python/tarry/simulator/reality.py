"""What of the real world an actor would reach past the simulator: put right, or refused by name, while it runs."""

import asyncio
import os
import sys
import time
from _thread import get_ident
from typing import Any

from tarry.simulator.actors import Actors
from tarry.simulator.errors import RealSleep
from tarry.simulator.loop import VirtualLoop
from tarry.simulator.marshalling import exit_status
from tarry.simulator.stack import caller_of, stack_of

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
