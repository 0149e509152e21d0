"""Queues with a handler and messages in a sandbox."""

from typing import Any

from tarry.testing import Sandbox

OF_THE_MAPPING = {"batch_size", "window", "timeout", "max_concurrency", "filters", "reports_failures"}
"""The settings that `Sandbox.connect` takes."""


def work(
    sandbox: Sandbox,
    handler: Any,
    *bodies: Any,
    queue: str = "orders",
    dead_letter: str | None = "",
    dead_letters: dict[str, Any] | None = None,
    groups: str = "",
    send: dict[str, Any] | None = None,
    **settings: Any,
) -> list[str]:
    """Make a queue, connect the handler, and send messages; return their ids.

    Args:
        sandbox: The sandbox.
        handler: The handler.
        bodies: The bodies of the messages.
        queue: The name of the queue.
        dead_letter: The dead-letter queue, by default named after the queue; None for no dead-letter queue.
        dead_letters: The settings of the dead-letter queue.
        groups: The group of each message of a FIFO queue, a character each; by default all are in one group.
        send: What the messages have besides their bodies.
        settings: The settings of the queue and of its mapping.
    """
    name, is_fifo, _ = queue.partition(".fifo")
    dlq = f"{name}-dlq{is_fifo}" if dead_letter == "" else dead_letter
    if dead_letters is not None and dlq is not None:
        sandbox.queue(dlq, **dead_letters)
    connect = {key: settings.pop(key) for key in OF_THE_MAPPING & settings.keys()}
    sandbox.queue(queue, dead_letter=dlq, **settings)
    sandbox.connect(handler, queue, **connect)
    group = groups or "g" * len(bodies)
    return [
        sandbox.send(queue, body, group_id=group[number] if is_fifo else None, **(send or {}))
        for number, body in enumerate(bodies)
    ]
