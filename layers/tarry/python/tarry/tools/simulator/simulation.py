"""A simulation in virtual time: its scheduler and actors, which are the clock and the threads of a `World` in it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from _thread import get_ident
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tarry.tools.simulator.actors import (
    PATIENCE_SECONDS,
    Actor,
    ActorThread,
    Killed,
    Process,
    SimulationError,
    VirtualEvent,
    caller_of,
    stack_of,
)
from tarry.tools.simulator.invocations import exit_status
from tarry.tools.simulator.scheduler import START, Scheduler
from tarry.world import INTERRUPT_AGAIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.tools.simulator.actors import Work
    from tarry.world import Event, Fire


class RealSleep(SimulationError):
    """A handler called `time.sleep`, which takes real time, although time is virtual."""


class ForeignThread(SimulationError):
    """A thread that the simulator did not start called a function of virtual time."""


class WaitsForEver(SimulationError):
    """The code waits for an event, but nothing is scheduled that could set it."""


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
    ) -> asyncio.Future[Any]:
        """Run a function as an actor."""
        future = self.create_future()

        def work() -> None:
            try:
                end = partial(future.set_result, func(*args))
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001 raised where the result is awaited
                end = partial(future.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
                self.call_soon_threadsafe(lambda: future.done() or end())

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

    def _sleep(self, seconds: float) -> Any:
        if seconds <= 0 or not self._actors.is_here:
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
        if running is None or not self._actors.is_here:
            return _REAL[1](status)
        running.process.die(exit_status(status))

    def _new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self._actors) if self._actors.is_here else _REAL[2]()


class Actors:
    """All actors of a scheduler: the `tarry.world.Threads` of a simulation, and its `tarry.world.Clock`."""

    def __init__(self, scheduler: Scheduler, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.scheduler = scheduler
        self._began = scheduler.now
        self.patience_seconds = patience_seconds
        self.running: Actor | None = None
        """The actor that runs; None while the scheduler itself runs."""
        self.around = Guard(self)
        """A context manager that is entered while an actor runs."""
        self.is_excused: Callable[[], bool] = lambda: False
        """Whether the actor that runs waits for something that may take long in real time, such as an import."""
        self.abandoned: set[int | None] = set()
        """The ids of threads whose actors blocked for too long; if such a thread continues, it ends with `Killed`."""
        self.idle: list[ActorThread] = []
        """The threads whose actors have ended well."""
        self.alive: dict[Actor, None] = {}

    def start(self, work: Work, process: Process | None = None) -> Actor:
        """Start an actor that runs ``work`` in a copy of the current context, after the actions that are due already.

        By default it belongs to the process of the current actor, or to a new one outside of actors. Raises `Killed` if
        the process of the current actor was killed.
        """
        actor = self._made(work, self._current_process() if process is None else process)
        self.scheduler.after(0, actor.begin)
        return actor

    def start_unless(self, event: Event, seconds: float, work: Work) -> None:
        """Start an actor in ``seconds``, unless the event is set by then; until then, it takes no thread."""
        assert isinstance(event, VirtualEvent)
        process, context = self._current_process(), copy_context()

        def begin() -> None:
            if not process.killed:
                context.run(self._made, work, process).begin()

        event.prevent(self.scheduler.after(seconds, begin))

    def event(self) -> VirtualEvent:
        return VirtualEvent(self)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self)

    def interrupt(self, seconds: float, fire: Fire) -> VirtualAlarm | None:
        """Interrupt the current actor while it waits; return None outside of actors."""
        actor = self.current()
        return None if actor is None else VirtualAlarm(self.scheduler, actor, seconds, fire)

    def _made(self, work: Work, process: Process) -> Actor:
        actor = Actor(self, work, process)
        self.alive[actor] = None
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

        Raises `ForeignThread`, as `Scheduler.run` then does too, in a thread that the simulator did not start.
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
    def is_here(self) -> bool:
        """Whether the calling thread is the actor that runs. Unlike `current`, it accepts every thread."""
        return self.running is not None and self.running.ident == get_ident()

    @property
    def unwinding(self) -> bool:
        """Whether the actor that runs was killed, so that its output no longer counts."""
        return self.running is not None and self.running.process.killed

    # the clock

    def time(self) -> float:
        return self.scheduler.now

    def monotonic(self) -> float:
        return self.scheduler.now - self._began

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time; outside of actors, run the scheduler for ``seconds``."""
        if self.current() is None:
            self.run_until(self.scheduler.now + max(0.0, seconds))
        else:
            VirtualEvent(self).wait(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspend the task; on an event loop that is not virtual, block it."""
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            await asyncio.sleep(seconds)
        else:
            self.sleep(seconds)

    # ends

    def close(self) -> None:
        """End all actors."""
        for actor in list(self.alive):
            actor.process.kill()
            actor.unwind()
        idle, self.idle = self.idle, []
        for thread in idle:
            thread.end()
        for thread in idle:
            thread.join(self.patience_seconds)

    def fail(self, error: SimulationError) -> NoReturn:
        """End the simulation with an error. Called by an actor, which cannot prevent it by catching the error."""
        if self.running is not None:
            self.running.process.kill()
        self.scheduler.fail(error)
        raise Killed

    def run_until(self, until: float | Callable[[], bool], limit: float | None = None) -> None:
        """Run the scheduler to a time or until a condition is true. Called outside of actors.

        Raises `WaitsForEver` if no action is left before that, and there is no limit.
        """
        if self.scheduler.running:
            raise RuntimeError("an action of the scheduler cannot wait; only an actor, or the caller of run, can")
        if limit is not None:
            self.scheduler.run(until, limit)
        elif self.scheduler.run(until) == "idle":
            raise WaitsForEver("this waits for an event, but nothing is scheduled that could set it")


SHORTEST_WAIT_SECONDS = 0.001


class VirtualAlarm:
    """The `tarry.world.Interruption` of an actor."""

    def __init__(self, scheduler: Scheduler, actor: Actor, seconds: float, fire: Fire) -> None:
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
        self.actors = self.clock = self.threads = Actors(self.scheduler, patience_seconds)

    def close(self) -> None:
        """End all actors."""
        self.actors.close()
