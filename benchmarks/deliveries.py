"""Measure 100,000 deliveries in the sandbox to a handler that does nothing: sending, running, checking.

python benchmarks/deliveries.py [count]
"""

import sys
import time
from itertools import pairwise

from tarry import Message, consumer
from tarry.testing import Sandbox

DELIVERIES = 100_000


@consumer
def handler(message: Message) -> None: ...


def measure(deliveries: int) -> tuple[float, ...]:
    """Return the seconds of CPU of each part."""
    times = [time.process_time()]
    with Sandbox() as sandbox:
        sandbox.queue("work")
        sandbox.connect(handler, "work", batch_size=10)
        for _ in range(deliveries):
            sandbox.send("work", "{}")
        times.append(time.process_time())
        report = sandbox.run(check=False)
        times.append(time.process_time())
        report.check()
        times.append(time.process_time())
    assert sum(event.what == "deleted" for event in report.events) == deliveries
    return tuple(after - before for before, after in pairwise(times))


if __name__ == "__main__":
    count = int(sys.argv[1]) if sys.argv[1:] else DELIVERIES
    for part, seconds in zip(("sent", "run", "checked"), measure(count), strict=True):
        print(f"{count:,} deliveries {part} in {seconds:.1f} s")
