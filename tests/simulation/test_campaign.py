"""Hundreds of seeds: handlers that fail in every way, over an SQS, a Lambda and a network that do too."""

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.processes import started
from tests.simulation import sometimes
from tests.simulation.campaign import campaign

SEEDS = range(600)
"""`make simulate` plays more."""
ROOT = Path(__file__).parents[2]


def test_no_seed_breaks_a_rule_and_every_situation_was_met() -> None:
    """A campaign that never saw a crash between send and delete has proven nothing about it."""
    verdicts = sorted(campaign(SEEDS), key=lambda verdict: verdict.seed)
    bad = [verdict.text for verdict in verdicts if verdict.text]
    assert not bad, f"{len(bad)} of {len(SEEDS)} seeds:\n" + "\n".join(bad[:5])
    assert sometimes.missing(sometimes.total(verdict.met for verdict in verdicts)) == []


def test_a_seed_is_the_same_history_to_the_byte_in_every_process() -> None:
    """Whatever the hash seed, and so the order of sets, and whatever was played before."""
    seeds = [2, 17, 521, 904]
    with _digests(seeds, hash_seed="1") as first, _digests(seeds[::-1], hash_seed="2") as second:
        histories = sorted(first.communicate()[0].splitlines())
        assert len(histories) == len(seeds)
        assert histories == sorted(second.communicate()[0].splitlines())


def _digests(seeds: list[int], hash_seed: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.simulation.campaign", "--digest", *map(str, seeds)]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
    return started(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
