"""Queue attributes (size limits, redrive policies), looked up when first needed and cached; queue URLs."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING

from tarry.message.queue_facts import QueueFacts
from tarry.sqs.client import client_of, result_of
from tarry.sqs.limits import MAX_REQUEST_BYTES
from tarry.sqs.refusals import NoAnswer, is_late
from tarry.support.values import QueueArn, Value, queue_arn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.sqs.client import Requests
    from tarry.world import Event, World

KEPT_SECONDS = 900
FAILURE_KEPT_SECONDS = 30
LOOK_UP_SHARE = 1 / 3  # of the time left: a slow look-up must leave time for the messages

SOURCE_ATTRIBUTES = ("RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize")
TARGET_ATTRIBUTES = ("MaximumMessageSize",)

Key = tuple[str, str]
"""A queue's ARN, and the first of the attributes that were asked for."""


class Lookup(Value):
    """The attributes of a queue, or the error of the request for them."""

    attributes: dict[str, str]
    error: Exception | None
    until: float


class Topology:
    """The cache of queue look-ups: one per world, shared by all invocations."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lookups: dict[Key, Lookup] = {}
        self._retentions: dict[str, int] = {}
        """In seconds, the last known, however old: a queue's retention hardly ever changes."""
        self._facts: dict[str, tuple[Lookup, QueueFacts]] = {}
        """The facts parsed from the last look-up of each source queue."""
        self._underway: dict[str, Event] = {}
        """The look-ups in progress, by the queue's ARN."""
        self._lock = threading.Lock()

    def source(self, queue: QueueArn, requests: Requests) -> QueueFacts:
        """Return the facts of a source queue."""
        since = requests.invocation.started_at
        return self.known(queue, since) or self._facts_in(self._look_up(queue, SOURCE_ATTRIBUTES, requests), queue)

    def known(self, queue: QueueArn, since: float) -> QueueFacts | None:
        """Return the facts of a source queue if they are cached, for an invocation that began at ``since``."""
        known = self._known(queue, SOURCE_ATTRIBUTES, since)
        return None if known is None else self._facts_in(known, queue)

    def knows_size(self, queue: QueueArn, since: float) -> bool:
        """Return whether the size limit of a queue is cached, for an invocation that began at ``since``."""
        return any(self._known(queue, asked, since) is not None for asked in (SOURCE_ATTRIBUTES, TARGET_ATTRIBUTES))

    def _facts_in(self, lookup: Lookup, queue: QueueArn) -> QueueFacts:
        known = self._facts.get(queue.text)
        if known is None or known[0] is not lookup:
            known = self._facts[queue.text] = lookup, self._read(lookup, queue)
        return known[1]

    def _read(self, lookup: Lookup, queue: QueueArn) -> QueueFacts:
        try:
            return _facts(lookup, self._retentions.get(queue.text))
        except (AttributeError, TypeError, ValueError) as error:
            return QueueFacts(error=error)

    def prepare(
        self,
        queue: QueueArn,
        requests: Requests,
        then: Callable[[], None],
        target_of: Callable[[QueueFacts], QueueArn | None] | None = None,
    ) -> None:
        """Start the look-up of a source queue in a thread of its own; call ``then`` when it has ended.

        ``target_of``: returns the queue whose size limit is looked up as well, from the facts of the source queue.
        """

        def work() -> None:
            try:
                facts = self._facts_in(self._ask_once(queue, SOURCE_ATTRIBUTES, requests), queue)
                target = None if target_of is None else target_of(facts)
                if target is not None and not self.knows_size(target, requests.invocation.started_at):
                    self._ask_once(target, TARGET_ATTRIBUTES, requests)
            finally:
                then()

        try:
            self._world.threads.start(work)
        except RuntimeError:  # the process may have no more threads: `source` looks it up
            then()

    def maximum_message_size(self, queue: QueueArn, requests: Requests) -> tuple[int, Exception | None]:
        """Return a queue's size limit in bytes; 1 MiB with the error if the look-up failed."""
        since = requests.invocation.started_at
        known = self._known(queue, SOURCE_ATTRIBUTES, since) or self._known(queue, TARGET_ATTRIBUTES, since)
        lookup = known or self._look_up(queue, TARGET_ATTRIBUTES, requests)
        return _whole(lookup.attributes.get("MaximumMessageSize")) or MAX_REQUEST_BYTES, lookup.error

    def url(self, queue: QueueArn) -> str:
        """Make a queue's URL from its ARN and the endpoint. Raises `ValueError` for a queue without a name."""
        if not queue.name:
            raise ValueError(f"{queue.text!r} is not the ARN of an SQS queue, so no request can be made for it")
        endpoint = client_of(self._world).meta.endpoint_url.rstrip("/")
        return f"{endpoint}/{queue.account}/{queue.name}"

    def _look_up(self, queue: QueueArn, attributes: tuple[str, ...], requests: Requests) -> Lookup:
        [answer] = requests.all([partial(self._ask_once, queue, attributes, requests)], share=LOOK_UP_SHARE)
        return answer if isinstance(answer, Lookup) else self._keep_failure(queue, attributes, answer)

    def _ask_once(self, queue: QueueArn, attributes: tuple[str, ...], requests: Requests) -> Lookup:
        """Look a queue up; if another thread is doing so, wait for it first."""
        since = requests.invocation.started_at
        with self._lock:
            other = self._underway.get(queue.text)
            if other is None:
                if (known := self._known(queue, attributes, since)) is not None:
                    return known
                self._underway[queue.text] = underway = self._world.threads.event()
        if other is not None:
            other.wait()
            if (known := self._known(queue, attributes, since)) is not None:
                return known
        answer = result_of(partial(self._ask, queue, attributes, requests))
        lookup = self._keep_failure(queue, attributes, answer) if isinstance(answer, Exception) else answer
        if other is None:
            del self._underway[queue.text]
            underway.set()
        return lookup

    def _ask(self, queue: QueueArn, attributes: tuple[str, ...], requests: Requests) -> Lookup:
        """Request the attributes; an answer that arrives too late for its invocation is cached for the next."""
        requests.check()  # before the URL, which takes a client
        answer = requests.call("get_queue_attributes", QueueUrl=self.url(queue), AttributeNames=list(attributes))
        found = answer.get("Attributes", {})
        if attributes is SOURCE_ATTRIBUTES and (retention := _whole(found.get("MessageRetentionPeriod"))) is not None:
            self._retentions[queue.text] = retention
        return self._keep((queue.text, attributes[0]), Lookup(found, None, self._until(KEPT_SECONDS)))

    def _keep_failure(self, queue: QueueArn, attributes: tuple[str, ...], error: Exception) -> Lookup:
        failed = Lookup({}, error, self._until(FAILURE_KEPT_SECONDS))
        was_not_sent = is_late(error) and not isinstance(error, NoAnswer)
        return failed if was_not_sent else self._keep((queue.text, attributes[0]), failed)

    def _known(self, queue: QueueArn, attributes: tuple[str, ...], since: float) -> Lookup | None:
        """Return a look-up that is cached for an invocation that began at ``since``.

        Attributes count until it ends, so that none are asked for again while it settles its messages. A look-up for
        which the time was lacking counts only in its own invocation: the next one has more time for it.
        """
        known = self._lookups.get((queue.text, attributes[0]))
        if known is None:
            return None
        if known.error is None:
            return known if known.until > since else None
        kept_at = known.until - FAILURE_KEPT_SECONDS
        is_current = kept_at >= since if is_late(known.error) else known.until > self._world.clock.time()
        return known if is_current else None

    def _keep(self, key: Key, lookup: Lookup) -> Lookup:
        self._lookups[key] = lookup
        return lookup

    def _until(self, seconds: float) -> float:
        return self._world.clock.time() + seconds


def _facts(lookup: Lookup, last_known_retention: int | None) -> QueueFacts:
    redrive = json.loads(lookup.attributes.get("RedrivePolicy") or "{}")
    target = redrive.get("deadLetterTargetArn")
    retention = _whole(lookup.attributes.get("MessageRetentionPeriod"))
    return QueueFacts(
        dead_letter=queue_arn(target) if target else None,
        max_receive_count=_whole(redrive.get("maxReceiveCount")),
        visibility_timeout=_whole(lookup.attributes.get("VisibilityTimeout")),
        retention=last_known_retention if retention is None else retention,
        error=lookup.error,
    )


def _whole(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None
