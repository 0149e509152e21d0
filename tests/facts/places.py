"""Where probes are run: AWS, the simulator, moto."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.facts.worlds.aws import AwsWorld, Stack
from tests.facts.worlds.moto import MotoWorld, moto_world
from tests.facts.worlds.simulator import SimulatedWorld, simulated_world
from tests.facts.worlds.world import Need, World


@dataclass(frozen=True)
class Place:
    """Each probe gets a world of its own there."""

    name: str
    has: frozenset[Need]
    open: Callable[[], AbstractContextManager[World]]


SIMULATOR = Place("simulator", SimulatedWorld.has, simulated_world)
MOTO = Place("moto", MotoWorld.has, moto_world)


def aws(stack: Stack) -> Place:
    return Place("AWS", AwsWorld.has, stack.world)
