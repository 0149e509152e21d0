"""The SQS operations on queues: create, find, configure, tag, purge, delete, and message move tasks."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.errors import SqsError, check_range, missing
from tarry.tools.simulator.sqs.permissions import with_permission, without_permission
from tarry.tools.simulator.sqs.settings import unknown_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.tools.simulator.sqs.move_tasks import MoveTasks
    from tarry.tools.simulator.sqs.queue import SimulatedQueue
    from tarry.tools.simulator.sqs.queue_context import QueueContext
    from tarry.tools.simulator.sqs.registry import Registry

Request = dict[str, Any]
Answer = dict[str, Any]

ATTRIBUTES = frozenset(
    """
    ApproximateNumberOfMessages ApproximateNumberOfMessagesDelayed ApproximateNumberOfMessagesNotVisible
    ContentBasedDeduplication CreatedTimestamp DeduplicationScope DelaySeconds FifoQueue FifoThroughputLimit
    KmsDataKeyReusePeriodSeconds KmsMasterKeyId LastModifiedTimestamp MaximumMessageSize MessageRetentionPeriod Policy
    QueueArn ReceiveMessageWaitTimeSeconds RedriveAllowPolicy RedrivePolicy SqsManagedSseEnabled VisibilityTimeout
    """.split()
)


class QueueRequests:
    """The operations on queues, by name. Each raises `SqsError` for a request that SQS would refuse."""

    def __init__(self, registry: Registry, context: QueueContext, tasks: MoveTasks) -> None:
        self._registry = registry
        self._context = context
        self._tasks = tasks
        self.operations: dict[str, Callable[[Request], Answer]] = {
            "AddPermission": self._add_permission,
            "RemovePermission": self._remove_permission,
            "CreateQueue": self._create,
            "DeleteQueue": self._delete,
            "GetQueueAttributes": self._attributes,
            "GetQueueUrl": self._url,
            "ListDeadLetterSourceQueues": self._sources,
            "ListQueues": self._list,
            "ListQueueTags": self._tags,
            "PurgeQueue": self._purge,
            "SetQueueAttributes": self._set_attributes,
            "TagQueue": self._tag,
            "UntagQueue": self._untag,
            "StartMessageMoveTask": self._start_move,
            "ListMessageMoveTasks": self._list_moves,
            "CancelMessageMoveTask": self._cancel_move,
        }

    def _queue(self, request: Mapping[str, Any]) -> SimulatedQueue:
        return self._registry.at(request["QueueUrl"])

    def _create(self, request: Request) -> Answer:
        queue = self._registry.create(request["QueueName"], request.get("Attributes") or {}, self._context)
        queue.tags.update(request.get("tags") or {})
        self._record_settings(queue)
        return {"QueueUrl": self._registry.url(queue.name)}

    def _delete(self, request: Request) -> Answer:
        self._registry.delete(self._queue(request), self._context.now())
        return {}

    def _url(self, request: Request) -> Answer:
        queue = self._registry.owned_by(request.get("QueueOwnerAWSAccountId"), request["QueueName"])
        return {"QueueUrl": self._registry.url(queue.name)}

    def _attributes(self, request: Request) -> Answer:
        queue = self._queue(request)
        asked = request.get("AttributeNames") or []
        for name in asked:
            if name != "All" and name not in ATTRIBUTES:
                raise unknown_attribute(name)
        if not asked:
            return {}
        attributes = self._registry.attributes_of(queue)
        found = {name: value for name, value in attributes.items() if "All" in asked or name in asked}
        return {"Attributes": found} if found else {}

    def _set_attributes(self, request: Request) -> Answer:
        return self._change(self._queue(request), request["Attributes"])

    def _add_permission(self, request: Request) -> Answer:
        queue = self._queue(request)
        return self._change(queue, {"Policy": with_permission(queue.settings.texts.get("Policy"), queue.arn, request)})

    def _remove_permission(self, request: Request) -> Answer:
        queue = self._queue(request)
        return self._change(queue, {"Policy": without_permission(queue.settings.texts.get("Policy"), request["Label"])})

    def _change(self, queue: SimulatedQueue, attributes: Mapping[str, str]) -> Answer:
        self._registry.change(queue, attributes, self._context.now())
        self._record_settings(queue)
        return {}

    def _record_settings(self, queue: SimulatedQueue) -> None:
        self._context.history.record("queue_configured", queue=queue.name, attributes=dict(queue.settings.texts))

    def _list(self, request: Request) -> Answer:
        prefix = request.get("QueueNamePrefix") or ""
        urls = [self._registry.url(queue.name) for queue in self._registry if queue.name.startswith(prefix)]
        urls, token = page(urls, request)
        return {**({"QueueUrls": urls} if urls else {}), **token}

    def _sources(self, request: Request) -> Answer:
        sources = self._registry.sources_of(self._queue(request).arn)
        urls, token = page([self._registry.url(queue.name) for queue in sources], request)
        return {"queueUrls": urls, **token}

    def _purge(self, request: Request) -> Answer:
        self._queue(request).purge()
        return {}

    # tags

    def _tag(self, request: Request) -> Answer:
        if not request["Tags"]:
            raise missing("Tags")
        self._queue(request).tags.update(request["Tags"])
        return {}

    def _untag(self, request: Request) -> Answer:
        tags = self._queue(request).tags
        for key in request["TagKeys"]:
            tags.pop(key, None)
        return {}

    def _tags(self, request: Request) -> Answer:
        tags = self._queue(request).tags
        return {"Tags": dict(tags)} if tags else {}

    # move tasks

    def _start_move(self, request: Request) -> Answer:
        sources = self._registry.sources_of(request["SourceArn"])
        return {"TaskHandle": self._tasks.start(request, sources)}

    def _list_moves(self, request: Request) -> Answer:
        return {"Results": self._tasks.list(request["SourceArn"], request.get("MaxResults", 1))}

    def _cancel_move(self, request: Request) -> Answer:
        return {"ApproximateNumberOfMessagesMoved": self._tasks.cancel(request["TaskHandle"])}


MAX_QUEUES_PER_PAGE = 1000


def page(urls: list[str], request: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the requested page, and the token for the next page; SQS makes a token only if MaxResults was given."""
    start = _read_token(request["NextToken"]) if request.get("NextToken") else 0
    max_results = request.get("MaxResults")
    if max_results is not None:
        check_range(max_results, "MaxResults", 1, MAX_QUEUES_PER_PAGE)
    end = start + (MAX_QUEUES_PER_PAGE if max_results is None else max_results)
    is_more = max_results is not None and end < len(urls)
    return urls[start:end], ({"NextToken": b64encode(b"%d" % end).decode()} if is_more else {})


def _read_token(token: str) -> int:
    try:
        return int(b64decode(token, validate=True))
    except (NotBase64, ValueError):
        raise SqsError("InvalidParameterValue", "Invalid or expired next token.") from None
