"""Loading boto3 and the code for failures while a small function initializes.

Lambda gives it a whole core then, and as much less in an invocation as it has memory: with 128 MB, loading takes half a
second while it initializes, and seven seconds in an invocation (docs/decisions/0015-loading-boto3.md).
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

from tarry.world import CORE_MB, CORE_SHARE

if TYPE_CHECKING:
    from tarry.world import World

VARIABLE = "TARRY_LOAD_BOTO3"
SMALL_SHARE = 512 / CORE_MB  # A function with a smaller share of a core loads boto3 while it initializes
CERTAIN_SHARE = 0.5  # of a core, certainly used by a process that had a whole one, with imports from a cold disk
MODULES = (
    "tarry.run.verdicts",
    "tarry.run.order",
    "tarry.settle.settlement",
    "tarry.settle.extending",  # which loads early deletes
    "tarry.settle.attempts",  # which loads copies
)


def load(world: World) -> None:
    """Load what settling a failed message needs, if that is better done now than when it is needed."""
    if world.is_loaded or not is_better_now(os.environ.get(VARIABLE), CORE_SHARE, used_share()):
        return
    try:
        for name in MODULES:
            import_module(name)
        from tarry.sqs.client import client_of

        client_of(world)
    except Exception:  # noqa: BLE001 such as a missing region: the first request that is needed raises it again
        return


def is_better_now(asked: str | None, share: float, used: float) -> bool:
    """Return whether to load now, with a ``share`` of a core and ``used`` as much of one since the start."""
    if asked in ("init", "later"):
        return asked == "init"
    # Not in a process that is held to its share already: after a crash or a timeout, Lambda initializes a function in
    # its next invocation, and loading could take longer than its timeout, again and again.
    return share < SMALL_SHARE and used >= min(2 * share, CERTAIN_SHARE)


def used_share() -> float:
    """Return the share of a core that this process has used since its start; 0 if that is not known."""
    if sys.platform == "linux":
        try:
            with open("/proc/self/stat", encoding="utf-8") as stat:
                ticks = int(stat.read().rpartition(")")[2].split()[19])
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, LookupError):
            return 0.0
        if age > 0:
            return time.process_time() / age
    return 0.0
