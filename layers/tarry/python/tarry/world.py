"""The world a consumer runs in: its clock, its source of randomness, its way to SQS, its threads.

The current world is read at each invocation and never at import, so a test can put a module-level consumer into
another one: ``with use(World(clock=..., client_factory=...)): handler(event, context)``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself loads enum, and wraps these
import os
import sys
from _thread import RLock
from contextvars import ContextVar, copy_context
from time import monotonic, sleep
from time import time as epoch_seconds
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random
    from types import FrameType
    from typing import Protocol, TypeAlias

    Fire: TypeAlias = Callable[[FrameType | None], BaseException | float]
    """Asked, with the frame at which the thread stands if that is known, what to raise there, or in how many seconds
    to ask again."""

else:
    Protocol = object  # a class of protocols is slow to make, and nothing asks at run time

T = TypeVar("T")


class Clock(Protocol):
    """Where time comes from."""

    def time(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""

    def sleep(self, seconds: float) -> None:
        """Wait, blocking the thread."""

    async def asleep(self, seconds: float) -> None:
        """Wait, letting other tasks run."""


class WallClock:
    """The clock on the wall."""

    time = staticmethod(epoch_seconds)
    monotonic = staticmethod(monotonic)
    sleep = staticmethod(sleep)

    async def asleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)


class Thread(Protocol):
    """A thread that was started; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most ``timeout`` seconds."""

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""


class Event(Protocol):
    """What a thread can wait for; `threading.Event` is one."""

    def set(self) -> None:
        """It has happened: whoever waits goes on."""

    def clear(self) -> None:
        """It has not happened (again)."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has happened, at most ``timeout`` seconds; whether it has."""


class Threads(Protocol):
    """Where threads and event loops come from."""

    def start(self, work: Callable[[], None]) -> Thread:
        """Run ``work`` in a daemon thread, in a copy of the current context.

        Raises `RuntimeError` if the process may have no more threads.
        """

    def event(self) -> Event:
        """Something that threads can wait for."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that lives in this world's time."""

    def interrupt(self, seconds: float, fire: Fire) -> Interruption | None:
        """Has ``fire`` asked in so many seconds whether the thread that calls this is to be interrupted then.

        What it answers is raised in that thread, wherever it stands, and ``fire`` is asked again in 0.1 s, until the
        interruption is cancelled. None where the thread cannot be interrupted.
        """


class Interruption(Protocol):
    """What was asked for by `Threads.interrupt`."""

    def renew(self) -> None:
        """Makes sure that it still comes, whatever ran in the thread meanwhile has done to the signal."""

    def cancel(self) -> None:
        """No more. Whatever interrupted the thread before does so again."""


INTERRUPT_AGAIN_SECONDS = 0.1
"""For a handler that swallows an interruption."""
RENEWED_SECONDS = 0.05
"""When it is asked again whether to interrupt, once somebody else had the signal."""
SHORTEST_TIMER_SECONDS = 0.001
"""For a due time that has passed: 0 would stop the timer."""
CAN_SET_TIMER = hasattr(_signal, "setitimer")
"""Not on Windows."""
OWN_TIMER_SECONDS = 0.01
"""How far a timer that was set here may be from where it should be."""


class RealThreads:
    """The threads of the process."""

    def event(self) -> Event:
        import threading

        return threading.Event()

    def start(self, work: Callable[[], None]) -> Thread:
        import threading

        thread = threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        thread.start()
        return thread

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        return asyncio.new_event_loop()

    def interrupt(self, seconds: float, fire: Fire) -> Interruption | None:
        """By SIGALRM, so only the main thread can be, and not on Windows."""
        if not CAN_SET_TIMER or _signal.getsignal(_signal.SIGALRM) is None:
            return None  # None: a handler that is not Python's, and could not be put back
        try:
            return Alarm(seconds, fire)
        except ValueError:  # not the main thread, or not the main interpreter's
            return None


class Alarm:
    """An interruption of the main thread. The signal handler and the timer of before are put back in the end."""

    def __init__(self, seconds: float, fire: Fire) -> None:
        self._fire = fire
        self._is_cancelled = False
        handler = self._ring
        self._set_at = now = monotonic()
        self._before = _signal.signal(_signal.SIGALRM, handler)
        self._handler: Callable[[int, FrameType | None], None] | None = handler
        self._rings_at = now + seconds
        timer = seconds if seconds > SHORTEST_TIMER_SECONDS else SHORTEST_TIMER_SECONDS  # noqa: FURB136 a call costs
        self._left: tuple[float, float] = _signal.setitimer(_signal.ITIMER_REAL, timer)

    def renew(self) -> None:
        handler, timer = _signal.getsignal(_signal.SIGALRM), _signal.getitimer(_signal.ITIMER_REAL)
        if handler is None or (handler is self._handler and timer[0]):
            return
        if handler is not self._handler:  # somebody has taken the signal meanwhile, and has it back in the end
            self._before = _signal.signal(_signal.SIGALRM, self._handler)
            if not self._is_own(timer[0]):
                self._set_at, self._left = monotonic(), timer
        self._ring_in(RENEWED_SECONDS)

    def cancel(self) -> None:
        self._is_cancelled = True
        handler, self._handler = self._handler, None  # else only the garbage collector would free the two
        if _signal.getsignal(_signal.SIGALRM) is not handler:  # somebody has taken the signal, and keeps it
            if self._is_own(_signal.getitimer(_signal.ITIMER_REAL)[0]):
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
        answer = self._fire(frame)
        if isinstance(answer, BaseException):
            self._ring_in(INTERRUPT_AGAIN_SECONDS)
            raise answer
        self._ring_in(answer)

    def _ring_in(self, seconds: float) -> tuple[float, float]:
        self._rings_at = monotonic() + seconds
        return _set_timer(seconds)

    def _is_own(self, left: float) -> bool:
        """Whether a timer with so many seconds left is the one that was set here."""
        return left > 0 and abs(monotonic() + left - self._rings_at) < OWN_TIMER_SECONDS


def _set_timer(seconds: float, interval: float = 0) -> tuple[float, float]:
    """Starts the timer; what it was set to before. A time that has passed is in a moment: 0 would stop it."""
    return _signal.setitimer(_signal.ITIMER_REAL, max(seconds, SHORTEST_TIMER_SECONDS), interval)  # type: ignore[no-any-return]


_real_threads = RealThreads()


class World:
    """Clock, randomness, SQS client factory and threads, with what may outlive an invocation.

    ``client_factory`` makes the boto3 SQS client, at the first request; by default one with short timeouts
    (`tarry.sqs.client`). ``random`` is by default made at its first use: a generator made at import would be part of a
    SnapStart snapshot, and every copy of the function would draw the same numbers. ``threads`` is where the runtime's
    own threads and event loops come from. ``watch`` is asked at each invocation which consumer runs in the place of the
    one that was called: so a simulation sees the handler's runs.
    """

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
        self._said: dict[str, object] = {}
        self._lock = RLock()

    @property
    def random(self) -> Random:
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

    def afresh(self) -> World:
        """The same world after a cold start: nothing kept, nothing said."""
        return World(self.clock, self._given_random, self.client_factory, self.threads, self.watch)

    @property
    def is_loaded(self) -> bool:
        """Whether a client can be made without loading boto3 first, which takes long."""
        return self.client_factory is not None or "boto3" in sys.modules

    def new_id(self) -> str:
        """An id that nothing else has, in the form of a UUID.

        Made of the random source that was given, else of the system's own: one that was drawn from before a SnapStart
        snapshot would give every copy of the function the same ids, and SQS would swallow messages as doubles.
        """
        given = self._given_random
        bits = given.randbytes(16) if given is not None else os.urandom(16)
        text = bits.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def keep(self, make: Callable[[World], T]) -> T:
        """What ``make`` makes of this world: once, at the first call, and the same ever after."""
        try:
            return self._kept[make]  # type: ignore[no-any-return]
        except KeyError:
            with self._lock:
                if make not in self._kept:
                    self._kept[make] = make(self)
                return self._kept[make]  # type: ignore[no-any-return]

    def first_time(self, what: str) -> bool:
        """True at the first call with these words in this world: for what is said once a cold start."""
        return self._said.setdefault(what, key := object()) is key


_real = World()
_current: ContextVar[World] = ContextVar("tarry.world", default=_real)


def current() -> World:
    """The world of the running code: the one put in place by `use`, else the real one."""
    return _current.get()


class use:  # noqa: N801 read as a word: `with use(world):`
    """Makes ``world`` the current one within the ``with`` block."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> World:
        self._token = _current.set(self._world)
        return self._world

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
