"""Seeds: handlers, SQS, Lambda and the network fail in every way."""

import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing import shrinking
from tarry.tools.testing.recorded_history import RecordedHistory
from tests.processes import started
from tests.sandboxes import work
from tests.simulation import situations
from tests.simulation.behaviour import Behaviour
from tests.simulation.campaign import digest, judge_quietly
from tests.simulation.mixes import MIXES
from tests.simulation.rules import answers_come_in_time

SEEDS = [
    0, 16, 19, 25, 28, 34, 37, 38, 40, 45, 46, 50, 56, 58, 69, 76, 117, 139, 143, 152, 163, 165, 170, 184, 204, 225,
    226, 245, 246, 248, 275, 287, 292, 308, 316, 320, 322, 330, 358, 377, 379, 382, 386, 400, 404, 412, 413, 419, 421,
    424, 437, 445, 450, 451, 453, 456, 460, 464, 468, 472, 480, 494, 498, 501, 514, 525, 532, 545, 551, 573, 591, 594,
    618, 633, 639, 644, 646, 655, 660, 665, 684, 686, 688, 694,
]  # fmt: skip
"""Of the first 700: those that take little time, run each line of the package that the first 80 run, and meet almost
every situation three times. `make simulate` runs thousands of seeds."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """Undo `be_quiet`."""
    tarry, asyncio = logging.getLogger("tarry"), logging.getLogger("asyncio")
    propagate, level = tarry.propagate, asyncio.level
    yield
    tarry.propagate = propagate
    asyncio.setLevel(level)


def test_no_seed_breaks_a_rule_and_every_situation_occurs() -> None:
    """A campaign without a crash between send and delete proves nothing about such a crash."""
    results = [judge_quietly(seed) for seed in SEEDS]
    bad = [result.text for result in results if result.text]
    assert not bad, f"{len(bad)} of {len(SEEDS)} seeds:\n" + "\n".join(bad[:5])
    assert situations.missing(situations.total(result.met for result in results)) == []


@pytest.mark.parametrize("mix", MIXES)
def test_no_seed_of_a_mix_breaks_a_rule(mix: str) -> None:
    bad = [result.text for result in map(partial(judge_quietly, mixes=[mix]), range(3)) if result.text]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("fault", [None, "timeout", "slow"])
def test_a_consumer_that_lambda_ends_at_its_deadline_is_reported(sandbox: Sandbox, fault: str | None) -> None:
    """Unless a fault took the invocation its time."""

    @consumer
    def handler(message: Message) -> None: ...

    work(sandbox, handler, "1", timeout=3)
    if fault is not None:
        sandbox.faults.add(fault, seconds=1)
    events = list(sandbox.run(check=False).events)
    place, first = next((place, each) for place, each in enumerate(events) if each.what == "answered")
    events[place] = HistoryEvent(first.at, first.what, {**first.fields, "kind": "timeout"})
    broken = {violation.rule for violation in answers_come_in_time(RecordedHistory(events))}
    assert broken == (set() if fault else {"answers come in time"})


def test_a_seed_that_breaks_a_rule_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that loses the failures of batches: two calm messages and one that fails are enough, without faults."""
    consumer_of = Behaviour.consumer

    def losing(behaviour: Behaviour) -> Callable[[Any, Any], Any]:
        handler = consumer_of(behaviour)

        def loses_failures_of_batches(event: Any, context: Any) -> Any:
            response = handler(event, context)
            return {"batchItemFailures": []} if len(event["Records"]) > 1 else response

        return loses_failures_of_batches

    monkeypatch.setattr(Behaviour, "consumer", losing)
    monkeypatch.setattr(shrinking, "MOST_SECONDS", math.inf)
    text = judge_quietly(2).text
    shrunk = re.search(r"the smallest case found, after \d+ runs: (\d) of 25 messages, 1 of 23 tempers, 0 of ", text)
    assert shrunk is not None, text
    assert int(shrunk[1]) <= 4
    assert text.endswith("to reproduce it: make simulate SEED=2 MIX=plain")


def test_a_seed_has_the_same_history_in_every_process() -> None:
    """The hash seed, and so the order of sets, and what ran before make no difference."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "tests.simulation.campaign", "--digest", "17", "2"]
    with started(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as another:
        ours = [f"{seed} {digest(seed)}" for seed in (2, 17)]
        assert sorted(another.communicate()[0].splitlines()) == sorted(ours)
