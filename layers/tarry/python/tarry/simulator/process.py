"""Processes: actors that share a fate."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tarry.simulator.actors import Actor, Actors
    from tarry.simulator.flag import Ticket


class Killed(BaseException):
    """Ends an actor whose process was killed. It is raised wherever the actor would wait."""


class Process:
    """Actors that are frozen, thawed and killed together, as the threads of a process are.

    ``on_death`` is told why when one of them ends the process from within. ``around`` makes what is entered while one
    of them runs: its environment variables, for example.
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
        self._members: dict[Actor, None] = {}
        self.frozen = False
        self._held: list[Ticket] = []

    def freeze(self) -> None:
        """None of them runs until `thaw`: what they wait for may happen, and they do not see it yet."""
        self.frozen = True

    def thaw(self) -> None:
        """They run again, those first whose wait ended first."""
        self.frozen = False
        held, self._held = self._held, []
        for ticket in held:
            self._actors.timeline.after(0, partial(self.resume, ticket))

    def kill(self) -> None:
        """None of them runs any more to any effect: they are unwound with `Killed`. Called by one of them, it returns
        to it, and its next wait raises.
        """
        if self.killed:
            return
        self.killed = True
        for actor in list(self._members):
            if self._actors.running is None:
                actor.unwind()
            else:
                self._actors.timeline.after(0, actor.unwind)

    def die(self, why: str) -> NoReturn:
        """Called by one of them: the process ends here and now."""
        if not self.killed:
            self.kill()
            self._actors.timeline.after(0, partial(self._on_death, why))
        raise Killed

    def resume(self, ticket: Ticket) -> None:
        """Let an actor go on that waits with this ticket; if it waits no more, or with another one, nothing."""
        if self.frozen:
            self._held.append(ticket)
        else:
            ticket.actor.resume(ticket)

    def add(self, actor: Actor) -> None:
        self._members[actor] = None

    def remove(self, actor: Actor) -> None:
        del self._members[actor]
