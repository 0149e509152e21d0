"""The world a consumer runs in: its clock, its source of randomness, its way to SQS.

The current world is read at each invocation and never at import, so a test can put a module-level consumer into
another one: ``with use(World(clock=..., client_factory=...)): handler(event, context)``.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from time import monotonic, sleep
from time import time as epoch_seconds
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

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


class World:
    """Clock, randomness and SQS client factory, with what may outlive an invocation.

    ``client_factory`` makes the boto3 SQS client, at the first request; by default one with short timeouts
    (`tarry.sqs.client`). ``random`` is by default made at its first use: a generator made at import would be part of
    a SnapStart snapshot, and every copy of the function would draw the same numbers.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        random: Random | None = None,
        client_factory: Callable[[], Any] | None = None,
    ) -> None:
        self.clock: Clock = clock or WallClock()
        self.client_factory = client_factory
        self._random = self._given_random = random
        self._kept: dict[Any, Any] = {}
        self._said: dict[str, object] = {}
        self._lock = threading.RLock()

    @property
    def random(self) -> Random:
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

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


_current: ContextVar[World | None] = ContextVar("tarry.world", default=None)
_real = World()


def current() -> World:
    """The world of the running code: the one put in place by `use`, else the real one."""
    return _current.get() or _real


class use:  # noqa: N801 read as a word: `with use(world):`
    """Makes ``world`` the current one within the ``with`` block."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> World:
        self._token = _current.set(self._world)
        return self._world

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
