"""The registry of probes, with the claim, the cost at AWS and the needs of each."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.facts.platforms.platform import Need, Platform

Cost = Literal["seconds", "minutes", "hours"]
"""How long a probe takes at AWS, where time cannot be skipped."""

Run = Callable[[Platform], None]


@dataclass(frozen=True)
class Probe:
    """A claim of a fact, and the function that checks it.

    ``run`` raises `AssertionError` with the observed behaviour if the claim is false.
    """

    fact: str
    claim: str
    run: Run
    cost: Cost
    needs: frozenset[Need]


@dataclass(frozen=True)
class NotProbed:
    """A fact without a probe, and the reason."""

    fact: str
    reason: str


PROBES: list[Probe] = []
NOT_PROBED: list[NotProbed] = []


def probe(fact: str, claim: str, *, cost: Cost = "seconds", needs: tuple[Need, ...] = ()) -> Callable[[Run], Run]:
    """Register the decorated function as a probe, which raises `AssertionError` if the claim is false."""

    def register(run: Run) -> Run:
        PROBES.append(Probe(fact, claim, run, cost, frozenset(needs)))
        return run

    return register


def mapping_probe(fact: str, claim: str) -> Callable[[Run], Run]:
    """Register a probe that needs an event source mapping, which AWS takes a minute to create."""
    return probe(fact, claim, cost="minutes", needs=("mapping",))


def not_probed(fact: str, reason: str) -> None:
    NOT_PROBED.append(NotProbed(fact, reason))


def sort_key(fact: str) -> tuple[int, str]:
    """Return the sort key of a fact number: 15, 15a, 16."""
    found = re.fullmatch(r"(\d+)([a-z]?)", fact)
    if found is None:
        raise ValueError(f"a fact is numbered like 15 or 15a, got {fact!r}")
    return int(found[1]), found[2]
