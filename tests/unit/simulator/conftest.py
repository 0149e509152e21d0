"""A simulation for a test, and a stage whose actors note what they do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tarry.tools.simulator.actors import Process
from tarry.tools.simulator.simulation import Simulation


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    simulation = Simulation()
    yield simulation
    simulation.close()


class Stage:
    """A simulation whose actors note what they do, each note with the seconds since the start."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.actors, self.scheduler, self.sleep = simulation.actors, simulation.scheduler, simulation.clock.sleep
        self.noted: list[tuple[Any, float]] = []

    @property
    def now(self) -> float:
        return self.simulation.clock.monotonic()

    def note(self, what: Any) -> None:
        self.noted.append((what, self.now))

    def sleeper(self, name: str, seconds: float) -> Callable[[], None]:
        """Return the work of an actor that sleeps and then notes its name."""

        def work() -> None:
            self.sleep(seconds)
            self.note(name)

        return work

    def run(self, *works: Callable[[], Any], process: Process | None = None) -> list[tuple[Any, float]]:
        """Run actors with these works to their ends, in a process each if none is given; return the notes."""
        for work in works:
            self.actors.start(work, process)
        assert self.scheduler.run() == "idle"
        return self.noted

    def kill_at(self, seconds: float, *works: Callable[[], Any]) -> Any:
        """Run actors of one process that is killed after some seconds; return the first actor."""
        process = Process(self.actors)
        started = [self.actors.start(work, process) for work in works]
        self.scheduler.after(seconds, process.kill)
        self.scheduler.run()
        return started[0]


@pytest.fixture
def stage(simulation: Simulation) -> Stage:
    return Stage(simulation)
