from collections.abc import Iterator

import pytest

from tarry.tools.simulator.simulation import Simulation


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    simulation = Simulation()
    yield simulation
    simulation.close()
