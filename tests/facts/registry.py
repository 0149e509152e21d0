"""The registry of probes, with the claim, the cost at AWS and the needs of each; their targets and results."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from json import JSONDecodeError
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from tests.facts.platforms.aws import AwsPlatform, Stack
from tests.facts.platforms.moto import MotoPlatform, moto_platform
from tests.facts.platforms.platform import Need, Platform
from tests.facts.platforms.simulator import SimulatedPlatform, simulated_platform

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


@dataclass(frozen=True)
class Target:
    """A platform to run probes on; ``open`` gives each probe a fresh one."""

    name: str
    has: frozenset[Need]
    open: Callable[[], AbstractContextManager[Platform]]


SIMULATOR = Target("simulator", SimulatedPlatform.has, simulated_platform)
MOTO = Target("moto", MotoPlatform.has, moto_platform)


def aws(stack: Stack) -> Target:
    return Target("AWS", AwsPlatform.has, stack.platform)


Kind = Literal["holds", "differs", "not run", "absent"]
"""Absent: the platform lacks what the probe needs."""

OF_THE_CALLER = ("AccessDenied", "Throttl", "LimitExceeded", "ExpiredToken", "InvalidClientTokenId", "Signature")
"""Error codes that are about the caller, not the fact."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe: ``detail`` is the observed behaviour or why it was not run, ``on`` the date."""

    kind: Kind
    detail: str = ""
    on: date | None = None


def run_probe(probe: Probe, target: Target, today: date) -> ProbeResult:
    """Run a probe and return its result. Any other exception is a bug in the probe, and is raised."""
    if not probe.needs <= target.has:
        return ProbeResult("absent")
    try:
        with target.open() as platform:
            probe.run(platform)
    except AssertionError as error:
        return ProbeResult("differs", str(error), today)
    except NotImplementedError:
        return ProbeResult("differs", "it has no such request", today)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if any(part in code for part in OF_THE_CALLER):
            return ProbeResult("not run", f"{error.operation_name}: {code}")
        return ProbeResult("differs", f"{error.operation_name} was refused: {code}", today)
    except JSONDecodeError:  # raised by moto, which runs in this process
        return ProbeResult("differs", "it fails with a JSONDecodeError", today)
    except BotoCoreError as error:
        return ProbeResult("not run", type(error).__name__)
    return ProbeResult("holds", on=today)
