"""The time of a sandbox for Powertools' idempotency records and circuit breakers, which read the clock themselves."""

from __future__ import annotations

import datetime as dt
import sys
from types import SimpleNamespace
from typing import Any

from tarry import world

_PACKAGE = "aws_lambda_powertools.utilities"
MODULES = (
    f"{_PACKAGE}.idempotency.persistence.base",
    f"{_PACKAGE}.idempotency.persistence.datarecord",
    f"{_PACKAGE}.idempotency.persistence.dynamodb",
    f"{_PACKAGE}.idempotency.persistence.redis",
    f"{_PACKAGE}.circuit_breaker.base",
    f"{_PACKAGE}.circuit_breaker.persistence.base",
    f"{_PACKAGE}.circuit_breaker.persistence.dynamodb",
)
"""The modules that call ``dt.datetime.now()``."""


class WorldDatetime(dt.datetime):
    """A ``datetime`` whose ``now`` is the time of the current world; in the real world, that of ``datetime``."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        here = world.current()
        if type(here.clock) is world.WallClock:
            return dt.datetime.now(tz)
        return dt.datetime.fromtimestamp(here.clock.time(), tz)


_DATETIME = SimpleNamespace(**{**vars(dt), "datetime": WorldDatetime})


def give_powertools_the_time() -> None:
    """Have the loaded modules of Powertools read the time of the current world, from now on."""
    for name in MODULES:
        module: Any = sys.modules.get(name)
        if module is not None and getattr(module, "dt", None) is dt:
            module.dt = _DATETIME
