"""An eighth of a core, on any machine: a world whose clock runs on the process's CPU time, eight times as fast.

A computation takes as long as on a core an eighth as fast, however busy the machine is that runs the test. Waiting for
something outside (a request on its way) costs no time.

    world, context_with = cpu_world(LightClient(attributes))
    with use(world):
        context = context_with(12)
        handler(event, context)
    assert context.seconds_left() > 0
"""

import hashlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.world import INTERRUPT_AGAIN_SECONDS, Event, Interruption, RealThreads, World

if TYPE_CHECKING:
    from tarry.world import Fire

SPEED = 8
"""A function with 256 MB has a seventh of a core."""
START = 1_800_000_000.0
"""The time at which the records of `records.py` were received."""


class CpuClock:
    """A clock on which a second is an eighth of a second of the process's CPU time."""

    def __init__(self, speed: float = SPEED) -> None:
        self.speed = speed
        self._began = time.process_time()
        self._slept = 0.0

    def time(self) -> float:
        return START + self.monotonic()

    def monotonic(self) -> float:
        return (time.process_time() - self._began) * self.speed + self._slept

    def sleep(self, seconds: float) -> None:
        """Skip the time in the main thread; in other threads, wait for about as long as the main thread computes."""
        if threading.current_thread() is threading.main_thread():
            self._slept += seconds
        else:
            time.sleep(seconds / self.speed)

    async def asleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds / self.speed)


class CpuEvent:
    """A `threading.Event` whose timeouts are seconds of the clock, approximately."""

    def __init__(self, speed: float) -> None:
        self._event = threading.Event()
        self._speed = speed
        self.set = self._event.set
        self.clear = self._event.clear

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(None if timeout is None else timeout / self._speed)


class CpuThreads(RealThreads):
    """Real threads whose waits are seconds of the clock, approximately."""

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed

    def event(self) -> Event:
        return CpuEvent(self._speed)

    def interrupt(self, seconds: float, fire: "Fire") -> Interruption | None:
        is_main = threading.current_thread() is threading.main_thread()
        return CpuAlarm(seconds, fire, self._speed) if is_main else None


class CpuAlarm:
    """An interruption of the main thread by the process's CPU time: a timer on the wall would ring too late where
    threads compute on two cores, and too early on a busy machine. `tarry.world.Interruption`."""

    def __init__(self, seconds: float, fire: "Fire", speed: float) -> None:
        self._fire, self._speed = fire, speed
        self._is_cancelled = False
        self._before = signal.signal(signal.SIGPROF, self._ring)
        self._set(seconds)

    def renew(self) -> None:
        """Do nothing: no other code uses the signal."""

    def cancel(self) -> None:
        self._is_cancelled = True  # a signal on its way would set the timer again, for a handler that is restored
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _set(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, max(seconds / self._speed, 0.001))

    def _ring(self, _: int, frame: Any) -> None:
        if self._is_cancelled:
            return
        answer = self._fire(frame)
        if isinstance(answer, BaseException):
            self._set(INTERRUPT_AGAIN_SECONDS)
            raise answer
        self._set(answer)


class CpuContext:
    """A Lambda context whose time runs out on the clock."""

    function_name = "orders"
    memory_limit_in_mb = "128"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:orders"
    aws_request_id = "request-1"

    def __init__(self, clock: CpuClock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the seconds left, negative after the deadline."""
        return self._deadline - self._clock.monotonic()

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int(self.seconds_left() * 1000))


class LightClient:
    """An SQS client that accepts everything and costs next to no CPU, unlike botocore's serializers."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        """The attributes of every queue."""
        self.requests: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        self.records: list[dict[str, Any]] = []
        """The `Tarry` records of all copies sent."""
        self.meta = _Meta()

    def get_queue_attributes(self, *, AttributeNames: list[str], **_: Any) -> dict[str, Any]:
        self.requests["get_queue_attributes"] += 1
        return {"Attributes": {name: value for name, value in self.attributes.items() if name in AttributeNames}}

    def send_message_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        self._count("send_message_batch", Entries)
        successful = []
        for entry in Entries:
            self.records.append(json.loads(entry["MessageAttributes"]["Tarry"]["StringValue"]))
            digest = hashlib.md5(entry["MessageBody"].encode(), usedforsecurity=False).hexdigest()
            successful.append({"Id": entry["Id"], "MessageId": f"copy-{entry['Id']}", "MD5OfMessageBody": digest})
        return {"Successful": successful}

    def delete_message_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        self._count("delete_message_batch", Entries)
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def change_message_visibility_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        self._count("change_message_visibility_batch", Entries)
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def _count(self, operation: str, entries: list[dict[str, Any]]) -> None:
        self.requests[operation] += 1
        self.entries[operation] += len(entries)


class _Events:
    def register(self, *_: Any, **__: Any) -> None:
        """Ignore the event handler: the client sends no requests."""

    register_first = register_last = unregister = register


class _Meta:
    endpoint_url = "https://sqs.us-east-1.amazonaws.com"
    region_name = "us-east-1"
    events = _Events()


def cpu_world(client: Any, speed: float = SPEED) -> tuple[World, Callable[[float], CpuContext]]:
    """Return a world on an eighth of a core, and a function that makes a Lambda context with the given seconds left."""
    clock = CpuClock(speed)
    world = World(clock=clock, client_factory=lambda: client, threads=CpuThreads(speed))
    return world, lambda seconds: CpuContext(clock, seconds)
