"""The SQS client, requests that are bounded by the time an invocation has left, and the look-ups of queues.

No request is sent after the invocation has returned: Lambda freezes the process between invocations, and a request
that a later invocation completes would act on a lease long lost. `OutOfTime` refuses such a request, and also
botocore's retry of one. Queue attributes are looked up when they are first needed, and cached.
"""

from __future__ import annotations

import json
import math
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tarry.message.delivery import ASSUMED_VISIBILITY_TIMEOUT_SECONDS, QueueFacts
from tarry.sqs.refusals import (
    MAX_REQUEST_BYTES,
    NoAnswer,
    OutOfTime,
    error_code,
    is_denied,
    is_late,
    is_of_a_key,
    watch_tries,
)
from tarry.support.guards import generation
from tarry.support.values import PAGES, WARNING, QueueArn, Value, queue_arn
from tarry.world import CORE_SHARE, seconds_to_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from botocore.session import Session

    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.world import Event, World

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 1
READ_TIMEOUT_SECONDS = 5
TRIES = 2
LONGEST_REQUEST_SECONDS = TRIES * (CONNECT_TIMEOUT_SECONDS + READ_TIMEOUT_SECONDS) + 1  # a pause between the tries
ANSWER_SECONDS = 0.2  # the part of the time left that is reserved for returning the response
SHORTEST_SECONDS = 0.005  # no request begins with less: SQS might carry it out, but its answer would come too late
LOADING_ANSWER_SECONDS = 0.4
"""The same while boto3 is not imported yet: a slow import continues in its thread and slows the response."""
LOADING_ANSWER_CORE_SECONDS = 0.15  # the least of it, as CPU time: a small function has only a share of a core
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


def make_client(session: Session | None = None) -> Any:
    """Make an SQS client with short timeouts: a hanging request must not cost the batch its response."""
    from botocore.config import Config

    from tarry.support.clients import client_with

    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        retries={"total_max_attempts": TRIES, "mode": "standard"},
        # tarry has checked the parameters: validating them once more is a quarter of botocore's work on a request
        parameter_validation=False,
    )
    return client_with(config, "sqs", session)


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
        """Run jobs in parallel threads; yield the result or error of each, in order, while later jobs still run."""
        # A job that has not ended in a ``share`` of the time left, or shortly before the deadline, is abandoned.
        if len(jobs) <= 1 and self._seconds() == math.inf:
            yield from [result_of(job) for job in jobs]  # there is no deadline
            return
        if self._is_too_late:
            yield from [self._out_of_time() for _ in jobs]
            return
        if share < LOADING_SHARE and not self.invocation.world.is_loaded:
            share = LOADING_SHARE
        results: dict[int, T | Exception] = {}
        enough = min(self._seconds(), threading.TIMEOUT_MAX) * (1 - share)
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
            yield from map(self._without_thread, jobs)
            return
        for index, event in enumerate(ended):
            event.wait(max(0.0, min(self._seconds() - enough, threading.TIMEOUT_MAX)))
            yield results[index] if index in results else self._no_answer()

    def _without_thread(self, job: Callable[[], T]) -> T | Exception:
        """Run a job here, since the process may have no more threads, if the client's timeouts end it in time."""
        if self._seconds() > LONGEST_REQUEST_SECONDS:
            return result_of(job)
        return NoAnswer("the process could not start a thread for the request")

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
        if self.is_over:
            return -math.inf
        to_answer = ANSWER_SECONDS
        if not self.invocation.world.is_loaded:
            to_answer = max(LOADING_ANSWER_SECONDS, LOADING_ANSWER_CORE_SECONDS / CORE_SHARE)
        return self.invocation.time_left() - to_answer


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


KEPT_SECONDS = 900
FAILURE_KEPT_SECONDS = 30
LOOK_UP_SHARE = 1 / 3  # of the time left: a slow look-up must leave time for the messages

SOURCE_ATTRIBUTES = ("RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize")
TARGET_ATTRIBUTES = ("MaximumMessageSize",)

POLLER = "SQSPollerPolicy: {{QueueName: {queue}}}"
SENDER = "SQSSendMessagePolicy: {{QueueName: {queue}}}"
_READER = "Statement: {{Effect: Allow, Action: sqs:GetQueueAttributes, Resource: '{arn}'}}"
_OF_A_KEY = (
    "kms:Decrypt or kms:GenerateDataKey for the key",
    "Statement: {{Effect: Allow, Action: [kms:Decrypt, kms:GenerateDataKey], Resource: the ARN of its key}}",
)

TARGET_LIMIT = "get_queue_attributes of a dead-letter queue"
SEND_TO_ITSELF = "send_message_batch to the queue a message came from"

MISSING = {
    # permission, what happens without it, what to add to the function's Policies in a SAM template
    "change_message_visibility_batch": (
        "sqs:ChangeMessageVisibility",
        "failed messages come back when the queue's visibility timeout ends, not after their delay",
        POLLER,
    ),
    "delete_message_batch": (
        "sqs:DeleteMessage",
        "messages that were sent on are deleted by Lambda only, and exist twice if the function dies before that",
        POLLER,
    ),
    "get_queue_attributes": (
        "sqs:GetQueueAttributes",
        "its redrive policy is unknown, so messages that failed for good stay in the queue until SQS moves them",
        POLLER,
    ),
    TARGET_LIMIT: (
        "sqs:GetQueueAttributes",
        "its size limit is unknown, and 1 MiB is assumed",
        _READER,
    ),
    "send_message_batch": (
        "sqs:SendMessage",
        "messages that failed for good stay in their queue until SQS moves them, without a failure record",
        SENDER,
    ),
    SEND_TO_ITSELF: (
        "sqs:SendMessage",
        "messages that are deferred or sent again wait in place, where a deferral counts as an attempt",
        SENDER,
    ),
}


class Lookup(Value):
    """The answer to a look-up of a queue."""

    facts: QueueFacts
    size_limit: int | None  # its MaximumMessageSize in bytes
    error: Exception | None
    kept_at: float  # in epoch seconds


class Topology:
    """The cache of look-ups: one per world, shared by all invocations."""

    def __init__(self, _: World) -> None:
        self.lookups: dict[tuple[str, str], Lookup] = {}  # by ARN, and the first of the attributes asked for
        self.retentions: dict[str, int] = {}  # in seconds, the last known, however old: it hardly ever changes
        self.underway: dict[str, Event] = {}  # the look-ups in progress, by the queue's ARN
        self.lock = threading.Lock()


class Lookups:
    """The look-ups of one invocation; those that fail are logged."""

    def __init__(self, requests: Requests, log: Log) -> None:
        self.requests = requests
        self.log = log
        self._world = requests.invocation.world
        self._topology = self._world.keep(Topology)
        self._since = requests.invocation.started_at
        self._logged: set[str] = set()

    def url(self, queue: QueueArn) -> str:
        """Make a queue's URL from its ARN and the endpoint. Raises `ValueError` for a queue without a name."""
        if not queue.name:
            raise ValueError(f"{queue.text!r} is not the ARN of an SQS queue, so no request can be made for it")
        endpoint = client_of(self._world).meta.endpoint_url.rstrip("/")
        return f"{endpoint}/{queue.account}/{queue.name}"

    def source(self, queue: QueueArn) -> QueueFacts:
        """Return the facts of a source queue."""
        return self._checked(self.facts(queue), queue)

    def facts(self, queue: QueueArn) -> QueueFacts:
        """Return the facts of a source queue, and log nothing."""
        return (self._known(queue, SOURCE_ATTRIBUTES) or self._look_up(queue, SOURCE_ATTRIBUTES)).facts

    def known(self, queue: QueueArn) -> QueueFacts | None:
        """Return the facts of a source queue if that takes no request."""
        known = self._known(queue, SOURCE_ATTRIBUTES)
        return None if known is None else self._checked(known.facts, queue)

    def knows(self, queue: QueueArn) -> bool:
        """Return whether the facts of a source queue are known, so that `source` makes no request."""
        return self._known(queue, SOURCE_ATTRIBUTES) is not None

    def knows_size(self, queue: QueueArn) -> bool:
        """Return whether the size limit of a queue is known, so that `maximum_message_size` makes no request."""
        return self.knows(queue) or self._known(queue, TARGET_ATTRIBUTES) is not None

    def visibility_timeout(self, queue: QueueArn) -> int:
        """Return a queue's visibility timeout in seconds; SQS's default if it is unknown."""
        return self.source(queue).visibility_timeout or ASSUMED_VISIBILITY_TIMEOUT_SECONDS

    def maximum_message_size(self, queue: QueueArn) -> tuple[int, bool]:
        """Return a queue's size limit in bytes, and whether it is known (1 MiB is assumed otherwise)."""
        limit, error = self.size_limit(queue)
        if error is not None and not self.knows(queue):  # for a source queue, `source` has logged it
            self._warn_of_look_up(error, TARGET_LIMIT, queue, "Its size limit is unknown; 1 MiB is assumed.")
        return limit, error is None

    def size_limit(self, queue: QueueArn) -> tuple[int, Exception | None]:
        """Return a queue's size limit in bytes; 1 MiB with the error if the look-up failed. Log nothing."""
        known = self._known(queue, SOURCE_ATTRIBUTES) or self._known(queue, TARGET_ATTRIBUTES)
        lookup = known or self._look_up(queue, TARGET_ATTRIBUTES)
        return lookup.size_limit or MAX_REQUEST_BYTES, lookup.error

    def prepare(
        self,
        queue: QueueArn,
        then: Callable[[], None],
        target_of: Callable[[QueueFacts], QueueArn | None] | None = None,
    ) -> None:
        """Look a source queue up in a thread, and the queue that ``target_of`` returns for it; then call ``then``."""

        def work() -> None:
            try:
                facts = self._ask_once(queue, SOURCE_ATTRIBUTES).facts
                target = None if target_of is None else target_of(facts)
                if target is not None and not self.knows_size(target):
                    self._ask_once(target, TARGET_ATTRIBUTES)
            finally:
                then()

        if not start(self._world, work):  # `source` looks it up
            then()

    # requests

    def _look_up(self, queue: QueueArn, asked: tuple[str, ...]) -> Lookup:
        [answer] = self.requests.all([partial(self._ask_once, queue, asked)], share=LOOK_UP_SHARE)
        return answer if isinstance(answer, Lookup) else self._keep(queue, asked, {}, answer)

    def _ask_once(self, queue: QueueArn, asked: tuple[str, ...]) -> Lookup:
        """Look a queue up; if another thread is doing so, wait for it first."""
        topology = self._topology
        with topology.lock:
            other = topology.underway.get(queue.text)
            if other is None:
                if (known := self._known(queue, asked)) is not None:
                    return known
                topology.underway[queue.text] = underway = self._world.threads.event()
        if other is not None:
            other.wait()
            if (known := self._known(queue, asked)) is not None:
                return known
        answer = result_of(partial(self._ask, queue, asked))
        lookup = answer if isinstance(answer, Lookup) else self._keep(queue, asked, {}, answer)
        if other is None:
            del topology.underway[queue.text]
            underway.set()
        return lookup

    def _ask(self, queue: QueueArn, asked: tuple[str, ...]) -> Lookup:
        """Request the attributes; an answer that arrives too late for its invocation is cached for the next."""
        self.requests.check()  # before the URL, which takes a client
        answer = self.requests.call("get_queue_attributes", QueueUrl=self.url(queue), AttributeNames=list(asked))
        return self._keep(queue, asked, answer.get("Attributes", {}), None)

    # the cache

    def _known(self, queue: QueueArn, asked: tuple[str, ...]) -> Lookup | None:
        """Return a look-up that is cached for this invocation: attributes count until it ends."""
        known = self._topology.lookups.get((queue.text, asked[0]))
        if known is None:
            return None
        if known.error is None:
            is_current = known.kept_at + KEPT_SECONDS > self._since
        elif is_late(known.error):  # the time was lacking: it counts in its own invocation, the next one has more
            is_current = known.kept_at >= self._since
        else:
            is_current = known.kept_at + FAILURE_KEPT_SECONDS > self._world.clock.time()
        return known if is_current else None

    def _keep(
        self, queue: QueueArn, asked: tuple[str, ...], attributes: dict[str, str], error: Exception | None
    ) -> Lookup:
        """Cache an answer or an error, but not that there was no time to ask."""
        topology = self._topology
        if (retention := _whole(attributes.get("MessageRetentionPeriod"))) is not None:
            topology.retentions[queue.text] = retention
        facts = _facts(attributes, topology.retentions.get(queue.text), error)
        lookup = Lookup(facts, _whole(attributes.get("MaximumMessageSize")), error, self._world.clock.time())
        if not is_late(error) or isinstance(error, NoAnswer):
            topology.lookups[queue.text, asked[0]] = lookup
        return lookup

    # the log

    def warn(self, error: Exception, operation: str, queue: QueueArn) -> None:
        """Log a missing permission, once per cold start, if an error is caused by one."""
        if not is_denied(code := error_code(error)):
            return
        permission, consequence, policy = MISSING[operation]
        if is_of_a_key(code):
            permission, policy = _OF_A_KEY
        line = policy.format(queue=queue.name, arn=queue.text)
        text = f"The function lacks {permission} on {queue.name}: {consequence}. Add to its Policies: - {line}"
        self.log.once(self._world, "missing_permission", text)

    def _checked(self, facts: QueueFacts, queue: QueueArn) -> QueueFacts:
        """Log what is wrong with the facts of a queue, once; return them."""
        if facts.error is not None:
            consequence = "Its dead-letter queue and maxReceiveCount are unknown for now."
            self._warn_of_look_up(facts.error, "get_queue_attributes", queue, consequence)
        else:
            self._warn_of_max_receive_count(facts.max_receive_count, queue)
        return facts

    def _warn_of_max_receive_count(self, receives: int | None, queue: QueueArn) -> None:
        """Log once per cold start that the queue allows fewer deliveries than the consumer has attempts."""
        attempts = self.requests.invocation.max_attempts_of(queue.name)
        if receives is None or attempts is None or receives >= attempts:
            return
        enough = f"BatchSize * {attempts} + 5" if queue.is_fifo else f"{2 * attempts + 5} (2 * max_attempts + 5)"
        text = (
            f"maxReceiveCount of {queue.name} is {receives}, below max_attempts {attempts}. tarry dead-letters a "
            f"message that fails at its delivery {receives}, since SQS would then move it without a failure record. "
            f"Set maxReceiveCount to {enough}; see {PAGES}/guides/retries.md."
        )
        self.log.once(self._world, "max_receive_count_low", text)

    def _warn_of_look_up(self, error: Exception, operation: str, queue: QueueArn, consequence: str) -> None:
        self.warn(error, operation, queue)
        if not is_denied(error_code(error)) and f"{operation} {queue}" not in self._logged:
            self._logged.add(f"{operation} {queue}")
            text = f"The attributes of {queue.name or 'a queue without a name'} cannot be read ({error}). {consequence}"
            self.log.problem("look_up_failed", text, level=WARNING)


def _facts(attributes: dict[str, str], retention: int | None, error: Exception | None) -> QueueFacts:
    try:
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = redrive.get("deadLetterTargetArn")
        return QueueFacts(
            dead_letter=queue_arn(target) if target else None,
            max_receive_count=_whole(redrive.get("maxReceiveCount")),
            visibility_timeout=_whole(attributes.get("VisibilityTimeout")),
            retention=retention,
            error=error,
        )
    except (AttributeError, TypeError, ValueError) as unreadable:
        return QueueFacts(error=unreadable)


def _whole(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None
