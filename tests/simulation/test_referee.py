"""The model of SQS, moto and MiniStack give the same answers to random requests, but for the known differences."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.referee.differences import KNOWN
from tests.simulation.referee.implementations import Model, running_all
from tests.simulation.referee.run import described, run_seed, shortened

SEEDS = (1, 2)
FACTS = Path(__file__).parents[2] / "docs" / "platform.md"


def test_the_model_moto_and_ministack_give_the_same_answers_but_for_known_differences() -> None:
    with running_all() as implementations:
        for seed in SEEDS:
            result = run_seed(implementations, seed)
            if result.unknown is not None:
                pytest.fail(f"Seed {seed}: {result.unknown}\n{described(shortened(implementations, result))}")
            assert min(result.compared["moto"], result.compared["MiniStack"]) > 200


class DoesNotPurge(Model):
    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return {} if operation == "PurgeQueue" else super().call(operation, parameters)


def test_an_unknown_difference_is_found_and_shown_by_a_script_of_a_few_steps() -> None:
    implementations = {"model": Model(), "other": DoesNotPurge()}
    found = run_seed(implementations, seed=3)
    short = shortened(implementations, found)
    operations = [step.operation for step in short.steps]
    assert len(operations) < len(found.steps)
    assert operations[-2] == "PurgeQueue"
    assert str(short.unknown) in described(short)


def test_each_known_difference_names_a_page_or_a_fact_of_platform_md() -> None:
    facts = re.findall(r"^\*\*(\w+)\.\*\*", FACTS.read_text(), re.MULTILINE)
    for known in KNOWN:
        named = re.findall(r"\bfacts? (\w+)|, (\w+)|\band (\w+)", known.source.partition("http")[0])
        numbers = [number for pair in named for number in pair if number]
        assert numbers or "https://" in known.source, known
        assert set(numbers) <= set(facts), known
