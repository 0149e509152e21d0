"""What actors wait for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.simulator.actors import Actor, Actors


class Ticket:
    """One wait of an actor. ``rung``: what it waited for has happened."""

    __slots__ = ("actor", "rung")

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.rung = False


class Flag:
    """What actors can wait for. `tarry.world.Event`."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._set = False
        self._waiting: list[Ticket] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._actors.current()  # refuses other threads: the timeline is not theirs
        self._set = True
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.rung = True
            self._actors.timeline.after(0, partial(ticket.actor.process.resume, ticket))

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` virtual seconds; whether it was.

        Raises:
            WaitsForEver: outside of any actor, without a timeout: nothing is left to happen.
        """
        actor, timeline = self._actors.current(), self._actors.timeline
        until = None if timeout is None else timeline.now + max(0.0, timeout)
        if actor is None:
            return self._play(until)
        actor.check()
        if self._set or (until is not None and timeline.skip_to(until)):
            return self._set
        ticket = Ticket(actor)
        self._waiting.append(ticket)
        timer = None if until is None else timeline.at(until, partial(actor.process.resume, ticket))
        try:
            actor.wait(ticket)
        finally:
            if timer is not None:
                timer.cancel()
            if not ticket.rung:
                self._waiting.remove(ticket)
        return ticket.rung

    def _play(self, until: float | None) -> bool:
        if self._set:
            return True
        self._actors.play_until(self.is_set, until)
        if until is not None and not self.is_set():
            self._actors.play_until(until)
        return self.is_set()
