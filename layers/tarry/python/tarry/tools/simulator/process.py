"""Simulated processes: groups of actors that are frozen, thawed and killed together; events that actors wait for."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tarry.tools.simulator.actors import Actor, Actors
    from tarry.tools.simulator.scheduler import Timer


class Killed(BaseException):
    """The actor's process was killed. Raised wherever the actor would wait, to end the actor."""


class Process:
    """A simulated process, whose threads are actors.

    ``on_death`` is called with the reason if an actor ends the process from within. ``around`` makes a context manager
    that is entered while one of the actors runs, for example to set environment variables.
    """

    def __init__(
        self,
        actors: Actors,
        on_death: Callable[[str], None] = lambda why: None,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.killed = False
        self.around = around
        self._actors = actors
        self._on_death = on_death
        self._threads: dict[Actor, None] = {}
        self.frozen = False
        self._ended_while_frozen: list[PendingWait] = []
        self._when_thawed: list[Callable[[], None]] = []

    def freeze(self) -> None:
        """Suspend all actors until `thaw`, even if their waits end."""
        self.frozen = True

    def thaw(self) -> None:
        """Let the actors run again, in the order in which their waits ended."""
        self.frozen = False
        ended, self._ended_while_frozen = self._ended_while_frozen, []
        for wait in ended:
            self._actors.scheduler.after(0, partial(self.resume, wait))
        works, self._when_thawed = self._when_thawed, []
        for work in works:
            work()

    def when_thawed(self, work: Callable[[], None]) -> None:
        """Call ``work`` once the process is thawed; never if it is not."""
        self._when_thawed.append(work)

    def kill(self) -> None:
        """End all actors: their waits raise `Killed`. If an actor of the process calls this, its next wait raises."""
        if self.killed:
            return
        self.killed = True
        for actor in list(self._threads):
            if self._actors.running is None:
                actor.unwind()
            else:
                self._actors.scheduler.after(0, actor.unwind)

    def die(self, why: str) -> NoReturn:
        """End the process at once. Called by one of its actors."""
        if not self.killed:
            self.kill()
            self._actors.scheduler.after(0, partial(self._on_death, why))
        raise Killed

    def resume(self, wait: PendingWait) -> None:
        """Resume the actor of a wait, once the process is not frozen; do nothing if this wait has ended."""
        if self.frozen:
            self._ended_while_frozen.append(wait)
        else:
            wait.actor.resume(wait)

    def add(self, actor: Actor) -> None:
        self._threads[actor] = None

    def remove(self, actor: Actor) -> None:
        del self._threads[actor]


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
