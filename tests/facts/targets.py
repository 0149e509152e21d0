"""The targets of the probes: AWS, the simulator, moto."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.facts.platforms.aws import AwsPlatform, Stack
from tests.facts.platforms.moto import MotoPlatform, moto_platform
from tests.facts.platforms.platform import Need, Platform
from tests.facts.platforms.simulator import SimulatedPlatform, simulated_platform


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
