"""Events that actors wait for in virtual time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.tools.simulator.actors import Actor, Actors
    from tarry.tools.simulator.scheduler import Timer


class PendingWait:
    """One wait of an actor. ``occurred``: the event was set during the wait."""

    __slots__ = ("actor", "occurred")

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.occurred = False


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

        Outside of actors this runs the scheduler.

        Raises:
            WaitsForEver: Called outside of actors and without a timeout, and no action is left that could set it.
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
