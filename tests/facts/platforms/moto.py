"""moto, under a clock that stands still until a probe advances it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from time import time
from typing import Any
from unittest.mock import patch

import boto3
from moto import mock_aws

from tests.facts.platforms.platform import Need, Platform

START = 1_800_000_000.0
A_MOMENT = 0.001
"""In moto a message becomes visible only after its time, not at it."""


class MotoPlatform(Platform):
    has: frozenset[Need] = frozenset({"stopped moto"})

    _now = START

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        self.move(seconds + A_MOMENT)

    def move(self, seconds: float) -> None:
        """Advance the clock by exactly ``seconds``."""
        self._now += seconds


@contextmanager
def clock_of_moto(now: Callable[[], float]) -> Iterator[None]:
    """Replace the clock of moto within the context.

    A module of moto that is first loaded within the context keeps its clock; afterwards this is the time of day.
    """
    running = [now]

    def utcnow() -> datetime:
        return datetime.fromtimestamp((running or [time])[0](), UTC).replace(tzinfo=None)

    with patch("moto.core.utils.utcnow", utcnow):
        try:
            yield
        finally:
            running.clear()


@cache
def _client() -> Any:
    return boto3.client("sqs", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


@contextmanager
def moto_platform() -> Iterator[Platform]:
    with mock_aws():
        platform = MotoPlatform(_client(), "fact-")
        with clock_of_moto(platform.now):
            yield platform
