"""Measure deliveries in the sandbox: sending, running, checking.

python benchmarks/deliveries.py [count]
"""

import sys
import time
from itertools import pairwise

from tarry import Consumer, Message, consumer
from tarry.testing import Sandbox


@consumer
def handler(message: Message) -> None: ...


@consumer
def fails_once(message: Message) -> None:
    """Fail at the first attempt of one message in ten."""
    if message.attempt == 1 and message.json() % 10 == 0:
        raise ValueError("the first attempt")


CASES = [("to a handler that does nothing", 100_000, handler), ("of which one in ten fails once", 20_000, fails_once)]


def measure(messages: int, handler: Consumer = handler) -> tuple[float, ...]:
    """Return the seconds of CPU of each part."""
    times = [time.process_time()]
    with Sandbox() as sandbox:
        sandbox.queue("work")
        sandbox.connect(handler, "work", batch_size=10)
        for number in range(messages):
            sandbox.send("work", str(number))
        times.append(time.process_time())
        report = sandbox.run(check=False)
        times.append(time.process_time())
        report.check()
        times.append(time.process_time())
    assert sum(event.what == "deleted" for event in report.events) == messages
    return tuple(after - before for before, after in pairwise(times))


if __name__ == "__main__":
    for what, most, each in CASES:
        count = int(sys.argv[1]) if sys.argv[1:] else most
        parts = measure(count, each)
        print(f"{count:,} messages {what}: sent, run and checked in {sum(parts):.1f} s")
        for part, seconds in zip(("sent", "run", "checked"), parts, strict=True):
            print(f"  {part:8} {seconds:5.1f} s")
