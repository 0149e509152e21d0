"""Dead letters in a sandbox, and what the operations of `tarry.failed` do with them."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tarry import Fixed, Message, consumer, failed
from tarry.failed import Inspection, Result, Routes
from tarry.testing import Sandbox
from tests.unit.failed.dead_letters import envelope_of


class Gateway:
    """A handler that fails until its downstream service is up."""

    def __init__(self, sandbox: Sandbox, queue: str = "orders", **settings: Any) -> None:
        self.is_down = True
        self.done: list[Any] = []
        self.seen: list[Message] = []

        @consumer(**{"max_attempts": 2, "backoff": Fixed(10), **settings})
        def handler(message: Message) -> None:
            self.seen.append(message)
            if self.is_down:
                raise ConnectionError(f"down, attempt {message.attempt}")
            self.done.append(message.json()["id"])

        sandbox.queue(queue, dead_letter=dlq_of(queue))
        sandbox.connect(handler, queue)


def dlq_of(queue: str) -> str:
    name, fifo, _ = queue.partition(".fifo")
    return f"{name}-dlq{fifo}"


def dead_lettered(sandbox: Sandbox, count: int = 3, queue: str = "orders", **more: Any) -> list[str]:
    """Send messages that are dead-lettered; return their ids."""
    ids = [sandbox.send(queue, {"id": index}, **more) for index in range(count)]
    sandbox.run()
    return ids


def put(sandbox: Sandbox, body: str = "{}", envelope: Any = None, queue: str = "orders-dlq", **more: Any) -> str:
    """Send a message to the dead-letter queue; return its SQS message id."""
    own = {} if envelope is None else {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
    sent = {"MessageBody": body, "MessageAttributes": {**more.pop("attributes", {}), **own}, **more}
    return str(sandbox.sqs.call("SendMessage", {"QueueUrl": sandbox.sqs.url(queue), **sent})["MessageId"])


def fill(sandbox: Sandbox, count: int, groups: int = 1, body: str = "{}", **settings: Any) -> None:
    """Make orders, and dead letters of it from id-0 on with the fingerprints of so many groups in turn."""
    sandbox.queue("orders", dead_letter="orders-dlq", **settings)
    for index in range(count):
        put(sandbox, body, envelope_of(body, f"id-{index}", fingerprint=f"group{index % groups}"))


def there(sandbox: Sandbox, queue: str = "orders-dlq") -> list[str]:
    """Return the ids of the messages in a queue, sorted."""
    return sorted(each.id for each in sandbox.messages(queue))


def held(sandbox: Sandbox, queue: str = "orders-dlq") -> int:
    """Return the number of dead letters in flight."""
    return sum(each.invisible_seconds > 0 for each in sandbox.messages(queue))


def places(sandbox: Sandbox) -> tuple[int, int]:
    """Return the numbers of messages in the queue and the dead-letter queue; all dead letters must be visible."""
    assert held(sandbox) == 0
    return len(sandbox.messages("orders")), len(sandbox.messages("orders-dlq"))


def outcomes(results: Iterable[Result]) -> dict[str, int]:
    return dict(Counter(result.outcome for result in results))


def retried(
    inspection: Inspection,
    *ids: str,
    where: tuple[str, ...] = (),
    group: str | None = None,
    to: str | None = None,
    known: tuple[str, ...] = (),
    into: list[Result] | None = None,
    **options: Any,
) -> list[Result]:
    """Retry the selected dead letters, without a selection all; also after an exception, ``into`` has the results."""
    results = [] if into is None else into
    selection = failed.select(ids, where, group=group, everything=not (ids or where or group))
    results.extend(failed.retry(inspection, selection, Routes(inspection.queue, to, known), **options))
    return results


def retry(*ids: str, dlq: str = "orders-dlq", **options: Any) -> list[Result]:
    with failed.opened(dlq) as inspection:
        return retried(inspection, *ids, **options)


def remove(*ids: str, where: tuple[str, ...] = ()) -> list[Result]:
    with failed.opened("orders-dlq") as inspection:
        return list(failed.remove(inspection, failed.select(ids, where, everything=not ids and not where)))
