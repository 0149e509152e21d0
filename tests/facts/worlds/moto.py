"""moto, under a clock that stands still until it is moved."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any
from unittest.mock import patch

import boto3
from moto import mock_aws

from tests.facts.worlds.world import Need, World

START = 1_800_000_000.0
A_MOMENT = 0.001
"""moto shows a message only after its time, not at it."""


class MotoWorld(World):
    has: frozenset[Need] = frozenset({"stopped moto"})

    _now = START

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        self.move(seconds + A_MOMENT)

    def move(self, seconds: float) -> None:
        """Move the clock by exactly so much."""
        self._now += seconds


@contextmanager
def clock_of_moto(now: Callable[[], float]) -> Iterator[None]:
    """All of moto's time is this."""
    with patch("moto.core.utils.utcnow", lambda: datetime.fromtimestamp(now(), UTC).replace(tzinfo=None)):
        yield


@cache
def _client() -> Any:
    return boto3.client("sqs", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


@contextmanager
def moto_world() -> Iterator[World]:
    with mock_aws():
        world = MotoWorld(_client(), "fact-")
        with clock_of_moto(world.now):
            yield world
