"""A simulation in virtual time: its scheduler and actors, and the clock and threads of a `World` that runs in it."""

import asyncio
import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tarry.tools.simulator.actors import PATIENCE_SECONDS, Actor, Actors, caller_of, stack_of
from tarry.tools.simulator.errors import RealSleep
from tarry.tools.simulator.invocations import exit_status
from tarry.tools.simulator.process import Killed, VirtualEvent
from tarry.tools.simulator.scheduler import START, Scheduler
from tarry.world import INTERRUPT_AGAIN_SECONDS

if TYPE_CHECKING:
    from tarry.world import Event, Fire

RESOLUTION_SECONDS = 1e-6
"""The loop runs callbacks that are due within this time. Epoch seconds as floats are exact to a quarter of it."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without network, in which ``asyncio.sleep``, timeouts and task groups work.

    A function that is run in an executor runs as an actor of its own, whatever the executor.
    """

    def __init__(self, actors: Actors) -> None:
        super().__init__()
        self._actors = actors
        self._clock_resolution = RESOLUTION_SECONDS
        self._awake = VirtualEvent(actors)
        self._selector = self

    def time(self) -> float:
        """The time of the scheduler, in epoch seconds."""
        return self._actors.scheduler.now

    def select(self, timeout: float | None) -> tuple[()]:
        """Wait for ``timeout`` seconds, or until another actor wakes the loop; there are no file descriptors."""
        if timeout is None or timeout > 0:
            self._awake.wait(timeout)
        self._awake.clear()
        return ()

    def run_in_executor(  # type: ignore[override]  # typeshed has it generic in the arguments
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function as an actor."""
        future = self.create_future()

        def complete(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                set_outcome(outcome)

        def work() -> None:
            try:
                end = partial(complete, future.set_result, func(*args))
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001 raised where the result is awaited
                end = partial(complete, future.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
                self.call_soon_threadsafe(end)

        self._actors.start(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception, unless the actor was killed: its pending tasks are then expected."""
        if not self._actors.unwinding:
            super().call_exception_handler(context)

    def _process_events(self, event_list: object) -> None:
        """Do nothing: `select` returns no events."""

    def _write_to_self(self) -> None:
        self._awake.set()


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: object, **settings: object) -> NoReturn:
        raise NotImplementedError(
            f"{name} is not supported: there are no sockets, processes or signals in virtual time; replace it in the "
            "test"
        )

    return refuse


_UNSUPPORTED = """
    add_reader add_signal_handler add_writer connect_accepted_socket connect_read_pipe connect_write_pipe
    create_connection create_datagram_endpoint create_server create_unix_connection create_unix_server getaddrinfo
    getnameinfo sendfile sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendfile
    sock_sendto start_tls subprocess_exec subprocess_shell
"""
for _name in _UNSUPPORTED.split():
    setattr(VirtualLoop, _name, _refusal(_name))


_PATCHED: list[tuple[Any, str]] = [
    (time, "sleep"),
    (os, "_exit"),
    (asyncio, "new_event_loop"),
    (asyncio.events, "new_event_loop"),  # the one that asyncio.run calls
]
_REAL = [getattr(module, name) for module, name in _PATCHED]


class Guard:
    """A context manager that patches functions of real time and of the process while an actor runs.

    An actor's `time.sleep` ends the simulation with an error, its `os._exit` ends its simulated process, and its event
    loops are virtual. Other threads get the real functions. A function that a test has patched itself stays.
    """

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        own = [self._sleep, self._exit, self._new_event_loop, self._new_event_loop]
        self._patches = [
            (vars(module), name, *each) for (module, name), *each in zip(_PATCHED, _REAL, own, strict=True)
        ]

    def __enter__(self) -> None:
        for names, name, real, own in self._patches:
            if names[name] is real:
                names[name] = own

    def __exit__(self, *_: object) -> None:
        for names, name, real, own in self._patches:
            if names[name] is own:
                names[name] = real

    def _in_actor(self) -> bool:
        running = self._actors.running
        return running is not None and running.ident == get_ident()

    def _sleep(self, seconds: float) -> Any:
        if seconds <= 0 or not self._in_actor():
            return _REAL[0](seconds)
        caller = sys._getframe(1)
        return self._actors.fail(
            RealSleep(
                f"{caller_of(caller)} calls time.sleep({seconds!r}), which takes real time, but time is virtual here: "
                "call tarry.world.current().clock.sleep instead, or replace the call in the test. The call:\n"
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
    """The `tarry.world.Clock` of a simulation."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._scheduler = actors.scheduler
        self._began = actors.scheduler.now

    def time(self) -> float:
        return self._scheduler.now

    def monotonic(self) -> float:
        return self._scheduler.now - self._began

    def sleep(self, seconds: float) -> None:
        """Suspend the actor; outside of actors, run the scheduler for ``seconds``."""
        self._actors.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspend the task; on an event loop that is not virtual, block it."""
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            await asyncio.sleep(seconds)
        else:
            self.sleep(seconds)


class SimulatedThreads:
    """The `tarry.world.Threads` of a simulation: actors, which run one at a time."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors

    def start(self, work: Callable[[], None]) -> Actor:
        return self._actors.start(work)

    def start_unless(self, event: "Event", seconds: float, work: Callable[[], None]) -> None:
        assert isinstance(event, VirtualEvent)
        self._actors.start_unless(event, seconds, work)

    def event(self) -> VirtualEvent:
        return VirtualEvent(self._actors)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self._actors)

    def interrupt(self, seconds: float, fire: "Fire") -> "VirtualAlarm | None":
        """Interrupt the current actor while it waits; return None outside of actors."""
        actor = self._actors.current()
        return None if actor is None else VirtualAlarm(self._actors.scheduler, actor, seconds, fire)


class VirtualAlarm:
    """The `tarry.world.Interruption` of an actor."""

    def __init__(self, scheduler: Scheduler, actor: Actor, seconds: float, fire: "Fire") -> None:
        self._scheduler = scheduler
        self._actor = actor
        self._fire = fire
        self._ring_after(seconds)

    def renew(self) -> None:
        """Do nothing: no other code can replace this alarm."""

    def cancel(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        if not self._actor.is_alive():
            return
        if self._actor.process.frozen:  # its timers stand still, or the simulation would never come to rest
            self._actor.process.when_thawed(partial(self._ring_after, 0))
            return
        error_or_delay = self._fire(sys._current_frames().get(self._actor.ident or 0))
        if isinstance(error_or_delay, BaseException):
            self._ring_after(INTERRUPT_AGAIN_SECONDS)
            self._actor.interrupt(error_or_delay)
        else:
            self._ring_after(max(error_or_delay, SHORTEST_WAIT_SECONDS))

    def _ring_after(self, seconds: float) -> None:
        self._timer = self._scheduler.after(max(0.0, seconds), self._ring)


class Simulation:
    """A scheduler with its actors. Call `close` at the end, or the threads of the actors stay alive."""

    def __init__(self, start: float = START, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.scheduler = Scheduler(start)
        self.actors = Actors(self.scheduler, patience_seconds)
        self.actors.around = Guard(self.actors)
        self.clock = VirtualClock(self.actors)
        self.threads = SimulatedThreads(self.actors)

    def close(self) -> None:
        """End all actors."""
        self.actors.close()
