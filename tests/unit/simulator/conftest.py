from collections.abc import Iterator

import pytest

from tarry.simulator.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()
