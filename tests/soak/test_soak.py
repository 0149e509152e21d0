"""A slice of the soak. `make soak` is all of it."""

import pytest

from tests.soak.backlog import half_of_each_batch
from tests.soak.soak import Stage, play, stages

SLICE = list(stages(4_000))


@pytest.mark.parametrize("stage", SLICE, ids=str)
def test_no_message_is_lost_and_none_dies_before_its_time(stage: Stage) -> None:  # SPEC A2, I1, I2, I3, G4
    result = play(stage, seed=1)
    assert result.is_good
    assert result.tempers.total() == stage.messages


@pytest.mark.parametrize("settings", [{}, {"timeout": 8}, {"concurrency": 2}], ids=["", "timeout", "threads"])
def test_with_time_for_half_of_each_batch_none_dies_unrun(settings: dict[str, int]) -> None:  # SPEC I2, G4
    played = half_of_each_batch(500, **settings)
    assert played.dead == []
    assert played.report.count("COMMITTED") == 500
    assert max(played.receives) <= 8
