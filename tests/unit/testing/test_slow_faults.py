"""The faults ``held`` and ``slow_cpu``: a late invocation, and a slow CPU."""

from tarry import Message, consumer
from tarry.testing import Sandbox
from tarry.world import World, current
from tests.sandboxes import work


def test_a_held_batch_is_invoked_late(sandbox: Sandbox) -> None:
    began: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        began.append(sandbox.elapsed)

    work(sandbox, handler, "1", dead_letter=None)
    sandbox.faults.add("held", seconds=20)
    sandbox.run()
    assert 20 < began[0] < 21


def test_on_a_slow_cpu_each_reading_of_the_clock_takes_time(sandbox: Sandbox) -> None:
    took: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        clock = current().clock
        before = clock.time()
        took.append(clock.monotonic() - (before - sandbox._began))

    work(sandbox, handler, dead_letter=None)
    sandbox.faults.add("slow_cpu", seconds=0.25)
    for number in range(2):
        sandbox.send("orders", str(number))
        sandbox.run()
    assert [round(each, 3) for each in took] == [0.25, 0]


def test_what_an_invocation_makes_once_takes_no_time_on_a_slow_cpu(sandbox: Sandbox) -> None:
    """It holds a lock, for which another thread would wait in real time, for ever."""
    took: list[float] = []

    def make(world: World) -> float:
        began = world.clock.monotonic()
        return world.clock.monotonic() - began

    @consumer
    def handler(message: Message) -> None:
        took.append(current().keep(make))

    work(sandbox, handler, dead_letter=None)
    sandbox.faults.add("slow_cpu", seconds=0.25)
    sandbox.send("orders", "1")
    sandbox.run()
    assert took == [0]
