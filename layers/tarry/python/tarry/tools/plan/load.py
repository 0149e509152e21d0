"""A load on a queue and its result, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from tarry.tools.simulator.mapping_settings import Scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MILLION = 1_000_000
REQUEST_PRICE = 0.40 / MILLION
"""Dollars for a request to a standard queue, in us-east-1."""
INVOCATION_PRICE = 0.20 / MILLION
GB_SECOND_PRICE = 0.0000166667
"""For x86_64; arm64 costs a fifth less."""


@dataclass(frozen=True)
class Load:
    """The load of a queue: ``rate`` messages a second, at random times.

    From 0 to ``outage`` seconds, a share ``failing`` of the messages that arrive fails at each attempt.
    ``handler_time`` is that of one run, in seconds.
    """

    rate: float
    failing: float
    outage: float
    handler_time: float


@dataclass(frozen=True)
class Consuming:
    """How a queue feeds a function: the settings of the mapping and the function."""

    batch_size: int = 10
    window: float = 0
    maximum_concurrency: int | None = None
    memory_mb: int = 128
    per_invocation: int = 1
    """How many messages of a batch run at once."""

    @property
    def invocations(self) -> int:
        """How many invocations run at once at most."""
        return Scaling(self.maximum_concurrency).maximum

    def messages_per_second(self, handler_time: float) -> float:
        """Return how many messages the function can run in a second."""
        return self.invocations * min(self.per_invocation, self.batch_size) / handler_time


class LoadSample(NamedTuple):
    """The numbers of messages at a time."""

    at: float
    waiting: float
    """Messages that wait for a retry."""
    ready: float
    """Messages that wait for a free invocation."""
    dead: float


@dataclass
class LoadRun:
    """The numbers of one run."""

    seed: int
    scale: int = 1
    """How many messages each simulated message stands for."""
    messages: int = 0
    failed: int = 0
    """The messages that failed at least once."""
    runs: int = 0
    """The runs of the handler."""
    drained_at: float | None = None
    """When no message of the outage was left, and none was ready; None if that did not happen."""
    ended_at: float = 0
    waiting_at_end: int = 0
    """The messages that waited when the outage ended."""
    peak_waiting: int = 0
    peak_ready: int = 0
    peak_in_flight: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """The messages that did not succeed, by how they ended: ``dead_letter``, ``drop``, ``sent_on``, ``stays``."""
    first_end_at: float | None = None
    requests: Counter[str] = field(default_factory=Counter)
    """The requests to SQS by operation."""
    invocations: int = 0
    busy_seconds: float = 0
    samples: list[LoadSample] = field(default_factory=list)

    @property
    def dead(self) -> int:
        return self.ends["dead_letter"]


class Spread(NamedTuple):
    """The mean of the runs, and the lowest and highest."""

    mean: float
    least: float
    most: float


def spread(values: Iterable[float]) -> Spread:
    """Return the mean and the limits of some values."""
    found = list(values)
    return Spread(fmean(found), min(found), max(found))


@dataclass(frozen=True)
class LoadResult:
    """The runs of a load, one for each seed."""

    load: Load
    consuming: Consuming
    runs: Sequence[LoadRun]

    def of(self, value: Callable[[LoadRun], float]) -> Spread:
        """Return a number of all runs."""
        return spread(value(run) for run in self.runs)

    @property
    def drained(self) -> Spread | None:
        """When the queue was drained; None if it was not in every run."""
        times = [run.drained_at for run in self.runs if run.drained_at is not None]
        return spread(times) if len(times) == len(self.runs) else None


class LoadCosts(NamedTuple):
    """The costs of a load, without the free part of a month."""

    requests: Spread
    request_dollars: float
    invocations: Spread
    invocation_dollars: float
    busy_seconds: float
    compute_dollars: float


def costs_of(result: LoadResult) -> LoadCosts:
    """Return the requests to SQS, the invocations and their time, with their mean costs."""
    requests = result.of(lambda run: sum(run.requests.values()))
    invocations = result.of(lambda run: run.invocations)
    busy = result.of(lambda run: run.busy_seconds).mean
    compute = busy * result.consuming.memory_mb / 1024 * GB_SECOND_PRICE
    return LoadCosts(
        requests, requests.mean * REQUEST_PRICE, invocations, invocations.mean * INVOCATION_PRICE, busy, compute
    )
