"""The world that a consumer runs in: its clock, random source, SQS client factory and threads.

The current world is looked up at each invocation, never at import, so a test can run a module-level consumer in
another world: ``with use(World(clock=..., client_factory=...)): handler(event, context)``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself loads enum, and wraps these
import os
from _thread import RLock
from contextvars import ContextVar, copy_context
from sys import modules
from time import monotonic, sleep
from time import time as epoch_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random
    from types import FrameType
    from typing import Any, Protocol, TypeAlias, TypeVar

    Fire: TypeAlias = Callable[[FrameType | None], BaseException | float]
    """Gets the current frame of the thread to interrupt, or None if that is unknown. Returns the exception to raise
    there, or the seconds until the next call."""

    T = TypeVar("T")
else:
    Protocol = object  # to import typing is slow, and no code needs a protocol at run time


class Clock(Protocol):
    """A source of time."""

    def time(self) -> float:
        """Return the seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, for durations and deadlines."""

    def sleep(self, seconds: float) -> None:
        """Block the thread."""

    async def asleep(self, seconds: float) -> None:
        """Suspend the task; other tasks run."""


class WallClock:
    time = staticmethod(epoch_seconds)
    monotonic = staticmethod(monotonic)
    sleep = staticmethod(sleep)

    async def asleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)


class Thread(Protocol):
    """A started thread, such as a `threading.Thread`."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Event(Protocol):
    """An event that threads can wait for, such as a `threading.Event`."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Threads(Protocol):
    """A source of threads, events and event loops."""

    def start(self, work: Callable[[], None]) -> Thread:
        """Run ``work`` in a daemon thread, in a copy of the current context.

        Raises:
            RuntimeError: The process cannot start more threads.
        """

    def start_unless(self, event: Event, seconds: float, work: Callable[[], None]) -> None:
        """Run ``work`` as `start` does, but only after ``seconds``, and not if the event is set by then."""

    def event(self) -> Event: ...
    def new_event_loop(self) -> asyncio.AbstractEventLoop: ...

    def interrupt(self, seconds: float, fire: Fire) -> Interruption | None:
        """Schedule an interruption of the calling thread.

        In ``seconds``, ``fire`` is called and decides whether to interrupt. The exception that it returns is raised in
        the thread, wherever that is, and ``fire`` is called again every 0.1 s until the interruption is cancelled.

        Returns:
            The interruption; None if the thread cannot be interrupted.
        """


class HookLimit(Protocol):
    """The time of an invocation for the user's hooks (`tarry.support.hooks`)."""

    in_hooks: float  # the seconds that they have taken

    def hook_seconds(self, now: float) -> float:
        """Return for how many seconds a hook may run that begins ``now``."""


hook_limit: ContextVar[HookLimit | None] = ContextVar("tarry.hook_limit", default=None)
"""The limit of the current invocation. It refers to no message: a task of a handler may keep its context for ever."""


class Interrupted(BaseException):
    """Raised in a handler whose time is up. Not an `Exception`, so that it also ends a loop that retries after any."""


class Interruption(Protocol):
    def renew(self) -> None:
        """Restore the signal handler and the timer if other code in the thread has replaced them."""

    def cancel(self) -> None:
        """Cancel the interruption, and restore the previous signal handler and timer."""


CORE_MB = 1_769  # the memory with which a Lambda function has a whole core; with less, it has as much less of one
ASSUMED_MB = 512  # of a process that is not a Lambda function
WHOLE_CORE = "TARRY_WHOLE_CORE"  # set by `tarry local`, where memory does not limit the CPU
CORE_SHARE = (
    1.0
    if os.environ.get(WHOLE_CORE)
    else min(1.0, int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE") or ASSUMED_MB) / CORE_MB)
)
LOADING_SECONDS = 0.6  # a whole core takes so long to import boto3 and to make a client
CLIENT_SECONDS = 0.25  # if boto3 is imported already
INTERRUPT_AGAIN_SECONDS = 0.1  # if the handler catches an interruption
RENEWED_SECONDS = 0.05  # to the next call of ``fire`` after other code had replaced the signal handler or the timer
SHORTEST_TIMER_SECONDS = 0.001  # for a time that has passed: 0 would stop the timer
LONGEST_TIMER_SECONDS = 1e6
"""A longer timer rings early, and is set again: the operating system refuses one beyond its range."""
CAN_SET_TIMER = hasattr(_signal, "setitimer")  # not on Windows
REPEAT_SECONDS = 0.101
"""The interval in which a timer repeats its signal: one that comes just before a system call blocks does not end the
call. An odd one, by which a timer is known to be set here."""


class RealThreads:
    def event(self) -> Event:
        import threading

        return threading.Event()

    def start(self, work: Callable[[], None]) -> Thread:
        import threading

        thread = threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        thread.start()
        return thread

    def start_unless(self, event: Event, seconds: float, work: Callable[[], None]) -> None:
        def wait_and_work() -> None:
            if not event.wait(seconds):
                work()

        self.start(wait_and_work)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        return asyncio.new_event_loop()

    def interrupt(self, seconds: float, fire: Fire) -> Interruption | None:
        """Interrupt by SIGALRM, which works on the main thread only, and not on Windows."""
        if not CAN_SET_TIMER or _signal.getsignal(_signal.SIGALRM) is None:
            return None  # no handler means one set outside of Python, which could not be restored
        try:
            return Alarm(seconds, fire)
        except ValueError:  # not the main thread of the main interpreter
            return None


class Alarm:
    def __init__(self, seconds: float, fire: Fire) -> None:
        self._fire = fire
        self._is_cancelled = False
        handler = self._ring
        self._set_at = monotonic()
        self._before = _signal.signal(_signal.SIGALRM, handler)
        self._handler: Callable[[int, FrameType | None], None] | None = handler
        if not SHORTEST_TIMER_SECONDS <= seconds <= LONGEST_TIMER_SECONDS:  # here, since a call of `_set_timer` costs
            seconds = _within_range(seconds)
        self._left: tuple[float, float] = _signal.setitimer(_signal.ITIMER_REAL, seconds, REPEAT_SECONDS)

    def renew(self) -> None:
        handler, timer = _signal.getsignal(_signal.SIGALRM), _signal.getitimer(_signal.ITIMER_REAL)
        if handler is None or (handler is self._handler and timer[0]):
            return
        if handler is not self._handler:  # other code has set a handler: `cancel` restores that one
            self._before = _signal.signal(_signal.SIGALRM, self._handler)
            if not _is_own(timer):
                self._set_at, self._left = monotonic(), timer
        _set_timer(RENEWED_SECONDS)

    def cancel(self) -> None:
        self._is_cancelled = True
        handler, self._handler = self._handler, None  # breaks a reference cycle
        if _signal.getsignal(_signal.SIGALRM) is not handler:  # other code has set a handler: leave that one
            if _is_own(_signal.getitimer(_signal.ITIMER_REAL)):
                _signal.setitimer(_signal.ITIMER_REAL, 0)
            return
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_signal.SIGALRM, self._before)
        seconds, interval = self._left
        if seconds:
            _set_timer(seconds - (monotonic() - self._set_at), interval)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if self._is_cancelled:
            return
        error_or_delay = self._fire(frame)
        if isinstance(error_or_delay, BaseException):
            _set_timer(INTERRUPT_AGAIN_SECONDS)
            raise error_or_delay
        _set_timer(error_or_delay)


def _set_timer(seconds: float, interval: float = REPEAT_SECONDS) -> None:
    _signal.setitimer(_signal.ITIMER_REAL, _within_range(seconds), interval)


def _is_own(timer: tuple[float, float]) -> bool:
    """Return whether an `Alarm` has set a timer."""
    return round(timer[1], 4) == REPEAT_SECONDS


def _within_range(seconds: float) -> float:
    return min(max(seconds, SHORTEST_TIMER_SECONDS), LONGEST_TIMER_SECONDS)


_real_threads = RealThreads()


def seconds_to_load() -> float:
    """Return the expected time to import boto3 and to make a client in this process."""
    return (CLIENT_SECONDS if "botocore.session" in modules else LOADING_SECONDS) / CORE_SHARE


class World:
    """The clock, random source, SQS client factory and threads of a consumer, and objects that outlive an invocation.

    Args:
        clock: The clock; by default that of the operating system.
        random: The random source. By default one made at its first use: a generator made at import would be part of a
            SnapStart snapshot, and every restored environment would draw the same numbers.
        client_factory: Makes the boto3 SQS client, at the first request; by default one with short timeouts
            (`tarry.sqs.client`).
        threads: The source of the runtime's own threads and event loops.
        watch: Called at each invocation with the consumer; returns the consumer to run instead. A simulation observes
            the runs of the handler by it.
    """

    # Defaults of the class: a process that makes no request measures nothing.
    loading_seconds: float | None = None  # how long it took to make the client in this process; None until it is made
    request_seconds = 0.0  # how long requests take in this process: as the slowest of the latest ones
    in_hooks = 0.0  # the seconds that the user's hooks have taken in this process

    def __init__(
        self,
        clock: Clock | None = None,
        random: Random | None = None,
        client_factory: Callable[[], Any] | None = None,
        threads: Threads | None = None,
        watch: Callable[[Any], Any] | None = None,
    ) -> None:
        self.clock: Clock = clock or WallClock()
        self.client_factory = client_factory
        self.threads: Threads = threads or _real_threads
        self.watch = watch
        self._random = self._given_random = random
        self._kept: dict[Any, Any] = {}
        self._first_times: dict[str, object] = {}
        self._locks: dict[Any, RLock] = {}  # one for each object: the client takes long, others need not wait

    @property
    def random(self) -> Random:
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

    def afresh(self) -> World:
        """Return the same world as after a cold start, without kept objects."""
        return World(self.clock, self._given_random, self.client_factory, self.threads, self.watch)

    def is_making(self, make: Callable[[World], Any]) -> bool:
        return make in self._locks

    @property
    def is_loaded(self) -> bool:
        """Whether the client is made, or takes no time to make: boto3 is slow to import."""
        return self.loading_seconds is not None or self.client_factory is not None

    def new_id(self) -> str:
        """Return a unique id in the form of a UUID, from the random source that was given, else from the system."""
        given = self._given_random
        # Not `random`: used before a SnapStart snapshot, it would give every restored environment the same ids.
        text = (os.urandom(16) if given is None else given.randbytes(16)).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def keep(self, make: Callable[[World], T]) -> T:
        """Return ``make(self)``, made at the first call and kept for later calls."""
        try:
            return self._kept[make]  # type: ignore[no-any-return]
        except KeyError:
            with self._locks.setdefault(make, RLock()):
                if make not in self._kept:
                    self._kept[make] = make(self)
                return self._kept[make]  # type: ignore[no-any-return]

    def first_time(self, what: str) -> bool:
        """Return True at the first call with this text in this world, for what is logged once per cold start."""
        return self._first_times.setdefault(what, key := object()) is key


_real = World()
_current: ContextVar[World] = ContextVar("tarry.world", default=_real)


def current() -> World:
    """Return the world of the running code: the one set by `use`, otherwise the real one."""
    return _current.get()


class use:  # noqa: N801 reads as a verb: `with use(world):`
    """A context manager that makes ``world`` the current one."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> World:
        self._token = _current.set(self._world)
        return self._world

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
