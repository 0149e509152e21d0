"""The SQS client, and requests that are bounded by the time an invocation has left.

No request is sent after the invocation has returned: Lambda freezes the process between invocations, and a request
that a later invocation completes would act on a lease long lost. `OutOfTime` refuses such a request, and also
botocore's retry of one.
"""

from __future__ import annotations

import math
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tarry.sqs.refusals import NoAnswer, OutOfTime, watch_tries
from tarry.support.guards import generation
from tarry.world import CORE_SHARE, seconds_to_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tarry.message.invocation import Invocation
    from tarry.world import World

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 1
READ_TIMEOUT_SECONDS = 5
TRIES = 2
ANSWER_SECONDS = 0.2  # the part of the time left that is reserved for returning the response
SHORTEST_SECONDS = 0.005  # no request begins with less: SQS might carry it out, but its answer would come too late
LOADING_ANSWER_SECONDS = max(0.4, 0.15 / CORE_SHARE)
"""The same while boto3 is not imported yet: a slow import continues in its thread and slows the response."""
LOADING_SHARE = 1 / 3  # of the time left, for requests while boto3 is not imported yet, as it never is after a crash
FIRST_REQUEST_SHARE = 0.1  # the time of a request until one is measured, as a share of the time that loading took
FADING = 0.5  # the share of the time of a slow request that is still expected after a faster one
LATE_SHARE = 1.6
"""Loading boto3 does not begin if it is expected to take longer than this share of the time left: the answer would be
late. It often takes less than expected."""
MAX_PARALLEL = 10  # botocore's pool holds as many connections

_sender: ContextVar[Requests | None] = ContextVar("tarry.requests", default=None)


class RequestBroken(Exception):
    """A request ended with a `BaseException` that is not an error of SQS, such as `SystemExit` in a botocore hook."""


def make_client(session: Any = None) -> Any:
    """Make a boto3 SQS client with short timeouts: a hanging request must not cost the batch its response.

    tarry makes the parameters of its requests itself, and checks those of a user before: botocore does not repeat it,
    which is a quarter of its work on a request.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        retries={"total_max_attempts": TRIES, "mode": "standard"},
        parameter_validation=False,
    )
    return (session or boto3.session.Session()).client("sqs", config=config)


def client_of(world: World) -> Any:
    """Return the world's SQS client; it is made at the first request and kept."""
    return world.keep(_make_for)


def _make_for(world: World) -> Any:
    began = world.clock.monotonic()
    client = (world.client_factory or make_client)()
    client.meta.events.register("before-send.sqs", _refuse_after_the_answer, unique_id="tarry")
    watch_tries(client)
    world.loading_seconds = world.clock.monotonic() - began
    world.request_seconds = max(world.request_seconds, world.loading_seconds * FIRST_REQUEST_SHARE)
    return client


def _refuse_after_the_answer(**_: Any) -> None:
    requests = _sender.get()
    if requests is not None and requests.is_over:
        raise OutOfTime("the invocation has ended")


class Requests:
    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self._is_closed = False

    def close(self) -> None:
        """Refuse all further requests, and retries of those in progress."""
        self._is_closed = True

    @property
    def is_over(self) -> bool:
        return self._is_closed or self.invocation.ended

    def check(self) -> None:
        """Raise `OutOfTime` if no request can be made any more."""
        if generation() != self.invocation.began_in:
            raise OutOfTime("a forked child makes no requests for the invocation of its parent")
        if self._is_too_late:
            raise self._out_of_time()

    @property
    def _is_too_late(self) -> bool:
        """Whether there is no time left, or so little that loading boto3 would only make the answer late."""
        if self._seconds() < SHORTEST_SECONDS:
            return True
        world, seconds = self.invocation.world, self.invocation.time_left()
        return not (world.is_loaded or world.is_making(_make_for)) and seconds_to_load() > seconds * LATE_SHARE

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one request. Raises the errors of boto3, and `OutOfTime`."""
        self.check()
        if (observer := self.invocation.observer) is not None:  # read once: in a late request, the report takes it away
            observer.requests.append(operation)
        world, token = self.invocation.world, _sender.set(self)
        try:
            request = getattr(client_of(world), operation)
            began = world.clock.monotonic()
            answer: dict[str, Any] = request(**parameters)
            world.request_seconds = max(world.request_seconds * FADING, world.clock.monotonic() - began)
            return answer
        finally:
            _sender.reset(token)

    def all(self, jobs: Sequence[Callable[[], T]], share: float = 1) -> list[T | Exception]:
        """Run jobs as `each` does; return their results when all have ended."""
        return list(self.each(jobs, share))

    def each(self, jobs: Sequence[Callable[[], T]], share: float = 1) -> Iterator[T | Exception]:
        """Run jobs in parallel threads; yield their results, or the errors they raised, in order.

        A result is yielded while later jobs still run. A job that has not ended within a ``share`` of the time left, or
        shortly before the deadline, is abandoned; its result is `NoAnswer`.
        """
        if len(jobs) <= 1 and self._seconds() == math.inf:
            yield from [result_of(job) for job in jobs]  # there is no deadline
            return
        if self._is_too_late:
            yield from [self._out_of_time() for _ in jobs]
            return
        if share < LOADING_SHARE and not self.invocation.world.is_loaded:
            share = LOADING_SHARE
        results: dict[int, T | Exception] = {}
        began_with = self._seconds()
        enough = 0.0 if began_with == math.inf else began_with * (1 - share)
        ended = [self.invocation.world.threads.event() for _ in jobs]
        todo = iter(enumerate(jobs))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    index, job = next(todo, (-1, None))
                if job is None:
                    return
                if not self.is_over:
                    results[index] = result_of(job)
                ended[index].set()

        started = [start(self.invocation.world, work) for _ in range(min(MAX_PARALLEL, len(jobs)))]
        if not any(started):
            yield from [self._no_answer() for _ in jobs]
            return
        for index, event in enumerate(ended):
            event.wait(max(0.0, min(self._seconds() - enough, threading.TIMEOUT_MAX)))
            yield results[index] if index in results else self._no_answer()

    def load(self) -> None:
        """Make the client if it is not made yet, as far as there is time."""
        if not self.invocation.world.is_loaded:
            self.all([partial(client_of, self.invocation.world)])

    def _out_of_time(self) -> OutOfTime:
        why = "" if self.invocation.world.is_loaded else ", because boto3 was not loaded in time"
        return OutOfTime(f"no time left for a request{why}")

    def _no_answer(self) -> NoAnswer:
        what = "SQS did not answer" if self.invocation.world.is_loaded else "boto3 was not loaded"
        return NoAnswer(f"{what} in the time that was left")

    def _seconds(self) -> float:
        to_answer = ANSWER_SECONDS if self.invocation.world.is_loaded else LOADING_ANSWER_SECONDS
        return -1.0 if self.is_over else self.invocation.time_left() - to_answer


def start(world: World, work: Callable[[], None]) -> bool:
    """Start a thread; return False if the process may have no more."""
    try:
        world.threads.start(work)
    except RuntimeError:
        return False
    return True


def result_of(job: Callable[[], T]) -> T | Exception:
    try:
        return job()
    except Exception as error:  # noqa: BLE001 the result of the job
        return error
    except BaseException as error:  # noqa: BLE001 in a thread, no caller would see it
        return RequestBroken(repr(error))
