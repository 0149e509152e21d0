"""Simulated processes: groups of actors that are frozen, thawed and killed together."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tarry.tools.simulator.actors import Actor, Actors
    from tarry.tools.simulator.virtual_event import PendingWait


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
