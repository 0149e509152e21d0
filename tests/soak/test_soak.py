"""A part of the soak; `make soak` runs all of it."""

import pytest

from tests.soak.soak import SoakStage, half_of_each_batch, play, stages

SLICE = list(stages(3_000))


@pytest.mark.parametrize("stage", SLICE, ids=str)
def test_no_message_is_lost_or_dead_lettered_too_early(stage: SoakStage) -> None:  # SPEC A2, I1, I2, I3, G4
    result = play(stage, seed=1)
    assert result.is_good
    assert len(result.runs) == stage.messages


@pytest.mark.parametrize("settings", [{}, {"timeout": 8}, {"concurrency": 2}], ids=["", "timeout", "threads"])
def test_with_time_for_half_of_each_batch_every_message_runs(settings: dict[str, int]) -> None:  # SPEC I2, G4
    report, receives, dead = half_of_each_batch(500, **settings)
    assert (dead, report.count("COMMITTED")) == ([], 500)
    assert max(receives) <= 8
