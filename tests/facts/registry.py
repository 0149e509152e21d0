"""The probes: what each of them shows, how long it takes at AWS, what it needs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.facts.worlds.world import Need, World

Cost = Literal["seconds", "minutes", "hours"]
"""How long a probe takes at AWS, where time cannot be moved."""

Run = Callable[[World], None]


@dataclass(frozen=True)
class Probe:
    """One claim of a fact, and the function that shows it.

    ``run`` raises `AssertionError`, saying what was seen instead.
    """

    fact: str
    claim: str
    run: Run
    cost: Cost
    needs: frozenset[Need]


@dataclass(frozen=True)
class NotProbed:
    """A fact that no probe shows, and why."""

    fact: str
    reason: str


PROBES: list[Probe] = []
NOT_PROBED: list[NotProbed] = []


def probe(fact: str, claim: str, *, cost: Cost = "seconds", needs: tuple[Need, ...] = ()) -> Callable[[Run], Run]:
    """Registers the function that it decorates: it shows the claim of the fact, or raises `AssertionError`."""

    def register(run: Run) -> Run:
        PROBES.append(Probe(fact, claim, run, cost, frozenset(needs)))
        return run

    return register


def mapping_probe(fact: str, claim: str) -> Callable[[Run], Run]:
    """A probe that needs an event source mapping; at AWS that takes a minute to be made."""
    return probe(fact, claim, cost="minutes", needs=("mapping",))


def not_probed(fact: str, reason: str) -> None:
    NOT_PROBED.append(NotProbed(fact, reason))


def place_of(fact: str) -> tuple[int, str]:
    """By which facts are in order: 15, 15a, 16."""
    found = re.fullmatch(r"(\d+)([a-z]?)", fact)
    if found is None:
        raise ValueError(f"a fact is numbered like 15 or 15a, got {fact!r}")
    return int(found[1]), found[2]
