"""A handler that succeeds or fails according to the message id, and the ways to make a consumer of any."""

import asyncio
from collections.abc import Callable
from typing import Any

from tarry import Batch, Consumer, Fixed, Message, Reject, batch_consumer, consumer
from tarry.world import current


def behave(message: Message) -> None:
    """Succeed on ``ok-1``, fail on ``retry-1``, reject ``dead-1``, end the batch on ``exit-1``."""
    match message.delivery_id.partition("-")[0]:
        case "retry":
            raise ValueError("again")
        case "dead":
            raise Reject("no")
        case "exit":
            raise SystemExit


async def behave_async(message: Message) -> None:
    behave(message)


def plain() -> Consumer[Any]:
    return consumer(backoff=Fixed(60))(behave)


def awaiting(handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an async function that awaits something first."""

    async def handler(given: Any) -> Any:
        await asyncio.sleep(0)
        return handle(given)

    return handler


def _of_each(handle: Callable[[Message], Any]) -> Callable[[Batch], None]:
    def handler(batch: Batch) -> None:
        for message in batch:
            try:
                handle(message)
            except BaseException as error:  # noqa: BLE001 as a bulk handler reports item by item
                message.fail(error)

    return handler


_one: Any = consumer
_batch: Any = batch_consumer
WAYS: dict[str, Callable[..., Consumer[Any]]] = {
    "one by one": lambda handle, **settings: _one(**settings)(handle),
    "threads": lambda handle, **settings: _one(concurrency=3, **settings)(handle),
    "async": lambda handle, **settings: _one(**settings)(awaiting(handle)),
    "tasks": lambda handle, **settings: _one(concurrency=3, **settings)(awaiting(handle)),
    "batch": lambda handle, **settings: _batch(**settings)(_of_each(handle)),
    "async batch": lambda handle, **settings: _batch(**settings)(awaiting(_of_each(handle))),
}
"""The ways to make a consumer of a function of a message, with settings. That of a batch gives errors to `fail`."""


def timed(
    way: str,
    begin: Callable[[Message], float | None],
    end: Callable[[Message], None] = lambda _: None,
    **settings: Any,
) -> Consumer[Any]:
    """Return a consumer whose handler calls ``begin``, takes as many seconds as it returns, and calls ``end``.

    ``way`` is "sync", "async", "async that blocks" or "batch"; threads and tasks follow from the settings.
    """

    def handle(message: Message) -> None:
        if seconds := begin(message):
            current().clock.sleep(seconds)
        end(message)

    async def handle_async(message: Message) -> None:
        await asyncio.sleep(0)
        if seconds := begin(message):
            await current().clock.asleep(seconds)
        end(message)

    async def block(message: Message) -> None:
        handle(message)

    def handle_all(batch: Batch) -> None:
        for message in batch:
            handle(message)

    if way == "batch":
        return _batch(**settings)(handle_all)  # type: ignore[no-any-return]
    return _one(**settings)({"sync": handle, "async": handle_async}.get(way, block))  # type: ignore[no-any-return]
