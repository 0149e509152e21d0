"""The SQS client, and requests that are bounded by the time an invocation has left.

Nothing goes out after the answer: the process is frozen between invocations, and a request that a later one finishes
would act on a lease long lost. A request of an invocation that has ended is refused, a second try of botocore's too.
"""

from __future__ import annotations

import math
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from tarry.support.forks import generation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.invocation import Invocation
    from tarry.world import Thread, World

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 1
READ_TIMEOUT_SECONDS = 5
TRIES = 2
ANSWER_SECONDS = 0.2
"""Kept back from the time left, to answer in."""
LOADING_ANSWER_SECONDS = 0.4
"""The same where boto3 has to be loaded first: if that takes too long it goes on meanwhile, and slows the answer."""
LOADING_SHARE = 1 / 3
"""Of the time left, for requests in a run for which boto3 has to be loaded first: after a crash it always has to."""
MAX_PARALLEL = 10  # botocore's pool holds as many connections

_sender: ContextVar[Requests | None] = ContextVar("tarry.requests", default=None)


class OutOfTime(Exception):
    """The invocation had no time left for a request; whether SQS carried it out is unknown."""


class NoAnswer(OutOfTime):
    """A request was sent, or about to be, and nobody could wait for its answer any longer."""


class RequestBroken(Exception):
    """Something ended a request that was no error of its: a `SystemExit` in a hook of the client."""


def make_client() -> Any:
    """A boto3 SQS client with short timeouts: a hanging request must not cost the whole batch its answer."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        retries={"total_max_attempts": TRIES, "mode": "standard"},
    )
    return boto3.session.Session().client("sqs", config=config)


def client_of(world: World) -> Any:
    """The world's SQS client, made at the first request and kept."""
    return world.keep(_make_for)


def _make_for(world: World) -> Any:
    client = (world.client_factory or make_client)()
    client.meta.events.register("before-send.sqs", _refuse_after_the_answer)
    return client


def _refuse_after_the_answer(**_: Any) -> None:
    requests = _sender.get()
    if requests is not None and requests.is_over:
        raise OutOfTime("the invocation has ended")


class Requests:
    """A way of one invocation to SQS."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self._is_closed = False
        self._to_answer = ANSWER_SECONDS if invocation.world.is_loaded else LOADING_ANSWER_SECONDS

    def close(self) -> None:
        """From now on no request goes out this way, no second try of one that is under way either."""
        self._is_closed = True

    @property
    def is_over(self) -> bool:
        """Whether nothing goes out any more."""
        return self._is_closed or self.invocation.ended

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One request. Raises what boto3 raises, and `OutOfTime`."""
        if generation() != self.invocation.began_in:
            raise OutOfTime("a forked child makes no requests for the invocation of its parent")
        if self._seconds() <= 0:
            raise OutOfTime("no time left for a request")
        token = _sender.set(self)
        try:
            return getattr(client_of(self.invocation.world), operation)(**parameters)  # type: ignore[no-any-return]
        finally:
            _sender.reset(token)

    def all(self, jobs: Sequence[Callable[[], T]], share: float = 1) -> list[T | Exception]:
        """The results of ``jobs``, or what they raised; several run at once.

        Those that have not ended within a ``share`` of the time left, or shortly before the deadline, are left behind,
        as `NoAnswer`.
        """
        if len(jobs) <= 1 and self._seconds() == math.inf:
            return [result_of(job) for job in jobs]  # nothing to be late for
        if self._seconds() <= 0:
            return [OutOfTime("no time left for a request") for _ in jobs]
        if share < LOADING_SHARE and not self.invocation.world.is_loaded:
            share = LOADING_SHARE
        results: list[T | Exception] = [NoAnswer("SQS did not answer in the time that was left") for _ in jobs]
        began_with = self._seconds()
        enough = 0.0 if began_with == math.inf else began_with * (1 - share)
        todo = iter(enumerate(jobs))
        lock = threading.Lock()

        def work() -> None:
            while not self.is_over:
                with lock:
                    index, job = next(todo, (-1, None))
                if job is None:
                    return
                results[index] = result_of(job)

        for thread in [self._start(work) for _ in range(min(MAX_PARALLEL, len(jobs)))]:
            if thread is not None:
                thread.join(max(0.0, min(self._seconds() - enough, threading.TIMEOUT_MAX)))
        return list(results)

    def _start(self, work: Callable[[], None]) -> Thread | None:
        try:
            return self.invocation.world.threads.start(work)
        except RuntimeError:  # the process may have no more threads
            return None

    def _seconds(self) -> float:
        return -1.0 if self.is_over else self.invocation.time_left() - self._to_answer


def result_of(job: Callable[[], T]) -> T | Exception:
    """The result of a job, or what it raised."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001 the result of the job
        return error
    except BaseException as error:  # noqa: BLE001 in a thread there is nobody else to take it
        return RequestBroken(repr(error))
